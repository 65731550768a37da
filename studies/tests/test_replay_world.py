"""Tests the replay's world against queueing theory, and its rules under any policy."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.autoscale.optimum import planned, replay_optimum
from studies.autoscale.policy import Seen
from studies.autoscale.workload import SLO_S, Starts, Workload
from studies.autoscale.world import Outcome, World, replay

STARTS = Starts(np.full(50, 2.0), np.full(50, 10.0))


def workload(arrivals_s: list[float], service_s: float, duration_s: int = 100) -> Workload:
    return Workload(
        name="few",
        arrivals_s=np.array(arrivals_s),
        service_s=np.full(len(arrivals_s), service_s),
        duration_s=duration_s,
        concurrency=2,
        starts=STARTS,
        warm_s=0,
        first_replicas=0,
    )


@dataclass
class Always:
    replicas: int

    def wanted(self, _: Seen) -> int:
        return self.replicas


@dataclass
class Script:
    """What it says from which second on."""

    wishes: dict[int, int]
    now: int = 0

    def wanted(self, seen: Seen) -> int:
        self.now = self.wishes.get(int(seen.at_s), self.now)
        return self.now


def erlang_c(servers: int, load: float) -> float:
    """The share that waits in M/M/c."""
    blocked = 1.0
    for busy in range(1, servers + 1):
        blocked = load * blocked / (busy + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


@pytest.mark.parametrize(("replicas", "load"), [(2, 3.0), (5, 8.0), (8, 13.0)])
def test_waits_are_those_of_m_m_c(replicas: int, load: float):
    rng, mean_s, duration_s = np.random.default_rng(5), 4.0, 40_000
    gaps = rng.exponential(mean_s / load, int(duration_s * load / mean_s * 1.1))
    arrivals = np.cumsum(gaps)
    arrivals = arrivals[arrivals < duration_s]
    found = Workload(
        name="m/m/c",
        arrivals_s=arrivals,
        service_s=rng.exponential(mean_s, arrivals.size),
        duration_s=duration_s,
        concurrency=2,
        starts=STARTS,
        first_replicas=replicas,
        warm_s=300,
    )
    outcome = replay(found, Always(replicas))
    servers = 2 * replicas
    waits = erlang_c(servers, load)
    in_time = 1 - waits * np.exp(-(servers - load) * SLO_S / mean_s)
    counted = outcome.waits_s[outcome.counted]
    assert (counted > 0).mean() == pytest.approx(waits, rel=0.1)
    assert counted.mean() == pytest.approx(waits * mean_s / (servers - load), rel=0.15)
    assert outcome.attainment == pytest.approx(in_time, abs=0.01)
    assert outcome.slice_s == pytest.approx(replicas * (duration_s - found.warm_s))


def test_a_start_takes_its_queue_and_its_load_and_costs_from_the_slice_on():
    outcome = replay(workload([5.0], service_s=20.0), Script({0: 0, 6: 1, 50: 0}))
    # Released at 6, a slice at 8, ready at 18, answered at 38, ended at 50.
    assert outcome.waits_s.tolist() == [13.0]
    assert outcome.slice_s == 42.0
    assert outcome.changes == 2
    assert outcome.wake_p99_s == 13.0


def test_a_drained_replica_takes_no_more_and_ends_with_its_last_request():
    outcome = replay(workload([20.0, 31.0], service_s=20.0), Script({0: 1, 30: 0}))
    assert outcome.waits_s.tolist() == [0.0, 69.0]
    assert outcome.slice_s == 40.0 - 2.0


def test_what_has_no_slice_yet_is_withdrawn_for_nothing():
    outcome = replay(workload([1.0], service_s=1.0), Script({0: 5, 1: 0}))
    assert outcome.slice_s == 0.0


def test_what_drains_is_taken_back_before_another_is_started():
    outcome = replay(workload([20.0, 31.0], service_s=20.0), Script({0: 1, 30: 0, 35: 1}))
    assert outcome.waits_s.tolist() == [0.0, 4.0]
    assert outcome.slice_s == 100.0 - 2.0


def test_the_queue_is_first_come_first_served():
    outcome = replay(workload([1.0, 2.0, 3.0, 4.0], service_s=10.0), Always(1))
    # Two places, ready at 12: two at once, the others when those are done.
    assert outcome.waits_s.tolist() == [11.0, 10.0, 19.0, 18.0]


@pytest.mark.parametrize(
    ("arrivals_s", "in_time", "served"),
    [
        ([1.0, 2.0, 3.0, 4.0], 0, [4.0, 3.0, 2.0, 1.0]),
        # The third finds two, which is as many as may wait.
        ([1.0, 2.0, 3.0, 4.0], 2, [4.0, 3.0, 1.0, 2.0]),
        ([1.0, 2.0, 3.0, 4.0], 4, [1.0, 2.0, 3.0, 4.0]),
        # Another frame begins at 20.
        ([18.0, 19.0, 21.0, 22.0], 1, [19.0, 18.0, 22.0, 21.0]),
    ],
)
def test_beyond_what_is_in_time_the_newest_of_a_frame_go_first(
    arrivals_s: list[float], in_time: int, served: list[float]
):
    found = replace(workload(arrivals_s, service_s=5.0), concurrency=1)
    outcome = replay(found, Script({0: 0, 15: 1}), lambda: in_time)
    begun_s = outcome.waits_s + found.arrivals_s
    assert found.arrivals_s[np.argsort(begun_s)].tolist() == served
    assert outcome.longest_wait_s == max(outcome.waits_s)


def test_nothing_before_the_warm_up_counts():
    found = replace(workload([1.0, 60.0], service_s=1.0), warm_s=50)
    outcome = replay(found, Always(1))
    assert outcome.attainment == 1.0
    assert outcome.slice_s == 50.0
    assert outcome.changes == 0


def test_a_start_is_as_long_for_every_policy():
    rng = np.random.default_rng(1)
    starts = Starts(rng.uniform(0, 5, 50), rng.uniform(10, 20, 50))
    found = replace(workload([0.0] * 8, service_s=1000.0), starts=starts)
    readies = [_ready_times(found, Always(4)), _ready_times(found, Script({0: 4}))]
    assert readies[0] == readies[1] == sorted((starts.queue_s + starts.load_s)[:4])


def _ready_times(found: Workload, policy: Always | Script) -> list[float]:
    return sorted(set(replay(found, policy).waits_s.tolist()))


WISHES = st.lists(st.integers(0, 5), min_size=60, max_size=60)
ARRIVALS = st.lists(st.floats(0, 50), max_size=40).map(sorted)


@given(ARRIVALS, WISHES, st.floats(0.1, 20))
def test_no_request_is_lost_or_served_twice(
    arrivals_s: list[float], wishes: list[int], service_s: float
):
    found = workload(arrivals_s, service_s, duration_s=60)
    world = World(found)
    for second, wish in enumerate(wishes):
        world.pass_until(second)
        world.want(wish)
        seen = world.look()
        assert seen.arrived == sum(at_s <= second for at_s in arrivals_s)
        assert seen.arrived == seen.answered + seen.in_flight + seen.waiting
        assert seen.coming == wish
        assert max(seen.busy, default=0) <= found.concurrency
        # Nobody waits beside a free place.
        assert not seen.waiting or all(busy == found.concurrency for busy in seen.busy)
    world.pass_until(60)
    served_s = _served(world.outcome(), arrivals_s, service_s)
    assert served_s <= world.slice_s * found.concurrency + 1e-6


@given(ARRIVALS, st.floats(0.1, 20), st.integers(0, 5))
def test_nobody_is_passed_by_who_came_two_frames_later(
    arrivals_s: list[float], service_s: float, in_time: int
):
    arrivals_s = [3 * at_s for at_s in arrivals_s]
    world = World(replace(workload(arrivals_s, service_s), concurrency=1, first_replicas=1))
    world.requests.in_time = in_time
    world.pass_until(1000)
    begun_s = world.outcome().waits_s + arrivals_s
    for passed, at_s in enumerate(arrivals_s):
        passing = [other for other in range(len(arrivals_s)) if begun_s[other] < begun_s[passed]]
        assert all(arrivals_s[other] < at_s + 40 for other in passing)


def _served(outcome: Outcome, arrivals_s: list[float], service_s: float) -> float:
    """Seconds of work that were done within the minute."""
    starts = np.array(arrivals_s) + outcome.waits_s
    return float(np.clip(60 - starts, 0, service_s).sum())


def test_the_clairvoyant_serves_all_in_time_for_what_is_needed():
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(100, 1900, 400))
    found = replace(workload(arrivals.tolist(), service_s=5.0, duration_s=2000), first_replicas=0)
    outcome = replay_optimum(found, 0.0)
    assert outcome.attainment == 1.0
    assert 400 * 5.0 / 2 < outcome.slice_s < 3 * 400 * 5.0 / 2


def test_its_plan_keeps_a_replica_through_gaps_shorter_than_a_start_and_a_drain():
    # A load and a service time are 15 s.
    near, far = workload([10.0, 29.0], 5.0), workload([10.0, 35.0], 5.0)
    assert [(run.ready_s, run.end_s) for run in planned(near, 0.0)] == [(11.9, 35.9)]
    assert len(planned(far, 0.0)) == 2
