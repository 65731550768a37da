"""Tests the formula of site_factor, with the numbers of docs/explanation/priority.md."""

from dataclasses import replace

import pytest

from slicewise.cluster.language.job_class import JobClass
from slicewise.slurm_plugin.rules.admission.priority import (
    Formula,
    PriorityTerms,
    full_wait_s,
    share,
    site_factor,
    smallness,
)

_HOUR_S, _DAY_S = 3600, 86_400
_WEEK_S = 7 * _DAY_S
_FORMULA = Formula(3, 5, 2, 5, max=10_000, wait_full_s=_DAY_S / 2, wait_full_limits=4, quantum=100)
_THREE_HOURS_S = 3 * _HOUR_S
"""Who asks for so much has waited in full after a day."""


def waited(job_class: JobClass, wait_s: float, **terms: float) -> PriorityTerms:
    return PriorityTerms(job_class, wait_s=wait_s, time_limit_s=_THREE_HOURS_S, **terms)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (PriorityTerms("low", share=0.0), 0),
        (PriorityTerms("normal", share=0.5, smallness=1.0), 6_000),
        (PriorityTerms("normal", share=1.0, smallness=1.0), 7_666),
        (PriorityTerms("normal", share=1.0, smallness=smallness(56_000, _DAY_S)), 5_581),
        (PriorityTerms("high", share=1.0, smallness=1.0), 8_666),
        (PriorityTerms("high", share=1.0, urgency=1.0, smallness=1.0), 10_000),
        (waited("low", _DAY_S / 2), 1_250),
        (waited("low", _DAY_S * 3 / 4), 4_218),
        (waited("high", _DAY_S / 2, share=1.0, smallness=1.0), 8_833),
        (waited("low", _DAY_S), 10_000),
        (waited("low", 9 * _DAY_S), 10_000),
        (waited("low", -5.0), 0),
        (PriorityTerms("low", share=0.0, is_passed_over=True), 10_000),
    ],
)
def test_site_factor(terms: PriorityTerms, expected: int) -> None:
    assert site_factor(terms, _FORMULA) == expected


def test_with_no_weight_at_all_only_waiting_counts() -> None:
    formula = replace(
        _FORMULA, class_weight=0, share_weight=0, urgency_weight=0, smallness_weight=0
    )
    assert site_factor(PriorityTerms("high", 1.0, 1.0, 1.0), formula) == 0
    assert site_factor(waited("low", _DAY_S / 2), formula) == 1_250


@pytest.mark.parametrize(
    ("time_limit_s", "hours"),
    [(0, 12), (_HOUR_S, 16), (_THREE_HOURS_S, 24), (_DAY_S, 108), (_WEEK_S, 684)],
)
def test_the_bound_is_in_lengths_of_what_a_job_asks_for(time_limit_s: float, hours: int) -> None:
    assert full_wait_s(time_limit_s, _FORMULA) == hours * _HOUR_S
    job = PriorityTerms("low", time_limit_s=time_limit_s)
    waits_s = (hours * _HOUR_S - 60, hours * _HOUR_S)
    factors = [site_factor(replace(job, wait_s=one), _FORMULA) for one in waits_s]
    assert factors[0] < factors[1] == _FORMULA.max


@pytest.mark.parametrize("time_limit_s", [None, 30 * _DAY_S])
def test_limits_count_up_to_a_week_so_that_no_job_is_without_a_bound(
    time_limit_s: float | None,
) -> None:
    assert full_wait_s(time_limit_s, _FORMULA) == full_wait_s(_WEEK_S, _FORMULA)
    assert full_wait_s(time_limit_s, replace(_FORMULA, wait_full_limits=0)) == _DAY_S / 2


def test_a_tenant_that_always_used_its_own_part_has_half_a_share() -> None:
    always = 7_000 * _WEEK_S / 0.693147180559945
    assert share(always, 7_000, _WEEK_S) == pytest.approx(0.5)
    assert share(2 * always, 7_000, _WEEK_S) == pytest.approx(0.25)
    assert share(0, 7_000, _WEEK_S) == 1.0


def test_a_tenant_without_a_part_of_its_own_has_no_share() -> None:
    assert share(0, 0, _WEEK_S) == 0.0


@pytest.mark.parametrize(
    ("cost_millislices", "time_limit_s", "expected"),
    [
        (1_000, _HOUR_S, 1.0),
        (1_000, 60, 1.0),
        (0, _DAY_S, 1.0),
        (10_000, _HOUR_S, 0.8),
        (10_000, 10 * _HOUR_S, 0.6),
        (56_000, _DAY_S, 0.3743),
        (10_000_000, 10 * _HOUR_S, 0.0),
        (10_000_000, 99 * _HOUR_S, 0.0),
        (1_000, None, 0.0),
    ],
)
def test_an_area_is_1_for_a_slice_hour_and_falls_by_a_fifth_with_each_power_of_ten(
    cost_millislices: int, time_limit_s: float | None, expected: float
) -> None:
    assert smallness(cost_millislices, time_limit_s) == pytest.approx(expected, abs=1e-4)
