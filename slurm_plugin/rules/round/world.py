"""The one value on which quotas are decided: ledger, Slurm and settings at one moment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import JobView, NodeView, RunOfJob
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.limits.budget_parts import as_budgets_let
from slicewise.slurm_plugin.rules.limits.desired import Allowed
from slicewise.slurm_plugin.rules.quota.demand import qos_use
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import capacity, free_by_node, free_on_nodes
from slicewise.slurm_plugin.rules.quota.standings import QosUse, Standing, by_use, standings
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.reclaim.busy import busy_tasks
from slicewise.slurm_plugin.rules.round.fitted import fitted

TURN_S = 1800
"""Seconds of waiting for borrowed quota after which a job gets a turn, and for which it then comes
before all others. Jobs that start soon anyway need none; longer than that nobody should have to
wait for a start that smaller jobs take away again and again."""


@dataclass(frozen=True)
class SlurmView:
    """One complete look at Slurm. Nothing is decided on an incomplete one.

    Attributes:
        evicting: runs that have been told to end, whether the look shows it or not.
        lately: millislices that each tenant's jobs have held on average; empty if past use does
            not count.
        stuck: job ids of jobs that had quota and GPUs, and did not start (``standstill``).
        may_requeue: runs of batch jobs on borrowed quota that may be requeued (``requeueable``).
        kill_wait_s: KillWait: within so many seconds these end once they are told to.
        by_holder: the jobs of managed partitions, where they are classified already.
        free: the instances that are free on nodes (``free_on_nodes``), where that is known already.
    """

    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    evicting: frozenset[RunOfJob] = frozenset()
    lately: Mapping[str, float] = field(default_factory=dict, hash=False)
    stuck: frozenset[int] = frozenset()
    may_requeue: frozenset[RunOfJob] = frozenset()
    kill_wait_s: float = 0
    by_holder: JobsByHolder | None = field(default=None, compare=False)
    free: Mapping[str, Counter[str]] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class QuotaRules:
    """The site's settings for quota decisions.

    Attributes:
        partitions: the managed partitions.
        costs: millislices of an instance, by GRES type.
        whole_boards: the board that an instance is a part of, by GRES type.
        models: GPU model of an instance, by GRES type.
        grace_s, term_s, turn_s: settings of [lending], in seconds.
    """

    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    whole_boards: Mapping[str, WholeBoard] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    grace_s: int
    term_s: int
    turn_s: int


@dataclass(frozen=True)
class World:
    """Ledger, Slurm and settings at one moment, with what follows from them: on it all decisions
    about quotas are made.

    Attributes:
        policy: the policy in force at the moment of the ledger's view.
        seen_jobs: the jobs of managed partitions as they were seen.
        jobs: the same as their budgets let them start.
        free: the instances that are free on the nodes that were seen.
        capacity_millislices: millislices of all managed GPUs; None if there are none: something is
            wrong then, and no new loans are made.
        fitted: the policy with nominals that the capacity covers: by it loans and limits are
            decided.
        busy_tasks: how many tasks of each job guaranteed quotas pay for while their GPUs are busy,
            by its id. There are none where Slurm leaves runs on loan alone for longer than the
            grace: what is lent could keep a job out for longer than that.
        startable: the jobs without these tasks. What they need of their tenants' quotas is theirs
            again as soon as they find GPUs.
        use: how much of the limits of tenants' QOS jobs use and wait for.
        standings: what each tenant may hold, given the ledger's loans and recalls.
    """

    ledger_view: LedgerView
    slurm_view: SlurmView
    rules: QuotaRules
    policy: Policy = field(hash=False)
    seen_jobs: JobsByHolder
    jobs: JobsByHolder
    free: Mapping[str, Counter[str]] = field(hash=False)
    capacity_millislices: int | None
    fitted: Policy = field(hash=False)
    busy_tasks: Mapping[int, int] = field(hash=False)
    startable: JobsByHolder
    use: QosUse
    standings: Mapping[str, Standing] = field(hash=False)

    def after(self, loans: tuple[Loan, ...], recalls: tuple[Recall, ...]) -> "World":
        """The world at the same moment with other loans and recalls in the ledger."""
        ledger_view = replace(self.ledger_view, loans=loans, recalls=recalls)
        then = standings(self.fitted, loans, recalls)
        return replace(self, ledger_view=ledger_view, standings=then)

    def is_as(self, ledger_view: LedgerView, slurm_view: SlurmView) -> bool:
        """Whether all is decided the same on these, but for the time that has passed."""
        then = self.ledger_view
        return (
            slurm_view == self.slurm_view
            and ledger_view.policy == self.policy
            and ledger_view.run_minutes == then.run_minutes
            and (ledger_view.windows, ledger_view.loans, ledger_view.recalls)
            == (then.windows, then.loans, then.recalls)
        )

    def fitted_as(self, before: "World") -> "World":
        """The same world, with nominals that are fitted as they were ``before``.

        Of another policy, with a tenant more for example, these say nothing.
        """
        if before.fitted in (before.policy, self.fitted) or self.policy != before.policy:
            return self
        return world(self.ledger_view, self.slurm_view, self.rules, before.fitted)

    @property
    def busy(self) -> Mapping[str, int]:
        """Millislices of the jobs whose GPUs are busy, by tenant."""
        busy = Counter[str]()
        for job in self.jobs.waiting if self.busy_tasks else ():
            if tasks := self.busy_tasks.get(job.job_id):
                busy[job.tenant] += tasks * job.cost_millislices
        return busy

    @property
    def held(self) -> Mapping[str, int]:
        """Millislices that each tenant's jobs hold."""
        return self.jobs.held.by_tenant

    def allowed(self, use: QosUse | None = None) -> Allowed:
        """The state that Slurm's limits should have.

        ``use`` is what jobs used at the caller's own look at Slurm; None means ``self.use``.
        """
        rules = self.rules
        return Allowed(
            policy=self.policy,
            standings=by_use(self.standings, use or self.use),
            run_minutes=self.ledger_view.run_minutes,
            costs=rules.costs,
            models=rules.models,
            term_s=rules.term_s,
            capacity_millislices=self.capacity_millislices,
        )


