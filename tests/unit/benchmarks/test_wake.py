"""Tests that the benchmark's slowly loading model is otherwise the same model."""

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


def figures(ratio: float) -> dict[str, float]:
    return {"wake_median_s": 7.0, "bare_median_s": 6.0, "wake_vs_bare": ratio}


@pytest.mark.parametrize(("ratio", "said"), [(1.15, "1.15"), (1.16, "1.15: missed")])
def test_a_missed_aim_is_told(ratio: float, said: str, monkeypatch: pytest.MonkeyPatch):
    console = Console(width=100, record=True, quiet=False)
    monkeypatch.setattr(wake, "Console", lambda: console)
    wake.show({"with_load": figures(ratio), "without_load": figures(2.0)})
    last = console.export_text().splitlines()[-1].rstrip()
    assert last.endswith(said)
