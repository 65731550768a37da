"""Computes what free instances are worth to waiting and to expected requests."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, zip_longest
from math import exp, lgamma, log, sqrt

_HARDLY = 0.001
"""Chances below one in a thousand count as none."""


@dataclass(frozen=True)
class InstanceRequest:
    """A request for one instance that has none yet.

    Attributes:
        waited_s: seconds for which it has waited.
        weight: 1 for an ordinary request; 2 counts as two.
        is_guaranteed: whether it is within its tenant's guaranteed quota.
        is_owed: whether its tenant's quota also names its type, and covers it.
    """

    profile: str
    waited_s: int
    weight: float = 1.0
    is_guaranteed: bool = False
    is_owed: bool = False


@dataclass(frozen=True)
class InstanceDemand:
    """Waiting and expected requests, and what guarantees need.

    Attributes:
        expected: by profile, the mean number of instances in use at a time over the horizon if
            instances never ran short; includes those that run and wait now.
        claimed: by profile, instances for which guarantees are used now; no plan leaves fewer.
        guaranteed: by profile, the claimed instances and those that tenants may claim at any
            moment. A plan leaves fewer only for a request within its own tenant's guarantee.
    """

    waiting: tuple[InstanceRequest, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    claimed: Mapping[str, int] = field(default_factory=dict)
    guaranteed: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def profiles(self) -> frozenset[str]:
        """All profiles that are waited for or expected."""
        asked = {request.profile for request in self.waiting}
        return frozenset(asked | {name for name, mean in self.expected.items() if mean > 0})


@dataclass(frozen=True)
class Worth:
    """By profile, at index ``n``: what ``n`` free instances serve over the horizon.

    A waiting request is certain to be served, and counts more the longer it has waited. A further
    instance serves with the chance that this many are in use at a time. So one more instance is
    never worth more than the one before it.
    """

    served_millislice_s: Mapping[str, Sequence[float]]

    def gain(self, free: Mapping[str, int], more: Mapping[str, int]) -> float:
        """Millislice-seconds gained if ``more`` (negative: fewer) than ``free`` are free."""
        return sum(
            self._at(name, free.get(name, 0) + change) - self._at(name, free.get(name, 0))
            for name, change in more.items()
        )

    def _at(self, name: str, free: int) -> float:
        served = self.served_millislice_s.get(name, (0.0,))
        # A replica that moves onto a loan may leave fewer than none.
        return served[max(0, min(free, len(served) - 1))]


def worth(
    demand: InstanceDemand,
    costs_millislices: Mapping[str, int],
    held: Mapping[str, int],
    horizon_s: int,
) -> Worth:
    """Compute the worth of free instances of each profile that has a cost.

    ``held`` is the number of instances of each profile that are in use and stay so.
    """
    urgencies = defaultdict[str, list[float]](list)
    for request in demand.waiting:
        urgencies[request.profile].append(request.weight * (1 + request.waited_s / horizon_s))
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
    """What 0, 1, 2, ... free instances serve together; 1.0 is one instance over the horizon.

    Each instance serves a waiting request or an expected one, whichever counts more. Both sequences
    fall, so their maximum falls, too.
    """
    shares = (max(pair) for pair in zip_longest(urgencies, chances, fillvalue=0.0))
    return [0.0, *accumulate(shares)]


def _chances(mean: float) -> Sequence[float]:
    """Chances that at least 1, 2, 3, ... are in use at a time (Poisson: independent arrivals)."""
    if mean <= 0:
        return ()
    most = int(mean + 6 * sqrt(mean)) + 6
    exactly = [exp(n * log(mean) - mean - lgamma(n + 1)) for n in range(most + 1)]
    at_least = [min(1.0, chance) for chance in accumulate(reversed(exactly))]
    return [chance for chance in reversed(at_least[:-1]) if chance >= _HARDLY]
