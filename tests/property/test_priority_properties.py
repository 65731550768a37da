"""Property: site_factor is bounded, moves with each of its terms, and lets no job starve."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.admission.priority import (
    Formula,
    PriorityTerms,
    full_wait_s,
    share,
    site_factor,
    smallness,
)

_SLURM_MOST = 2**31 - 1
"""slurm.h: site_factor is an unsigned 32-bit number around NICE_OFFSET, 2**31."""

_parts = st.floats(0, 1)
_weights = st.integers(0, 1000)
_seconds = st.floats(0, 1e10)
_WEEK_S = 7 * 86_400.0
_limits = st.none() | st.floats(0, 1e8)
_classes = st.sampled_from(("low", "normal", "high"))
_formulas = st.builds(
    Formula,
    class_weight=_weights,
    share_weight=_weights,
    urgency_weight=_weights,
    smallness_weight=_weights,
    max=st.integers(100, 1_000_000),
    wait_full_s=st.floats(1, 1e8),
    wait_full_limits=st.floats(0, 1000),
    quantum=st.integers(1, 10_000),
)
_terms = st.builds(
    PriorityTerms,
    job_class=_classes,
    share=_parts,
    urgency=_parts,
    smallness=_parts,
    wait_s=_seconds,
    time_limit_s=_limits,
    is_passed_over=st.booleans(),
)


@given(_terms, _formulas)
def test_it_is_within_its_bounds(terms: PriorityTerms, formula: Formula) -> None:
    factor = site_factor(terms, formula)
    assert isinstance(factor, int)
    assert 0 <= factor <= formula.max < _SLURM_MOST


@given(_terms, _terms, _formulas)
def test_it_never_falls_as_a_term_rises(
    terms: PriorityTerms, more: PriorityTerms, formula: Formula
) -> None:
    factor = site_factor(terms, formula)
    higher = (
        replace(terms, job_class="high"),
        replace(terms, share=max(terms.share, more.share)),
        replace(terms, urgency=max(terms.urgency, more.urgency)),
        replace(terms, smallness=max(terms.smallness, more.smallness)),
        replace(terms, wait_s=terms.wait_s + more.wait_s),
        replace(terms, is_passed_over=True),
    )
    assert all(site_factor(each, formula) >= factor for each in higher)


@given(_terms, _terms, _formulas, st.floats(0, 1e6))
def test_none_is_ever_above_one_that_has_waited_in_full_whatever_either_asks_for(
    older: PriorityTerms, newer: PriorityTerms, formula: Formula, more_s: float
) -> None:
    older = replace(older, wait_s=full_wait_s(older.time_limit_s, formula) + more_s)
    assert site_factor(older, formula) == formula.max
    assert site_factor(newer, formula) <= site_factor(older, formula)


@given(_formulas, _terms, _seconds)
def test_of_equal_jobs_the_older_is_never_behind(
    formula: Formula, terms: PriorityTerms, more_s: float
) -> None:
    older = replace(terms, wait_s=terms.wait_s + more_s)
    assert site_factor(older, formula) >= site_factor(terms, formula)


@given(_formulas, _limits, st.floats(0, 1e8))
def test_every_job_has_a_bound_which_rises_with_its_time_limit(
    formula: Formula, limit_s: float | None, less_s: float
) -> None:
    most_s = full_wait_s(None, formula)
    bound_s = full_wait_s(limit_s, formula)
    shorter_s = full_wait_s(less_s if limit_s is None else max(0.0, limit_s - less_s), formula)
    assert formula.wait_full_s <= shorter_s <= bound_s <= most_s
    assert most_s == formula.wait_full_s + formula.wait_full_limits * _WEEK_S


@given(st.floats(0, 1e18), st.floats(0, 1e18), st.integers(-7000, 10**9), st.floats(1, 1e8))
def test_a_share_is_in_bounds_and_falls_with_use(
    used: float, more: float, guaranteed_quota: int, half_life_s: float
) -> None:
    before, after = (share(each, guaranteed_quota, half_life_s) for each in (used, used + more))
    assert 0.0 <= after <= before <= 1.0


@given(st.integers(0, 10**12), st.integers(0, 10**9), st.floats(0, 1e10), st.floats(0, 1e9))
def test_an_area_is_in_bounds_and_falls_with_what_is_asked_for(
    cost_millislices: int, more: int, time_limit_s: float, more_s: float
) -> None:
    own = smallness(cost_millislices, time_limit_s)
    larger = smallness(cost_millislices + more, time_limit_s + more_s)
    assert 0.0 == smallness(cost_millislices, None) <= larger <= own <= 1.0
