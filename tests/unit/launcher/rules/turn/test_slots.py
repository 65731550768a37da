"""Tests which slots run, drain and are given back."""

from dataclasses import dataclass

import pytest

from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.turn.slots import (
    Expiry,
    Goal,
    Phase,
    Slot,
    SlotId,
    coming,
    plan_slots,
)

ARRAY, OLDER = 814, 700


def slot(index: int, phase: Phase, in_flight: int = 0, **change: object) -> Slot:
    change = {"allotted": phase is not Phase.HELD} | change
    return Slot(SlotId(ARRAY, index), phase, in_flight, **change)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Planned:
    run: set[int]
    modes: dict[int, ServerMode]


def plan(*slots: Slot, wanted: int, late: frozenset[int] = frozenset(), **goal: object) -> Planned:
    cut = frozenset(SlotId(ARRAY, index) for index in late)
    found = plan_slots(slots, Goal(wanted, ARRAY, late=cut, **goal))  # type: ignore[arg-type]
    modes = {where.index: mode for where, mode in found.modes.items()}
    return Planned({where.index for where in found.run}, modes)


HELD, STARTING, WARM = Phase.HELD, Phase.STARTING, Phase.WARM
SERVING, DRAINING = Phase.SERVING, Phase.DRAINING
ENDING, OUT = Phase.ENDING, Phase.OUT


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
    assert coming(slots) == 3


def test_the_victim_has_the_least_to_do_and_drains_before_it_leaves_the_wish():
    slots = (slot(0, SERVING, 1), slot(1, SERVING, 3), slot(2, SERVING, 2))
    found = plan(*slots, wanted=2)
    assert found.run == {0, 1, 2}
    assert found.modes == {0: ServerMode.DRAIN, 1: ServerMode.READY, 2: ServerMode.READY}


def test_of_victims_with_as_much_to_do_the_one_with_the_fewest_models_goes():
    slots = (
        slot(0, SERVING, 1, models=3),
        slot(1, SERVING, 1, models=1, node_held_millislices=7000),
        slot(2, SERVING, 1, models=2),
    )
    assert plan(*slots, wanted=2).modes == {
        0: ServerMode.READY,
        1: ServerMode.DRAIN,
        2: ServerMode.READY,
    }


def test_of_victims_with_as_much_to_do_the_one_on_the_emptiest_node_goes():
    found = plan(
        slot(0, SERVING, 1, node_held_millislices=2000),
        slot(1, SERVING, 1, node_held_millislices=7000),
        slot(2, SERVING, 1, node_held_millislices=3500),
        slot(3, SERVING, 2, node_held_millislices=1000),
        wanted=2,
    )
    assert found.modes == {
        0: ServerMode.DRAIN,
        1: ServerMode.READY,
        2: ServerMode.DRAIN,
        3: ServerMode.READY,
    }


def test_a_draining_one_with_work_stays():
    found = plan(slot(0, DRAINING, 1), wanted=0)
    assert (found.run, found.modes) == ({0}, {0: ServerMode.DRAIN})


def test_a_drained_one_goes_into_maintenance_and_stays_wished_for_one_more_look():
    found = plan(slot(0, DRAINING, 0), wanted=0)
    assert (found.run, found.modes) == ({0}, {})


def test_then_it_is_given_back():
    found = plan(slot(0, WARM), wanted=0)
    assert (found.run, found.modes) == (set(), {})


def test_past_the_deadline_work_is_cut():
    found = plan(slot(0, DRAINING, 1), wanted=0, late=frozenset({0}))
    assert (found.run, found.modes) == ({0}, {})


def test_a_draining_one_is_taken_back_before_a_new_one_starts():
    found = plan(slot(0, HELD), slot(1, DRAINING, 1), wanted=1)
    assert (found.run, found.modes) == ({1}, {1: ServerMode.READY})


