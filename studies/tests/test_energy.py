"""Tests the study of energy: places by each rule, boots, joules by hand, and the command."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.power import POWERS, power_w
from studies.autoscale.kpa import Kpa
from studies.autoscale.shared import SharedLoad
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import Starts
from studies.autoscale.world import World
from studies.energy import replay, site
from studies.energy.figures import BOARDS, OF_ALL, System, compared, row_of
from studies.energy.replay import Job, Night, PlacedWorld, Served, fewest, fixed, launcher, rival
from studies.energy.site import BOOT_S, SLICES, Held, Rule, Site, Tally

QUEUE_S, LOAD_S = 2.0, 10.0
H100 = POWERS["H100-80GB"]
RULES: tuple[Rule, ...] = ("spread", "first", "weights")


def load_of(
    times: Iterable[float], service_s: float = 5.0, first: int = 0, models: int = 1
) -> SharedLoad:
    """Requests to one service, or by turns to each model of a pool."""
    arrivals_s = np.sort(np.array([*times], float))
    return SharedLoad(
        name="few",
        arrivals_s=arrivals_s,
        service_s=np.full(arrivals_s.size, service_s),
        duration_s=300,
        concurrency=2,
        starts=Starts(np.full(50, QUEUE_S), np.full(50, LOAD_S)),
        first_replicas=first,
        warm_s=0,
        models=np.arange(arrivals_s.size) % models,
        count=models,
        nodes=np.zeros(50, int),
        cached=False,
    )


def places(where: Site, count: int) -> list[tuple[int, int]]:
    for key in range(count):
        assert where.allot(key, 0.0) == 0.0
    return [where._places[key] for key in range(count)]


def test_slurm_takes_the_first_device_and_kubernetes_the_emptiest() -> None:
    assert places(Site(2, "first"), 8) == [(0, 0)] * 7 + [(0, 1)]
    assert places(Site(2, "spread"), 4) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def half_full(rule: Rule) -> Site:
    """A site with 2 slices on the first node and 20 on the second, after the daemon's look."""
    where = Site(2, rule)
    for key in range(48):
        where.allot(key, 0.0)
    for key in [*range(2, 28)]:
        where.free(key, 0.0)
    return where


def test_the_weights_of_the_product_fill_the_fuller_node_first() -> None:
    first, weighed = half_full("first"), half_full("weights")
    first.allot("new", 60.0)
    weighed.allot("new", 60.0)
    assert first._places["new"][0] == 0
    assert weighed._places["new"][0] == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_node_that_is_off_comes_last_and_boots(rule: Rule) -> None:
    where = Site(2, rule, off_after_s=60.0)
    for key in range(29):
        where.allot(key, 0.0)
    for key in range(28):
        where.free(key, 0.0)
    left = 1 - where._places[28][0]
    where.look(60.0, (), 0)
    for key in range(100, 127):
        assert where.allot(key, 61.0) == 0.0
        assert where._places[key][0] != left
    assert where.allot("late", 61.0) == BOOT_S
    assert where.allot("later", 71.0) == BOOT_S - 10
    assert where.tally.boots == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=200), st.sampled_from(RULES))
def test_no_board_has_more_than_its_slices_and_all_seconds_are_counted(
    moves: Sequence[tuple[bool, int]], rule: Rule
) -> None:
    where = Site(2, rule, off_after_s=30.0)
    held: set[int] = set()
    for second, (is_allot, key) in enumerate(moves):
        if is_allot and key not in held:
            is_full = len(held) == 2 * site.BOARDS * site.SLICES
            assert (where.allot(key, second) is None) == is_full
            held |= set() if is_full else {key}
        elif not is_allot:
            where.free(key, second)
            held.discard(key)
        where.look(second, [Held(one, 0.5) for one in held], 1)
        assert all(count <= site.SLICES for boards in where._held for count in boards)
        assert sum(map(sum, where._held)) == len(held)
    tally = where.tally
    assert tally.off_s + tally.idle_s + tally.awake_s == len(moves) * 2 * site.BOARDS


def test_joules_are_those_of_each_board_at_each_second() -> None:
    where = Site(1, "first")
    places(where, 8)
    holding = [*(Held(key, 1.0) for key in range(6)), Held(6, 0.5), Held(7, 0.0)]
    for second in range(10):
        where.look(second, holding, 1)
    by_hand_w = power_w(H100, True, 6.5 / 7) + power_w(H100, True, 0) + 2 * H100.idle_w
    assert where.tally.joules(H100) == pytest.approx(10 * by_hand_w)
    straight_w = 2 * (120 + 70) + 6.5 / 7 * (600 - 120)
    assert where.tally.joules(H100, "straight_s") == pytest.approx(10 * straight_w)
    busy_w = power_w(H100, True, 1) + power_w(H100, True, 0) + 2 * H100.idle_w
    assert where.tally.joules(H100, "busy_s") == pytest.approx(10 * busy_w)


