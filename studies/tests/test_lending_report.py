"""Tests the report of the study of lending."""

import json
import sys
from pathlib import Path

import pytest

from studies.lending import __main__ as command


def test_the_command_writes_every_key_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world = {"anomaly_max_s": -3, "utilisation": 0.9, "asked": 2, "cut_off": 0}
    world |= {"preempted_replicas": 1, "preempted_jobs": 0}
    cell = {"gpus": 4, "alone": {"utilisation": 0.4}, "worlds": {"shared": world}}
    monkeypatch.setattr(command, "FILES", {})
    monkeypatch.setattr(command, "_replays", lambda *_: {"gentd26, peak": cell})
    report = tmp_path / "reports" / "lending.json"
    arguments = ["--report", str(report), "--worlds", "12", "--queues", "9", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    command.main()
    found = json.loads(report.read_text())
    assert found["anomaly_max_s"] == -3
    assert found["evicted_over_needed"]["slicewise"] == 1
    assert list(found["evictions"])[:3] == ["replicas", "large_jobs", "with_batch"]
    assert found["evictions"]["batch"]["all_evictions"].keys() == {
        "youngest_first",
        "default_order",
    }
    assert found["evictions"]["replicas"]["worlds"] == 12
    assert found["queues"].keys() >= {"share", "none_started"}
    assert found["whole_jobs"].keys() >= {"7g.80gb", "3g.40gb", "1g.10gb", "mixed", "none_started"}


def test_a_trace_that_is_missing_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", ["bench", "--traces", str(tmp_path)])
    with pytest.raises(SystemExit, match="--traces DIR"):
        command.main()