def test_a_warm_one_gets_requests():
    assert plan(slot(0, WARM), wanted=1).modes == {0: ServerMode.READY}


def test_an_unhealthy_one_goes_before_a_healthy_one():
    found = plan(slot(0, SERVING, 5, up=False), slot(1, SERVING, 0), wanted=1)
    assert found.modes == {0: ServerMode.DRAIN, 1: ServerMode.READY}


def test_an_allotted_start_is_kept_before_a_pending_one():
    found = plan(slot(0, STARTING, allotted=False), slot(1, STARTING), wanted=1)
    assert found.run == {1}


def test_nothing_starts_during_backoff_but_what_runs_stays():
    found = plan(slot(0, SERVING), slot(1, HELD), wanted=2, may_start=False)
    assert found.run == {0}


def test_a_successor_starts_beside_one_that_expires_soon():
    found = plan(slot(0, SERVING, expiry=Expiry.SOON), slot(1, HELD), wanted=1)
    assert (found.run, found.modes) == ({0, 1}, {0: ServerMode.READY})


def test_once_the_successor_serves_the_old_one_drains():
    found = plan(slot(0, SERVING, expiry=Expiry.SOON), slot(1, SERVING), wanted=1)
    assert (found.run, found.modes) == ({0, 1}, {0: ServerMode.DRAIN, 1: ServerMode.READY})


def test_at_the_very_end_it_drains_without_a_successor():
    found = plan(slot(0, SERVING, 1, expiry=Expiry.NOW), slot(1, STARTING), wanted=1)
    assert (found.run, found.modes) == ({0, 1}, {0: ServerMode.DRAIN})


def test_what_is_borrowed_goes_before_what_is_guaranteed():
    slots = (slot(0, SERVING, 3, is_borrowed=True), slot(1, SERVING, 1))
    assert plan(*slots, wanted=1).modes == {0: ServerMode.DRAIN, 1: ServerMode.READY}


@pytest.mark.parametrize(("in_flight", "modes"), [(2, {0: ServerMode.DRAIN}), (0, {})])
def test_what_slurm_ends_drains_and_another_starts(in_flight: int, modes: dict[int, ServerMode]):
    found = plan(slot(0, ENDING, in_flight), slot(1, HELD), wanted=1)
    assert (found.run, found.modes) == ({1}, modes)


def test_no_more_start_than_the_gateway_can_carry():
    slots = (slot(0, SERVING), *(slot(index, HELD) for index in range(1, 5)))
    assert plan(*slots, wanted=5, most=3).run == {0, 1, 2}


def test_as_many_near_their_end_stay_as_successors_are_missing():
    soon = [slot(i, SERVING, i, expiry=Expiry.SOON) for i in range(3)]
    found = plan(*soon, slot(3, SERVING), slot(4, STARTING), slot(5, HELD), wanted=3)
    assert found.run == {0, 1, 2, 3, 4, 5}
    stay = {i for i, mode in found.modes.items() if mode is ServerMode.READY}
    assert stay == {1, 2, 3}


def outdated(index: int, phase: Phase, in_flight: int = 0, **change: object) -> Slot:
    return slot(index, phase, in_flight, is_outdated=True, **change)


def test_successors_start_beside_the_outdated_ones():
    found = plan(
        outdated(0, SERVING, 1), outdated(1, SERVING), slot(2, HELD), slot(3, HELD), wanted=2
    )
    assert found.run == {0, 1, 2, 3}
    assert found.modes == {0: ServerMode.READY, 1: ServerMode.READY}


def test_an_outdated_one_leaves_for_each_successor_that_serves_the_least_busy_first():
    slots = (outdated(0, SERVING, 1), outdated(1, SERVING, 2), slot(2, SERVING), slot(3, STARTING))
    assert plan(*slots, wanted=2).modes == {
        0: ServerMode.DRAIN,
        1: ServerMode.READY,
        2: ServerMode.READY,
    }


