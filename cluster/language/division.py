"""Divides a whole number among several without a rest."""

from collections.abc import Hashable, Mapping
from typing import Any, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)


def divided(amount: int, weights: Mapping[K, int]) -> Mapping[K, int]:
    """Divide an amount by weights, none below 0, so that the parts add up to it.

    Each part is the exact one, rounded down; what is left goes, one each, to the largest rests,
    and of equal rests to the first in order. Without any weight nobody has a part.
    """
    total = sum(weights.values())
    if not total:
        return {}
    parts = {key: amount * weight // total for key, weight in weights.items()}
    left = amount - sum(parts.values())
    by_rest = sorted(weights, key=lambda key: (-(amount * weights[key] % total), key))
    for key in by_rest[:left]:
        parts[key] += 1
    return {key: part for key, part in parts.items() if part}
