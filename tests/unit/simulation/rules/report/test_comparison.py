"""Tests verdicts: which way is better, what is too small to count, what may be chance."""

from dataclasses import replace

import pytest
from simulation_figures import (
    CHANGED,
    CHECK,
    HOSTILE,
    PRESENT,
    SERVICE,
    around,
    figures,
    result,
    tenant,
)

from slicewise.cluster.runtime.console import plain
from slicewise.simulation.rules.report.comparison import (
    MEASURES,
    ChangeVerdict,
    FigureDifference,
    differences,
    gains_words,
    is_far,
    service_differences,
    tenant_differences,
    verdict_of,
)
from slicewise.simulation.rules.report.documents import compared
from slicewise.simulation.rules.runs.run_figures import ESTIMATED, Estimate, SimulationResult

BY_FIGURE = {one.figure: one for one in MEASURES}


def difference(figure: str, of: SimulationResult) -> FigureDifference:
    return next(one for one in differences(of) if one.figure == figure)


def test_every_estimated_figure_is_compared():
    assert {one.figure for one in MEASURES} == set(ESTIMATED)


@pytest.mark.parametrize(
    ("figure", "present", "changed", "verdict"),
    [
        ("utilisation", 0.70, 0.71, ChangeVerdict.BETTER),
        ("utilisation", 0.71, 0.70, ChangeVerdict.WORSE),
        ("utilisation", 0.700, 0.704, ChangeVerdict.SAME),
        ("idle_wanted_share", 0.1, 0.2, ChangeVerdict.WORSE),
        ("wait_mean_s", 600.0, 500.0, ChangeVerdict.BETTER),
        ("wait_mean_s", 500.0, 600.0, ChangeVerdict.WORSE),
        ("wait_mean_s", 10.0, 39.0, ChangeVerdict.SAME),
        ("wait_mean_s", 36_000.0, 37_000.0, ChangeVerdict.SAME),
        ("wait_mean_s", 36_000.0, 38_000.0, ChangeVerdict.WORSE),
        ("jain", 0.7, 0.8, ChangeVerdict.BETTER),
        ("late_jobs", 0, 1, ChangeVerdict.WORSE),
        ("late_jobs", 3, 3, ChangeVerdict.SAME),
    ],
)
def test_a_step_is_better_worse_or_too_small(
    figure: str, present: float, changed: float, verdict: ChangeVerdict
):
    assert verdict_of(BY_FIGURE[figure], present, changed) is verdict


def test_a_difference_that_may_be_none_is_unclear():
    with_one = result(offsets=1)
    assert difference("wait_mean_s", with_one).verdict is ChangeVerdict.BETTER
    assert difference("wait_mean_s", with_one).interval is None
    with_many = result(offsets=4)
    assert difference("wait_mean_s", with_many).verdict is ChangeVerdict.UNCLEAR
    assert difference("wait_mean_s", with_many).interval == around(-180.0, 200.0)
    assert difference("utilisation", with_many).verdict is ChangeVerdict.BETTER


def test_a_difference_that_is_sure_and_too_small_is_none():
    sure = replace(result(offsets=4), difference_estimates={"wait_mean_s": around(-20.0, 1.0)})
    near = replace(CHANGED, wait_mean_s=PRESENT.wait_mean_s - 20.0)
    assert difference("wait_mean_s", replace(sure, changed=near)).verdict is ChangeVerdict.SAME


def test_without_a_change_intervals_are_those_of_the_figures():
    found = difference("wait_mean_s", result(compared=False, offsets=4))
    assert (found.present, found.interval) == (PRESENT.wait_mean_s, around(660.0, 200.0))


def test_no_interval_leaves_what_a_figure_can_be():
    wide = {"utilisation": around(0.7, 2.0), "wait_mean_s": around(60.0, 90.0)}
    of = replace(result(compared=False, offsets=2), estimates=wide)
    assert difference("utilisation", of).interval == Estimate(0.7, 0.0, 1.0)
    assert difference("wait_mean_s", of).interval == Estimate(60.0, 0.0, 150.0)


def test_the_interval_of_a_count_is_that_of_the_whole_time():
    of = replace(result(offsets=4), difference_estimates={"late_jobs": around(3.0, 1.0)})
    assert difference("late_jobs", of).interval == around(12.0, 4.0)


