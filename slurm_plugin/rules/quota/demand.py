"""Sums up what jobs hold and wait for, as input of lending and explaining."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import (
    borrowed_qos,
    holder,
    holder_of,
    is_own,
    qos_name,
)
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, WaitingJob, is_managed
from slicewise.slurm_plugin.rules.quota.standings import QosUse
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, guaranteed_types
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of

_PLACE = attrgetter("place")
_BEYOND_GRACE_S = 60
"""Seconds beyond the grace time within which a job should have started on recalled quota."""


@dataclass(frozen=True)
class Held:
    """GPU instances by type that a tenant's own jobs hold.

    Attributes:
        instances: held in any QOS.
        guaranteed: held in the tenant's own QOS.
        elsewhere: held in neither of the tenant's two QOS.
    """

    instances: Mapping[str, int] = field(default_factory=dict, hash=False)
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)
    elsewhere: Mapping[str, int] = field(default_factory=dict, hash=False)


def demand_of(policy: Policy, by_holder: JobsByHolder) -> Mapping[str, int]:
    """Sum up the millislices that each tenant's own jobs hold or wait for.

    Each job counts for its ``holder``. A held task, such as a service's slot at rest, waits for
    nothing. The same goes for a job that may not start yet, or that waits for something other than
    slices. In a tenant's own QOS only what fits into its guaranteed quota counts, as no loan would
    let more of these jobs start. They also count while they wait for a budget.

    What a job with an unreadable record holds is not known. Its tenant then counts as wanting all
    of its guaranteed quota, so that none of it is lent.
    """
    own, guaranteed, others = guaranteed_quota(policy), Counter[str](), Counter[str]()
    for (account, qos), cost in by_holder.held.by_qos.items():
        (guaranteed if is_own(qos) else others)[holder(account, qos)] += cost
    for tenant, jobs in by_holder.for_loans.items():
        others[tenant] += sum(job.total_millislices for job in jobs)
    for job in within_guarantees(by_holder, policy, or_by_budget=True):
        guaranteed[job.tenant] += job.cost_millislices
    doubtful = {holder_of(job) for job in by_holder.doubtful}
    return others + Counter(
        {
            name: own.get(name, 0)
            if name in doubtful
            else min(guaranteed.get(name, 0), own.get(name, 0))
            for name in (*guaranteed, *doubtful)
        }
    )


def for_recalls(by_holder: JobsByHolder) -> Mapping[str, Sequence[WaitingJob]]:
    """The jobs that wait for their tenant's own quota, by tenant, and that a recall would help.

    What a loan gives back helps no job whose type the guarantee covers no further.
    """
    waiting = {
        tenant: [
            job
            for job in jobs
            if job.waits.for_quota and not job.waits.for_types
            if job.cost_millislices and job.since_s is not None
        ]
        for tenant, jobs in by_holder.own.items()
    }
    return {tenant: jobs for tenant, jobs in waiting.items() if jobs}


def since_any_waits(
    policy: Policy, waiting: Mapping[str, Sequence[WaitingJob]], by_holder: JobsByHolder
) -> Mapping[str, Sequence[WaitingJob]]:
    """The jobs ``waiting`` for their tenant's own quota, as old as the oldest for which any waited.

    A job that goes before another one takes its place in the own quota; the other one waits on in
    the borrowed QOS. What is recalled for both is due when it was for the first.
    """
    own, others = guaranteed_quota(policy), by_holder.for_loans
    aged: dict[str, Sequence[WaitingJob]] = {}
    for tenant, jobs in waiting.items():
        most = own.get(tenant, 0)
        older = (job for job in others.get(tenant, ()) if job.cost_millislices <= most)
        oldest_s = min((job.since_s for job in older if job.since_s is not None), default=None)
        aged[tenant] = [
            job
            if oldest_s is None or (job.since_s or 0) <= oldest_s
            else job._replace(since_s=oldest_s)
            for job in jobs
        ]
    return aged


def qos_use(policy: Policy, by_holder: JobsByHolder) -> QosUse:
    """Sum up what jobs hold of limits and wait for, by QOS.

    A completing job holds nothing of them: Slurm lets others start in its place. In a tenant's own
    QOS only those waiting jobs count that ``demand_of`` counts: no loan is made to replace slices
    that the QOS keeps for other jobs.
    """
    held, waiting = Counter[str](), Counter[str]()
    doubtful: set[str] = set()
    costs = by_holder.costs
    held.update(by_holder.held.in_qos)
    for run in by_holder.held.ending:
        held[run.job.qos] -= run.cost_millislices
    for record in by_holder.doubtful:
        doubtful.add(record.qos)
        if record.state in ALLOTTED and record.state is not JobState.COMPLETING:
            held[record.qos] -= job_cost(record, costs)
    tasks = {qos: queue.first_tasks for qos, queue in by_holder.queues.items() if queue.first_tasks}
    # Else the borrowed QOS could take a completing job's place from a job of the own QOS.
    for job in within_guarantees(by_holder, policy, or_by_budget=True, as_limited=True):
        waiting[qos_name(job.tenant)] += job.cost_millislices
    first = frozenset(map(qos_name, guaranteed_types(policy)))
    return QosUse(held, waiting, tasks, frozenset(doubtful), first)


def guaranteed_use(
    jobs: Iterable[JobView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, int]:
    """Sum up the millislices that jobs in each tenant's own QOS hold or wait for.

    Completing jobs count: a job that is submitted in the place of one may go to the borrowed QOS,
    which gets the slices for it that the own QOS leaves unused (``standings.by_use``). Jobs that
    wait for a budget count, as what is left of a budget changes with every run. Jobs that wait for
    anything else than slices, GPUs or a budget do not.
    """
    used: Counter[str] = Counter()
    for job in _in_own(jobs, partitions):
        used[holder_of(job)] += _cost(job, costs)
    return used


def guaranteed_instances(
    jobs: Iterable[JobView], partitions: frozenset[str]
) -> Mapping[str, Mapping[str, int]]:
    """Count the GPU instances by type for which ``guaranteed_use`` sums up the cost, by tenant."""
    used: dict[str, Counter[str]] = defaultdict(Counter)
    for job in _in_own(jobs, partitions):
        tasks = job.tasks
        used[holder_of(job)].update(
            {gres_type: count * tasks for gres_type, count in job.gpus.items()}
        )
    return used


def _in_own(jobs: Iterable[JobView], partitions: frozenset[str]) -> Iterator[JobView]:
    """Yield the jobs that hold guaranteed quota or wait for it, or for a budget."""
    for job in jobs:
        waits = waits_of(job)
        counts = job.state in ALLOTTED or waits.for_quota or waits.for_budget
        if is_own(job.qos) and counts and is_managed(job, partitions):
            yield job


def waiting_instances(jobs: Iterable[JobView], partitions: frozenset[str]) -> Mapping[str, int]:
    """Count the GPU instances by type for which jobs wait that would start if others ended."""
    waiting: Counter[str] = Counter()
    for job in jobs:
        if waits_of(job).for_gpus and is_managed(job, partitions):
            for name, count in job.gpus.items():
                waiting[name] += count * job.tasks
    return waiting


def held(jobs: Iterable[JobView], partitions: frozenset[str]) -> Mapping[str, Held]:
    """Return what each tenant's own jobs hold; tenants that hold nothing are left out.

    Completing jobs count, though in no limit: they keep their GPUs from others for some seconds
    more, in which what is said of a tenant would else show room that nothing can start in.
    """
    instances: dict[str, Counter[str]] = {}
    guaranteed: dict[str, Counter[str]] = {}
    elsewhere: dict[str, Counter[str]] = {}
    for job in jobs:
        if job.state in ALLOTTED and is_managed(job, partitions):
            gpus = job.gpus
            tenant = holder_of(job)
            instances.setdefault(tenant, Counter()).update(gpus)
            if job.qos == qos_name(tenant):
                guaranteed.setdefault(tenant, Counter()).update(gpus)
            elif job.qos != borrowed_qos(tenant):
                elsewhere.setdefault(tenant, Counter()).update(gpus)
    return {
        name: Held(gpus, guaranteed.get(name, {}), elsewhere.get(name, {}))
        for name, gpus in instances.items()
    }


def within_guarantees(
    by_holder: JobsByHolder, policy: Policy, *, or_by_budget: bool = False, as_limited: bool = False
) -> Sequence[WaitingJob]:
    """The jobs waiting in tenants' own QOS for which guaranteed quotas suffice.

    Jobs come in Slurm's order, an array once for each task. They share what running jobs of the
    same QOS leave of the guaranteed quota. With ``or_by_budget`` jobs that wait for a budget are
    included, as what is left of a budget changes with every run.

    What comes in a completing job's place mostly waits for its GPUs, so it counts once these are
    free: before that it calls back no loan, no replica ends for it, and it is not late. With
    ``as_limited`` it counts at once, as Slurm's limits let it start.
    """
    if not by_holder.own:
        return []
    own, types = guaranteed_quota(policy), types_left(policy, by_holder)
    given = defaultdict[str, int](int)
    for run in by_holder.held.ending if as_limited else ():
        if is_own(run.job.qos) and (tenant := holder_of(run.job)) in by_holder.own:
            given[tenant] += run.cost_millislices
            give_types(types.get(tenant), run.job.gpus)
    own_jobs: list[WaitingJob] = []
    for tenant, jobs in by_holder.own.items():
        left, of_types = (
            own.get(tenant, 0) - by_holder.in_own(tenant) + given[tenant],
            types.get(tenant),
        )
        for job in jobs if left > 0 else ():
            if not job.waits.for_quota and not or_by_budget:
                continue
            cost = job.cost_millislices
            for nth in range(job.tasks):
                if not 0 < cost <= left or not has_types(of_types, job.gpus):
                    break
                left -= cost
                take_types(of_types, job.gpus)
                own_jobs.append(job._replace(nth=nth) if nth else job)
    return sorted(own_jobs, key=_PLACE)


def types_left(policy: Policy, by_holder: JobsByHolder) -> Mapping[str, dict[str, int]]:
    """Count what runs in tenants' own QOS leave of the types that are guaranteed, by tenant."""
    own = own_type_limits(policy, by_holder.costs, by_holder.models)
    types = {name: dict(of) for name, of in own.items()}
    for job in by_holder.runs if types else ():
        if is_own(job.qos):
            take_types(types.get(holder_of(job)), job.gpus)
    return types