def test_a_successor_that_fails_its_health_checks_replaces_nobody():
    slots = (outdated(0, SERVING, 1), slot(1, SERVING, up=False))
    assert plan(*slots, wanted=1).modes == {0: ServerMode.READY, 1: ServerMode.READY}


def test_an_outdated_one_that_waits_for_slurm_is_given_back_at_once():
    found = plan(outdated(0, STARTING, allotted=False), slot(1, HELD), wanted=1)
    assert found.run == {1}


FULL = {"kept_back": frozenset({2, 3}), "is_firm": True}
"""Quota keeps both successors back."""


def rolling(*old: Slot, **goal: object) -> dict[int, ServerMode]:
    return plan(*old, slot(2, HELD), slot(3, HELD), wanted=2, **goal).modes


@pytest.mark.parametrize("wanted", [2, 4])
def test_where_quota_has_no_room_one_outdated_replica_makes_it(wanted: int):
    slots = (outdated(0, SERVING, 1), outdated(1, SERVING, 2), slot(2, HELD), slot(3, HELD))
    assert plan(*slots, wanted=wanted, **FULL).modes == {0: ServerMode.DRAIN, 1: ServerMode.READY}


def test_the_next_one_makes_room_only_after_the_first_is_gone_and_its_successor_there():
    busy = outdated(1, SERVING, 2)
    stays = {1: ServerMode.READY}
    assert rolling(outdated(0, DRAINING, 1), busy, **FULL) == {0: ServerMode.DRAIN} | stays
    assert rolling(outdated(0, WARM, is_drained=True), busy, **FULL) == stays
    assert rolling(outdated(0, ENDING), busy, **FULL) == stays
    # Held again: the next request may find room.
    assert rolling(outdated(0, HELD), busy, kept_back=frozenset({2, 3})) == stays
    found = plan(busy, slot(2, STARTING), slot(3, HELD), wanted=2, **FULL)
    assert found.modes == stays
    found = plan(busy, slot(2, SERVING), slot(3, HELD), wanted=2, **FULL)
    assert found.modes == {1: ServerMode.DRAIN, 2: ServerMode.READY}


def test_outdated_ones_that_the_gateway_has_forgotten_are_no_ones_that_have_drained():
    """After a start of HAProxy no replica gets requests yet."""
    forgotten = rolling(outdated(0, WARM), outdated(1, WARM), **FULL)
    assert forgotten == {0: ServerMode.READY, 1: ServerMode.READY}


def test_one_that_is_stuck_in_slurms_queue_gets_one_replica_fewer_at_most():
    waits = slot(2, STARTING, allotted=False, is_stuck=True)
    both = (outdated(0, SERVING), outdated(1, SERVING, 1))
    assert plan(*both, waits, slot(3, SERVING), wanted=3).modes[0] is ServerMode.DRAIN
    assert plan(*both, waits, wanted=3).modes == {0: ServerMode.READY, 1: ServerMode.READY}
    young = slot(2, STARTING, allotted=False)
    assert plan(*both, young, slot(3, SERVING), wanted=3).modes[0] is ServerMode.READY


def test_after_a_failed_start_no_outdated_one_makes_room():
    old = (outdated(0, SERVING, 1), outdated(1, SERVING, 2))
    assert rolling(*old, failures=1, **FULL) == {0: ServerMode.READY, 1: ServerMode.READY}


def test_while_every_start_fails_the_generation_before_starts_again():
    old = tuple(
        Slot(SlotId(OLDER, index), phase, is_outdated=True, allotted=phase is SERVING)
        for index, phase in enumerate((SERVING, HELD, HELD))
    )
    goal = Goal(2, ARRAY, fallback=OLDER, failures=3)
    found = plan_slots((*old, slot(2, HELD), slot(3, HELD)), goal)
    assert found.run == {SlotId(OLDER, 0), SlotId(OLDER, 1), SlotId(ARRAY, 2)}
