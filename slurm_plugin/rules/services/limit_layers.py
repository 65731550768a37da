"""Decides which limits on requests hold, where operators, managers and persons have set some."""

from collections.abc import Iterable, Mapping
from typing import get_args

from slicewise.cluster.rpc.limit_messages import (
    LimitChangeRequest,
    LimitName,
    LimitRank,
    RequestLimits,
)

RANKS: tuple[LimitRank, ...] = get_args(LimitRank)
"""Who sets limits, the lowest first."""
_NUMBERS = tuple(name for name in get_args(LimitName) if name != "models")


def together(layers: Iterable[RequestLimits]) -> RequestLimits:
    """Return what holds: of each limit the tightest, of models those that all layers allow."""
    held = tuple(layers)
    most = {
        name: min(
            (number for layer in held if (number := getattr(layer, name)) is not None), default=None
        )
        for name in _NUMBERS
    }
    allowed = [frozenset(layer.models) for layer in held if layer.models is not None]
    models = tuple(sorted(frozenset.intersection(*allowed))) if allowed else None
    return RequestLimits(**most, models=models, is_exact=any(layer.is_exact for layer in held))


def changed_layers(
    before: Mapping[LimitRank, RequestLimits], change: LimitChangeRequest, rank: LimitRank
) -> Mapping[LimitRank, RequestLimits]:
    """Return the limits of each rank after a change by one of them.

    What is changed goes from lower ranks: they may tighten it again, and nobody loosens what a
    higher one has set.
    """
    no_limits = RequestLimits()
    after = dict(before)
    after[rank] = change.changed(before.get(rank, no_limits))
    lifted = LimitChangeRequest(
        lifted=change.named, is_exact=None if change.is_exact is None else False
    )
    for lower in RANKS[: RANKS.index(rank)]:
        after[lower] = lifted.changed(before.get(lower, no_limits))
    return {
        changed: limits
        for changed, limits in after.items()
        if limits != before.get(changed, no_limits)
    }
