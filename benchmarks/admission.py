"""Measures what admission costs slurmctld for each submission and the daemon for each decision."""

import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import crowd, decisions, submissions
from benchmarks.machine import machine
from benchmarks.reporting import run

SEED = 41_904_190
AIMS = {"added_vs_echo": 1.25, "daemon_cpu_us": 100.0, "daemon_p50_vs_echo": 1.25}
"""Highest acceptable value of each figure."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: number of rounds; every variant has one block in each.
        submissions, questions: numbers in one block.
    """

    rounds: int
    submissions: int
    questions: int


FULL = Size(rounds=24, submissions=60, questions=5000)
QUICK = Size(rounds=2, submissions=10, questions=500)


def measure(size: Size) -> dict[str, Any]:
    """Measure, and return the whole report."""
    began_s = time.time()
    decided = decisions.measure(size.rounds, size.questions, SEED)
    submitted = submissions.measure(size.rounds, size.submissions, SEED)
    return {
        **submitted.figures(SEED),
        **decided.figures(),
        "aims": AIMS,
        "submit_blocks_ms": submissions.rounds_text(submitted.blocks),
        "snapshot": {"tenants": crowd.TENANTS, "nodes": crowd.NODES, "jobs": crowd.JOBS},
        "rounds": size.rounds,
        "submissions_per_block": size.submissions,
        "questions_per_block": size.questions,
        "seed": SEED,
        "command": " ".join(("python -m benchmarks.admission", *sys.argv[1:])),
        "began": _utc(began_s),
        "ended": _utc(time.time()),
        "machine": {**machine(), "root": os.geteuid() == 0},
        "versions": {"python": platform.python_version(), "slicewise": version("slicewise")},
    }


def _utc(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def show(report: Mapping[str, Any]) -> None:
    """Print the report as a table."""
    table = Table("figure", "value", "95 %", "aim", box=None)
    for key, value in report.items():
        found = value["mean"] if isinstance(value, dict) and "mean" in value else value
        if isinstance(found, float):
            interval = value["ci95"] if found is not value else report.get(f"{key}_ci95")
            table.add_row(key, f"{found:,.3f}", _interval(interval), _aim(key, found))
    Console().print(table)


def _interval(interval: list[float] | None) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else ""


def _aim(key: str, value: float) -> str:
    if key not in AIMS:
        return ""
    return f"{AIMS[key]:g}" if value <= AIMS[key] else f"{AIMS[key]:g}: missed"


if __name__ == "__main__":
    run(
        "admission",
        __doc__,
        "a smoke test of a minute",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )
