"""Tests slices in a site's own unit of Slurm's billing."""

from fractions import Fraction

import pytest

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit

WHOLE_GPU = BillingUnit(Fraction(1, 7))
"""A site that bills a GPU as 1."""


def test_without_a_setting_it_is_millislices():
    assert (MILLISLICES.held(3500), MILLISLICES.limit(3500)) == (3500, 3500)
    assert MILLISLICES.millislices(3500) == 3500


@pytest.mark.parametrize(
    ("unit", "millislices", "held", "limit"),
    [
        (BillingUnit(Fraction(8)), 3500, 28, 28),
        (BillingUnit(Fraction(8)), 4600, 37, 36),
        (BillingUnit(Fraction(2000)), 1, 2, 2),
        (WHOLE_GPU, 14_000, 2, 2),
        (WHOLE_GPU, 13_999, 2, 1),
    ],
)
def test_limits_are_rounded_down_and_what_is_held_is_not(
    unit: BillingUnit, millislices: int, held: int, limit: int
):
    assert (unit.held(millislices), unit.limit(millislices)) == (held, limit)


@pytest.mark.parametrize(("billing", "millislices"), [(1, 333), (3, 1000), (-1, -334)])
def test_what_somebody_wrote_into_slurm_is_never_more_slices(billing: int, millislices: int):
    assert BillingUnit(Fraction(3)).millislices(billing) == millislices


@pytest.mark.parametrize(
    ("per_slice", "costs", "nearest"),
    [
        ("7", (1000, 3500), ("6", "8")),
        ("1", (1000, 3500), ("2",)),
        ("1/2", (7000,), ("3/7", "4/7")),
        ("1500", (1337, 1000), ("1000", "2000")),
    ],
)
def test_the_nearest_that_make_all_costs_whole(
    per_slice: str, costs: tuple[int, ...], nearest: tuple[str, ...]
):
    found = BillingUnit(Fraction(per_slice)).nearest(costs)
    assert found == tuple(map(Fraction, nearest))
