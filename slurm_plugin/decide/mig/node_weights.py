"""Node weights by which Slurm fills nodes that are in use before those that are empty.

Slurm takes the nodes of the lowest weight first, and on a node picks the device itself. So of
where a job goes this much can be told it: nodes of which at least half is in use, then others in
use, then empty ones, whose GPUs stay free to be cut anew.

A weight of ours is 1,000,000 + 10 × the site's own + 0, 1 or 2. So the site's own order stays, and
the weight itself says what to put back.
"""

from collections.abc import Iterable, Mapping

from cluster.jobs import NodeView
from cluster.units import Millislices
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import has_gpus

_OWN_BELOW = 100_000
_FIRST, _STEPS = 1_000_000, 10
_OURS = range(_FIRST, _FIRST + _STEPS * _OWN_BELOW)
"""Below 2**24: Slurm shifts them by 8 of 32 bits."""


def changes(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, Millislices]
) -> Mapping[str, int]:
    """What the nodes with GPUs in these partitions should weigh, where they weigh something else.

    The site's own, if one of those is from 100,000 on: there is no room for ours.
    """
    managed = [one for one in nodes if has_gpus(one, partitions) and run_cost(one.gpus, costs)]
    if any(own_weight(node) >= _OWN_BELOW for node in managed):
        return own_weights(managed)
    wanted = {node.name: _weight(node, costs) for node in managed}
    return {node.name: wanted[node.name] for node in managed if node.weight != wanted[node.name]}


def own_weights(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """The site's own weights of the nodes that have one of ours."""
    return {node.name: own_weight(node) for node in nodes if node.weight in _OURS}


def own_weight(node: NodeView) -> int:
    """What it weighs without Slicewise."""
    return (node.weight - _FIRST) // _STEPS if node.weight in _OURS else node.weight


def _weight(node: NodeView, costs: Mapping[str, Millislices]) -> int:
    held, whole = run_cost(node.gpus_allotted, costs), run_cost(node.gpus, costs)
    step = 2 if not held else 1 if 2 * held < whole else 0
    return _FIRST + _STEPS * own_weight(node) + step
