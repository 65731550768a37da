"""A distribution as weights of bins, from which old values fade away."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def added(
    weights: Sequence[float], edges: Sequence[float], value: float, keep: float
) -> tuple[float, ...]:
    """Add one value; ``keep`` is the share of the previous weights that stays.

    ``weights`` has one more bin than ``edges``: the first is below the first edge.
    """
    found = [weight * keep for weight in weights]
    found[bisect_right(edges, value)] += 1.0
    return tuple(found)


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
