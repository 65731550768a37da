"""Runs the whole suite repeatedly on a busy machine, to find tests that fail now and then.

``python tests/soak.py TIMES [PYTEST OPTIONS]`` runs the suite TIMES times, with a busy loop on each
processor. The exit code is 1 if any test failed in any run.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PROJECT = Path(__file__).resolve().parent.parent
_REPORT = _PROJECT / "build" / "reports" / "soak.json"
_SPIN = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", "while True: pass")


@contextmanager
def busy_machine() -> Iterator[None]:
    """Run a loop that never rests on each processor."""
    loops = [subprocess.Popen(_SPIN) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(options: list[str]) -> tuple[float, int, list[str]]:
    """Run the tests once; return the minutes, the number of tests, and the names of failed tests.

    Raises CalledProcessError if the tests could not be run.
    """
    began_s = monotonic()
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        argv = (sys.executable, "-m", "pytest", *options, f"--junitxml={results.name}")
        code = subprocess.run(argv, cwd=_PROJECT, check=False).returncode
        # Exit code 1: tests have failed. Any other but 0: the tests did not run.
        if code not in {0, 1}:
            raise subprocess.CalledProcessError(code, argv)
        cases = list(ET.parse(results.name).iter("testcase"))  # noqa: S314 -- pytest wrote it
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return (monotonic() - began_s) / 60, len(cases), sorted(set(failed))


def keep(runs: Sequence[tuple[float, int, list[str]]]) -> None:
    """Write the report, after each run, as the last run may be cut short."""
    _REPORT.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"minutes": m, "tests": count, "failed": failed} for m, count, failed in runs]
    _REPORT.write_text(json.dumps(rows, indent=1) + "\n")


def main(times: int, options: list[str]) -> int:
    """Run the tests ``times`` times, print and keep the failures; return the exit code."""
    runs = []
    with busy_machine():
        for _ in range(times):
            runs.append(run(options))
            keep(runs)
    table = Table("test that failed", f"of {times} runs")
    failures = Counter(name for _, _, failed in runs for name in failed)
    for name, count in failures.most_common():
        table.add_row(Text(name), str(count))
    out = Console()
    if failures:
        out.print(table)
    for number, (minutes, count, failed) in enumerate(runs, 1):
        out.print(f"run {number}: {minutes:.1f} min, {count:,} tests, {len(failed)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
