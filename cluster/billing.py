"""Slurm's ``billing`` in the site's own unit: the only place where millislices become it, and back.

Nothing else in Slicewise counts in it. Amounts are whole on both sides, so what does not divide is
rounded, each way such that nobody may have more than is allowed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd

from cluster.units import Millislices

_SLICE_MILLISLICES = 1000


@dataclass(frozen=True)
class BillingUnit:
    """``[cluster] billing_per_slice``: so much of Slurm's billing is one slice."""

    per_slice: Fraction = Fraction(_SLICE_MILLISLICES)

    def exact(self, millislices: int) -> Fraction:
        """Whole of what GPUs of the configured types cost: the settings refuse all other units."""
        return millislices * self.per_slice / _SLICE_MILLISLICES

    def held(self, millislices: int) -> int:
        """What Slurm bills for it; of what does not divide it would be the next more."""
        return ceil(self.exact(millislices))

    def limit(self, millislices: int) -> int:
        """As a limit, of slices or, in millislice-minutes, of a budget: the next less, so never
        more than allowed. No job is kept out by that, as each bills a whole number.
        """
        return floor(self.exact(millislices))

    def millislices(self, billing: int) -> Millislices:
        """Of a limit, or a change of one, that somebody wrote into Slurm: the next less."""
        return Millislices(floor(billing * _SLICE_MILLISLICES / self.per_slice))

    def nearest(self, costs_millislices: Iterable[int]) -> tuple[Fraction, ...]:
        """The nearest units by which all of these costs are whole: the next smaller, if there is
        one, and the next larger.

        A unit makes each cost whole if it makes their greatest common divisor whole.
        """
        step = Fraction(_SLICE_MILLISLICES, gcd(*costs_millislices))
        below = self.per_slice // step * step
        return tuple(one for one in (below, below + step) if one)


MILLISLICES = BillingUnit()
"""What a site has that says nothing."""
