"""Chooses runs that cover an amount of quota, regardless of the shape of their instances."""

from collections import Counter
from collections.abc import Sequence

_EXACT = 16
"""Up to this multiple of the largest run the choice is exact.

Of a larger amount, the excess is covered by the first runs in order.
"""


def covering(costs: Sequence[int], amount: int, limit: int) -> Sequence[int]:
    """Indices of runs whose costs sum up to at least the amount, and at most the limit.

    The sum is the smallest possible, then the runs are the fewest, then the first in order. If no
    runs within the limit reach the amount, the sum is the largest possible. The result is exact for
    amounts of up to 16 times the largest run; of larger amounts the first runs cover the excess.
    """
    first: list[int] = []
    fit = [nth for nth, cost in enumerate(costs) if cost <= limit]
    most = _EXACT * max((costs[nth] for nth in fit), default=0)
    while amount > most and fit:
        first.append(fit.pop(0))
        amount -= costs[first[-1]]
        limit -= costs[first[-1]]
    return [*first, *_smallest(costs, _enough(costs, fit, amount), amount, limit)]


def _enough(costs: Sequence[int], among: Sequence[int], amount: int) -> Sequence[int]:
    """For each cost, as many runs as could be of use for the amount."""
    seen: Counter[int] = Counter()
    chosen: list[int] = []
    for nth in among:
        if seen[costs[nth]] * costs[nth] < amount:
            seen[costs[nth]] += 1
            chosen.append(nth)
    return chosen


def _smallest(costs: Sequence[int], among: Sequence[int], amount: int, limit: int) -> Sequence[int]:
    """Solve exactly by dynamic programming: for every sum the fewest runs that add up to it."""
    sums: dict[int, tuple[int, ...]] = {0: ()}
    for nth in among:
        for total, chosen in tuple(sums.items()):
            more = total + costs[nth]
            is_better = more not in sums or len(chosen) + 1 < len(sums[more])
            if total < amount and more <= limit and is_better:
                sums[more] = (*chosen, nth)
    enough = [total for total in sums if total >= amount]
    return sums[min(enough) if enough else max(sums)]
