"""Counts free GPUs."""

from collections import Counter
from collections.abc import Iterable

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.node_states import OUT_OF_USE


def is_usable(node: NodeView) -> bool:
    """Whether Slurm starts jobs on the node."""
    return not node.states & OUT_OF_USE


def free_instances(nodes: Iterable[NodeView]) -> Counter[str]:
    """Count free instances by type, and parts of shared GPUs, on nodes where a job could start.

    Nodes that are out of use, have no CPUs or memory left, or are kept for one user, have none.
    """
    free: Counter[str] = Counter()
    for node in nodes:
        could_start = is_usable(node) and not node.blocked
        for name, count in node.gpus.items():
            held = node.gpus_allotted.get(name, 0) if could_start else count
            free[name] = free.get(name, 0) + count - held
        for name in node.shared:
            free[name] = free.get(name, 0) + (idle(node, name) if could_start else 0)
    return free


def idle(node: NodeView, gres_type: str) -> int:
    """Return the instances of a type, or parts of shared GPUs, that no job on the node holds.

    Parts count as free also while a job holds their GPU as a whole.
    """
    if gres_type in node.shared:
        return node.shared[gres_type] - node.shared_allotted.get(gres_type, 0)
    return node.gpus.get(gres_type, 0) - node.gpus_allotted.get(gres_type, 0)