def test_one_service_on_a_large_site_gets_what_it_gets_alone() -> None:
    load = load_of(np.random.default_rng(3).uniform(0, 250, 60))
    world, policy = World(load), Kpa(load.concurrency, 0.5)
    for second in range(load.duration_s):
        world.pass_until(second)
        world.want(policy.wanted(world.look()))
    world.pass_until(load.duration_s)
    alone = world.outcome()
    served = replay.replay(
        [load], [rival(Kpa(load.concurrency, 0.5), 1, 0)], [Site(2, "first"), Site(2, "spread")]
    )
    assert served.attainment == alone.attainment
    # The last second is cut off.
    assert served.slice_hours == pytest.approx(alone.slice_s / 3600, rel=0.05)


def test_a_start_waits_for_its_node_and_the_policy_learns_of_it() -> None:
    load = load_of([100.0])
    where = Site(1, "first", off_after_s=60.0)
    world = PlacedWorld(load, [where])
    for second in range(350):
        world.pass_until(second)
        where.look(second, (), 0)
        world.want(int(second >= 100))
    (start,) = world.look().started
    assert start.queue_s == pytest.approx(QUEUE_S + BOOT_S)
    assert world.requests.waits[0] == pytest.approx(QUEUE_S + BOOT_S + LOAD_S)


def test_a_start_waits_for_a_slice_where_none_is_free() -> None:
    where = Site(1, "first")
    places(where, site.BOARDS * site.SLICES)
    world = PlacedWorld(load_of([0.0]), [where])
    for second in range(100):
        world.pass_until(second)
        world.want(1)
        if second == 50:
            where.free(0, second)
    assert 50 <= world.requests.waits[0] - LOAD_S <= 52


def test_the_replica_on_the_emptiest_node_is_drained_first_if_asked() -> None:
    where = Site(2, "first")
    places(where, 27)
    world = PlacedWorld(load_of([], first=2), [where], empties=True)
    full, alone = world.ready
    assert (where.company(full), where.company(alone)) == (28, 1)
    world.drain()
    assert world.ready == [full]


def test_batch_jobs_run_for_their_time_whoever_serves() -> None:
    jobs = [Job(5.0, 20.0), Job(10.0, 30.0)]
    where = Site(1, "first")
    served = replay.replay([load_of([1.0], first=1)], [fixed], [where], jobs)
    assert served.batch_s == 50
    assert where.tally.awake_s == 300


@pytest.mark.parametrize("is_pooled", [True, False])
def test_the_mean_of_services_does_not_weigh_them_by_their_requests(*, is_pooled: bool) -> None:
    often, seldom = load_of(np.arange(20.0, 290.0, 10.0), first=1), load_of([101.0])
    loads = [often, seldom]
    if is_pooled:
        both = load_of([*often.arrivals_s, 101.0], first=1, models=2)
        loads = [replace(both, models=(both.arrivals_s == 101.0).astype(int))]
    # Nothing is started, and the pool's replica does not load what it lacks.
    served = replay.replay(loads, [lambda *_: None] * len(loads), [Site(1, "first")])
    assert served.attainment == pytest.approx(27 / 28)
    assert served.mean_of_services == pytest.approx(0.5)


def test_the_launcher_s_decision_serves_and_sleeps() -> None:
    load = load_of([*np.arange(20.0, 60.0)], service_s=1.0)
    where = Site(1, "weights")
    turn = launcher(Slicewise(load.concurrency, 0.95))
    served = replay.replay([load], [turn], [where])
    assert served.answered == 1.0
    assert 0 < where.tally.awake_s < 300


def test_who_comes_at_a_capped_night_is_served_after_it() -> None:
    load = load_of([*np.arange(20.0, 60.0)], service_s=1.0)

    def served(night: Night | None) -> Served:
        turn = launcher(Slicewise(load.concurrency, 0.95), night)
        return replay.replay([load], [turn], [Site(1, "weights")])

    by_day, at_night = served(None), served(Night(0, 150, 0))
    assert (by_day.answered, at_night.answered) == (1.0, 1.0)
    assert by_day.wait_p95_s + 60 < at_night.wait_p95_s


def test_a_pool_serves_two_models_on_one_slice_and_loads_the_second_at_full_load() -> None:
    times = np.arange(20.0, 250.0, 10.0)
    shared, apart = Site(1, "first"), Site(1, "first")
    pool = replay.replay([load_of(times, first=1, models=2)], [fixed], [shared])
    alone = [load_of(part, first=1) for part in (times[::2], times[1::2])]
    two = replay.replay(alone, [fixed, fixed], [apart])
    assert pool.attainment == two.attainment == 1.0 == pool.mean_of_services
    assert pool.slice_hours == pytest.approx(two.slice_hours / 2)
    # Each request is half of a replica's work, a load is all of it.
    worked_s = SLICES * np.array([shared.tally.straight_s, apart.tally.straight_s])
    assert worked_s == pytest.approx([times.size * 2.5 + LOAD_S, times.size * 2.5])


