"""Tests the benchmark's model with weights, and how its report is made and shown."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import weights


def test_the_model_reads_all_its_weights_and_then_begins_as_before(tmp_path: Path):
    begun: list[object] = []

    class TritonPythonModel:
        def initialize(self, args: object) -> None:
            begun.append(args)

    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "weights").write_bytes(bytes(1000))
    names: dict[str, Any] = {"TritonPythonModel": TritonPythonModel}
    exec(weights._WEIGHED, names)  # noqa: S102 -- as Triton runs it, appended to the model
    args = {"model_repository": str(tmp_path), "model_version": "1"}
    names["TritonPythonModel"]().initialize(args)
    assert begun == [args]


def starts(*wake_s: float, **phases_s: float) -> list[dict[str, Any]]:
    return [{"wake_s": seconds, "phases_s": phases_s} for seconds in wake_s]


def test_ratios_are_of_medians_and_a_missed_aim_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    console = Console(width=120, record=True, quiet=False)
    monkeypatch.setattr(weights, "Console", lambda **_: console)
    monkeypatch.setattr(weights, "REPORTS", tmp_path)
    found = {
        "no cache": starts(8.0, 10.0, 90.0, load=6.0),
        "empty cache": starts(12.0, copy=7.0, load=1.0),
        "on disk": starts(6.0, copy=0.01, load=2.0),
        "in memory": starts(4.0, load=1.0),
    }
    report = weights._report(found, [5.0], rounds=1)
    assert report["vs_no_cache"] == {
        "no cache": 1.0,
        "empty cache": 1.2,
        "on disk": 0.6,
        "in memory": 0.4,
    }
    assert report["vs_bare"]["no cache"] == 2.0
    weights.show({**report, "pool": {}})
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines if "missed" in line] == ["on"]
    assert [line.split() for line in lines if line.strip().startswith("weights")][1] == [
        "weights",
        "copy",
        "load",
    ]
    assert (tmp_path / "weights.png").stat().st_size > 5_000