def has_types(left: Mapping[str, int] | None, gpus: Mapping[str, int]) -> bool:
    """Whether so many instances are left of each type; types that are not named have no bound."""
    return not left or all(count <= left.get(gres_type, count) for gres_type, count in gpus.items())


def take_types(left: dict[str, int] | None, gpus: Mapping[str, int]) -> None:
    """Take instances from what is left of the types that are named."""
    if left:
        for gres_type in left.keys() & gpus.keys():
            left[gres_type] -= gpus[gres_type]


def give_types(left: dict[str, int] | None, gpus: Mapping[str, int]) -> None:
    """Give instances back to what is left of the types that are named."""
    if left:
        for gres_type in left.keys() & gpus.keys():
            left[gres_type] += gpus[gres_type]


def late_jobs(by_holder: JobsByHolder, policy: Policy, before_s: float) -> Sequence[WaitingJob]:
    """The jobs that wait for too long within their tenants' guaranteed quota, each once.

    ``before_s``: the Unix second of ``late_before_s``.
    """
    return [job for job in late_tasks(by_holder, policy, before_s) if not job.nth]


def late_tasks(by_holder: JobsByHolder, policy: Policy, before_s: float) -> Sequence[WaitingJob]:
    """The same jobs, an array once for each of its tasks that waits for too long."""
    return [
        job
        for job in within_guarantees(by_holder, policy)
        if job.since_s is not None and job.since_s < before_s
    ]


def late_before_s(now_s: float, grace_s: int) -> float:
    """Compute the Unix second: jobs that have waited since before should have started by now."""
    return now_s - grace_s - _BEYOND_GRACE_S


def _cost(job: JobView, costs: Mapping[str, Millislices]) -> int:
    return job_cost(job, costs) * job.tasks
