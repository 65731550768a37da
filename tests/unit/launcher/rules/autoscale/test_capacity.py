"""Tests how many requests a replica gets where that is learnt from how long they take."""

from collections.abc import Callable
from dataclasses import replace
from math import sin
from statistics import mode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from slicewise.launcher.rules.autoscale.capacity import (
    FIRST,
    CapacityBounds,
    Level,
    ReplicaCapacity,
    Timed,
    alone_s,
    learn_capacity,
)
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ScalingDecision, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load

Curve = Callable[[int], float]
"""Seconds that each of so many requests takes that a replica works on together."""
ANSWERS = 40
WITHIN = CapacityBounds(1024, 0.1)
P95_S = 0.3


def batching(requests: int) -> float:
    """10 ms for a batch, and 2 ms for each request of it."""
    return 0.01 + 0.002 * requests


def serial(requests: int) -> float:
    """One after another: more at a time answers no more of them."""
    return 0.02 * requests


def full(
    curve: Curve,
    bounds: CapacityBounds = WITHIN,
    known: ReplicaCapacity | None = None,
    samples: int = 60,
) -> tuple[ReplicaCapacity, list[int]]:
    """What is learnt while requests wait, and each limit on the way."""
    found, limits = known or ReplicaCapacity(), []
    for _ in range(3 * samples):
        took_s = curve(found.limit)
        seen = Level(ANSWERS * took_s, ANSWERS * took_s / found.limit, ANSWERS, 1)
        found = learn_capacity(found, seen, bounds, is_full=True)
        limits.append(found.limit)
    return found, limits


def light(
    known: ReplicaCapacity, in_flight: float, took_s: float, samples: int = 20
) -> ReplicaCapacity:
    """What is learnt while no request waits."""
    for _ in range(3 * samples):
        seen = Level(ANSWERS * took_s, ANSWERS * took_s / in_flight, ANSWERS, 1)
        known = learn_capacity(known, seen, WITHIN, is_full=False)
    return known


def test_as_many_as_keep_the_objective():
    """45 requests take 100 ms each; 42 answer nearly as many a second."""
    found, _ = full(batching)
    assert 38 <= found.limit <= 47
    assert found.full_s == pytest.approx(batching(found.limit), rel=0.1)


def test_what_is_tried_on_the_way_takes_hardly_longer_than_the_objective():
    _, limits = full(batching)
    assert max(map(batching, limits)) < 1.1 * 0.1


def test_the_first_steps_are_large():
    _, limits = full(batching, samples=6)
    assert limits[-1] > 30


@pytest.mark.parametrize("took_s", [0.11, 0.5])
def test_one_at_a_time_where_already_one_takes_too_long(took_s: float):
    found, limits = full(lambda requests: took_s * requests)
    assert (found.limit, max(limits)) == (1, FIRST)


def test_no_more_than_answer_more():
    """Within an objective of minutes a serial engine could be given hundreds."""
    found, _ = full(serial, CapacityBounds(1024, 60.0))
    assert found.limit <= 2
    _, limits = full(
        lambda requests: max(0.05, 0.005 * requests), CapacityBounds(1024, 60.0), samples=200
    )
    assert 8 <= mode(limits) <= 16


def test_without_an_objective_of_time_requests_may_take_longer_by_their_wait():
    found, _ = full(batching, CapacityBounds(1024, wait_s=0.05))
    assert 20 <= found.limit <= 27


def test_never_more_than_the_engine_has_slots():
    found, limits = full(batching, replace(WITHIN, most=4))
    assert (found.limit, max(limits)) == (4, 4)
    assert learn_capacity(found, Level(), replace(WITHIN, most=3), is_full=False).limit == 3


def test_heavier_requests_are_noticed_and_lighter_ones_too():
    found, _ = full(batching)
    heavy, _ = full(lambda requests: 4 * batching(requests), known=found, samples=40)
    assert heavy.limit <= 9
    again, _ = full(batching, known=heavy, samples=400)
    assert again.limit >= 38


def test_heavier_requests_are_noticed_without_a_queue():
    """A tenth of the places is used, and requests take too long all the same."""
    found, _ = full(batching)
    assert light(found, 4.0, 0.3).limit <= 3


