"""A run with several workers tries a failed test again in a process of its own."""

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from second_try import SecondTry, failing_alone

HERE = Path(__file__).parent

def pytest_addoption(parser):
    parser.addoption("--second-try", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "integration: x")
    if config.option.second_try and not hasattr(config, "workerinput"):
        again = failing_alone(HERE)
        config.pluginmanager.register(SecondTry(HERE / "flaky.json", again))
"""
TESTS = """
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent

@pytest.mark.parametrize("name", ["a::b c", "d"])
def test_passes_the_second_time(name):
    marker = HERE / f"seen-{name}"
    was_tried = marker.exists()
    marker.touch()
    assert was_tried and "PYTEST_XDIST_WORKER" not in os.environ
"""
ALWAYS_FAILS = "\ndef test_fails_again(): assert False\n"


@pytest.mark.parametrize(
    ("source", "code"),
    [(TESTS, pytest.ExitCode.OK), (TESTS + ALWAYS_FAILS, pytest.ExitCode.TESTS_FAILED)],
    ids=["passes", "fails again"],
)
def test_the_second_try_decides(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str, code: pytest.ExitCode
) -> None:
    # This test's own worker is not the run's that it starts.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=source)
    done = pytester.runpytest_subprocess("-n", "2", "-p", "no:asyncio", "--second-try")
    assert done.ret == code
    name = "test_it.py::test_passes_the_second_time"
    done.stdout.fnmatch_lines_random([f"flaky: {name}[[]a::b c]", f"flaky: {name}[[]d]"])
    assert json.loads((pytester.path / "flaky.json").read_text()) == {
        "runs": 1,
        "flaky": {f"{name}[a::b c]": 1, f"{name}[d]": 1},
    }
