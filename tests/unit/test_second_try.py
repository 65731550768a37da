"""Tests which failures are taken back when a test passes the second time."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from second_try import MOST, SecondTry, count_flaky

pytest_plugins = ["pytester"]

ONE_OF_EACH = """
import pytest

@pytest.fixture
def broken():
    yield
    raise RuntimeError("was not cleaned")

@pytest.mark.integration
def test_fails(): assert False, "a wait was too short"

@pytest.mark.integration
def test_leaves_something(broken): assert False

@pytest.mark.integration
def test_passes(): pass
"""
FAILS, LEAVES = "test_it.py::test_fails", "test_it.py::test_leaves_something"


class Again:
    """Tests fail again if they are ``failing``; what was tried is remembered."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.tried: list[Sequence[str]] = []

    def __call__(self, tests: Sequence[str]) -> Collection[str]:
        self.tried.append(tests)
        return self.failing


def run(
    pytester: pytest.Pytester, source: str, again: Again
) -> tuple[pytest.ExitCode | int, dict[str, object]]:
    pytester.makepyfile(test_it=source)
    counts = pytester.path / "reports" / "flaky.json"
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "-q")
    done = pytester.inline_run(*options, plugins=[SecondTry(counts, again)])
    return done.ret, json.loads(counts.read_text()) if counts.exists() else {}


def test_a_test_that_passes_then_does_not_fail_the_run_and_is_named(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
):
    again = Again()
    code, counts = run(pytester, ONE_OF_EACH, again)
    assert code == pytest.ExitCode.OK
    assert again.tried == [(FAILS, LEAVES)]
    assert counts == {"runs": 1, "flaky": {FAILS: 1, LEAVES: 1}}
    shown = capsys.readouterr().out
    assert shown.splitlines().count(f"flaky: {FAILS}") == 1
    assert "a wait was too short" in shown
    assert "was not cleaned" in shown
    assert "1 passed, 2 flaky" in shown


def test_a_test_that_fails_again_fails_the_run(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
):
    code, counts = run(pytester, ONE_OF_EACH, Again(FAILS))
    assert code == pytest.ExitCode.TESTS_FAILED
    assert counts == {"runs": 1, "flaky": {LEAVES: 1}}
    assert "1 failed, 1 passed, 1 flaky" in capsys.readouterr().out


def test_only_integration_tests_are_tried_again(pytester: pytest.Pytester):
    again = Again()
    source = "def test_is_deterministic(): assert False"
    assert run(pytester, source, again) == (pytest.ExitCode.TESTS_FAILED, {})
    assert run(pytester, f"{ONE_OF_EACH}\n{source}", again)[0] == pytest.ExitCode.TESTS_FAILED
    assert again.tried == [(FAILS, LEAVES)]


def test_many_failures_are_no_accident(pytester: pytest.Pytester):
    again = Again()
    source = f"""
import pytest

@pytest.mark.integration
@pytest.mark.parametrize("number", range({MOST + 1}))
def test_fails(number): assert False
"""
    assert run(pytester, source, again) == (
        pytest.ExitCode.TESTS_FAILED,
        {"runs": 1, "flaky": {}},
    )
    assert again.tried == []


def test_a_run_without_failures_is_counted(pytester: pytest.Pytester):
    again = Again()
    source = "import pytest\n@pytest.mark.integration\ndef test_passes(): pass"
    assert run(pytester, source, again) == (pytest.ExitCode.OK, {"runs": 1, "flaky": {}})
    assert again.tried == []


def test_counts_of_several_runs_add_up(tmp_path: Path):
    counts = tmp_path / "flaky.json"
    count_flaky(counts, ["a"])
    count_flaky(counts, [])
    count_flaky(counts, ["b", "a"])
    assert json.loads(counts.read_text()) == {"runs": 3, "flaky": {"a": 2, "b": 1}}