def test_few_requests_say_nothing_against_many():
    """While no request waits they are as many as have come, not as many as a replica could have."""
    found, _ = full(batching)
    assert light(found, 5.0, 1.3 * batching(5)).limit == found.limit
    assert light(ReplicaCapacity(), 0.4, 0.012).limit == FIRST


def test_what_was_too_slow_is_tried_again_but_rarely():
    """More than 45 take too long; each try is one sample of some hundred."""
    _, limits = full(batching, samples=1000)
    assert sum(batching(limit) > 0.1 for limit in limits) <= 0.03 * len(limits)


def test_too_little_says_nothing():
    seen = Level(0.1, 0.1, 5, 1)
    found = learn_capacity(ReplicaCapacity(), seen, WITHIN, is_full=True)
    assert (found.limit, found.full_s) == (FIRST, None)


def test_what_takes_long_beside_another_is_not_said_to_take_so_long_by_itself():
    """A server that works on one after another answers each of two in twice the time of one."""
    beside, _ = full(serial, CapacityBounds(1024, 0.001), samples=1)
    assert (set(beside.levels), beside.limit) == ({2}, 1)
    assert alone_s(beside) == (None, None)
    alone, _ = full(serial, CapacityBounds(1024, 0.001), beside, samples=2)
    assert alone_s(alone) == (pytest.approx(serial(1)), None)


def test_long_requests_do_not_take_hours_to_learn_from():
    """Ten seconds each, however many: four minutes are 24 of them, one after another."""
    found = ReplicaCapacity()
    for _ in range(240):
        seen = Level(found.limit, 1.0, found.limit / 10, 1)
        found = learn_capacity(found, seen, CapacityBounds(1024, 60.0), is_full=True)
    assert found.limit >= 32


def test_requests_that_wait_for_one_replica_do_not_make_all_full():
    """Those of a sequence: others have room, and their answers are no replica's most."""
    scaling = Scaling(0, 20, 1024, p95_s=P95_S, learns=True)
    memory = initial(Supply(ready=4), 0.0)
    for second in range(60):
        load = Load(2, 3, 0, 100 * second, 100 * second)
        look = ServiceLook(float(second), load, Supply(ready=4), serving=4)
        memory, _ = autoscale(scaling, memory, look)
    assert memory.capacity.lights
    assert not memory.capacity.levels


def test_what_is_known_is_saved():
    adapter = TypeAdapter(ReplicaCapacity)
    found, _ = full(batching)
    assert adapter.validate_json(adapter.dump_json(found)) == found


LOOKS = st.lists(
    st.tuples(st.floats(0, 1000), st.floats(0, 1000), st.integers(0, 500), st.booleans()),
    max_size=60,
)


@given(LOOKS, st.none() | st.floats(0.001, 100), st.floats(0, 100), st.integers(1, 1024))
def test_it_stays_within_its_bounds_whatever_is_seen(
    looks: list[tuple[float, float, int, bool]],
    service_s: float | None,
    wait_s: float,
    most: int,
):
    found = ReplicaCapacity()
    for busy_s, replica_s, answers, is_full in looks:
        seen = Level(busy_s, replica_s, answers, 1)
        found = learn_capacity(
            found, seen, CapacityBounds(most, service_s, wait_s), is_full=is_full
        )
        assert 1 <= found.limit <= most
        assert found.full_s is None or found.full_s > 0
        assert len(found.levels) <= 25


@pytest.mark.parametrize("is_full", [True, False])
def test_late_first_tokens_take_no_places_while_requests_wait_for_them(is_full: bool):
    """A queue at the gateway would only grow; tokens that are late take some all the same."""
    bounds = CapacityBounds(256, token_s=0.1, first_token_s=0.06, steps=100.0)
    late = replace(bounds, first_token_s=0.01)

    def seen(found: ReplicaCapacity) -> Level:
        each_s = 0.02 + 0.001 * found.limit
        token = Timed(2000 * each_s, 2000)
        return Level(100 * each_s * 20, 2000 * each_s / found.limit, 20, 1, token)

    found = ReplicaCapacity()
    for _ in range(60):
        found = learn_capacity(found, seen(found), bounds, is_full=True)
    assert found.limit > 30
    for _ in range(60):
        found = learn_capacity(found, seen(found), late, is_full=is_full)
    assert found.limit > 30 if is_full else found.limit < 30
    for _ in range(60):
        found = learn_capacity(found, seen(found), replace(late, token_s=0.03), is_full=is_full)
    assert found.limit <= 14


