"""Tests what requests do with replicas that come and go, against no clock but their own."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests


def requests(
    *arrivals_s: float,
    service_s: float = 10.0,
    concurrency: int = 1,
    slower: tuple[float, ...] = (),
) -> ServiceRequests:
    return ServiceRequests(arrivals_s, [service_s] * len(arrivals_s), concurrency, slower or (1.0,))


def opened(found: ServiceRequests, at_s: float) -> RunningReplica:
    found.pass_until(at_s)
    replica = RunningReplica()
    found.open(replica)
    return replica


def test_who_waits_gets_a_place_as_soon_as_a_replica_is_open() -> None:
    found = requests(1.0, 2.0)
    opened(found, 5.0)
    found.pass_until(100.0)
    assert found.waits == [4.0, 13.0]
    assert found.answers == [15.0, 25.0]
    assert found.wakes == [0]


def test_the_replica_with_the_least_work_gets_the_next_request() -> None:
    found = requests(1.0, 2.0, 3.0, concurrency=2)
    first, second = opened(found, 0.0), opened(found, 0.0)
    found.pass_until(3.0)
    assert (first.in_flight, second.in_flight) == (2, 1)


def test_a_closed_replica_finishes_what_it_has_and_may_be_opened_again() -> None:
    found = requests(1.0, 2.0, 3.0)
    replica = opened(found, 0.0)
    found.pass_until(2.5)
    found.close(replica)
    found.pass_until(20.0)
    assert (found.answered, found.in_flight, len(found.queue)) == (1, 0, 2)
    assert replica.idle_s == 11.0
    found.open(replica)
    found.pass_until(100.0)
    assert found.waits == [0.0, 18.0, 27.0]


@pytest.mark.parametrize("is_open", [True, False])
def test_what_a_replica_works_on_is_lost_when_its_run_ends(is_open: bool) -> None:
    found = requests(1.0, 2.0, 3.0, concurrency=2)
    replica = opened(found, 0.0)
    found.pass_until(4.0)
    if not is_open:
        found.close(replica)
    found.end(replica)
    found.pass_until(50.0)
    assert (found.lost, found.answered, found.in_flight, len(found.queue)) == (2, 0, 0, 1)
    assert found.answers == [inf] * 3
    opened(found, 60.0)
    found.pass_until(100.0)
    assert (found.answered, found.answers[2]) == (1, 70.0)


def test_a_request_takes_longer_beside_others_as_the_table_says() -> None:
    found = requests(0.0, 0.0, 0.0, concurrency=3, slower=(1.0, 1.5))
    opened(found, 0.0)
    found.pass_until(100.0)
    assert found.answers == [10.0, 15.0, 15.0]


def test_more_concurrency_lets_those_in_that_wait_and_less_cuts_none() -> None:
    found = requests(0.0, 0.0, 0.0)
    replica = opened(found, 1.0)
    found.set_concurrency(3)
    assert replica.in_flight == 3
    found.set_concurrency(1)
    found.pass_until(100.0)
    assert (found.answered, found.lost) == (3, 0)


ARRIVALS = st.lists(st.floats(0, 50), max_size=30).map(sorted)
DEEDS = st.lists(st.sampled_from(["open", "close", "end", "wait"]), min_size=30, max_size=60)


@given(ARRIVALS, DEEDS, st.floats(0.1, 20), st.integers(1, 3), st.none() | st.integers(0, 4))
def test_no_request_is_lost_but_with_its_replica_and_none_is_served_twice(
    arrivals_s: list[float],
    deeds: list[str],
    service_s: float,
    concurrency: int,
    in_time: int | None,
) -> None:
    found = requests(*arrivals_s, service_s=service_s, concurrency=concurrency)
    found.in_time = in_time
    replicas: list[RunningReplica] = []
    for second, deed in enumerate(deeds):
        found.pass_until(second)
        _do(found, replicas, deed)
        busy = sum(replica.in_flight for replica in replicas)
        assert found.in_flight == busy
        assert found.arrived == sum(at_s <= second for at_s in arrivals_s)
        assert found.arrived == found.answered + found.lost + busy + len(found.queue)
        assert all(replica.in_flight <= concurrency for replica in replicas)
        assert not found.queue or all(one.in_flight == concurrency for one in found.ready)
    for replica in replicas:
        if not replica.is_open and not replica.is_over:
            found.open(replica)
    opened(found, 100.0)
    found.pass_until(10_000.0)
    assert found.answered + found.lost == len(arrivals_s)
    assert sum(at_s < inf for at_s in found.answers) == found.answered
    assert found.moments == pytest.approx(_moments(found), abs=1e-6) or found.lost


def _do(found: ServiceRequests, replicas: list[RunningReplica], deed: str) -> None:
    living = [replica for replica in replicas if not replica.is_over]
    if deed == "open":
        closed = [replica for replica in living if not replica.is_open]
        replica = closed[0] if closed else RunningReplica()
        if not closed:
            replicas.append(replica)
        found.open(replica)
    elif deed == "close" and found.ready:
        found.close(found.ready[0])
    elif deed == "end" and living:
        found.end(living[0])


def _moments(found: ServiceRequests) -> float:
    return sum(found.arrivals[:-1]) - sum(found.answers)
