"""What Slurm's jobs hold and wait for, and what there is: the input of lending and explaining."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.jobs import ALLOTTED, SHAPES_NODE, JobState, JobView, NodeView
from cluster.mig_profiles import WholeBoard
from cluster.units import Millislices
from slurm_plugin.decide.ceilings import QosUse
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.free import free_instances, is_usable
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.qos_names import borrowed_qos, is_ours, qos_name
from slurm_plugin.decide.slurm_gres import is_pad
from slurm_plugin.decide.tenants import own_part

_NOT_BEFORE = frozenset({"BeginTime", "Dependency", "DependencyNeverSatisfied"})
"""Slurm's reasons of jobs that could not start now, whatever was free."""

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
"""Slurm's reasons of jobs that would not start with more slices: over their array's own limit; they
wait for something else; or their partition, reservation, account or QOS does not let them.
"""

_LIMITS = ("Assoc", "QOS", "Max")
"""So begin Slurm's reasons of jobs over a limit: on a type, over a budget, on jobs of one user, ...
"""

_SENTENCES = ("Reservation_", "uid_")
"""So begin what Slurm says instead of a name where a reservation is gone, or a partition is not for
the job's user.
"""

_NO_NODES = ("ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN")
"""So begin Slurm's reasons of jobs whose nodes are down, drained or reserved. Details follow."""

QOS_SLICES = "QOSGrpBilling"
"""The only limit that more slices help, in a tenant's QOS; in any other a job waits at the gate."""
QOS_BUDGET = "QOSGrpBillingRunMinutes"
"""The reason of a job whose QOS' part of a budget does not last for it."""
ACCOUNTS_BUDGET = "AssocGrpBillingRunMinutes"
"""Budgets were limits of accounts once, and are until the gate stands."""

_FOR_OTHERS = frozenset({"Priority", "Resources"})
"""Slurm's reasons of jobs for which nothing is free."""

_FIRST_LOOK_S = 5
"""So long slurmctld may take for it: less than a borrower notices of its grace."""

FIRST_TASKS = 64
"""Of a QOS; more do not start until limits are looked at again."""


@dataclass(frozen=True)
class Held:
    """GPU instances by type that an account's own jobs hold.

    Attributes:
        instances: in any QOS.
        guaranteed: those in the tenant's own QOS.
        elsewhere: those in neither of its two QOS.
    """

    instances: Mapping[str, int] = field(default_factory=dict, hash=False)
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)
    elsewhere: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, order=True)
class Waiting:
    """A job that waits for its tenant's own quota, or so many tasks of an array.

    Attributes:
        since_s: Unix seconds.
        cost_millislices: of each task.
    """

    since_s: int
    cost_millislices: int
    tasks: int = 1

    @property
    def total_millislices(self) -> int:
        """Of all tasks."""
        return self.cost_millislices * self.tasks


def demand(
    policy: Policy,
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
) -> Mapping[str, int]:
    """Millislices that each account's own jobs hold or wait for.

    A task that is held, such as a service's slot at rest, waits for nothing; neither does a job
    that may not start yet, or waits for something else than slices. Of those in a tenant's own QOS
    these count that fit into its own part, as no loan would let more of them start; also while they
    wait for a budget.

    What a job holds of which Slurm says what nobody can read is not known: its account counts as
    wanting all of its own part, so that nothing of that is lent.
    """
    ours = [job for job in jobs if is_managed(job, partitions)]
    own, guaranteed, others = own_part(policy), Counter[str](), Counter[str]()
    for job in ours:
        is_guaranteed = job.qos == qos_name(job.account)
        if is_guaranteed and job.state in ALLOTTED:
            guaranteed[job.account] += run_cost(job.gpus, costs)
        elif not is_guaranteed and (job.state in ALLOTTED or waits_for_quota(job)):
            others[job.account] += _cost(job, costs)
    for job in paid_by_own_part(ours, own, costs, or_by_budget=True):
        guaranteed[job.account] += run_cost(job.gpus, costs)
    doubtful = {job.account for job in ours if _is_in_doubt(job)}
    return others + Counter(
        {
            name: own.get(name, 0)
            if name in doubtful
            else min(guaranteed.get(name, 0), own.get(name, 0))
            for name in (*guaranteed, *doubtful)
        }
    )


