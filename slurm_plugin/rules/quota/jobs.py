"""The jobs of managed partitions at one moment, classified once: what runs hold, who waits.

All decisions of a round read these values; none asks a record of Slurm's again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, is_
from typing import NamedTuple

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import (
    holder,
    holder_of,
    is_own,
    qos_name,
    tenant_of,
)
from slicewise.slurm_plugin.rules.quota.waits import FOR_QUOTA, WaitsFor, waits_of

Shape = tuple[tuple[str, int], ...]
"""GPU instances on one node: type and number, sorted by type."""
JobKey = tuple[int, int]
"""A job's id, and which of an array's tasks it is where these are told apart."""

LATEST_S = 1 << 62
"""Stands for the start of the wait where Slurm does not report one; later than any other."""
FIRST_TASKS = 64
"""The most waiting tasks of a QOS that count: more do not start before limits are updated again."""
_FIRST_LOOK_S = 5
"""Seconds that slurmctld may take to first look at a job: too few for a borrower to notice in its
grace time."""
_PLACE = attrgetter("place")
_NO_GPUS: Mapping[str, int] = {}


class WaitingJob(NamedTuple):
    """A job, or ``tasks`` tasks of an array, that could start if its tenant might hold more.

    Attributes:
        job_id: Slurm's job id. Array tasks that Slurm has not split off yet share their array's.
        cost_millislices: cost of each task.
        shape, nodes: GPU instances on each of so many different nodes that each task needs.
        tasks: number of tasks; 1 for a plain job.
        since_s: Unix seconds since when it could start; None where Slurm does not say.
        priority: Slurm's priority.
        would_start: whether Slurm would start it given quota and GPUs: not while its nodes are
            down or reserved, nor if it had both and did not start.
        waits: what it waits for: quota, or a budget.
        gpus: GPU instances by type of each task, on all nodes.
        task: the name that a person uses, where that is not the job id.
        nth: which of the tasks it is, where tasks are told apart.
    """

    job_id: int
    tenant: str
    cost_millislices: int
    shape: Shape
    nodes: int = 1
    tasks: int = 1
    since_s: int | None = None
    priority: int = 0
    would_start: bool = True
    waits: WaitsFor = FOR_QUOTA
    gpus: Mapping[str, int] = _NO_GPUS
    task: str = ""
    nth: int = 0

    @property
    def key(self) -> JobKey:
        """What tells it from all others."""
        return self.job_id, self.nth

    @property
    def place(self) -> tuple[int, int]:
        """Sort key of the order in which Slurm would start jobs."""
        return -self.priority, self.job_id

    @property
    def is_single(self) -> bool:
        """Whether a task needs just one instance, which may be on any node."""
        return self.nodes == 1 and sum(count for _, count in self.shape) == 1

    @property
    def alike(self) -> tuple[Shape, int]:
        """What jobs have in common of which one starts where another does."""
        return self.shape, self.nodes

    @property
    def total_millislices(self) -> int:
        """Cost of all tasks together."""
        return self.cost_millislices * self.tasks


class PricedRun(NamedTuple):
    """A run with the millislices that it holds, and the account and QOS in which it holds them."""

    job: JobView
    cost_millislices: Millislices
    place: tuple[str, str]


def by_priority(jobs: Iterable[JobView]) -> list[JobView]:
    """Sort jobs in the order in which Slurm would start them."""
    return sorted(jobs, key=place_in_order)


def place_in_order(job: JobView) -> tuple[int, int]:
    """Sort key of the order in which Slurm would start jobs: by priority, then by number."""
    return -job.priority, job.job_id


@dataclass(frozen=True, eq=False)
class QosQueue:
    """The jobs of one QOS that hold nothing.

    Attributes:
        seen: the jobs in the order in which they were seen.
        jobs: the jobs in the order in which Slurm would start them.
        waiting: those that wait for quota or a budget, in the same order.
        first_tasks: millislices of the first tasks that could start, in the same order.
        doubtful: those with unreadable records.
        costs: millislices of an instance, by GRES type.
    """

    qos: str
    seen: tuple[JobView, ...]
    jobs: Sequence[JobView]
    waiting: Sequence[WaitingJob]
    first_tasks: Sequence[int]
    doubtful: Sequence[JobView]
    costs: Mapping[str, Millislices]


@dataclass(frozen=True)
class HeldRuns:
    """Jobs that hold what they were allotted.

    Attributes:
        priced: what each of them holds.
        places: those of each account in each QOS.
        ending: those that are completing: they hold their GPUs, and Slurm counts them in no limit
            any more. The sums here count them. What divides limits takes them off
            (``demand.qos_use``), else a tenant could hold more than its limits, or less. As demand
            they keep their slices from being lent while they end, which delays a loan by that time
            and never takes a guarantee.
        doubtful: those with unreadable records.
        by_qos: millislices that they hold, by account and QOS; 0 for those without GPUs.
        by_tenant: the same by tenant, or by account without a tenant's QOS.
        in_qos: the same by QOS.
    """

    jobs: tuple[JobView, ...]
    priced: tuple[PricedRun, ...]
    places: Mapping[tuple[str, str], Sequence[PricedRun]] = field(hash=False)
    ending: tuple[PricedRun, ...]
    doubtful: Sequence[JobView] = field(hash=False)
    by_qos: Mapping[tuple[str, str], int] = field(hash=False)
    by_tenant: Mapping[str, int] = field(hash=False)
    in_qos: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class JobsByHolder:
    """Jobs of managed partitions that have not ended, by who holds quota and who waits for it.

    Attributes:
        held: jobs that hold what they were allotted.
        others: jobs that hold nothing.
        queues: the same jobs by QOS.
        own: those that wait in their tenants' own QOS, in Slurm's order, by tenant, maybe gone.
        for_loans: those with a cost that wait for quota in other QOS, in the same order.
        costs: millislices of an instance, by GRES type.
        models: GPU model of an instance, by GRES type; limits on models bind no others.
    """

    held: HeldRuns
    others: tuple[JobView, ...] = field(hash=False)
    queues: Mapping[str, QosQueue] = field(hash=False, compare=False)
    own: Mapping[str, Sequence[WaitingJob]] = field(hash=False)
    for_loans: Mapping[str, Sequence[WaitingJob]] = field(hash=False)
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)

    def at_look(self, jobs: Iterable[JobView], partitions: frozenset[str]) -> "JobsByHolder":
        """The jobs of another look. What is known of the very same records stays: few change from
        one look to the next.
        """
        runs, others = managed(jobs, partitions)
        return self.with_others(others, _held_again(self.held, runs, self.costs))

    def with_others(
        self, others: tuple[JobView, ...], held: HeldRuns | None = None
    ) -> "JobsByHolder":
        """The same runs, or those ``held`` now, beside other jobs; queues of the very same records
        stay.
        """
        queues = _queues_of(others, self.costs, self.queues)
        return replace(
            self,
            held=held or self.held,
            others=others,
            queues=queues,
            own=_own(queues),
            for_loans=_for_loans(queues),
        )

    def of(self, tenants: Collection[str]) -> "JobsByHolder":
        """Only what has GPUs, or asks for them, of these tenants."""
        priced = tuple(
            run for run in self.held.priced if run.job.gpus and holder(*run.place) in tenants
        )
        runs = _held_as_priced(tuple(run.job for run in priced), priced)
        others = (job for job in self.others if job.gpus and holder_of(job) in tenants)
        return self.with_others(tuple(others), runs)

    @property
    def runs(self) -> tuple[JobView, ...]:
        """The jobs that hold what they were allotted."""
        return self.held.jobs

    @property
    def doubtful(self) -> tuple[JobView, ...]:
        """Jobs with unreadable records: what they hold is not known."""
        waiting = (job for queue in self.queues.values() for job in queue.doubtful)
        return (*self.held.doubtful, *waiting)

    @property
    def waiting(self) -> Iterator[WaitingJob]:
        """Those that wait for quota or a budget."""
        for queue in self.queues.values():
            yield from queue.waiting

    def in_own(self, tenant: str) -> int:
        """Millislices that runs hold in the tenant's own QOS.

        As in Slurm's limit, accounts without a quota below the tenant count, which have its QOS.
        """
        return self.held.in_qos.get(qos_name(tenant), 0)


def jobs_by_holder(
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
    models: Mapping[str, str],
) -> JobsByHolder:
    """Classify the jobs of managed partitions that have not ended.

    ``models`` are the GPU models of GRES types: limits of a model bound what guarantees pay for
    (``demand.within_guarantees``).
    """
    nobody = JobsByHolder(_held_as_priced((), ()), (), {}, {}, {}, costs, models)
    return nobody.at_look(jobs, partitions)


def managed(
    jobs: Iterable[JobView], partitions: frozenset[str]
) -> tuple[tuple[JobView, ...], tuple[JobView, ...]]:
    """The jobs of managed partitions that have not ended: those that hold GPUs, and the others."""
    runs: list[JobView] = []
    others: list[JobView] = []
    for job in jobs:
        # Most jobs name one partition: they need no call.
        if job.partition not in partitions and not is_managed(job, partitions):
            continue
        state = job.state
        if state in ALLOTTED:
            runs.append(job)
        elif state is not JobState.ENDED:
            others.append(job)
    return tuple(runs), tuple(others)


def is_managed(job: JobView, partitions: frozenset[str]) -> bool:
    """Whether a job is or may run in one of the partitions; a waiting job may name several."""
    return job.partition in partitions or not partitions.isdisjoint(job.partition.split(","))


def _held_again(
    before: HeldRuns, jobs: tuple[JobView, ...], costs: Mapping[str, Millislices]
) -> HeldRuns:
    """What these runs hold, of which some were there ``before``."""
    if len(jobs) == len(before.jobs) and all(map(is_, jobs, before.jobs)):
        return before
    # What was known keeps its record alive, so no other record has that id.
    runs = {id(run.job): run for run in before.priced}
    priced = tuple(
        runs.get(id(job)) or PricedRun(job, job_cost(job, costs), (job.account, job.qos))
        for job in jobs
    )
    return _held_as_priced(jobs, priced)


def _held_as_priced(jobs: tuple[JobView, ...], priced: tuple[PricedRun, ...]) -> HeldRuns:
    """Sum up what these runs hold, and where."""
    places = defaultdict[tuple[str, str], list[PricedRun]](list)
    for run in priced:
        places[run.place].append(run)
    by_qos = {place: sum(run.cost_millislices for run in runs) for place, runs in places.items()}
    by_tenant, in_qos = defaultdict[str, int](int), defaultdict[str, int](int)
    for (account, qos), cost in by_qos.items():
        by_tenant[holder(account, qos)] += cost
        in_qos[qos] += cost
    return HeldRuns(
        jobs,
        priced,
        dict(places),
        ending=tuple(run for run in priced if run.job.state is JobState.COMPLETING),
        doubtful=[job for job in jobs if job.is_doubtful],
        by_qos=by_qos,
        by_tenant=dict(by_tenant),
        in_qos=dict(in_qos),
    )


def _queues_of(
    others: Iterable[JobView],
    costs: Mapping[str, Millislices],
    queues_before: Mapping[str, QosQueue],
) -> Mapping[str, QosQueue]:
    """The jobs by QOS; a queue of the very same records as a ``known`` one is that one."""
    by_qos = defaultdict[str, list[JobView]](list)
    for job in others:
        by_qos[job.qos].append(job)
    return {
        qos: before
        if (before := queues_before.get(qos)) is not None
        and len(jobs) == len(before.seen)
        and all(map(is_, jobs, before.seen))
        else _queue(qos, jobs, costs)
        for qos, jobs in by_qos.items()
    }


def _queue(qos: str, seen: Sequence[JobView], costs: Mapping[str, Millislices]) -> QosQueue:
    """Classify the jobs of a QOS that hold nothing."""
    in_order, waiting, first = by_priority(seen), list[WaitingJob](), list[int]()
    for job in in_order:
        waits = waits_of(job)
        if not waits.could_start:
            continue
        cost, tasks = job_cost(job, costs), len(job.untouched) or 1
        if cost and len(first) < FIRST_TASKS and not job.is_doubtful:
            first += [cost] * min(tasks, FIRST_TASKS - len(first))
        if waits.for_quota or waits.for_budget:
            waiting.append(_waiting_job(job, waits, cost, tasks))
    doubtful = [job for job in seen if job.is_doubtful]
    return QosQueue(qos, tuple(seen), in_order, waiting, first, doubtful, costs)


def _waiting_job(job: JobView, waits: WaitsFor, cost: int, tasks: int) -> WaitingJob:
    instances, nodes = wanted_on_nodes(job)
    return WaitingJob(
        job.job_id,
        holder(job.account, job.qos),
        cost,
        shape_of(instances),
        nodes,
        tasks,
        waits_since_s(job),
        job.priority,
        not waits.for_nodes,
        waits,
        job.gpus,
        "" if job.array_job_id is None else job.task,
    )


def shape_of(instances: Mapping[str, int]) -> Shape:
    """The shape of these instances, without types that have none."""
    # Nearly every run has one type, and a round has thousands of runs.
    if len(instances) == 1:
        gres_type, count = next(iter(instances.items()))
        return ((gres_type, count),) if count else ()
    return tuple(sorted((gres_type, count) for gres_type, count in instances.items() if count))


def wanted_on_nodes(job: JobView) -> tuple[Mapping[str, int], int]:
    """Return what a waiting job, or each task of an array, needs: GPU instances and node count.

    The instances, by type, are those per node.
    """
    nodes = max(1, int(job.tres.get("node", "1")))
    return {gres_type: -(-count // nodes) for gres_type, count in job.gpus.items() if count}, nodes


def waits_since_s(job: JobView) -> int | None:
    """Return the Unix second since which a job could start; None if Slurm does not say.

    Slurm sets a job's eligible time only when it first looks at the job, some seconds after the
    submission. In that case the submit time is returned, so that loans recalled in between count as
    recalled for this job.
    """
    submit_s, eligible_s = job.submit_s, job.eligible_s
    if submit_s is None or eligible_s is None:
        return submit_s if eligible_s is None else eligible_s
    was_at_once = 0 <= eligible_s - submit_s <= _FIRST_LOOK_S
    return submit_s if was_at_once else eligible_s


def _own(queues: Mapping[str, QosQueue]) -> Mapping[str, Sequence[WaitingJob]]:
    return {
        tenant: queue.waiting
        for qos, queue in queues.items()
        if is_own(qos) and queue.waiting and (tenant := tenant_of(qos)) is not None
    }


def _for_loans(queues: Mapping[str, QosQueue]) -> Mapping[str, Sequence[WaitingJob]]:
    waiting: dict[str, list[WaitingJob]] = {}
    for qos, queue in queues.items():
        theirs = defaultdict[str, list[WaitingJob]](list)
        for job in () if is_own(qos) else queue.waiting:
            if job.waits.for_quota and job.cost_millislices:
                theirs[job.tenant].append(job)
        for tenant, jobs in theirs.items():
            # Few tenants' jobs wait in several QOS.
            before = waiting.get(tenant)
            waiting[tenant] = sorted(before + jobs, key=_PLACE) if before else jobs
    return waiting
