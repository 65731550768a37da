"""Measures rebalancing on a large site: the time of one run, and the calls of a round."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.rebalance import rounds
from benchmarks.rebalance.site import Size
from benchmarks.reporting import run

SEED = 1
FULL, QUICK = Size(), Size(tenants=200, jobs=1000, gpus=800, services=20)


def measure(size: Size) -> Mapping[str, Any]:
    """Measure one run and the rounds around it."""
    return {
        **rounds.measured(size, SEED),
        "seed": SEED,
        "command": "make bench-rebalance",
        "machine": machine(),
    }


def show(report: Mapping[str, Any]) -> None:
    """Print the report as tables."""
    columns = ("s", "of these on the processor", "changes")
    steps = Table("step", *columns, title="One run", box=None, header_style="bold")
    steps.add_row("look", f"{report['look_s']:.2f}")
    for name, step in report["steps"].items():
        figures = (f"{step['seconds']:.2f}", f"{step['cpu_s']:.2f}", f"{step['changed']:,}")
        steps.add_row(name, *figures)
    steps.add_row("all", f"{report['seconds']:.2f}", f"{report['cpu_s']:.2f}")
    counted = ("s", "to decide s", "calls to the ledger", "to Slurm")
    calls = Table("round", *counted, title="Rounds of the daemon", box=None, header_style="bold")
    for name, counts in report["rounds"].items():
        seconds = f"{counts['seconds']:.2f}", f"{counts['decision_s']:.2f}"
        calls.add_row(name, *seconds, str(counts["ledger"]), str(counts["slurm"]))
    for table in (steps, calls):
        Console().print(table)


if __name__ == "__main__":
    run(
        "rebalance",
        __doc__,
        "200 tenants, 800 GPUs",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )
