"""Nodes as Slurm shows them."""

from typing import Any

from slicewise.cluster.language.jobs import NodeView


def a_node(name: str = "n1", *states: str, held: int = 0, **changes: Any) -> NodeView:
    """A managed node of one GPU, cut into seven 1g, the first ``held`` of which jobs hold."""
    fields: dict[str, Any] = {
        "address": name,
        "states": frozenset(states or ("IDLE",)),
        "gpus": {"1g.10gb": 7},
        "gpus_allotted": {"1g.10gb": held} if held else {},
        "partitions": frozenset({"gpu"}),
        "gpus_held": frozenset(range(held)),
    }
    return NodeView(name, **{**fields, **changes})
