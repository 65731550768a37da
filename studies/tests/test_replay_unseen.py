"""Tests the loads that are drawn at random, and the command that replays them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from studies.autoscale import unseen
from studies.autoscale.mixtures import (
    CONCURRENCIES,
    KINDS,
    MOST_REQUESTS,
    busiest_places,
    drawn,
)
from studies.autoscale.workload import MAX_REPLICAS

HOURS = 1.0
BY_KIND = {kind: [*range(number, 28, len(KINDS))] for number, kind in enumerate(KINDS)}


def by_minute(number: int) -> np.ndarray:
    load = drawn(number, 1, HOURS)
    return np.bincount((load.arrivals_s / 60).astype(int), minlength=round(60 * HOURS))


@pytest.mark.parametrize("number", range(14))
def test_a_load_is_drawn_by_its_seed_and_fits_the_replay(number: int):
    load, again, other = (drawn(number, seed, HOURS) for seed in (1, 1, 2))
    assert np.array_equal(load.arrivals_s, again.arrivals_s)
    assert np.array_equal(load.service_s, again.service_s)
    assert not np.array_equal(load.arrivals_s[:10], other.arrivals_s[:10])
    assert np.all(np.diff(load.arrivals_s) >= 0)
    assert 0 <= load.arrivals_s[0] <= load.arrivals_s[-1] < load.duration_s
    assert load.concurrency in CONCURRENCIES
    assert 0 < load.arrivals_s.size < 1.1 * MOST_REQUESTS
    assert np.all(load.service_s > 0)


def test_all_replicas_together_carry_the_busiest_moment_of_nearly_all_loads():
    """Long requests by chance take more, now and then."""
    needed = []
    for number in range(28):
        load = drawn(number, 1, HOURS)
        ends = np.sort(load.arrivals_s + load.service_s)
        begun = np.arange(1, load.arrivals_s.size + 1)
        parallel = begun - np.searchsorted(ends, load.arrivals_s)
        needed.append(parallel.max() / load.concurrency)
    assert sum(one <= MAX_REPLICAS for one in needed) >= 26
    assert max(needed) > 10


def test_the_busiest_moment_is_counted_over_a_request_of_mean_length():
    assert busiest_places(np.array([0.0, 3.0, 1.0, 0.0]), 1.0) == 3
    assert busiest_places(np.array([0.0, 3.0, 1.0, 0.0]), 2.0) == 4
    assert busiest_places(np.array([0.0, 3.0, 1.0, 0.0]), 0.5) == 1.5


def test_each_kind_has_its_course():
    steady = by_minute(BY_KIND["steady"][0])
    assert steady.std() < 3 * np.sqrt(steady.mean())
    for number in BY_KIND["bursts"]:
        seconds = np.bincount(drawn(number, 1, HOURS).arrivals_s.astype(int), minlength=3600)
        assert (seconds == 0).mean() > 0.5
    for number in BY_KIND["crowds"]:
        minutes = by_minute(number)
        assert minutes.max() > 2 * np.median(minutes)
    assert any((by_minute(number) == 0).sum() >= 3 for number in BY_KIND["on-off"])
    halves = [by_minute(number).reshape(2, 30).sum(axis=1) for number in BY_KIND["ramps"]]
    assert any(max(both) > 1.5 * min(both) for both in halves)


def test_an_aim_is_missed_by_more_than_a_point():
    def points(*pairs: tuple[float, float]) -> list[dict[str, float]]:
        return [
            {"target": target, "attainment": share, "slice_hours": hours, "p95_ms": 0, "wakes": 1}
            for target, (share, hours) in zip((0.9, 0.95, 0.99), pairs, strict=True)
        ]

    loads = {
        "steady-0": points((0.9, 1.0), (0.95, 2.0), (0.995, 3.0)),
        "bursts-2": points((0.885, 10.0), (0.941, 20.0), (0.9, 30.0)),
    }
    found = unseen.verdict({"hpa": loads, "slicewise": loads})
    ours, other = (found["one_setting"][name] for name in ("slicewise", "hpa"))
    assert ours["90"]["missed"] == ["bursts-2"]
    assert ours["95"]["missed"] == []
    assert ours["99"] == {
        "target": 0.99,
        "attainment": 0.9475,
        "worst": 0.9,
        "slice_hours": 33.0,
        "missed": ["bursts-2"],
    }
    assert other["90"]["target"] == 0.95
    assert other["99"] is None
    assert found["kinds"]["bursts"]["95"] == 0.941


def test_the_command_replays_ours_and_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    report = tmp_path / "unseen.json"
    arguments = ["--loads", "2", "--first", "2", "--hours", "0.2", "--report", str(report)]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--json"])
    unseen.main()
    found = json.loads(report.read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert {*found["one_setting"]} == {"peak_hold", "kpa", "hpa", "slicewise"}
    assert {*found["workloads"]} == {"bursts-2", "crowds-3"}
    for policy, loads in found["loads"].items():
        assert {*loads} == {"bursts-2", "crowds-3"}
        for points in loads.values():
            assert len(points) == (3 if policy == "slicewise" else 10)
    ours = found["one_setting"]["slicewise"]["95"]
    assert ours["target"] == 0.95
    assert 0 < ours["worst"] <= ours["attainment"] <= 1