def _is_in_doubt(job: JobView) -> bool:
    return job.is_doubtful and job.state is not JobState.ENDED


def waiting_for_own(
    jobs: Iterable[JobView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, Sequence[Waiting]]:
    """The jobs of each account that wait for its tenant's own quota."""
    waiting: dict[str, list[Waiting]] = defaultdict(list)
    for job in jobs:
        since_s = waits_since_s(job)
        waits = job.qos == qos_name(job.account) and waits_for_quota(job)
        if since_s is None or not waits or not is_managed(job, partitions):
            continue
        if cost := run_cost(job.gpus, costs):
            waiting[job.account].append(Waiting(since_s, cost, max(1, len(job.untouched))))
    return waiting


def waits_since_s(job: JobView) -> int | None:
    """Unix seconds since when a job could start; None where Slurm does not say.

    Slurm notes when it first looks at a job that it is eligible, some seconds after its submit:
    what was called for it in between was called for no other.
    """
    submit_s, eligible_s = job.submit_s, job.eligible_s
    if submit_s is None or eligible_s is None:
        return submit_s if eligible_s is None else eligible_s
    was_at_once = 0 <= eligible_s - submit_s <= _FIRST_LOOK_S
    return submit_s if was_at_once else eligible_s


def qos_use(
    own: Mapping[str, int],
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
) -> QosUse:
    """What jobs do with limits. Of a tenant's own QOS those wait that ``demand`` counts: what it
    keeps for others no loan is made for. ``own`` are the tenants' own parts, in millislices.
    """
    held, waiting = Counter[str](), Counter[str]()
    tasks: dict[str, list[int]] = defaultdict(list)
    doubtful: set[str] = set()
    ours = [job for job in jobs if is_managed(job, partitions)]
    for job in by_priority(ours):
        if _is_in_doubt(job):
            doubtful.add(job.qos)
        elif job.state in ALLOTTED:
            held[job.qos] += run_cost(job.gpus, costs)
        elif is_waiting(job) and (cost := run_cost(job.gpus, costs)):
            left = FIRST_TASKS - len(tasks[job.qos])
            tasks[job.qos] += [cost] * min(max(1, len(job.untouched)), left)
    for job in paid_by_own_part(ours, own, costs, or_by_budget=True):
        waiting[job.qos] += run_cost(job.gpus, costs)
    return QosUse(held, waiting, tasks, frozenset(doubtful))


def guaranteed_use(
    jobs: Iterable[JobView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, int]:
    """Millislices that each account's jobs in its own QOS hold, or wait for and for nothing else
    but a budget: how much of that there is changes with every run.
    """
    used: Counter[str] = Counter()
    for job in jobs:
        counts = job.state in ALLOTTED or waits_for_quota(job) or waits_for_budget(job)
        if job.qos == qos_name(job.account) and counts and is_managed(job, partitions):
            used[job.account] += _cost(job, costs)
    return used


def waiting_instances(jobs: Iterable[JobView], partitions: frozenset[str]) -> Mapping[str, int]:
    """GPU instances by type for which jobs wait that would start if others ended."""
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
    """Millislices that the GPUs of the nodes of managed partitions can be, however they are cut."""
    managed = (node for node in nodes if has_gpus(node, partitions))
    return sum(node_capacity(node, costs, whole_boards) for node in managed)


def node_capacity(
    node: NodeView, costs: Mapping[str, Millislices], whole_boards: Mapping[str, WholeBoard]
) -> int:
    """Millislices that a node's GPUs can be. ``whole_boards`` are by GRES type.

    A board that may be cut anew beside its jobs has as many devices for Slurm whatever it is cut
    into, pads among them: by their number boards are counted. A node is its boards, or what it is
    cut into now where that is more: a 4g and a 3g cost more than the GPU. Whole GPUs, and instances
    on nodes with fewer devices, are what they cost.
    """
    return max(run_cost(node.gpus, costs), _boards_cost(node, costs, whole_boards))


def _boards_cost(
    node: NodeView, costs: Mapping[str, Millislices], whole_boards: Mapping[str, WholeBoard]
) -> int:
    """Of its boards that may be cut anew and its whole GPUs: never more than there are.

    What a pad could become is not said; so of several models the least that it could be counts.
    """
    cut = {kind: count for kind, count in node.gpus.items() if kind in whole_boards and count}
    others = {kind: count for kind, count in node.gpus.items() if kind not in whole_boards}
    devices = sum(cut.values()) + sum(count for kind, count in others.items() if is_pad(kind))
    kinds = [whole_boards[kind] for kind in cut or whole_boards]
    boards = devices // max((one.devices for one in kinds), default=1)
    each = min((one.cost_millislices for one in kinds), default=0)
    return boards * each + run_cost(others, costs)


def held(jobs: Iterable[JobView], partitions: frozenset[str]) -> Mapping[str, Held]:
    """What each account's own jobs hold; accounts that hold nothing are left out."""
    instances: dict[str, Counter[str]] = {}
    guaranteed: dict[str, Counter[str]] = {}
    elsewhere: dict[str, Counter[str]] = {}
    for job in jobs:
        if job.state in ALLOTTED and is_managed(job, partitions):
            gpus = job.gpus
            instances.setdefault(job.account, Counter()).update(gpus)
            if job.qos == qos_name(job.account):
                guaranteed.setdefault(job.account, Counter()).update(gpus)
            elif job.qos != borrowed_qos(job.account):
                elsewhere.setdefault(job.account, Counter()).update(gpus)
    return {
        name: Held(gpus, guaranteed.get(name, {}), elsewhere.get(name, {}))
        for name, gpus in instances.items()
    }


def gpus_on_nodes(job: JobView) -> Iterator[tuple[str, Mapping[str, int]]]:
    """GPU instances by type that a run holds on each of its nodes: as far as is known here, on each
    as many as on the others.
    """
    for nth, node in enumerate(job.nodes):
        counts = {kind: (count - nth - 1) // len(job.nodes) + 1 for kind, count in job.gpus.items()}
        yield node, {kind: count for kind, count in counts.items() if count}


def wanted_on_nodes(job: JobView) -> tuple[Mapping[str, int], int]:
    """GPU instances by type that a waiting job, or each of its tasks, needs on each of its nodes;
    and on how many.
    """
    nodes = max(1, int(job.tres.get("node", "1")))
    return {kind: -(-count // nodes) for kind, count in job.gpus.items() if count}, nodes


def free_by_node(
    jobs: Iterable[JobView], nodes: Iterable[NodeView], partitions: frozenset[str]
) -> Mapping[str, Counter[str]]:
    """GPU instances by type that nobody holds, by node on which Slurm starts jobs."""
    free = {
        node.name: Counter(free_instances([node]))
        for node in nodes
        if has_gpus(node, partitions) and is_usable(node)
    }
    # Slurm shows their GPUs as free, and starts nothing on them before they have ended.
    ending = (job for job in jobs if job.state is JobState.COMPLETING)
    for node, gpus in (place for job in ending for place in gpus_on_nodes(job)):
        if node in free:
            free[node] -= Counter(gpus)
    return free


def node_costs(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> frozenset[int]:
    """What all GPUs of each node of managed partitions cost together."""
    return frozenset(run_cost(node.gpus, costs) for node in nodes if node.is_in(partitions))


def has_gpus(node: NodeView, partitions: frozenset[str]) -> bool:
    """Whether it is a node, with GPUs, in one of the partitions."""
    return node.is_in(partitions) and any(node.gpus.values())


def by_priority(jobs: Iterable[JobView]) -> list[JobView]:
    """In the order in which Slurm would start them."""
    return sorted(jobs, key=lambda job: (-job.priority, job.job_id))


def is_managed(job: JobView, partitions: frozenset[str]) -> bool:
    """Whether it is, or may come, in one of the partitions: while it waits it may name several."""
    return job.partition in partitions or not partitions.isdisjoint(job.partition.split(","))


def is_waiting(job: JobView) -> bool:
    """Whether it could start now, if there were room."""
    pending = job.state in {JobState.PENDING, JobState.SPECIAL_EXIT}
    return pending and not job.held and job.reason not in _NOT_BEFORE


def lacks_only_room(job: JobView) -> bool:
    """Whether it would start now, if slices, budgets and other jobs let it."""
    is_ours_to_raise = job.reason in {QOS_SLICES, QOS_BUDGET, ACCOUNTS_BUDGET}
    is_over_another = job.reason.startswith((*_LIMITS, *_SENTENCES)) and not is_ours_to_raise
    lacks_more = job.reason in _NO_QUOTA_HELPS or is_over_another
    return is_waiting(job) and not lacks_more and not waits_for_nodes(job)


def waits_for_others(job: JobView) -> bool:
    """Whether it would start if instances came free."""
    return (job.reason in _FOR_OTHERS or SHAPES_NODE in job.reason) and is_waiting(job)


def waits_for_quota(job: JobView) -> bool:
    """Whether it could start now, if its tenant might hold more; GPUs may have to come free."""
    is_at_gate = job.reason == QOS_SLICES and not is_ours(job.qos)
    others = (*_LIMITS, *_SENTENCES)
    is_over_another = job.reason.startswith(others) and job.reason != QOS_SLICES
    is_no_matter_of_slices = job.reason in _NO_QUOTA_HELPS or is_over_another or is_at_gate
    return is_waiting(job) and not is_no_matter_of_slices


def waits_for_budget(job: JobView) -> bool:
    """Whether it could start now, if its tenant had more left to use up."""
    return job.reason in {QOS_BUDGET, ACCOUNTS_BUDGET} and is_waiting(job)


def waits_for_nodes(job: JobView) -> bool:
    """Whether nodes that it needs are down, drained or reserved; not whether GPUs are to be cut
    anew for it.
    """
    return job.reason.startswith(_NO_NODES) and SHAPES_NODE not in job.reason


def paid_by_own_part(
    jobs: Sequence[JobView],
    own: Mapping[str, int],
    costs: Mapping[str, Millislices],
    *,
    or_by_budget: bool = False,
) -> Iterator[JobView]:
    """Those that wait in their tenants' own QOS, by Slurm's priority, as far as what runs there
    leaves of their tenants' ``own`` parts pays for them; an array once for each of its tasks.

    ``or_by_budget``: also those that wait for a budget; what is left of one changes with each run.
    """
    left = Counter(own)
    guaranteed = [job for job in jobs if job.qos == qos_name(job.account)]
    for job in guaranteed:
        if job.state in ALLOTTED:
            left[job.account] -= run_cost(job.gpus, costs)
    waiting = (
        job
        for job in guaranteed
        if waits_for_quota(job) or (or_by_budget and waits_for_budget(job))
    )
    for job in by_priority(waiting):
        cost = run_cost(job.gpus, costs)
        for _ in range(max(1, len(job.untouched))):
            if not 0 < cost <= left[job.account]:
                break
            left[job.account] -= cost
            yield job


def _cost(job: JobView, costs: Mapping[str, Millislices]) -> int:
    return run_cost(job.gpus, costs) * max(1, len(job.untouched))
