"""Property: limits in any billing unit let the same jobs start as limits in slices."""

from fractions import Fraction
from math import gcd

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.billing import BillingUnit

COSTS = st.lists(st.integers(1, 20_000), min_size=1, max_size=6)
"""Millislices."""
MILLISLICES = st.integers(0, 10**9)


@st.composite
def priced(draw: st.DrawFn) -> tuple[list[int], BillingUnit]:
    """Costs, and a unit that makes each whole."""
    costs = draw(COSTS)
    return costs, BillingUnit(Fraction(1000 * draw(st.integers(1, 9_000)), gcd(*costs)))


@settings(max_examples=examples(200, nightly=20_000))
@given(priced(), MILLISLICES, st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_the_same_jobs_fit_into_a_limit(
    site: tuple[list[int], BillingUnit], allowed: int, counts: list[int]
) -> None:
    costs, unit = site
    jobs = list(zip(counts, costs, strict=False))
    in_slices = sum(count * cost for count, cost in jobs)
    billed = sum(count * unit.held(cost) for count, cost in jobs)
    assert unit.held(in_slices) == billed
    assert (billed <= unit.limit(allowed)) == (in_slices <= allowed)


@settings(max_examples=examples(200, nightly=20_000))
@given(priced(), st.lists(MILLISLICES, min_size=1, max_size=6))
def test_limits_together_are_no_more_than_what_they_are_of(
    site: tuple[list[int], BillingUnit], parts: list[int]
) -> None:
    _, unit = site
    assert sum(map(unit.limit, parts)) <= unit.limit(sum(parts)) <= unit.exact(sum(parts))


@settings(max_examples=examples(200, nightly=20_000))
@given(priced(), MILLISLICES, st.integers(0, 10**6))
def test_what_is_written_is_read_back(
    site: tuple[list[int], BillingUnit], allowed: int, instances: int
) -> None:
    """Exactly where it divides; else never more, and by less than one of Slurm's billing."""
    costs, unit = site
    whole = instances * gcd(*costs)
    assert unit.millislices(unit.limit(whole)) == whole
    back = unit.millislices(unit.limit(allowed))
    assert allowed - 1000 / unit.per_slice - 1 < back <= allowed


@settings(max_examples=examples(200, nightly=20_000))
@given(COSTS, st.fractions(min_value=Fraction(1, 10_000), max_value=10_000))
def test_nothing_nearer_makes_all_costs_whole(costs: list[int], per_slice: Fraction) -> None:
    found = BillingUnit(per_slice).nearest(costs)
    for one in found:
        assert all(BillingUnit(one).exact(cost).denominator == 1 for cost in costs)
    *below, above = found
    assert (below[0] if below else 0) <= per_slice < above
    # By Bezout some sum of the costs is one step: a smaller one would make that no whole number.
    assert above - (below[0] if below else 0) == Fraction(1000, gcd(*costs))
