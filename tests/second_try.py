"""Tries integration tests that failed once more, alone, when all others have ended.

A test that passes then is *flaky*: the run names it, shows how it failed, and counts it in
build/reports/flaky.json. Only a test that fails twice fails the run. Tests without servers are
deterministic and are never tried again.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MOST = 10
"""More failures than this have a common cause: none is tried again."""
_HAD_FAILURES = 1
"""pytest's exit code if tests were run and some failed."""


class SecondTry:
    """Takes back the failures of tests that pass when they are tried again.

    ``fail_again`` runs tests by their node ids, one at a time, and returns those that fail.
    """

    def __init__(
        self, counts: Path, fail_again: Callable[[Sequence[str]], Collection[str]]
    ) -> None:
        self._counts = counts
        self._fail_again = fail_again
        self._has_integration = False
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._flaky: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the failed phases of integration tests."""
        if "integration" in report.keywords:
            self._has_integration = True
            if report.failed:
                self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Try the failed tests again once all tests have run."""
        ran = yield
        if 0 < len(self._failed) <= MOST:
            fail_again = self._fail_again(tuple(self._failed))
            self._flaky = {
                name: reports for name, reports in self._failed.items() if name not in fail_again
            }
            session.testsfailed -= sum(map(len, self._flaky.values()))
        if self._has_integration:
            count_flaky(self._counts, self._flaky)
        return ran

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show how flaky tests failed; then their names, a line each."""
        stats = terminalreporter.stats
        for outcome in ("failed", "error"):
            stats[outcome] = [
                report for report in stats.get(outcome, ()) if report.nodeid not in self._flaky
            ]
        stats["flaky"] = [reports[0] for reports in self._flaky.values()]
        for name, reports in self._flaky.items():
            terminalreporter.section(f"{name} failed once")
            for report in reports:
                terminalreporter.write_line(report.longreprtext)
                for heading, content in report.sections:
                    terminalreporter.write_line(f"-- {heading}\n{content}")
        for name in self._flaky:
            terminalreporter.write_line(f"flaky: {name}", yellow=True)


def count_flaky(counts: Path, flaky: Iterable[str]) -> None:
    """Add one run and its flaky tests to the counts of all runs of this checkout."""
    before = json.loads(counts.read_text()) if counts.exists() else {"runs": 0, "flaky": {}}
    by_test = Counter(before["flaky"]) + Counter(list(flaky))
    counts.parent.mkdir(parents=True, exist_ok=True)
    after = {"runs": before["runs"] + 1, "flaky": dict(sorted(by_test.items()))}
    counts.write_text(json.dumps(after, indent=1) + "\n")


def failing_alone(project: Path) -> Callable[[Sequence[str]], Collection[str]]:
    """Return a function that runs tests in a pytest of their own, with a sandbox of its own."""

    def run(tests: Sequence[str]) -> Collection[str]:
        with TemporaryDirectory(prefix="slicewise-second-try-") as cache:
            options = ("-n", "0", "-p", "cacheprovider", "-o", f"cache_dir={cache}")
            argv = (sys.executable, "-m", "pytest", *options, *tests)
            exit_code = subprocess.run(argv, cwd=project, check=False).returncode
            if exit_code == 0:
                return ()
            # pytest keeps there what its option --last-failed runs.
            last_failed = Path(cache) / "v" / "cache" / "lastfailed"
            if exit_code != _HAD_FAILURES or not last_failed.exists():
                return tests
            return frozenset(json.loads(last_failed.read_text()))

    return run
