"""Sums up what jobs hold and wait for, and what nodes have, as input of lending and explaining."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import (
    ALLOTTED,
    SHAPES_NODE,
    WAITING,
    JobState,
    JobView,
    NodeView,
)
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost, run_cost
from slicewise.slurm_plugin.rules.common.free_instances import free_instances, is_usable
from slicewise.slurm_plugin.rules.common.qos_names import (
    borrowed_qos,
    holder,
    holder_of,
    is_borrowed,
    is_ours,
    is_own,
    qos_name,
)
from slicewise.slurm_plugin.rules.quota.holdings import (
    Holdings,
    QosQueue,
    by_priority,
    held_runs,
    queues_of,
)
from slicewise.slurm_plugin.rules.quota.standings import QosUse
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, guaranteed_types
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_NOT_BEFORE = frozenset({"BeginTime", "Dependency", "DependencyNeverSatisfied"})
"""Slurm's reasons for jobs that could not start now even if everything were free."""

_NO_QUOTA_HELPS = frozenset(
    {
        "AccountNotAllowed",
        "AccountingPolicy",
        "BadConstraints",
        "BurstBufferOperation",
        "BurstBufferResources",
        "BurstBufferStageIn",
        "Constraints",
        "DeadLine",
        "FedJobLock",
        "FrontEndDown",
        "InvalidAccount",
        "InvalidQOS",
        "JobArrayTaskLimit",
        "Licenses",
        "MpiPortsBusy",
        "NvidiaImexChannels",
        "PartitionConfig",
        "PartitionDown",
        "PartitionInactive",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "PowerNotAvail",
        "PowerReserved",
        "Reservation",
        "ReservationDeleted",
        "ReservationInvalid",
    }
)
"""Slurm's reasons for jobs that more slices would not start: their array's own limit is reached,
they wait for something else, or their partition, reservation, account or QOS does not allow them.
"""

_LIMITS = ("Assoc", "QOS", "Max")
"""Prefixes of Slurm's reasons for jobs over a limit: on a type, a budget, the jobs of one user, ...
"""

_SENTENCES = ("Reservation_", "uid_")
"""Prefixes of the sentences that Slurm gives as reason if a reservation is gone, or if the job's
user may not use a partition.
"""

NODES_AWAY = "ReqNodeNotAvail"
_NO_NODES = (NODES_AWAY, "Nodes_required_for_job_are_DOWN")
"""Prefixes of Slurm's reasons for jobs that need nodes which are down, drained or reserved. Details
follow the prefix. The second one is also said of jobs behind those of another partition."""

QOS_SLICES = "QOSGrpBilling"
"""The only limit that more slices help, in a tenant's QOS; in any other QOS it is the gate's."""
QOS_TYPES = "QOSGrpGRES"
"""The reason of a job for whose GPU type its tenant's guarantee has no more instances: the tenant's
own QOS limits them. Where it may borrow, the job may start in the borrowed QOS."""
QOS_BUDGET = "QOSGrpBillingRunMinutes"
"""The reason of a job for which its QOS' part of a budget is too small."""

_FOR_OTHERS = frozenset({"Priority", "Resources"})
"""Slurm's reasons for jobs for which nothing is free."""

_FIRST_LOOK_S = 5
"""Seconds that slurmctld may take to first look at a job: too few for a borrower to notice in its
grace time."""

_BEYOND_GRACE_S = 60
"""Seconds beyond the grace time within which a job should have started on recalled quota."""

FIRST_TASKS = 64
"""The most waiting tasks of a QOS that count: more do not start before limits are updated again."""


def holdings(
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
    models: Mapping[str, str],
) -> Holdings:
    """Collect the jobs of managed partitions that have not ended.

    ``models`` are the GPU models of GRES types: limits of a model bound what guarantees pay for
    (``within_guarantees``).
    """
    runs, others = managed(jobs, partitions)
    return Holdings(held_runs(runs, costs), others, queues_of(others, costs), costs, models)


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


@dataclass(frozen=True, order=True)
class PendingDemand:
    """A job, or ``tasks`` tasks of an array, that waits for its tenant's own quota.

    Attributes:
        since_s: the start of the wait in Unix seconds.
        cost_millislices: the cost of each task.
    """

    since_s: int
    cost_millislices: int
    tasks: int = 1

    @property
    def total_millislices(self) -> int:
        """The cost of all tasks."""
        return self.cost_millislices * self.tasks