@pytest.mark.parametrize("models", [1, 3])
def test_the_fewest_replicas_attain_the_share_and_one_less_does_not(models: int) -> None:
    load = load_of(np.random.default_rng(4).uniform(0, 250, 120), models=models)
    few, many = fewest(load, (0.5, 0.8))
    assert few <= many

    def attained(number: int) -> float:
        first = replace(load, first_replicas=number)
        return replay.replay([first], [fixed], [Site(1, "first")]).attainment

    assert attained(many) >= 0.8 > attained(many - 1)


def served_of(attainment: float) -> Served:
    return Served(1000, attainment, attainment, 0.01, 1.0, 2.0, 1.0, 5.0, 0.0)


def test_ours_stand_beside_the_cheapest_that_attains_as_much() -> None:
    rows = [
        row_of(System("hpa", 0.4, 1, "first", True), served_of(0.999), Tally(awake_s=2000)),
        row_of(System("hpa", 1.0, 1, "first", True), served_of(0.9), Tally(awake_s=1000)),
        row_of(System("kpa", 0.5, 0, "first", True), served_of(0.7), Tally(awake_s=10)),
        row_of(System("static", 1, 0, "first", False), served_of(0.95), Tally(awake_s=1500)),
        row_of(System("slicewise", 0.95, 0, "weights", True), served_of(0.9), Tally(awake_s=800)),
    ]
    found = compared(rows)["ours"]["slicewise, weights, nodes off"]
    for board in BOARDS:
        assert found[board]["best"] == {"name": "hpa, nodes off", "ratio": pytest.approx(0.8)}
        assert found[board]["others"]["kpa, nodes off"] is None
    assert found["straight"] == found["busy"] == pytest.approx(0.8)


def test_ours_with_pools_stand_beside_others_without_and_with_the_same() -> None:
    seconds = {
        System("hpa", 1, 1, "first", True): 1000,
        System("static", 1, 0, "first", True): 900,
        System("hpa", 1, 1, "first", True, pool=8): 400,
        System("hpa", 1, 1, "first", True, pool=0): 500,
        System("static", 1, 0, "first", True, pool=0): 300,
        System("slicewise", 0.95, 0, "weights", True, True, pool=0): 600,
    }
    rows = [
        row_of(system, served_of(0.95), Tally(awake_s=awake_s))
        for system, awake_s in seconds.items()
    ]
    found = compared(rows)["ours"][OF_ALL]
    for board in BOARDS:
        bests = {key: best for key, best in found[board].items() if key.startswith("best")}
        assert bests == {
            "best": {"name": "static, nodes off", "ratio": 0.6667},
            "best_known": {"name": "hpa, nodes off", "ratio": 0.6},
            "best_pooled": {"name": "static, one pool, nodes off", "ratio": 2.0},
            "best_pooled_known": {"name": "hpa, one pool, nodes off", "ratio": 1.2},
        }
    assert found["straight"] == 0.6667


def test_each_lever_saves_what_the_one_before_still_drew() -> None:
    seconds = {
        System("slicewise", 0.95, 1, "first", False): 900,
        System("slicewise", 0.95, 1, "weights", False): 850,
        System("slicewise", 0.95, 0, "weights", False): 800,
        System("slicewise", 0.95, 0, "weights", True): 500,
        System("slicewise", 0.95, 0, "weights", True, True): 450,
        System("static", 1, 0, "first", False): 1000,
        System("hpa", 1, 1, "first", True): 600,
    }
    rows = [
        row_of(system, served_of(0.95), Tally(awake_s=awake_s))
        for system, awake_s in seconds.items()
    ]
    found = compared(rows)
    for board in BOARDS:
        assert found["of_static"][board]["hpa, nodes off"] == pytest.approx(0.6)
        saved = [*found["saved_by"][board].values()]
        assert saved == pytest.approx([0.1, 0.05, 0.05, 0.3, 0.05], abs=1e-3)


def test_the_command_writes_a_report_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not above: with it comes matplotlib.
    from studies.energy import __main__ as command

    times = np.arange(0, 250, 2.0)
    sized = {1: [load_of(times[part::2], first=1) for part in (0, 1)]}
    sized[0] = [load_of(times, first=1, models=2)]
    loads = {"made": lambda *_: sized}
    monkeypatch.setattr(command, "LOADS", loads)
    monkeypatch.setattr(command, "_BATCH", ("made",))
    path = tmp_path / "energy.json"
    monkeypatch.setattr(sys, "argv", ["energy", "--quick", "--json", "--report", str(path)])
    command.main()
    report = json.loads(path.read_text())
    said = capsys.readouterr()
    assert json.loads(said.out) == report
    assert "Replaying: 1 of " in said.err
    assert report["loads"].keys() == {"made", "made, with batch"}
    names = {row["name"] for row in report["loads"]["made"]["rows"]}
    assert {"always on", "static", "kpa, nodes off", "kpa, one pool, nodes off", OF_ALL} < names
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_a_missing_trace_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.energy import __main__ as command

    monkeypatch.setattr(sys, "argv", ["energy", "--traces", str(tmp_path), "--only", "gentd26"])
    with pytest.raises(SystemExit, match="SLICEWISE_TRACES"):
        command.main()
