"""Converts millislices into Slurm's ``billing`` in the site's own unit, and back.

No other module counts in that unit. Amounts are whole numbers on both sides. What does not divide
is rounded, in each direction such that no tenant may have more than is allowed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd

from slicewise.cluster.language.units import Millislices

_SLICE_MILLISLICES = 1000


@dataclass(frozen=True)
class BillingUnit:
    """``[cluster] billing_per_slice``: how much of Slurm's billing is one slice."""

    per_slice: Fraction = Fraction(_SLICE_MILLISLICES)

    def exact(self, millislices: int) -> Fraction:
        """Billing of an amount, unrounded.

        It is whole for what GPUs of the configured types cost: the settings refuse every unit in
        which it would not be.
        """
        return millislices * self.per_slice / _SLICE_MILLISLICES

    def held(self, millislices: int) -> int:
        """What Slurm bills for an amount that jobs hold, rounded up."""
        # As of ``exact``, without its fractions: it is asked for each run.
        numerator, denominator = self.per_slice.as_integer_ratio()
        return -(-millislices * numerator // (denominator * _SLICE_MILLISLICES))

    def limit(self, millislices: int) -> int:
        """Billing limit for an amount (millislices, or millislice-minutes of a budget).

        Rounded down, so the limit never allows more than the amount. That keeps no job out, as each
        job bills a whole number.
        """
        # As of ``exact``, without its fractions: a compilation asks for each QOS of each tenant.
        numerator, denominator = self.per_slice.as_integer_ratio()
        return millislices * numerator // (denominator * _SLICE_MILLISLICES)

    def millislices(self, billing: int) -> Millislices:
        """Millislices of a limit, or of a change of one, set in Slurm outside Slicewise.

        Rounded down.
        """
        return Millislices(floor(billing * _SLICE_MILLISLICES / self.per_slice))

    def nearest(self, costs_millislices: Iterable[int]) -> tuple[Fraction, ...]:
        """The units nearest to this one that make all of these costs whole.

        They are the next smaller or equal one, if there is one, and the next larger. A unit makes
        each cost whole if it makes their greatest common divisor whole.
        """
        step = Fraction(_SLICE_MILLISLICES, gcd(*costs_millislices))
        below = self.per_slice // step * step
        return tuple(fraction for fraction in (below, below + step) if fraction)


MILLISLICES = BillingUnit()
"""The unit of a site that configures none: one slice is 1000."""