@given(st.floats(0.005, 0.1), st.floats(0.0005, 0.02), st.floats(0.0001, 1.0))
def test_however_late_first_tokens_are_a_replica_gets_what_takes_twice_as_long_as_one(
    step_s: float, request_s: float, first_token_s: float
):
    """As many are in time as tokens may take then; a long prompt makes no more late."""
    bounds = CapacityBounds(256, first_token_s=first_token_s, steps=100.0)
    found = ReplicaCapacity()
    for _ in range(150):
        each_s = step_s + request_s * found.limit
        seen = Level(
            100 * each_s * 20, 2000 * each_s / found.limit, 20, 1, Timed(2000 * each_s, 2000)
        )
        found = learn_capacity(found, seen, bounds, is_full=True)
        assert found.limit <= found.planned <= 256
    twice_s = min(2 * (step_s + request_s), step_s + 256 * request_s)
    assert step_s + request_s * (found.limit + 1) >= twice_s / 1.2
    alone_s = step_s + FIRST * request_s
    assert step_s + request_s * found.limit <= 1.2 * max(first_token_s, 2 * alone_s) + request_s


def lived(
    scaling: Scaling, per_s: float, seconds: int = 900, begun: Memory | None = None
) -> tuple[Memory, list[ScalingDecision], float]:
    """A service with so many requests a second, more and fewer in turn; its replicas start at once.

    Return what is remembered, what was decided, and how many requests wait in the end.
    """
    memory, decisions, waiting = begun or initial(Supply(ready=1), 0.0), [], 0.0
    arrived, answered, replicas, most = 0.0, 0.0, 1, scaling.concurrency
    begun_s = 0 if memory.seen is None else int(memory.seen.at_s) + 1
    if memory.seen is not None:
        arrived, answered = float(memory.seen.arrived), float(memory.seen.answered)
    for second in range(begun_s, begun_s + seconds):
        places = min(memory.capacity.limit, most) if scaling.learns else most
        room = replicas * places / batching(places)
        came = per_s * (1 + 0.5 * sin(second / 60))
        arrived += came
        done = min(room, waiting + came)
        waiting += came - done
        answered += done
        busy = next((n for n in range(1, places) if n / batching(n) * replicas >= done), places)
        load = Load(replicas * busy, round(waiting), 0, round(arrived), round(answered))
        look = ServiceLook(second, load, Supply(ready=replicas), serving=replicas)
        memory, decision = autoscale(scaling, memory, look)
        replicas = max(1, decision.wanted)
        decisions.append(decision)
    return memory, decisions, waiting


def test_a_service_that_learns_needs_fewer_replicas_than_one_with_a_request_at_a_time():
    """200 requests a second: one at a time a replica answers 83 of them, in batches 440."""
    fixed = Scaling(0, 20, 1, p95_s=P95_S)
    _, of_one, _ = lived(fixed, 200.0)
    memory, learnt, waiting = lived(replace(fixed, concurrency=1024, learns=True), 200.0)
    assert of_one[-1].wanted >= 3
    assert learnt[-1].wanted == 1
    assert waiting < 10
    assert memory.capacity.limit > 2
    assert f"a replica takes {memory.capacity.planned} at a time (learnt)" in learnt[-1].reason


def test_what_was_learnt_outlives_a_restart_and_more_load_gets_replicas_by_it():
    scaling = Scaling(0, 20, 1024, p95_s=P95_S, learns=True)
    memory, _, _ = lived(scaling, 400.0)
    adapter = TypeAdapter(Memory)
    restored = adapter.validate_json(adapter.dump_json(memory))
    assert restored == memory
    after, decisions, waiting = lived(scaling, 2000.0, begun=restored)
    assert 5 <= decisions[-1].wanted <= 8
    assert waiting < 100
    assert after.capacity.limit >= 20


def test_a_number_in_the_file_forgets_what_was_learnt():
    scaling = Scaling(0, 20, 1024, p95_s=P95_S, learns=True)
    memory, _, _ = lived(scaling, 200.0)
    after, _, _ = lived(replace(scaling, concurrency=1, learns=False), 200.0, 2, memory)
    assert after.capacity == ReplicaCapacity()