def demand_of(policy: Policy, there: Holdings) -> Mapping[str, int]:
    """Sum up the millislices that each tenant's own jobs hold or wait for.

    Each job counts for its ``holder``. A held task, such as a service's slot at rest, waits for
    nothing. The same goes for a job that may not start yet, or that waits for something other than
    slices. In a tenant's own QOS only what fits into its guaranteed quota counts, as no loan would
    let more of these jobs start. They also count while they wait for a budget.

    What a job with an unreadable record holds is not known. Its tenant then counts as wanting all
    of its guaranteed quota, so that none of it is lent.
    """
    own, guaranteed, others = guaranteed_quota(policy), Counter[str](), Counter[str]()
    for (account, qos), cost in there.by_qos.items():
        (guaranteed if is_own(qos) else others)[holder(account, qos)] += cost
    for qos, queue in there.queues.items():
        if not is_own(qos):
            others.update(_waits_for(queue))
    for job in within_guarantees(there, policy, or_by_budget=True):
        guaranteed[holder_of(job)] += job_cost(job, there.costs)
    doubtful = {holder_of(job) for job in there.doubtful}
    return others + Counter(
        {
            name: own.get(name, 0)
            if name in doubtful
            else min(guaranteed.get(name, 0), own.get(name, 0))
            for name in (*guaranteed, *doubtful)
        }
    )


def _waits_for(queue: QosQueue) -> Mapping[str, int]:
    """Millislices for which jobs of a QOS wait, by tenant."""
    found = Counter[str]()
    for job in queue.seen:
        if waits_for_quota(job):
            found[holder_of(job)] += _cost(job, queue.costs)
    return found


