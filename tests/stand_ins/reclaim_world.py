"""A closed cluster: a constant set of jobs, a Slurm that starts them, and rounds of lending."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from builders.ledger_parts import ledger_view_of
from builders.nodes import a_node
from builders.service_views import a_service
from builders.tenants import free_tenant, policy_of

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, is_borrowed, qos_name
from slicewise.slurm_plugin.rules.quota.calendar import Moment, Window
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.standings import by_use
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.round.barred import NOTHING_BARRED, Barred, barred
from slicewise.slurm_plugin.rules.round.round import plan
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView, World, world
from slicewise.slurm_plugin.rules.services.hold_back import Lenders, about_to_start, still_waiting
from stand_ins.scripted import job

COSTS = {
    "1g.10gb": Millislices(1000),
    "3g.40gb": Millislices(3500),
    "7g.80gb": Millislices(7000),
}
PARTITIONS = frozenset({"gpu"})
ROUND_S, GRACE_S = 15, 60
MUCH = Millislices(10**6)


def policy(nominal: Mapping[str, int]) -> Policy:
    """A policy in which all tenants lend and borrow without a limit."""
    return policy_of(*(free_tenant(name, amount) for name, amount in nominal.items()))


def one(job_id: int, account: str, kind: str, count: int = 1, *, borrowed: bool = False) -> JobView:
    """A waiting job, on borrowed quota a replica.

    A replica comes later: its tenant has used more than its share, and a requeued job begins its
    wait again.
    """
    return job(
        0,
        job_id=job_id,
        task_index=job_id,
        account=account,
        qos=(borrowed_qos if borrowed else qos_name)(account),
        reason="Resources",
        held=False,
        priority=1000 * (not borrowed) + 1000 - job_id,
        tres={f"gres/gpu:{kind}": str(count), "node": "1"},
    )


@dataclass
class Cluster:
    """Nodes with instances, and jobs that never end by themselves.

    Attributes:
        now_s: Unix seconds, by a clock that may be set.
        steady_s: seconds by a clock that can't be set.
        whole_boards: boards of GPUs that may be repartitioned; then nodes have pads beside
            instances.
        going: job ids of replicas that drain; they have gone a round later, and wait again.
        evictions: how many jobs were told to go, or were preempted, in each round.
        evicted: how often each job was told to go or was preempted.
        drains: whether replicas that are told to go do so.
        turn_s: seconds after which a waiting job comes first.
        term_s: seconds for which a run on borrowed quota is left alone.
        windows: the calendar's caps, which are not in the policy.
        batch: job ids of borrowed jobs that are no replicas; they may be requeued.
        waits: tenants that may not start slots on borrowed quota, and until when (``steady_s``).
        others: by job id, what Slurm says of a job that has quota and is over another limit.
        barred: what the daemon remembers of these.
        lenders: the tenants in ``waits`` that still wait, and the lenders for which they wait.
        plans: whether Slurm keeps a node for a job that waits for GPUs there, as backfill does.
    """

    policy: Policy
    nodes: Mapping[str, Mapping[str, int]]
    jobs: dict[int, JobView]
    now_s: int = 1_000_000
    steady_s: int = 0
    whole_boards: Mapping[str, WholeBoard] = field(default_factory=dict)
    loans: tuple[Loan, ...] = ()
    recalls: tuple[Recall, ...] = ()
    going: frozenset[int] = frozenset()
    evictions: list[int] = field(default_factory=list)
    evicted: Counter[int] = field(default_factory=Counter)
    drains: bool = True
    turn_s: int = 10**9
    term_s: int = 0
    windows: tuple[Window, ...] = ()
    batch: frozenset[int] = frozenset()
    waits: dict[str, int] = field(default_factory=dict)
    lenders: Lenders = field(default_factory=dict)
    others: dict[int, str] = field(default_factory=dict)
    barred: Barred = NOTHING_BARRED
    plans: bool = False

    def round(self) -> None:
        """End what drains, let the daemon decide, and let Slurm start what its limits allow."""
        for job_id in self.going if self.drains else ():
            self._stop(job_id)
        found = self.lend()
        self.evictions.append(len(found))
        self.evicted.update(found)
        self.going = found
        self._start()
        self.now_s += ROUND_S
        self.steady_s += ROUND_S

    def world(self) -> World:
        """The cluster as the daemon sees it now."""
        jobs = self.barred.told(tuple(self.jobs.values()))
        told = frozenset((one, self.jobs[one].start_s) for one in self.going)
        batch = frozenset(
            (one.job_id, one.start_s) for one in self._running() if one.job_id in self.batch
        )
        views, services = tuple(self._views()), tuple(self._services())
        seen = SlurmView(jobs, views, services, told, may_requeue=batch)
        ledger_view = ledger_view_of(
            Moment(self.now_s, 0, 0),
            tenants=self.policy,
            windows=self.windows,
            loans=self.loans,
            recalls=self.recalls,
        )
        return world(ledger_view, seen, self._rules)

    def lend(self) -> frozenset[int]:
        """Decide loans and recalls as the daemon does; return the runs that are told to go."""
        jobs = tuple(self.jobs.values())
        there = jobs_by_holder(jobs, PARTITIONS, COSTS, {})
        self.barred = barred(self.barred, there, self.policy, now_s=self.now_s)
        planned = plan(self.world())
        self.loans, self.recalls, found = planned.loans, planned.recalls, planned.reclaim
        replicas = frozenset(job_id for job_id, _ in found.victims)
        gone = replicas | frozenset(job_id for job_id, _ in found.requeues)
        told = {self.jobs[job_id].account for job_id in replicas - self.going}
        self.waits |= dict.fromkeys(told, self.steady_s + GRACE_S)
        self.lenders = still_waiting(
            {**dict.fromkeys(told, frozenset()), **self.lenders},
            {self.jobs[job_id].account for job_id in replicas},
            self.recalls,
            about_to_start(self.policy, there),
        )
        return gone

    def limits(self) -> Mapping[str, int]:
        """Millislices that Slurm lets run in each QOS."""
        world = self.world()
        found = world.standings
        both: dict[str, int] = {}
        for name, one in by_use(found, world.use).items():
            both[qos_name(name)] = one.own_qos_limit_millislices
            both[borrowed_qos(name)] = one.borrowed_qos_limit_millislices
        return both

    def _held(self, qos: str) -> int:
        return sum(run_cost(one.gpus, COSTS) for one in self._running() if one.qos == qos)

    def _running(self) -> Iterator[JobView]:
        return (one for one in self.jobs.values() if one.state is JobState.RUNNING)

    def _free(self) -> Mapping[str, Counter[str]]:
        free = {name: Counter(there) for name, there in self.nodes.items()}
        for one in self._running():
            free[one.nodes[0]].subtract(one.gpus)
        return free

    def _views(self) -> list[NodeView]:
        free = self._free()
        return [
            a_node(
                name, gpus=there, gpus_allotted=Counter(there) - free[name], partitions=PARTITIONS
            )
            for name, there in self.nodes.items()
        ]

    @property
    def _rules(self) -> QuotaRules:
        return QuotaRules(
            PARTITIONS, COSTS, self.whole_boards, {}, GRACE_S, self.term_s, self.turn_s
        )

    def _services(self) -> Iterator[ServiceView]:
        """Services; their replicas are the runs on borrowed quota, except those in ``batch``."""
        for name in self.policy:
            runs = [each for each in self._running() if each.account == name]
            slots = tuple(
                SlotView(index=each.job_id, state="running", job_id=each.job_id, is_borrowed=True)
                for each in runs
                if is_borrowed(each.qos) and each.job_id not in self.batch
            )
            yield a_service(tenant=name, name="bert", profile="", cost_millislices=0, slots=slots)

    def _start(self) -> None:
        """Start jobs as Slurm does: by priority, as limits of QOS and free instances allow.

        Guaranteed jobs preempt borrowed ones.
        """
        limits, kept = self.limits(), set[str]()
        waiting = [one for one in self.jobs.values() if one.state is JobState.PENDING]
        for one in sorted(waiting, key=lambda one: -one.priority):
            fits = self._held(one.qos) + run_cost(one.gpus, COSTS) <= limits[one.qos]
            if one.job_id in self.others:
                reason = self.others[one.job_id] if fits else "QOSGrpBilling"
                self.jobs[one.job_id] = replace(one, reason=reason)
            elif fits and not (is_borrowed(one.qos) and self.is_kept(one.account)):
                self._place(one, kept)

    def is_kept(self, tenant: str) -> bool:
        """Whether a tenant's slots wait for the lenders that reclaimed its replicas' slices."""
        return tenant in self.lenders and self.waits[tenant] > self.steady_s

    def _place(self, one: JobView, kept: set[str]) -> None:
        need = one.gpus
        for node, free in self._free().items():
            if node not in kept and all(free[kind] >= count for kind, count in need.items()):
                self._run(one, node)
                return
        if not is_borrowed(one.qos) and not self._preempt(one, kept) and self.plans:
            kept.update(self._planned(need, kept))

    def _planned(self, need: Mapping[str, int], kept: set[str]) -> list[str]:
        """The node that lacks least for the job."""
        fit = {
            node: sum(max(0, count - free[kind]) for kind, count in need.items())
            for node, free in self._free().items()
            if node not in kept
            and all(self.nodes[node].get(kind, 0) >= count for kind, count in need.items())
        }
        return sorted(fit, key=lambda node: fit[node])[:1]

    def _preempt(self, one: JobView, kept: set[str]) -> bool:
        need = one.gpus
        for node, free in self._free().items():
            if node in kept:
                continue
            victims = []
            runs = [each for each in self._running() if each.nodes == (node,)]
            for run in sorted(runs, key=lambda run: run.job_id not in self.going):
                if is_borrowed(run.qos) and not all(free[k] >= n for k, n in need.items()):
                    free.update(run.gpus)
                    victims.append(run.job_id)
            if all(free[kind] >= count for kind, count in need.items()):
                surprised = set(victims) - self.going
                self.evictions[-1] += len(surprised)
                self.evicted.update(surprised)
                for job_id in victims:
                    self._stop(job_id)
                self._run(one, node)
                return True
        return False

    def _run(self, one: JobView, node: str) -> None:
        start = {"state": JobState.RUNNING, "nodes": (node,), "start_s": self.now_s}
        self.jobs[one.job_id] = replace(one, **start)

    def _stop(self, job_id: int) -> None:
        back = {"state": JobState.PENDING, "nodes": (), "start_s": None, "eligible_s": self.now_s}
        self.jobs[job_id] = replace(self.jobs[job_id], **back)
