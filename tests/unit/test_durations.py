"""Tests the report on the tests' own durations."""

import json
from pathlib import Path

import pytest
from durations import Durations, budgets_s, by_folder


def report(nodeid: str, when: str, took_s: float) -> pytest.TestReport:
    location = (nodeid.partition("::")[0], 0, "")
    return pytest.TestReport(nodeid, location, {}, "passed", None, when, duration=took_s)


def test_what_a_test_prepares_and_cleans_up_counts_to_it(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("SLICEWISE_TEST_BUDGETS", "unit=0.05 integration=1")
    found = Durations(tmp_path / "reports" / "tests.json")
    for when, took_s in (("setup", 1.5), ("call", 2.0), ("teardown", 0.5)):
        found.pytest_runtest_logreport(report("tests/unit/a.py::test[x]", when, took_s))
    found.pytest_runtest_logreport(report("tests/integration/b.py::test", "call", 30.0))
    found.pytest_terminal_summary()
    kept = json.loads((tmp_path / "reports" / "tests.json").read_text())
    assert kept == {"tests/unit/a.py::test[x]": 4.0, "tests/integration/b.py::test": 30.0}
    shown = capsys.readouterr().out
    assert shown.index("integration/b.py::test") < shown.index("unit/a.py::test[x]")
    assert "30.0" in shown
    rows = {line.split()[1]: line for line in shown.splitlines() if line.count("│") == 5}
    assert "0.05, over" in rows["unit"]
    assert "over" not in rows["integration"]


def test_time_is_summed_by_folder():
    took_s = {"tests/unit/x/a.py::t": 1.0, "tests/unit/b.py::t": 2.0, "tests/lua/c.py::t": 4.0}
    assert by_folder(took_s) == {"unit": (2, 3.0), "lua": (1, 4.0)}


def test_budgets_are_minutes_by_folder():
    assert budgets_s("integration=60 lua=0.5") == {"integration": 3600, "lua": 30}
    assert budgets_s("") == {}
