"""Tests the benchmark's slowly loading model, and how its report is made and shown."""

import time
from typing import Any

import pytest
from rich.console import Console

from benchmarks import wake


def test_a_loading_model_takes_that_long_and_then_loads_as_before(monkeypatch: pytest.MonkeyPatch):
    done: list[object] = []

    class TritonPythonModel:
        def initialize(self, args: object) -> None:
            done.append(args)

    monkeypatch.setattr(time, "sleep", done.append)
    names: dict[str, Any] = {"TritonPythonModel": TritonPythonModel}
    exec(wake.LOADING, names)  # noqa: S102 -- as Triton runs it, appended to the model
    names["TritonPythonModel"]().initialize("arguments")
    assert done == [wake.LOAD_S, "arguments"]


def figures(ratio: float) -> dict[str, Any]:
    return {
        "wake_median_s": 7.0,
        "bare_median_s": 6.0,
        "wake_vs_bare": ratio,
        "wake_steps_ms": dict.fromkeys(wake.WAKE_STEPS, 17.0),
        "bare_steps_ms": dict.fromkeys(wake.BARE_STEPS, 23.0),
    }


def test_a_missed_aim_is_told_of_each_model_with_each_scheduler(monkeypatch: pytest.MonkeyPatch):
    console = Console(width=120, record=True, quiet=False)
    monkeypatch.setattr(wake, "Console", lambda **_: console)
    slow = {"with_load": figures(1.02), "without_load": figures(1.16)}
    measured = {"with_load": figures(1.15), "without_load": figures(2.0)}
    pool = {"with_load": figures(0.9), "without_load": figures(0.5)}
    wake.show({**measured, "pool": pool, "default_scheduler": slow})
    lines = [line.split() for line in console.export_text().splitlines()]
    ratios = [line[-3:] for line in lines if "7.000" in line]
    assert ratios == [
        ["2.000", "1.15:", "missed"],
        ["6.000", "1.150", "1.15"],
        ["1.160", "1.15:", "missed"],
        ["6.000", "1.020", "1.15"],
        ["7.000", "6.000", "0.500"],
        ["7.000", "6.000", "0.900"],
    ]
    assert sum(line[-7:] == ["17"] * 5 + ["23"] * 2 for line in lines) == 4


def test_steps_are_medians_in_ms():
    rounds = [(10.0, 10.1, 10.4), (20.0, 20.3, 20.5), (30.0, 30.2, 30.7)]
    assert wake.step_medians_ms(rounds) == [200.0, 300.0]


def test_the_release_is_the_last_decision_for_a_replica():
    head = "time=2026-11-26T13:39:{}Z level=info program=launcher event=decided"
    line = head + " service={} array=2 desired_replicas={} desired_slots=0"
    lines = (("45.970", "t/a", 1), ("48.250", "t/a", 1), ("49.1", "t/b", 1), ("50.2", "t/a", 0))
    log = "\n".join(line.format(*one) for one in lines)
    assert wake.decided_s(log, "t/a") % 60 == pytest.approx(48.25)
