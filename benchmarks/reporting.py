"""What every benchmark's command does: measure, keep the report, show it."""

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
    """Write build/reports/NAME.json, or where ``--report`` says; ``quick`` is that option's help.

    ``measure`` is told whether ``--quick`` was said.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--report", type=Path, default=REPORTS / f"{name}.json")
    options = parser.parse_args()
    report = measure(options.quick)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    show(report)
