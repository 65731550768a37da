"""Tests the replay of services that share replicas, and of weights that stay on nodes."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from studies.autoscale import fleets, shared
from studies.autoscale.fleets import Fleet
from studies.autoscale.peak_hold import PeakHold
from studies.autoscale.shared import NodeCache, SharedLoad, SharedRequests, SharedWorld
from studies.autoscale.workload import Starts
from studies.autoscale.world import Stage, replay

QUEUE_S, LOAD_S = 2.0, 10.0


def load_of(
    requests: list[tuple[float, int]], count: int, service_s: float = 5.0, *, cached: bool = False
) -> SharedLoad:
    """Requests by time and model."""
    arrivals, models = zip(*sorted(requests), strict=True)
    return SharedLoad(
        name="few",
        arrivals_s=np.array(arrivals),
        service_s=np.full(len(arrivals), service_s),
        duration_s=120,
        concurrency=2,
        starts=Starts(np.full(50, QUEUE_S), np.full(50, LOAD_S)),
        first_replicas=0,
        warm_s=0,
        models=np.array(models),
        count=count,
        nodes=np.zeros(50, int),
        cached=cached,
    )


class Watched(SharedRequests):
    """Writes down who serves what, and when."""

    def __init__(self, load: SharedLoad) -> None:
        super().__init__(load)
        self.served: list[tuple[int, float]] = []

    def _serve(self, request, replica, at_s):
        assert replica.is_open
        assert self.models[request] in replica.models
        assert replica.in_flight < self.concurrency
        self.served.append((request, at_s))
        super()._serve(request, replica, at_s)


def watched(load: SharedLoad) -> tuple[SharedWorld, Watched]:
    world = SharedWorld(load)
    world.requests = requests = Watched(load)
    return world, requests


@tried(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 11)), min_size=1, max_size=60),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.booleans(),
)
def test_each_request_is_served_once_by_a_replica_that_has_its_model(requests, wishes, cached):
    load = load_of(requests, 12, cached=cached)
    world, seen = watched(load)
    for second in range(load.duration_s):
        world.pass_until(second)
        world.place()
        world.want(wishes[second // 10 % len(wishes)])
        replicas = [replica for stage in world.replicas.values() for replica in stage]
        assert sum(replica.in_flight for replica in replicas) == seen.in_flight
        assert all(len(replica.to_have) <= shared.ROOM for replica in world.ready)
        assert all(replica.own in replica.models for replica in world.ready)
    assert max(Counter(request for request, _ in seen.served).values(), default=1) == 1
    waiting = {request for _, request in seen.queue}
    assert waiting.isdisjoint(request for request, _ in seen.served)
    assert len(waiting) + len(seen.served) == seen.arrived == len(requests)
    outcome = world.outcome()
    assert np.isfinite(outcome.waits_s).all()
    assert (outcome.waits_s >= 0).all()


def test_a_model_is_served_once_a_running_replica_has_loaded_it():
    load = load_of([(0.5, 0), (5.5, 1)], 2)
    world, seen = watched(load)
    for second in range(load.duration_s):
        world.pass_until(second)
        world.place()
        world.want(1)
    (first, first_s), (second, second_s) = seen.served
    assert (first, second) == (0, 1)
    assert first_s == QUEUE_S + LOAD_S
    # The replica loads it as soon as it runs: nobody waits for another slice.
    assert second_s == first_s + LOAD_S
    assert world.loads == 1


def test_a_replica_loads_what_was_asked_before_it_is_asked_again():
    load = load_of([(0.5, 0), (40.5, 1), (100.5, 1)], 2)
    world, seen = watched(load)
    for second in range(load.duration_s):
        world.pass_until(second)
        world.place()
        # The first replica ends meanwhile, and with it the second model.
        world.want(0 if 70 < second < 72 else 1)
    assert seen.served[-1] == (2, 100.5)


def test_a_pool_of_one_without_a_cache_is_a_service_with_its_own_replicas():
    rng = np.random.default_rng(3)
    load = load_of([(at_s, 0) for at_s in rng.uniform(0, 100, 60)], 1)
    alone = replay(load, PeakHold(load.concurrency, 0.7))
    world, policy = SharedWorld(load), PeakHold(load.concurrency, 0.7)
    for second in range(load.duration_s):
        world.pass_until(second)
        world.place()
        world.want(policy.wanted(world.look()))
    world.pass_until(load.duration_s)
    shared_outcome = world.outcome()
    assert shared_outcome.waits_s.tolist() == alone.waits_s.tolist()
    assert shared_outcome.slice_s == alone.slice_s


def test_weights_are_copied_then_in_memory_then_on_disk():
    cache = NodeCache(is_on=True)
    assert cache.factor(0, 1, 0.0) == shared.TO_DISK
    cache.use(0, 1)
    assert cache.factor(0, 1, 1e6) == shared.FROM_MEMORY
    cache.leave(0, 1, 1e6)
    assert cache.factor(0, 1, 1e6 + shared.MEMORY_S) == shared.FROM_MEMORY
    assert cache.factor(0, 1, 1e6 + shared.MEMORY_S + 1) == shared.FROM_DISK
    assert cache.factor(1, 1, 1e6) == cache.factor(0, 2, 1e6) == shared.TO_DISK
    assert NodeCache(is_on=False).factor(0, 1, 0.0) == 1.0


def test_a_second_start_on_a_node_loads_from_its_memory():
    load = load_of([(0.5, 0), (60.5, 0)], 1, cached=True)
    world, seen = watched(load)
    for second in range(load.duration_s):
        world.pass_until(second)
        world.want(int(second in range(30) or second >= 61))
    (_, first_s), (_, second_s) = seen.served
    assert first_s == pytest.approx(QUEUE_S + LOAD_S * shared.TO_DISK)
    assert second_s == pytest.approx(61 + QUEUE_S + LOAD_S * shared.FROM_MEMORY)
    assert not world.replicas[Stage.DRAINING]


def fleet_of(services: int) -> Fleet:
    rng = np.random.default_rng(1)
    times = [np.sort(rng.uniform(0, fleets.SPAN_S, 5 + 20 * n)) for n in range(services)]
    parts = [(arrivals, rng.uniform(1, 9, arrivals.size)) for arrivals in times]
    return Fleet("made", parts, 2, np.array([LOAD_S]), 1)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 0])
def test_pools_have_all_requests_of_their_services_and_no_others(size: int):
    fleet = fleet_of(10)
    pools = fleet.pools(size, cached=False)
    assert len(pools) == (-(-10 // size) if size else 1)
    assert sum(pool.count for pool in pools) == 10
    found = [
        (pool.arrivals_s[pool.models == model], pool.service_s[pool.models == model])
        for pool in pools
        for model in range(pool.count)
    ]
    for (arrivals, work), (expected, expected_work) in zip(found, fleet.services, strict=True):
        assert arrivals.tolist() == expected.tolist()
        assert work.tolist() == expected_work.tolist()
    assert all((np.diff(pool.arrivals_s) >= 0).all() for pool in pools)


def test_the_command_sets_pools_beside_the_cheapest_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Not above: with it comes matplotlib.
    from studies.autoscale import many

    monkeypatch.setattr(fleets, "SPAN_S", 600)
    monkeypatch.setattr(fleets, "WARM_S", 60)
    monkeypatch.setattr(many, "_USUAL", ("made",))
    monkeypatch.setattr(many, "fleet", lambda *_: fleet_of(3))
    monkeypatch.setattr(many, "RIVALS", {"peak_hold": (PeakHold, (0.5, 1.0))})
    report = tmp_path / "reports" / "many.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--report", str(report)])
    many.main()
    load = json.loads(report.read_text())["loads"]["made"]
    assert {"peak_hold", "slicewise", "slicewise, one pool, cache"} < load["ratio"].keys()
    assert len(load["points"]["peak_hold"]) == len(load["points"]["peak_hold, cache"]) == 4
    assert load["ratio"]["peak_hold"]["90"] == 1.0
    ours, best = load["slice_hours"]["slicewise"]["90"], load["best_rival"]["90"]
    assert load["ratio"]["slicewise"]["90"] == pytest.approx(ours / best, abs=0.001)
    assert report.with_suffix(".png").stat().st_size > 10_000


def test_a_missing_trace_ends_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from studies.autoscale import many

    monkeypatch.setattr(sys, "argv", ["bench", "--traces", str(tmp_path)])
    with pytest.raises(SystemExit, match="SLICEWISE_TRACES"):
        many.main()
