"""Computes node weights with which Slurm fills nodes in use before empty nodes.

Slurm takes nodes of the lowest weight first, and picks the device on a node itself. So weights are
all that can steer where a job goes: first to nodes that are at least half in use, then to other
nodes in use, last to empty nodes, so that their GPUs stay free to be cut again. Powered-down nodes
Slurm takes after all others by itself.

A weight set by Slicewise is 1,000,000 + 10 × the site's own weight + 0, 1 or 2. So the site's
own order stays, and the weight itself says what to put back.
"""

from collections.abc import Iterable, Mapping

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.quota.nodes import has_gpus

_OWN_BELOW = 100_000
_FIRST, _STEPS = 1_000_000, 10
_OURS = range(_FIRST, _FIRST + _STEPS * _OWN_BELOW)
"""Weights set by Slicewise. They are below 2**24, since Slurm shifts weights by 8 of 32 bits."""


def changes(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, int]:
    """New weights of nodes with GPUs in these partitions, where they differ from the current ones.

    If a site's own weight is 100,000 or more, Slicewise's weights have no room, and all nodes get
    back the site's own.
    """
    managed = [node for node in nodes if has_gpus(node, partitions) and run_cost(node.gpus, costs)]
    if any(own_weight(node) >= _OWN_BELOW for node in managed):
        return own_weights(managed)
    wanted = {node.name: _weight(node, costs) for node in managed}
    return {node.name: wanted[node.name] for node in managed if node.weight != wanted[node.name]}


def own_weights(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """The site's own weights of those nodes that have a weight of Slicewise's."""
    return {node.name: own_weight(node) for node in nodes if node.weight in _OURS}


def own_weight(node: NodeView) -> int:
    """The node's weight without Slicewise."""
    return (node.weight - _FIRST) // _STEPS if node.weight in _OURS else node.weight


def _weight(node: NodeView, costs: Mapping[str, Millislices]) -> int:
    held, whole = run_cost(node.gpus_allotted, costs), run_cost(node.gpus, costs)
    step = 2 if not held else 1 if 2 * held < whole else 0
    return _FIRST + _STEPS * own_weight(node) + step
