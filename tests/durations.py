"""Reports how long tests took: the slowest tests, and the time by folder beside its budget."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

BUDGETS_VARIABLE = "SLICEWISE_TEST_BUDGETS"
"""``integration=60 property=6``: minutes by folder, as the Makefile has them."""
_SLOWEST = 20
_WIDTH = 140
"""Width of the output, in characters, if it does not go to a terminal."""


class Durations:
    """Collects the seconds of each test, including setup and teardown."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._by_test_s: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of one phase of a test."""
        before_s = self._by_test_s.get(report.nodeid, 0.0)
        self._by_test_s[report.nodeid] = before_s + report.duration

    def pytest_terminal_summary(self) -> None:
        """Print two tables, and write every test's seconds as JSON."""
        if not self._by_test_s:
            return
        out = Console(width=None if sys.stdout.isatty() else _WIDTH)
        out.print(self._slowest(), self._folders(budgets_s(os.environ.get(BUDGETS_VARIABLE, ""))))
        self._report.parent.mkdir(parents=True, exist_ok=True)
        rounded = {test: round(took_s, 3) for test, took_s in self._by_test_s.items()}
        self._report.write_text(json.dumps(rounded, indent=1) + "\n")

    def _slowest(self) -> Table:
        table = Table("slowest tests", "s")
        table.columns[1].justify = "right"
        longest_first = sorted(self._by_test_s.items(), key=lambda item: -item[1])
        for test, took_s in longest_first[:_SLOWEST]:
            table.add_row(Text(test.removeprefix("tests/")), f"{took_s:.1f}")
        return table

    def _folders(self, budgets: Mapping[str, float]) -> Table:
        table = Table("folder", "tests", "minutes of all workers", "budget")
        for column in table.columns[1:]:
            column.justify = "right"
        for folder, (count, took_s) in by_folder(self._by_test_s).items():
            budget_s = budgets.get(folder)
            over = budget_s is not None and took_s > budget_s
            table.add_row(
                folder,
                f"{count:,}",
                f"{took_s / 60:.1f}",
                "" if budget_s is None else f"{budget_s / 60:g}{', over' if over else ''}",
                style="red" if over else None,
            )
        return table


def by_folder(by_test_s: Mapping[str, float]) -> Mapping[str, tuple[int, float]]:
    """The number of tests in each folder below tests/, and their seconds."""
    found: dict[str, tuple[int, float]] = {}
    for test, took_s in by_test_s.items():
        folder = (*PurePosixPath(test.partition("::")[0]).parts, "")[1]
        count, sum_s = found.get(folder, (0, 0.0))
        found[folder] = (count + 1, sum_s + took_s)
    return found


def budgets_s(text: str) -> Mapping[str, float]:
    """Parse the variable's minutes by folder into seconds by folder."""
    pairs = (pair.partition("=") for pair in text.split())
    return {folder: float(minutes) * 60 for folder, _, minutes in pairs}
