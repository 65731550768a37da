"""Runs that come to an amount, whatever their shape."""

from collections import Counter
from collections.abc import Sequence

_EXACT = 16
"""Times the largest run: of a larger amount, the first runs are taken in order."""


def covering(costs: Sequence[int], amount: int, limit: int) -> Sequence[int]:
    """Which of the runs with these costs come to the amount, and to no more than the limit.

    They come to as little as possible, then they are as few as possible, then the first ones. If
    no runs within the limit come to the amount, to as much as possible. Exact for amounts of
    up to 16 of the largest run; of larger ones, the first runs make up what is beyond.
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
    """Of each cost as many as could be of use."""
    seen: Counter[int] = Counter()
    found: list[int] = []
    for nth in among:
        if seen[costs[nth]] * costs[nth] < amount:
            seen[costs[nth]] += 1
            found.append(nth)
    return found


def _smallest(costs: Sequence[int], among: Sequence[int], amount: int, limit: int) -> Sequence[int]:
    """By dynamic programming: for every sum the fewest runs that come to it."""
    sums: dict[int, tuple[int, ...]] = {0: ()}
    for nth in among:
        for total, chosen in tuple(sums.items()):
            more = total + costs[nth]
            is_better = more not in sums or len(chosen) + 1 < len(sums[more])
            if total < amount and more <= limit and is_better:
                sums[more] = (*chosen, nth)
    enough = [total for total in sums if total >= amount]
    return sums[min(enough) if enough else max(sums)]
