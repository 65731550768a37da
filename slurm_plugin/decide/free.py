"""GPUs that nobody holds."""

from collections import Counter
from collections.abc import Iterable, Mapping

from cluster.jobs import NodeView

_OUT_OF_USE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "NOT_RESPONDING"})


def is_usable(node: NodeView) -> bool:
    """Whether Slurm starts jobs on it."""
    return not node.states & _OUT_OF_USE


def free_instances(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """Instances by type that nobody holds; those of nodes out of use are not free."""
    free: Counter[str] = Counter()
    for node in nodes:
        for name, count in node.gpus.items():
            free[name] += (count - node.gpus_allotted.get(name, 0)) * is_usable(node)
    return free
