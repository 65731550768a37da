"""A distribution as weights of bins, from which old values fade away."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pydantic import Field


def of_length(items: int) -> Any:
    """Return what says that a saved tuple has so many items.

    One that a program with other bins has saved would be misread; so it is not read at all.
    """
    return Field(min_length=items, max_length=items)


def added(
    weights: Sequence[float], edges: Sequence[float], value: float, keep: float
) -> tuple[float, ...]:
    """Add one value; ``keep`` is the share of the previous weights that stays.

    ``weights`` has one more bin than ``edges``: the first is below the first edge.
    """
    found = [weight * keep for weight in weights]
    found[bisect_right(edges, value)] += 1.0
    return tuple(found)


def added_bins(
    weights: Sequence[float], more: Sequence[float], keep: float = 1.0
) -> tuple[float, ...]:
    """Add bins of the same edges; of ``weights`` the share ``keep`` stays. Either may be empty."""
    if not weights:
        return tuple(more)
    new = more or [0.0] * len(weights)
    return tuple(keep * weight + other for weight, other in zip(weights, new, strict=True))


def counted_since(before: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """Return what the bins of a counter have got; nothing if either look had none."""
    if not before or not now:
        return ()
    return tuple(max(0.0, new - old) for old, new in zip(before, now, strict=True))


def quantile(weights: Sequence[float], edges: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the weight lies, between first and last edge."""
    total = sum(weights)
    below = 0.0
    for index, until in enumerate(accumulate(weights)):
        if until >= share * total:
            low, high = edges[max(index - 1, 0)], edges[min(index, len(edges) - 1)]
            return low + (high - low) * (share * total - below) / max(until - below, 1e-12)
        below = until
    return edges[-1]
