"""The command line that benchmarks share: measure, write the report, show it."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REPORTS = Path("build/reports")


def run(
    name: str,
    about: str | None,
    quick: str,
    measure: Callable[[bool], Mapping[str, Any]],
    show: Callable[[Any], None],
) -> None:
    """Measure, write the report to build/reports/NAME.json or ``--report``'s path, and show it.

    ``about`` is the command's description and ``quick`` the help of ``--quick``. ``measure`` gets
    whether ``--quick`` was given.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--report", type=Path, default=REPORTS / f"{name}.json")
    options = parser.parse_args()
    report = measure(options.quick)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    show(report)
