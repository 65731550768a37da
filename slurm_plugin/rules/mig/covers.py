"""Computes covers (instances by profile that serve a load) and the cheapest at given prices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Cover = Mapping[str, int]
"""Instances by profile."""

_Counts = tuple[tuple[str, int], ...]

_STEPS = 3_000
"""Most steps of a search for one cover; all but loads of very many instances take far fewer."""


@dataclass(frozen=True)
class ServingNeed:
    """A load, and how much of it one instance of each profile serves.

    Attributes:
        load_mrps: thousandths of a request per second; positive.
        rates_mrps: the same of one instance, by profile; at least one entry, each positive.
    """

    load_mrps: int
    rates_mrps: Mapping[str, int]

    def by_one_profile(self) -> tuple[Cover, ...]:
        """The covers that use a single profile."""
        return tuple(
            {profile: -(-self.load_mrps // rate)} for profile, rate in self.rates_mrps.items()
        )

    def enough(self, cover: Cover) -> Cover:
        """The cover without instances that the load does not need; drops the largest first."""
        spare_mrps, kept = self._served_mrps(cover) - self.load_mrps, dict(cover)
        for profile in sorted(cover, key=self.rates_mrps.__getitem__, reverse=True):
            left_out = min(kept[profile], spare_mrps // self.rates_mrps[profile])
            kept[profile] -= left_out
            spare_mrps -= left_out * self.rates_mrps[profile]
        return {profile: count for profile, count in kept.items() if count}

    def is_served_by(self, cover: Cover) -> bool:
        """Whether the cover serves the whole load."""
        return self._served_mrps(cover) >= self.load_mrps

    def _served_mrps(self, cover: Cover) -> int:
        return sum(self.rates_mrps[profile] * count for profile, count in cover.items())


@dataclass(frozen=True)
class Priced:
    """A cover, its price, and a lower bound of the price of any cover."""

    cover: Cover
    price: int
    floor: int


@dataclass(frozen=True)
class _Kind:
    profile: str
    rate_mrps: int
    price: int

    def most(self, load_mrps: int) -> int:
        """Number of instances of this kind alone that serve the load."""
        return -(-load_mrps // self.rate_mrps)

    def least(self, load_mrps: int) -> int:
        """Least price of the load if no kind serves more for its price than this one."""
        return -(-load_mrps * self.price // self.rate_mrps)

    def replaces(self, other: "_Kind") -> bool:
        """Whether instances of this kind serve what one of the other does, at no higher price."""
        return self.most(other.rate_mrps) * self.price <= other.price


def cheapest_cover(demand: ServingNeed, prices: Mapping[str, int]) -> Priced:
    """The cheapest cover. Its price equals its floor unless the search was cut short."""
    kinds = _worthwhile(
        _Kind(profile, rate, prices[profile]) for profile, rate in demand.rates_mrps.items()
    )
    search = _Search(kinds, demand.load_mrps)
    floor = search.price if search.steps < _STEPS else kinds[0].least(demand.load_mrps)
    cover = {profile: count for profile, count in search.counts if count}
    return Priced(cover, search.price, floor)


def _worthwhile(kinds: Iterable[_Kind]) -> Sequence[_Kind]:
    """Kinds that no other kind replaces; those with most requests for their price come first."""
    kept: list[_Kind] = []
    for kind in sorted(kinds, key=lambda kind: Fraction(kind.price, kind.rate_mrps)):
        if not any(other.replaces(kind) for other in kept):
            kept.append(kind)
    return kept


class _Search:
    """Depth-first search: of the kind with most requests for its price, as many instances as could
    serve the load, then fewer.
    """

    def __init__(self, kinds: Sequence[_Kind], load_mrps: int) -> None:
        self.kinds = kinds
        self.steps = 0
        self.price = kinds[0].price * kinds[0].most(load_mrps)
        self.counts: _Counts = ((kinds[0].profile, kinds[0].most(load_mrps)),)
        self._go(0, load_mrps, 0, ())

    def _go(self, at: int, load_mrps: int, spent: int, chosen: _Counts) -> None:
        kind, others = self.kinds[at], self.kinds[at + 1 : at + 2]
        for count in range(kind.most(load_mrps), -1, -1):
            self.steps += 1
            left_mrps = load_mrps - count * kind.rate_mrps
            price = spent + count * kind.price
            counts = (*chosen, (kind.profile, count))
            if left_mrps <= 0:
                self._keep(price, counts)
            elif self._ends(others, left_mrps, price):
                return
            else:
                self._go(at + 1, left_mrps, price, counts)

    def _ends(self, others: Sequence[_Kind], left_mrps: int, price: int) -> bool:
        """Whether neither this nor a smaller count of the kind leads to a cheaper cover."""
        if not others or self.steps >= _STEPS:
            return True
        return price + others[0].least(left_mrps) >= self.price

    def _keep(self, price: int, counts: _Counts) -> None:
        if price < self.price:
            self.price, self.counts = price, counts
