"""What free instances are worth to those who wait and to those who are expected."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, zip_longest
from math import exp, lgamma, log, sqrt

_HARDLY = 0.001
"""A chance below that one in a thousand is none."""


@dataclass(frozen=True)
class Waiting:
    """A request for one instance that has none.

    Attributes:
        weight: 1 is a request as any other, 2 is worth two.
        is_guaranteed: within its tenant's own part.
    """

    profile: str
    waited_s: int
    weight: float = 1.0
    is_guaranteed: bool = False


@dataclass(frozen=True)
class Demand:
    """What is asked for.

    Attributes:
        expected: by profile: instances in use at a time, if all could be had, in the mean over the
            horizon. Those that run and those that wait are among them.
        claimed: by profile: instances that guarantees are used for now; no plan leaves fewer.
        guaranteed: those, and what tenants may claim any moment; only who waits within his own
            guarantee is worth fewer of them.
    """

    waiting: tuple[Waiting, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    claimed: Mapping[str, int] = field(default_factory=dict)
    guaranteed: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def profiles(self) -> frozenset[str]:
        """All that anybody wants."""
        asked = {one.profile for one in self.waiting}
        return frozenset(asked | {name for name, mean in self.expected.items() if mean > 0})


@dataclass(frozen=True)
class Worth:
    """By profile: at ``n``, what ``n`` free instances serve over the horizon.

    A waiting request is served for sure, and counts the more the longer it has waited; a further
    instance serves with the chance that so many are in use at a time. So one more is never worth
    more than the one before it.
    """

    served_millislice_s: Mapping[str, Sequence[float]]

    def gain(self, free: Mapping[str, int], more: Mapping[str, int]) -> float:
        """In millislice-seconds: with so many free, and then so many more or fewer."""
        return sum(
            self._at(name, free.get(name, 0) + change) - self._at(name, free.get(name, 0))
            for name, change in more.items()
        )

    def _at(self, name: str, free: int) -> float:
        served = self.served_millislice_s.get(name, (0.0,))
        return served[min(free, len(served) - 1)]


def worth(
    demand: Demand, costs_millislices: Mapping[str, int], held: Mapping[str, int], horizon_s: int
) -> Worth:
    """By what an instance costs. ``held``: how many of each are in use and stay so."""
    urgencies = defaultdict[str, list[float]](list)
    for one in demand.waiting:
        urgencies[one.profile].append(one.weight * (1 + one.waited_s / horizon_s))
    return Worth(
        {
            name: [
                share * cost * horizon_s
                for share in _served(
                    sorted(urgencies[name], reverse=True),
                    _chances(demand.expected.get(name, 0.0))[held.get(name, 0) :],
                )
            ]
            for name, cost in costs_millislices.items()
        }
    )


def _served(urgencies: Sequence[float], chances: Sequence[float]) -> Sequence[float]:
    """Both fall, so the greater of both does."""
    shares = (max(pair) for pair in zip_longest(urgencies, chances, fillvalue=0.0))
    return [0.0, *accumulate(shares)]


def _chances(mean: float) -> Sequence[float]:
    """That at least 1, 2, 3... are in use at a time: as many as come by themselves (Poisson)."""
    if mean <= 0:
        return ()
    most = int(mean + 6 * sqrt(mean)) + 6
    exactly = [exp(n * log(mean) - mean - lgamma(n + 1)) for n in range(most + 1)]
    at_least = [min(1.0, one) for one in accumulate(reversed(exactly))]
    return [chance for chance in reversed(at_least[:-1]) if chance >= _HARDLY]
