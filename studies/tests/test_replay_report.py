"""Tests the replay's command, from a trace of ten minutes to its report."""

import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest

POLICIES = ["kpa", "hpa", "ray", "dynamo", "peak_hold", "seasonal"]
POLICIES += ["fixed", "optimum", "slicewise_fifo", "slicewise"]
FOR_EACH_LOAD = {"attainment", "slice_hours", "p95_ms", "wakes"}
FIGURES = {
    "target",
    "attainment",
    "slice_hours",
    "changes",
    "p95_ms",
    "wait_p99_s",
    "longest_wait_s",
    "wakes",
    "wake_p99_s",
}


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    # Not above: with it comes matplotlib, half a second of each process that collects the tests.
    from studies.autoscale.__main__ import main

    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    main()


def test_every_policy_has_a_curve_and_ours_is_set_beside_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loads = tmp_path / "alibaba_gentd26_basemodel_update_latency_anon.csv.xz"
    loads.write_bytes(lzma.compress(b"timestamp_anon,value,container_ip\n1,20000.0,a\n"))
    arrivals = np.random.default_rng(1).uniform(0, 600, 600)
    trace = tmp_path / "minutes.csv"
    trace.write_text("".join(f"{at_s}\n" for at_s in arrivals))
    report = tmp_path / "reports" / "autoscale.json"
    arguments = ["--only", "", "--trace", trace, "--traces", tmp_path, "--report", report]
    bench(monkeypatch, *map(str, arguments))
    found = json.loads(report.read_text())
    assert list(found["traces"]) == ["minutes"]
    assert list(found["traces"]["minutes"]) == POLICIES
    for points in found["traces"]["minutes"].values():
        assert len(points) >= 3
        assert {*points[0]} == FIGURES
        assert all(0 <= point["attainment"] <= 1 for point in points)
    assert list(found["saving_vs_best"]["minutes"]) == ["90", "95", "99", "99.9"]
    assert found["one_setting"]["slicewise"]["95"]["target"] == 0.95
    assert {*found["one_setting"]["slicewise"]["95"]} == {"target", *FOR_EACH_LOAD}
    assert found["hindsight"]["fixed"]["minutes"]["95"]["target"] >= 1
    assert report.with_suffix(".png").stat().st_size > 10_000


def test_a_missing_trace_ends_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    report = tmp_path / "autoscale.json"
    with pytest.raises(SystemExit, match="SLICEWISE_TRACES"):
        bench(monkeypatch, "--traces", str(tmp_path), "--report", str(report))
    assert not report.exists()
