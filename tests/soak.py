"""The whole suite again and again on a busy machine: which tests fail now and then.

``python tests/soak.py TIMES [PYTEST OPTIONS]`` runs it so often, with a busy loop on each
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
    """A loop on each processor that never rests."""
    loops = [subprocess.Popen(_SPIN) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(options: list[str]) -> tuple[float, int, list[str]]:
    """One run: its minutes, how many tests it had, and which of them failed."""
    began_s = monotonic()
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        argv = (sys.executable, "-m", "pytest", *options, f"--junitxml={results.name}")
        code = subprocess.run(argv, cwd=_PROJECT, check=False).returncode
        # 1: tests have failed; all else but 0 is no run of the tests.
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
    """After each run: the last one may be cut short."""
    _REPORT.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"minutes": m, "tests": count, "failed": failed} for m, count, failed in runs]
    _REPORT.write_text(json.dumps(rows, indent=1) + "\n")


def main(times: int, options: list[str]) -> int:
    """Print and keep what failed how often."""
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