def test_without_a_change_there_is_no_verdict():
    of = result(compared=False)
    assert {one.verdict for one in differences(of)} == {None}
    assert {one.verdict for one in tenant_differences(of)} == {None}
    assert gains_words(tenant_differences(of)) == ""


def test_who_loses_comes_first_and_who_gains_last():
    found = tenant_differences(result())
    assert [one.tenant for one in found] == ["nlp", HOSTILE, "vision"]
    assert [one.verdict for one in found] == [
        ChangeVerdict.WORSE,
        ChangeVerdict.SAME,
        ChangeVerdict.BETTER,
    ]
    assert found[0].waited_less_s == -660_000.0
    assert gains_words(found) == "1 tenant gains, 1 loses, 1 waits as before."


def test_who_loses_most_hours_comes_first():
    present = figures(tenant("a", 600.0, jobs=10), tenant("b", 600.0, jobs=1000))
    changed = figures(tenant("a", 6000.0, jobs=10), tenant("b", 1200.0, jobs=1000))
    of = replace(result(), present=present, changed=changed)
    assert [one.tenant for one in tenant_differences(of)] == ["b", "a"]


def test_a_tenant_of_one_policy_only_neither_gains_nor_loses():
    idle = tenant("idle", 0.0, jobs=0, slices=0.0)
    changed = replace(CHANGED, tenants=(*CHANGED.tenants, tenant("new", 5.0), idle))
    found = {one.tenant: one for one in tenant_differences(replace(result(), changed=changed))}
    assert (found["new"].verdict, found["new"].present) == (ChangeVerdict.UNCLEAR, None)
    assert gains_words(found.values()).endswith(" as before, 1 is unclear.")
    assert "idle" not in found


@pytest.mark.parametrize(
    ("wait_s", "order", "far"),
    [
        (660.0, 0.93, False),
        (1079.0, 0.93, False),
        (1081.0, 0.93, True),
        (660.0, 0.7, True),
        (660.0, None, False),
    ],
)
def test_a_replay_that_is_far_from_what_happened_is_one(
    wait_s: float, order: float | None, far: bool
):
    assert is_far(replace(CHECK, wait_mean_s=wait_s, queue_order=order)) is far


def test_a_replay_that_uses_the_cluster_otherwise_is_far():
    assert is_far(replace(CHECK, utilisation=0.4))


def test_short_waits_are_not_far_by_their_share():
    short = replace(CHECK, wait_mean_of_history_s=10.0, wait_mean_s=70.0)
    assert not is_far(short)


@pytest.mark.parametrize(
    ("attainment", "wait_p99_s", "verdict"),
    [
        (0.98, 0.5, ChangeVerdict.WORSE),
        (0.992, 1.9, ChangeVerdict.SAME),
        (0.992, 2.6, ChangeVerdict.WORSE),
        (0.992, 0.3, ChangeVerdict.BETTER),
        (0.998, 9.0, ChangeVerdict.BETTER),
    ],
)
def test_a_service_gains_by_requests_in_time_then_by_waits(
    attainment: float, wait_p99_s: float, verdict: ChangeVerdict
):
    now = replace(SERVICE, attainment=attainment, wait_p99_s=wait_p99_s)
    of = replace(
        result(),
        present=replace(PRESENT, services=(SERVICE,)),
        changed=replace(CHANGED, services=(now,)),
    )
    assert [one.verdict for one in service_differences(of)] == [verdict]
    assert plain(compared(of, ()).service_verdicts) == [
        {"service": HOSTILE, "interval": None, "verdict": verdict}
    ]


def test_a_service_whose_step_may_be_chance_is_unclear():
    changed = replace(CHANGED, services=(replace(SERVICE, wait_p99_s=9.0),))
    of = replace(result(offsets=4), present=replace(PRESENT, services=(SERVICE,)), changed=changed)
    steps = {"attainment": around(0.0, 0.001), "wait_p99_s": around(7.6, 1.0)}
    sure = replace(of, service_difference_estimates={HOSTILE: steps})
    assert service_differences(sure)[0].verdict is ChangeVerdict.WORSE
    assert service_differences(sure)[0].interval == around(0.0, 0.001)
    steps["wait_p99_s"] = around(7.6, 9.0)
    assert service_differences(sure)[0].verdict is ChangeVerdict.UNCLEAR
