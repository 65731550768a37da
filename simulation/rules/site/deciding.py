"""What Slicewise does on a simulated site: admits jobs, lends, moves jobs and sets priorities."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf

from slicewise.cluster.language.jobs import WAITING, JobState, JobView, NodeView, RunOfJob
from slicewise.cluster.language.slurm.interface import JobChange
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.services.on_model import ServicesOnModel
from slicewise.simulation.rules.site.admission import Refused, SiteAdmission
from slicewise.simulation.rules.site.index import ToldIndex
from slicewise.simulation.rules.site.node_cuts import shapes_node
from slicewise.simulation.rules.site.past_requests import Replay
from slicewise.simulation.rules.site.past_use import EarlierRun
from slicewise.simulation.rules.site.plans import SlicewisePlan
from slicewise.simulation.rules.site.priorities import PriorityRules, SitePriorities
from slicewise.simulation.rules.site.rounds import QuotaRounds, SiteRound
from slicewise.simulation.rules.site.spare_budgets import SpareBudgets
from slicewise.simulation.rules.slurm_model.job_records import EndedRun
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding, recorded
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority_changes import UPDATES_PER_S
from slicewise.slurm_plugin.rules.admission.qos_switch import TreeMoves, moves, tree_moves
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.free_instances import is_usable
from slicewise.slurm_plugin.rules.common.qos_names import holder, holder_of, is_borrowed
from slicewise.slurm_plugin.rules.limits.budget_parts import Runs
from slicewise.slurm_plugin.rules.quota.attainable import Attainable, attainable
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import capacity
from slicewise.slurm_plugin.rules.quota.standings import Standing, limits_by_qos
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.round.barred import NOTHING_BARRED, barred
from slicewise.slurm_plugin.rules.round.standstill import (
    PASSED_OVER_S,
    Queued,
    first_until_s,
    standing_still,
    stuck,
)
from slicewise.slurm_plugin.rules.services.hold_back import about_to_start
from slicewise.slurm_plugin.rules.services.slot_quotas import SlotQuotas
from slicewise.slurm_plugin.rules.services.state import Observation


class SlicewiseOnModel:
    """Slicewise's decisions, applied to the model of Slurm.

    Attributes:
        services: the plan's services. Whoever drives this lets them advance after the model.
        rounds: rounds of quotas so far.
    """

    def __init__(
        self,
        by: SlicewisePlan,
        cluster: SimulatedCluster,
        model: SlurmModel,
        earlier: Iterable[EarlierRun] = (),
    ) -> None:
        """``earlier``: what ran before the beginning."""
        self._by, self._model = by, model
        settings, now_s = by.settings, model.now_s
        self._partitions, self._costs = frozenset(settings.cluster.partitions), settings.costs
        self._rounds = QuotaRounds(by, cluster, now_s)
        self._admission = SiteAdmission(settings)
        rules = PriorityRules(
            formula=formula_of(settings.priority),
            costs=settings.costs,
            half_life_s=settings.priority.half_life_s,
            updates_per_s=UPDATES_PER_S,
            counts_past=settings.lending.past_use,
        )
        held = (run.holding for run in earlier if run.partition in self._partitions)
        self._priorities = SitePriorities(rules, recorded(held, now_s, rules.half_life_s))
        self._shapes = shapes_node(cluster)
        # What jobs held at the last look, of which jobs, and what they were when none had to move.
        self._there = jobs_by_holder((), self._partitions, self._costs, settings.models)
        self._held_of = tuple[JobView, ...]()
        self._settled: tuple[Sequence[JobView], Policy] | None = None
        self._trees: Mapping[str, TreeMoves] = {}
        self._standings: Mapping[str, Standing] = {}
        self._spare = SpareBudgets({}, {}, Runs(), None)
        self._barred = NOTHING_BARRED
        self._told = (model.jobs, self._barred, model.jobs)
        self._copies = ToldIndex()
        self._still_since_s: Mapping[Queued, float] = {}
        self._first_until_s: Mapping[int, float] = {}
        self._slow_due_s = now_s
        self._ended: list[Holding] = []
        nothing = SlotQuotas({}, Attainable({}, {}, {}), {}, self._partitions, self._costs)
        services = (service.since(now_s) for service in by.services)
        self.services = ServicesOnModel(
            *(model, services, nothing),
            every_s=by.turn_s,
            calm_s=by.calm_s,
            memory_mib=settings.memory_mib,
        )
        self._ended_runs: list[EndedRun] = []
        self._has_requeued = False
        self.rounds = 0

    @property
    def recall_due_s(self) -> float | None:
        """When the grace of the oldest recall is over; None without recalls."""
        called_s = min((recall.called_s for recall in self._rounds.recalls), default=None)
        return None if called_s is None else called_s + self._by.settings.lending.grace_s

    @property
    def regular_due_s(self) -> float:
        """When what the last round left undone is due; inf if it left nothing."""
        return self._rounds.regular_due_s

    @property
    def passed_over_due_s(self) -> float:
        """When a job will have stood still for so long that it counts as passed over; or inf."""
        dues = (since_s + PASSED_OVER_S for since_s in self._still_since_s.values())
        return min((due_s for due_s in dues if due_s >= self._model.now_s), default=inf)

    @property
    def takes_back(self) -> bool:
        """Whether a slot waits for what its tenant has lent, or slots wait for a lender for which
        replicas went, or a lender for what batch jobs leave: the daemon looks at all at each turn.
        """
        return (
            self._has_requeued
            or self.services.evictions.has_waiting
            or any(
                slot.state == "released" and not slot.is_borrowed
                for view in self.services.views
                for slot in view.slots
            )
        )

    @property
    def shares(self) -> Mapping[str, float]:
        """The share term of each tenant's priority, as of the last round."""
        return self._priorities.shares

    def policy_at(self, now_s: float) -> Policy:
        """The quotas in force at a moment."""
        return self._rounds.policy_at(now_s)

    def admit(self, request: ModelRequest) -> ModelRequest | Refused:
        """What admission makes of a submission."""
        return self._admission.decided(request, self._jobs_of(request.account))

    def budgets_let(self, jobs: Iterable[Replay]) -> bool:
        """Whether budgets let all of these jobs start for sure, by the limits of any moment.

        The jobs are about to be submitted: what they may take is no longer to spare.
        """
        # Each job claims its part, whatever becomes of the others.
        verdicts = [self._spare.lets(job.request.account, _minutes(job)) for job in jobs]
        return all(verdicts)

    def note(self, job_id: int, request: ModelRequest) -> None:
        """Note the id of a job that was submitted as admission had it."""
        self._priorities.note(job_id, request.site_factor)

    def _jobs_of(self, tenant: str) -> list[JobView]:
        """The tenant's jobs as they are now."""
        return [job for job in self._model.jobs if holder_of(job) == tenant]

    def ended(self, run: EndedRun) -> None:
        """Note a run that has ended since the last round: its account has used that much."""
        self._ended_runs.append(run)
        if run.start_s is not None and run.partition in self._partitions:
            cost = run_cost(run.gpus, self._costs)
            tenant = holder(run.account, run.qos)
            self._ended.append(Holding(tenant, cost, run.start_s, run.end_s))

    def _jobs(self) -> tuple[JobView, ...]:
        """The jobs as quota is decided for them."""
        jobs, (jobs_told, by, told) = self._model.jobs, self._told
        if jobs is not jobs_told or self._barred is not by:
            told = self._copies.look(jobs, self._barred.told(jobs))
            self._told = jobs, self._barred, told
        return told

    def _follow_bars(self, policy: Policy, now_s: float) -> None:
        """Remember which jobs quota alone does not start."""
        usable = frozenset(node.name for node in self._model.nodes if is_usable(node))
        self._barred = barred(
            self._barred, self._holdings(), policy, now_s=int(now_s), usable=usable
        )

    def _holdings(self, jobs: tuple[JobView, ...] | None = None) -> JobsByHolder:
        """What jobs hold now; most of them have not changed since the last time."""
        jobs = self._model.jobs if jobs is None else jobs
        if jobs is not self._held_of:
            self._there, self._held_of = self._there.at_look(jobs, self._partitions), jobs
        return self._there

    def _follow_use(self, policy: Policy, by_holder: JobsByHolder, now_s: float) -> None:
        """Count what tenants have used since the last round."""
        since_s, others = self._priorities.since_s, self._ended
        # Most runs go on: few are to be taken away from what all hold.
        held = Counter(by_holder.held.by_tenant)
        for job, cost, _ in [
            run
            for run in by_holder.held.priced
            if run.job.state is not JobState.RUNNING or (run.job.start_s or 0) > since_s
        ]:
            tenant = holder_of(job)
            held[tenant] -= cost
            if job.state is JobState.RUNNING:
                others.append(Holding(tenant, cost, job.start_s or 0, None))
        self._priorities.follow(policy, +held, others, now_s)
        self._ended = []

    def look(self) -> bool:
        """Move jobs between their tenant's two QOS; return whether any moved."""
        model = self._model
        jobs = self._jobs()
        # Most jobs run: they need no call.
        if not any(waits_of(job).for_quota for job in jobs if job.state in WAITING):
            return False
        policy, settled = self._rounds.policy_at(model.now_s), self._settled
        if settled is not None and jobs is settled[0] and policy is settled[1]:
            return False
        by_holder = self._holdings(jobs)
        self._trees = tree_moves(policy, by_holder, self._standings, self._trees)
        moves_due = moves(policy, by_holder, self._standings, trees=self._trees)
        self._settled = None if moves_due else (jobs, policy)
        for target, name in moves_due.items():
            model.update(target, JobChange(qos=name))
        return bool(moves_due)

    def round(self) -> None:
        """Look at Slurm, and do what the daemon's loops would do: move jobs, lend, set limits."""
        model, now_s = self._model, self._model.now_s
        policy = self._rounds.policy_at(now_s)
        self.look()
        self._follow_bars(policy, now_s)
        jobs = self._jobs()
        by_holder = self._holdings(jobs)
        nodes = (*model.nodes, *self._shapes)
        self._follow_use(policy, by_holder, now_s)
        is_slow_turn = now_s >= self._slow_due_s
        if is_slow_turn:
            self._slow_due_s = now_s + self._by.priority_s
        self._follow_standstill(by_holder, nodes, now_s)
        done = self._rounds.round(
            now_s,
            jobs,
            nodes,
            self.services.views,
            by_holder=by_holder,
            evicting=self.services.evictions.ending,
            ended=self._ended_runs,
            stuck=stuck(self._still_since_s, now_s),
            may_requeue=self._may_requeue(by_holder),
            kill_wait_s=self._model.kill_wait_s,
            lately=self._priorities.lately,
        )
        self._ended_runs.clear()
        self._standings, self._spare = done.standings, done.spare
        for name, qos in done.qos.items():
            model.set_qos(name, qos)
        for name, account in done.accounts.items():
            model.set_account(name, account)
        seen = Observation(now_s, jobs, nodes, (), {})
        self._admission.follow(
            done.policy, self._rounds.ledger.highest, self._priorities.shares, seen
        )
        self._requeue(done.plan.reclaim.requeues)
        self._follow_services(done, jobs, nodes)
        self._follow_priorities(now_s, is_slow_turn=is_slow_turn)
        self.rounds += 1

    def _may_requeue(self, by_holder: JobsByHolder) -> frozenset[RunOfJob]:
        """The batch jobs that may be requeued for a lender, as ``requeueable`` says of a site."""
        model, ledger = self._model, self._rounds.ledger
        is_soon = model.kill_wait_s < self._by.settings.lending.grace_s
        if not is_soon or not (ledger.loans or ledger.recalls):
            return frozenset()
        services = self.services.site_factors
        return frozenset(
            (job.job_id, job.start_s)
            for job, _, _ in by_holder.held.priced
            if is_borrowed(job.qos) and job.state is JobState.RUNNING
            if job.array_job_id not in services and model.would_requeue(job.job_id)
        )

    def _requeue(self, runs: Iterable[RunOfJob]) -> None:
        """End batch jobs, once the limits of the round are in Slurm."""
        job_ids = [job_id for job_id, _ in runs]
        for job_id in job_ids:
            self._model.requeue(job_id)
        self._has_requeued = bool(self._rounds.recalls) and (self._has_requeued or bool(job_ids))

    def _follow_priorities(self, now_s: float, *, is_slow_turn: bool) -> None:
        """Set the priorities of waiting jobs: of services' slots and of jobs that go first in each
        round, of all slowly.
        """
        model, submitted = self._model, self.services.site_factors
        jobs = model.jobs
        slots: tuple[JobView, ...] = ()
        if submitted:
            slots = tuple(job for job in jobs if job.array_job_id in submitted and not job.held)
        for slot in slots:
            self._priorities.note_slot(slot.job_id, submitted[slot.array_job_id or 0])
        if is_slow_turn:
            self._priorities.forget(jobs)
        first = self._first_until_s.items()
        over = frozenset(key for key, until_s in first if now_s < until_s)
        soon = jobs if is_slow_turn else (*slots, *_called(jobs, self._first_until_s))
        changes = self._priorities.due(soon, now_s, over, self.services.urgencies)
        for target, change in changes.items():
            model.update(target, change)

    def _follow_services(
        self, done: SiteRound, jobs: tuple[JobView, ...], nodes: tuple[NodeView, ...]
    ) -> None:
        """Give services the quotas that are in force, then tell replicas to go that lenders need.

        That comes last, as in the daemon: earlier, others of the borrower would take their place.
        """
        policy, services, settings = done.policy, self.services, self._by.settings
        if not self._by.services:
            return
        whole = capacity(nodes, self._partitions, self._costs, settings.whole_boards) or None
        services.set_quotas(
            SlotQuotas(
                guaranteed_quota(policy),
                attainable(policy, self._rounds.ledger.highest, whole),
                done.standings,
                self._partitions,
                self._costs,
                own_type_limits(policy, self._costs, settings.models),
            )
        )
        plan, evictions = done.plan, services.evictions
        grace_s = settings.lending.grace_s
        evictions.end(plan.reclaim.victims, plan.over, services.views, grace_s)
        if evictions.has_waiting:
            starting = about_to_start(policy, self._holdings(jobs))
            evictions.wait_on(plan.recalls, starting)

    def _follow_standstill(
        self, by_holder: JobsByHolder, nodes: tuple[NodeView, ...], now_s: float
    ) -> None:
        """Follow which jobs Slurm does not start, and which of them go first."""
        limits = limits_by_qos(self._standings)
        self._still_since_s = standing_still(
            self._still_since_s,
            by_holder,
            nodes,
            limits,
            partitions=self._partitions,
            now_s=now_s,
        )
        before, since_s = self._first_until_s, self._still_since_s
        self._first_until_s = first_until_s(before, since_s, by_holder, limits, now_s)


def _called(jobs: Iterable[JobView], keys: Container[int]) -> Iterator[JobView]:
    """The waiting jobs with these ids, of arrays their arrays'."""
    for job in jobs if keys else ():
        if job.state in WAITING and (job.array_job_id or job.job_id) in keys:
            yield job


def _minutes(job: Replay) -> int | None:
    """Millislice-minutes that a job may take, an array with all of its tasks; None for no limit."""
    limit_s = job.request.time_limit_s
    if limit_s is None:
        return None
    return -(-job.cost_millislices * limit_s // 60) * max(1, job.request.tasks)
