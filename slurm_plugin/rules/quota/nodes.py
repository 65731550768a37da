"""What nodes have: their capacity, the GPU instances on them, and those that are free."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.free_instances import free_instances, is_usable
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad


def capacity(
    nodes: Iterable[NodeView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
    whole_boards: Mapping[str, WholeBoard],
) -> int:
    """Sum up the capacity of managed partitions in millislices, however their GPUs are cut now."""
    # Most nodes have the same GPUs as others.
    capacities: dict[tuple[tuple[str, int], ...], int] = {}
    total = 0
    for node in nodes:
        if has_gpus(node, partitions):
            gpus = tuple(node.gpus.items())
            if gpus not in capacities:
                capacities[gpus] = node_capacity(node, costs, whole_boards)
            total += capacities[gpus]
    return total


def instances_of(nodes: Iterable[NodeView], partitions: frozenset[str]) -> Mapping[str, int]:
    """Count the instances of managed partitions by GRES type, as GPUs are cut now."""
    gpus = Counter[str]()
    for node in nodes:
        if has_gpus(node, partitions):
            gpus.update(node.gpus)
    return gpus


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
    cut = {
        gres_type: count
        for gres_type, count in node.gpus.items()
        if gres_type in whole_boards and count
    }
    others = {
        gres_type: count for gres_type, count in node.gpus.items() if gres_type not in whole_boards
    }
    devices = sum(cut.values()) + sum(
        count for gres_type, count in others.items() if is_pad(gres_type)
    )
    kinds = [whole_boards[gres_type] for gres_type in cut or whole_boards]
    boards = devices // max((kind.devices for kind in kinds), default=1)
    each = min((kind.cost_millislices for kind in kinds), default=0)
    return boards * each + run_cost(others, costs)


def gpus_on_nodes(job: JobView) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield the GPU instances by type that a run holds on each of its nodes.

    Slurm's job record has only their sum here, so they are divided evenly among the nodes.
    """
    for nth, node in enumerate(job.nodes):
        counts = {
            gres_type: (count - nth - 1) // len(job.nodes) + 1
            for gres_type, count in job.gpus.items()
        }
        yield node, {gres_type: count for gres_type, count in counts.items() if count}


def free_on_nodes(
    nodes: Iterable[NodeView], partitions: frozenset[str]
) -> Mapping[str, Counter[str]]:
    """Count what Slurm shows as free, for each node on which it starts jobs: GPU instances by type.

    Completing jobs' GPUs are among them (``free_by_node``).
    """
    return {node.name: free for node in nodes if (free := _free_on(node, partitions)) is not None}


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
    names = {name for node in nodes if node.is_in(partitions) for name in node.shared}
    return {name: costs[name] for name in sorted(names & costs.keys())}


def has_gpus(node: NodeView, partitions: frozenset[str]) -> bool:
    """Whether the node has GPUs and is in one of the partitions."""
    return node.is_in(partitions) and any(node.gpus.values())
