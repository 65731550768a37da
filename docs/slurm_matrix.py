"""The page of the integration tests by version of Slurm, from what tests/slurm_matrix.py kept."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "tests" / "assets" / "slurm-runs.json"
_HEAD = """\
# The integration tests by version of Slurm

Which module of integration tests ran on which version of Slurm, when, and what came out. The
command `make matrix` runs them and writes this page ([how](../how-to/testing.md#on-every-slurm)).
What differs between versions, and what was at fault where a test failed:
[Slurm versions](slurm-versions.md).

Each cell has the number of cases that passed, and the last day on which the module ran; *p* where
the daemon read Slurm by pyslurm. – did not run. *built* is a Slurm that was built from its source
and runs on that Debian; the others are its packages.
"""
_ROWS = (
    ("Debian", "system"),
    ("MariaDB", "mariadb"),
    ("HAProxy", "haproxy"),
    ("Lua of job_submit", "lua"),
)
_NOT_RUN = "–"


def page() -> str:
    """The whole page."""
    return "\n".join(_lines(json.loads(KEPT.read_text(encoding="utf-8"))))


def _lines(slurms: Mapping[str, Any]) -> Iterator[str]:
    yield _HEAD
    yield from _row(("", *slurms))
    yield from _row(("---",) * (1 + len(slurms)))
    for words, key in _ROWS:
        yield from _row(
            (words, *(one[key].removeprefix("Debian GNU/Linux ") for one in slurms.values()))
        )
    every = [one["modules"].values() for one in slurms.values()]
    for words, key in (("passed", "passed"), ("failed", "failed"), ("skipped", "skipped")):
        yield from _row((words, *(f"{sum(one[key] for one in each):,}" for each in every)))
    for module in sorted({name for one in slurms.values() for name in one["modules"]}):
        yield from _row((module, *(_cell(one["modules"].get(module)) for one in slurms.values())))
    yield from _failures(slurms)


def _failures(slurms: Mapping[str, Any]) -> Iterator[str]:
    failed = [
        (version, module, case, reason)
        for version, one in slurms.items()
        for module, counts in one["modules"].items()
        for case, reason in counts["reasons"].items()
    ]
    yield from ("", "## Failed", "")
    if not failed:
        yield "None of the last runs has a case that failed."
        return
    yield from _row(("Slurm", "module", "case", "what it said"))
    yield from _row(("---",) * 4)
    for version, module, case, reason in failed:
        yield from _row((version, module, f"`{case}`", f"`{reason.replace('`', chr(39))}`"))


def _cell(counts: Mapping[str, Any] | None) -> str:
    if counts is None:
        return _NOT_RUN
    others = (f", {counts[key]} {key}" for key in ("failed", "skipped") if counts[key])
    reader = " *p*" if counts["reader"] == "pyslurm" else ""
    return f"{counts['passed']}{''.join(others)}{reader}, {counts['on'][5:]}"


def _row(cells: tuple[str, ...]) -> Iterator[str]:
    yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