def world(
    ledger_view: LedgerView,
    slurm_view: SlurmView,
    rules: QuotaRules,
    fitted_before: Policy | None = None,
) -> World:
    """Classify the jobs, once, and find what follows from them and the ledger.

    ``fitted_before`` are nominals that an earlier decision on the same policy was made by; None if
    they are to be fitted to what is there now.
    """
    policy, nodes = ledger_view.policy, slurm_view.nodes
    by_holder = slurm_view.by_holder
    seen = by_holder or jobs_by_holder(slurm_view.jobs, rules.partitions, rules.costs, rules.models)
    jobs = seen
    judged = as_budgets_let(policy, ledger_view.run_minutes, seen, ledger_view.when.at_s)
    if judged:
        jobs = seen.with_others(tuple(judged.get(job.job_id, job) for job in seen.others))
    free = slurm_view.free
    free = free_on_nodes(nodes, rules.partitions) if free is None else free
    whole = capacity(nodes, rules.partitions, rules.costs, rules.whole_boards) or None
    by_policy = fitted_before
    if by_policy is None:
        left = free_by_node((run.job for run in jobs.held.ending), free)
        by_policy = fitted(policy, jobs, left, whole)
    is_long = rules.term_s > rules.grace_s
    busy = {} if is_long else busy_tasks(by_policy, jobs, free)
    startable = _without(busy, jobs)
    return World(
        ledger_view,
        slurm_view,
        rules,
        policy=policy,
        seen_jobs=seen,
        jobs=jobs,
        free=free,
        capacity_millislices=whole,
        fitted=by_policy,
        busy_tasks=busy,
        startable=startable,
        use=qos_use(by_policy, startable if jobs is seen else _without(busy, seen)),
        standings=standings(by_policy, ledger_view.loans, ledger_view.recalls),
    )


def world_of(ledger_view: LedgerView, settings: Settings, slurm_view: SlurmView) -> World:
    """The world by slicewise.toml."""
    return world(ledger_view, seen_of(settings, slurm_view), rules_of(settings))


def seen_of(settings: Settings, slurm_view: SlurmView) -> SlurmView:
    """What counts of a look at Slurm: past holdings only where ``lending.past_use`` is set."""
    return slurm_view if settings.lending.past_use else replace(slurm_view, lately={})


def rules_of(settings: Settings) -> QuotaRules:
    """The settings of slicewise.toml that decisions about quotas use."""
    return QuotaRules(
        partitions=frozenset(settings.cluster.partitions),
        costs=settings.costs,
        whole_boards=settings.whole_boards,
        models=settings.models,
        grace_s=settings.lending.grace_s,
        term_s=settings.lending.term_s,
        turn_s=TURN_S,
    )


def _without(tasks: Mapping[int, int], by_holder: JobsByHolder) -> JobsByHolder:
    """The holdings without so many waiting tasks of each job."""
    if not tasks:
        return by_holder
    left = (
        (job, max(1, len(job.untouched)) - tasks.get(job.job_id, 0)) for job in by_holder.others
    )
    others = (_first(job, count) for job, count in left if count > 0)
    return by_holder.with_others(tuple(others))


def _first(job: JobView, count: int) -> JobView:
    """The job, an array with so many of its waiting tasks."""
    if count >= len(job.untouched):
        return job
    return replace(job, untouched=frozenset(sorted(job.untouched)[:count]))