def waiting_for_own(
    jobs: Iterable[JobView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, Sequence[PendingDemand]]:
    """Return the jobs that wait for their tenant's own quota, by tenant."""
    waiting: dict[str, list[PendingDemand]] = defaultdict(list)
    for job in jobs:
        if not waits_for_quota(job) or not is_own(job.qos):
            continue
        since_s = waits_since_s(job)
        # What a loan gives back helps no job whose type the guarantee covers no further.
        if job.reason == QOS_TYPES or since_s is None or not is_managed(job, partitions):
            continue
        if cost := job_cost(job, costs):
            waiting[holder_of(job)].append(PendingDemand(since_s, cost, max(1, len(job.untouched))))
    return waiting


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


def qos_use(policy: Policy, there: Holdings) -> QosUse:
    """Sum up what jobs hold of limits and wait for, by QOS.

    A completing job holds nothing of them: Slurm lets others start in its place. In a tenant's own
    QOS only those waiting jobs count that ``demand_of`` counts: no loan is made to replace slices
    that the QOS keeps for other jobs.
    """
    held, waiting = Counter[str](), Counter[str]()
    doubtful: set[str] = set()
    costs = there.costs
    for (_, qos), cost in there.by_qos.items():
        held[qos] += cost
    for one in there.ending:
        held[one.job.qos] -= one.cost_millislices
    for job in there.doubtful:
        doubtful.add(job.qos)
        if job.state in ALLOTTED and job.state is not JobState.COMPLETING:
            held[job.qos] -= job_cost(job, costs)
    tasks = {qos: found for qos, queue in there.queues.items() if (found := _first_tasks(queue))}
    # Else the borrowed QOS could take a completing job's place from a job of the own QOS.
    for job in within_guarantees(there, policy, or_by_budget=True, as_limited=True):
        waiting[job.qos] += job_cost(job, costs)
    first = frozenset(map(qos_name, guaranteed_types(policy)))
    return QosUse(held, waiting, tasks, frozenset(doubtful), first)


def _first_tasks(queue: QosQueue) -> Sequence[int]:
    """Millislices of the first tasks of a QOS that could start, in Slurm's order."""
    found: list[int] = []
    for job in queue.jobs:
        if is_waiting(job) and not job.is_doubtful and (cost := job_cost(job, queue.costs)):
            found += [cost] * min(max(1, len(job.untouched)), FIRST_TASKS - len(found))
            if len(found) == FIRST_TASKS:
                break
    return found


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
        tasks = max(1, len(job.untouched))
        used[holder_of(job)].update({kind: count * tasks for kind, count in job.gpus.items()})
    return used


def _in_own(jobs: Iterable[JobView], partitions: frozenset[str]) -> Iterator[JobView]:
    """Yield the jobs that hold guaranteed quota or wait for it, or for a budget."""
    for job in jobs:
        counts = job.state in ALLOTTED or waits_for_quota(job) or waits_for_budget(job)
        if is_own(job.qos) and counts and is_managed(job, partitions):
            yield job


def waiting_instances(jobs: Iterable[JobView], partitions: frozenset[str]) -> Mapping[str, int]:
    """Count the GPU instances by type for which jobs wait that would start if others ended."""
    waiting: Counter[str] = Counter()
    for job in jobs:
        if waits_for_others(job) and is_managed(job, partitions):
            for name, count in job.gpus.items():
                waiting[name] += count * max(1, len(job.untouched))
    return waiting


def capacity(
    nodes: Iterable[NodeView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
    whole_boards: Mapping[str, WholeBoard],
) -> int:
    """Sum up the capacity of managed partitions in millislices, however their GPUs are cut now."""
    # Most nodes have the same GPUs as others.
    known: dict[tuple[tuple[str, int], ...], int] = {}
    total = 0
    for node in nodes:
        if has_gpus(node, partitions):
            gpus = tuple(node.gpus.items())
            if gpus not in known:
                known[gpus] = node_capacity(node, costs, whole_boards)
            total += known[gpus]
    return total


def instances_of(nodes: Iterable[NodeView], partitions: frozenset[str]) -> Mapping[str, int]:
    """Count the instances of managed partitions by GRES type, as GPUs are cut now."""
    found = Counter[str]()
    for node in nodes:
        if has_gpus(node, partitions):
            found.update(node.gpus)
    return found


def node_capacity(
    node: NodeView, costs: Mapping[str, Millislices], whole_boards: Mapping[str, WholeBoard]
) -> int:
    """Compute a node's capacity in millislices. ``whole_boards`` are by GRES type.

    A board that may be repartitioned beside its jobs has the same number of devices for Slurm
    whatever it is cut into, as pads fill up the number. So boards are counted by their devices. The
    capacity is that of the node's boards, or of what it is cut into now if that is more: a 4g and a
    3g cost more than the GPU. Whole GPUs, and instances on nodes with fewer devices, count what
    they cost.
    """
    return max(run_cost(node.gpus, costs), _boards_cost(node, costs, whole_boards))


def _boards_cost(
    node: NodeView, costs: Mapping[str, Millislices], whole_boards: Mapping[str, WholeBoard]
) -> int:
    """Sum up a node's boards that may be repartitioned and its other GPUs, never more than it has.

    What a pad could become is not known. So with several models each board counts as the cheapest.
    """
    cut = {kind: count for kind, count in node.gpus.items() if kind in whole_boards and count}
    others = {kind: count for kind, count in node.gpus.items() if kind not in whole_boards}
    devices = sum(cut.values()) + sum(count for kind, count in others.items() if is_pad(kind))
    kinds = [whole_boards[kind] for kind in cut or whole_boards]
    boards = devices // max((one.devices for one in kinds), default=1)
    each = min((one.cost_millislices for one in kinds), default=0)
    return boards * each + run_cost(others, costs)


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


def gpus_on_nodes(job: JobView) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield the GPU instances by type that a run holds on each of its nodes.

    Slurm's job record has only their sum here, so they are divided evenly among the nodes.
    """
    for nth, node in enumerate(job.nodes):
        counts = {kind: (count - nth - 1) // len(job.nodes) + 1 for kind, count in job.gpus.items()}
        yield node, {kind: count for kind, count in counts.items() if count}


def wanted_on_nodes(job: JobView) -> tuple[Mapping[str, int], int]:
    """Return what a waiting job, or each task of an array, needs: GPU instances and node count.

    The instances, by type, are those per node.
    """
    nodes = max(1, int(job.tres.get("node", "1")))
    return {kind: -(-count // nodes) for kind, count in job.gpus.items() if count}, nodes


def free_on_nodes(
    nodes: Iterable[NodeView], partitions: frozenset[str]
) -> Mapping[str, Counter[str]]:
    """Count what Slurm shows as free, for each node on which it starts jobs: GPU instances by type.

    Completing jobs' GPUs are among them (``free_by_node``).
    """
    return {node.name: there for node in nodes if (there := _free_on(node, partitions)) is not None}


def free_by_node(
    jobs: Iterable[JobView], shown: Mapping[str, Counter[str]]
) -> Mapping[str, Counter[str]]:
    """Count the free GPU instances by type and node: what is ``shown`` (``free_on_nodes``), less
    what completing ones of the ``jobs`` still hold.
    """
    free = dict(shown)
    # Slurm shows completing jobs' GPUs as free, but starts nothing on them before the jobs' end.
    ending = (job for job in jobs if job.state is JobState.COMPLETING)
    for node, gpus in (place for job in ending for place in gpus_on_nodes(job)):
        if node in free:
            free[node] = free[node] - Counter(gpus)
    return free


def _free_on(node: NodeView, partitions: frozenset[str]) -> Counter[str] | None:
    """What is free on one node; None if Slurm starts nothing there."""
    return free_instances([node]) if has_gpus(node, partitions) and is_usable(node) else None


def node_costs(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> frozenset[int]:
    """Return the amounts that all GPUs of a node together cost, over managed partitions' nodes."""
    return frozenset(run_cost(node.gpus, costs) for node in nodes if node.is_in(partitions))


def shared_costs(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, Millislices]:
    """Return the cost of one part of shared GPUs, by name, of those that managed nodes have."""
    found = {name for node in nodes if node.is_in(partitions) for name in node.shared}
    return {name: costs[name] for name in sorted(found & costs.keys())}


def has_gpus(node: NodeView, partitions: frozenset[str]) -> bool:
    """Whether the node has GPUs and is in one of the partitions."""
    return node.is_in(partitions) and any(node.gpus.values())


def is_managed(job: JobView, partitions: frozenset[str]) -> bool:
    """Whether a job is or may run in one of the partitions; a waiting job may name several."""
    return job.partition in partitions or not partitions.isdisjoint(job.partition.split(","))


def is_waiting(job: JobView) -> bool:
    """Whether a job could start now if there were room: it is pending, not held, and eligible."""
    return job.state in WAITING and not job.held and job.reason not in _NOT_BEFORE


def lacks_only_room(job: JobView) -> bool:
    """Whether a waiting job lacks nothing but slices, budget or free GPUs."""
    if not is_waiting(job):
        return False
    is_ours_to_raise = job.reason in {QOS_SLICES, QOS_BUDGET}
    is_over_another = job.reason.startswith((*_LIMITS, *_SENTENCES)) and not is_ours_to_raise
    lacks_more = job.reason in _NO_QUOTA_HELPS or is_over_another
    return not lacks_more and not waits_for_nodes(job)


def waits_for_others(job: JobView) -> bool:
    """Whether a job would start if GPU instances came free."""
    return (job.reason in _FOR_OTHERS or SHAPES_NODE in job.reason) and is_waiting(job)


def waits_for_quota(job: JobView) -> bool:
    """Whether a job could start now if its tenant might hold more; GPUs may have to come free.

    A job whose nodes are away could not: what was kept for it would lie idle until they are back.
    """
    if not is_waiting(job) or (job.reason.startswith(NODES_AWAY) and waits_for_nodes(job)):
        return False
    is_by_quota = job.reason == QOS_SLICES or (job.reason == QOS_TYPES and not is_borrowed(job.qos))
    is_at_gate = is_by_quota and not is_ours(job.qos)
    is_over_another = job.reason.startswith((*_LIMITS, *_SENTENCES)) and not is_by_quota
    is_no_matter_of_slices = job.reason in _NO_QUOTA_HELPS or is_over_another or is_at_gate
    return not is_no_matter_of_slices


def names_a_limit(job: JobView) -> bool:
    """Whether Slurm's reason is a limit of an association or a QOS."""
    return job.reason.startswith(_LIMITS)


def waits_for_budget(job: JobView) -> bool:
    """Whether a job could start now if more of its budget were left."""
    return is_waiting(job) and job.reason == QOS_BUDGET


def waits_for_nodes(job: JobView) -> bool:
    """Whether nodes that a job needs are down, drained or reserved.

    Nodes that only await a repartition of their GPUs do not count.
    """
    return job.reason.startswith(_NO_NODES) and SHAPES_NODE not in job.reason


def within_guarantees(
    there: Holdings, policy: Policy, *, or_by_budget: bool = False, as_limited: bool = False
) -> Iterator[JobView]:
    """Yield the jobs waiting in tenants' own QOS for which guaranteed quotas suffice.

    Jobs come in Slurm's order, an array once for each task. They share what running jobs of the
    same QOS leave of the guaranteed quota. With ``or_by_budget`` jobs that wait for a budget are
    included, as what is left of a budget changes with every run.

    What comes in a completing job's place mostly waits for its GPUs, so it counts once these are
    free: before that it calls back no loan, no replica ends for it, and it is not late. With
    ``as_limited`` it counts at once, as Slurm's limits let it start.
    """
    waiting = [
        job
        for job in there.in_own
        if waits_for_quota(job) or (or_by_budget and waits_for_budget(job))
    ]
    if not waiting:
        return
    own = guaranteed_quota(policy)
    left = Counter({name: own.get(name, 0) - there.own(name) for name in map(holder_of, waiting)})
    types = types_left(policy, there)
    for run in there.ending if as_limited else ():
        tenant = holder_of(run.job)
        if is_own(run.job.qos) and tenant in left:
            left[tenant] += run.cost_millislices
            give_types(types.get(tenant), run.job.gpus)
    for job in by_priority(waiting):
        cost, tenant = job_cost(job, there.costs), holder_of(job)
        of_types = types.get(tenant)
        for _ in range(max(1, len(job.untouched))):
            if not 0 < cost <= left[tenant] or not has_types(of_types, job.gpus):
                break
            left[tenant] -= cost
            take_types(of_types, job.gpus)
            yield job


def types_left(policy: Policy, there: Holdings) -> Mapping[str, dict[str, int]]:
    """Count what runs in tenants' own QOS leave of the types that are guaranteed, by tenant."""
    own = own_type_limits(policy, there.costs, there.models)
    types = {name: dict(of) for name, of in own.items()}
    for job in there.runs if types else ():
        if is_own(job.qos):
            take_types(types.get(holder_of(job)), job.gpus)
    return types


def has_types(left: Mapping[str, int] | None, gpus: Mapping[str, int]) -> bool:
    """Whether so many instances are left of each type; types that are not named have no bound."""
    return not left or all(count <= left.get(kind, count) for kind, count in gpus.items())


def take_types(left: dict[str, int] | None, gpus: Mapping[str, int]) -> None:
    """Take instances from what is left of the types that are named."""
    if left:
        for kind in left.keys() & gpus.keys():
            left[kind] -= gpus[kind]


def give_types(left: dict[str, int] | None, gpus: Mapping[str, int]) -> None:
    """Give instances back to what is left of the types that are named."""
    if left:
        for kind in left.keys() & gpus.keys():
            left[kind] += gpus[kind]


def late_jobs(there: Holdings, policy: Policy, before_s: float) -> Iterator[JobView]:
    """Yield the jobs that wait for too long within their tenants' guaranteed quota, each once.

    ``before_s``: the Unix second of ``late_before_s``.
    """
    yield from dict.fromkeys(late_tasks(there, policy, before_s))


def late_tasks(there: Holdings, policy: Policy, before_s: float) -> Iterator[JobView]:
    """Yield the same jobs, an array once for each of its tasks that waits for too long."""
    for job in within_guarantees(there, policy):
        began_s = waits_since_s(job)
        if began_s is not None and began_s < before_s:
            yield job


def late_before_s(now_s: float, grace_s: int) -> float:
    """Compute the Unix second: jobs that have waited since before should have started by now."""
    return now_s - grace_s - _BEYOND_GRACE_S


def _cost(job: JobView, costs: Mapping[str, Millislices]) -> int:
    return job_cost(job, costs) * max(1, len(job.untouched))
