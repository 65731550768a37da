"""GPUs that nobody holds."""

from collections import Counter
from collections.abc import Iterable, Mapping

from cluster.jobs import NodeView

_OUT_OF_USE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "NOT_RESPONDING"})


def is_usable(node: NodeView) -> bool:
    """Whether Slurm starts jobs on it."""
    return not node.states & _OUT_OF_USE


def free_instances(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """Instances by type that nobody holds, on nodes where a job could start.

    Nodes out of use have none, and those without CPU or memory left, or kept for one user.
    """
    free: Counter[str] = Counter()
    for node in nodes:
        could_start = is_usable(node) and not node.blocked
        for name in node.gpus:
            free[name] += idle(node, name) * could_start
    return free


def idle(node: NodeView, gres_type: str) -> int:
    """Instances of that type that no job on the node holds."""
    return node.gpus.get(gres_type, 0) - node.gpus_allotted.get(gres_type, 0)
