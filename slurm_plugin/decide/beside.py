"""Partitions that are not managed, and have the GPUs of those that are on their nodes."""

from collections.abc import Iterable

from cluster.jobs import NodeView
from slurm_plugin.decide.demand import has_gpus


def partitions_beside(nodes: Iterable[NodeView], managed: frozenset[str]) -> tuple[str, ...]:
    """Those on a node with GPUs of a managed partition, by name: what runs there is not charged."""
    names = {name for node in nodes if has_gpus(node, managed) for name in node.partitions}
    return tuple(sorted(names - managed))
