"""Tests that a time at rest teaches the autoscaler what its looks one by one would."""

from dataclasses import replace

import pytest

from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, horizon_of
from slicewise.launcher.rules.autoscale.rest import is_at_rest, rested
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load

NOTHING = Load()
SCALING = Scaling(0, 8, 4, None, None, None)


LEARNS = replace(SCALING, learns=True)


def looked_at(
    memory: Memory, since_s: int, until_s: int, load: Load = NOTHING, scaling: Scaling = SCALING
) -> Memory:
    for at_s in range(since_s, until_s):
        look = ServiceLook(float(at_s), load, Supply(0, 0, 0, 0, 0), (), None, is_known=True)
        memory, _ = autoscale(scaling, memory, look)
    return memory


@pytest.mark.parametrize("before_s", [5, 40, 2000])
@pytest.mark.parametrize("rest_s", [1, 30, 110])
def test_a_rest_teaches_what_its_looks_teach(before_s: int, rest_s: int):
    known = looked_at(Memory(), 0, before_s)
    assert is_at_rest(known)
    one_by_one = looked_at(known, before_s, before_s + rest_s)
    at_once = rested(known, before_s + rest_s - 1.0, rest_s)
    assert at_once.seen == one_by_one.seen
    assert at_once.arrivals.spans == pytest.approx(one_by_one.arrivals.spans)
    assert at_once.arrivals.counts == pytest.approx(one_by_one.arrivals.counts)
    assert at_once.idle == one_by_one.idle
    steps, steps_one_by_one = (m.forecasts.under_way for m in (at_once, one_by_one))
    assert [s.at_s for s in steps] == pytest.approx([s.at_s for s in steps_one_by_one])
    for errors, errors_too in zip(
        at_once.forecasts.errors, one_by_one.forecasts.errors, strict=True
    ):
        assert errors.weight == pytest.approx(errors_too.weight)
        assert errors.quiet.within == pytest.approx(errors_too.quiet.within)
    assert at_once.unqueued == pytest.approx(one_by_one.unqueued)
    assert at_once.rests == one_by_one.rests


def test_requests_of_before_the_rest_fade_as_quickly_as_in_its_looks():
    """By the time that a request takes in a full replica, where that is learnt."""
    capacity = ReplicaCapacity(limit=9, full_s=4.5)
    known = looked_at(replace(Memory(), capacity=capacity), 0, 40, scaling=LEARNS)
    known = replace(known, unqueued=3.0, rests=False)
    one_by_one = looked_at(known, 40, 50, scaling=LEARNS)
    at_once = rested(known, 49.0, 10)
    assert at_once.unqueued == pytest.approx(one_by_one.unqueued)
    assert at_once.unqueued > 0.1
    assert at_once.rests == one_by_one.rests is True


def test_the_first_request_after_a_start_of_the_launcher_is_a_wake():
    """After its first look a service at rest is left alone until a request comes."""
    first = looked_at(Memory(), 0, 1)
    assert is_at_rest(first)
    assert looked_at(first, 1, 2, Load(held=1, arrived=1)).woke_s == 1.0
    rests = rested(replace(first, rests=False), 30.0, 30)
    assert looked_at(rests, 31, 32, Load(held=1, arrived=1)).woke_s == 31.0


def test_a_service_that_ran_while_the_launcher_was_away_is_not_woken():
    """A restart, and replicas that have come meanwhile."""
    known = looked_at(Memory(), 0, 5)
    assert known.rests
    for load, supply in ((NOTHING, Supply(ready=1)), (Load(in_flight=1, arrived=1), Supply())):
        back, _ = autoscale(SCALING, known, ServiceLook(60.0, load, supply))
        assert not back.rests
    again, _ = autoscale(SCALING, replace(known, rests=False), ServiceLook(60.0, NOTHING, Supply()))
    assert again.rests


def test_requests_replicas_and_what_is_expected_are_no_rest():
    known = looked_at(Memory(), 0, 200)
    assert is_at_rest(known)
    assert not is_at_rest(Memory())
    held = looked_at(known, 200, 202, Load(held=3, arrived=3))
    assert not is_at_rest(held)
    assert held.seen is not None
    assert not is_at_rest(replace(known, seen=replace(held.seen, in_flight=1)))


def test_a_clock_that_was_set_back_teaches_nothing():
    known = looked_at(Memory(), 0, 50)
    assert rested(known, 10.0, 3) == known
    assert rested(known, 60.0, 0) == known
    assert horizon_of(known.delays) > 0
