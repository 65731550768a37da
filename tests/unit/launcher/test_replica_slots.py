"""Which slots run, drain, and are given back."""

import pytest

from launcher.decide.gateway import Mode
from launcher.decide.slots import Expiry, Phase, Slot, SlotPlan, plan_slots, supply


def slot(index: int, phase: Phase, in_flight: int = 0, **change: object) -> Slot:
    return Slot(index, phase, in_flight, **change)  # type: ignore[arg-type]


def plan(
    *slots: Slot, wanted: int, may_start: bool = True, late: frozenset[int] = frozenset()
) -> SlotPlan:
    return plan_slots(slots, wanted, may_start=may_start, drained_out=late)


HELD, STARTING, WARM = Phase.HELD, Phase.STARTING, Phase.WARM
SERVING, DRAINING, OUT = Phase.SERVING, Phase.DRAINING, Phase.OUT


@pytest.mark.parametrize(
    ("phases", "wanted", "run"),
    [
        ((HELD, HELD, HELD), 0, set()),
        ((HELD, HELD, HELD), 2, {0, 1}),
        ((OUT, HELD, HELD), 2, {1, 2}),
        ((STARTING, HELD, HELD), 1, {0}),
        ((STARTING, HELD, HELD), 2, {0, 1}),
        ((STARTING, STARTING, HELD), 1, {0}),
        ((STARTING, SERVING, HELD), 1, {1}),
        ((WARM, STARTING, HELD), 1, {0}),
        ((HELD, HELD, SERVING), 9, {0, 1, 2}),
    ],
)
def test_the_wish(phases: tuple[Phase, ...], wanted: int, run: set[int]):
    slots = (slot(index, phase) for index, phase in enumerate(phases))
    assert plan(*slots, wanted=wanted).run == run


def test_what_is_on_its_way_counts_as_supply():
    slots = tuple(slot(i, p) for i, p in enumerate((HELD, STARTING, WARM, SERVING, DRAINING, OUT)))
    assert supply(slots) == 3


def test_the_victim_has_the_least_to_do_and_drains_before_it_leaves_the_wish():
    slots = (slot(0, SERVING, 1), slot(1, SERVING, 3), slot(2, SERVING, 2))
    found = plan(*slots, wanted=2)
    assert found.run == {0, 1, 2}
    assert found.modes == {0: Mode.DRAIN, 1: Mode.READY, 2: Mode.READY}


def test_a_draining_one_with_work_stays():
    found = plan(slot(0, DRAINING, 1), wanted=0)
    assert (found.run, found.modes) == ({0}, {0: Mode.DRAIN})


def test_a_drained_one_goes_into_maintenance_and_stays_wished_for_one_more_look():
    found = plan(slot(0, DRAINING, 0), wanted=0)
    assert (found.run, found.modes) == ({0}, {})


def test_then_it_is_given_back():
    found = plan(slot(0, WARM), wanted=0)
    assert (found.run, found.modes) == (frozenset(), {})


def test_past_the_deadline_work_is_cut():
    found = plan(slot(0, DRAINING, 1), wanted=0, late=frozenset({0}))
    assert (found.run, found.modes) == ({0}, {})


def test_a_draining_one_is_taken_back_before_a_new_one_starts():
    found = plan(slot(0, HELD), slot(1, DRAINING, 1), wanted=1)
    assert (found.run, found.modes) == ({1}, {1: Mode.READY})


def test_a_warm_one_gets_requests():
    assert plan(slot(0, WARM), wanted=1).modes == {0: Mode.READY}


def test_an_unhealthy_one_goes_before_a_healthy_one():
    found = plan(slot(0, SERVING, 5, up=False), slot(1, SERVING, 0), wanted=1)
    assert found.modes == {0: Mode.DRAIN, 1: Mode.READY}


def test_an_allotted_start_is_kept_before_a_pending_one():
    found = plan(slot(0, STARTING), slot(1, STARTING, allotted=True), wanted=1)
    assert found.run == {1}


def test_nothing_starts_during_backoff_but_what_runs_stays():
    found = plan(slot(0, SERVING), slot(1, HELD), wanted=2, may_start=False)
    assert found.run == {0}


def test_a_successor_starts_beside_one_that_expires_soon():
    found = plan(slot(0, SERVING, expiry=Expiry.SOON), slot(1, HELD), wanted=1)
    assert (found.run, found.modes) == ({0, 1}, {0: Mode.READY})


def test_once_the_successor_serves_the_old_one_drains():
    found = plan(slot(0, SERVING, expiry=Expiry.SOON), slot(1, SERVING), wanted=1)
    assert (found.run, found.modes) == ({0, 1}, {0: Mode.DRAIN, 1: Mode.READY})


def test_at_the_very_end_it_drains_without_a_successor():
    found = plan(slot(0, SERVING, 1, expiry=Expiry.NOW), slot(1, STARTING), wanted=1)
    assert (found.run, found.modes) == ({0, 1}, {0: Mode.DRAIN})
