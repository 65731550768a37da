"""Finds unmanaged partitions that share nodes with managed ones."""

from collections.abc import Iterable

from slicewise.cluster.language.jobs import NodeView
from slicewise.slurm_plugin.rules.quota.nodes import has_gpus


def partitions_beside(nodes: Iterable[NodeView], managed: frozenset[str]) -> tuple[str, ...]:
    """Return the names, sorted, of unmanaged partitions on GPU nodes of managed ones.

    Jobs in these partitions are not charged.
    """
    names = {name for node in nodes if has_gpus(node, managed) for name in node.partitions}
    return tuple(sorted(names - managed))
