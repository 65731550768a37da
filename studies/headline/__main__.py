"""Replays two public clusters under seven systems, side by side: waits, lost work, idle hours."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import REPORTS
from studies.command_line import cluster_traces_folder, save, side_by_side
from studies.headline import mixed_plot, plot
from studies.headline.figures import (
    Idle,
    ReplayError,
    SystemFigures,
    figures_of,
    recovered,
    replay_error,
)
from studies.headline.loads import HELIOS, PHILLY, PHILLY_TARGET, Load, helios, philly
from studies.headline.mixed import AIMS, measure_mixed, show_mixed
from studies.headline.systems import SLICEWISE, STATIC, SYSTEMS, run

SEED = 20_261_127
TERMS_S = (3_600, 14_400, 86_400)
"""Terms of loans beside the default one, which is 0."""
TERMS_LOAD = "philly"
"""The load under which terms are tried: the other one preempts nobody."""
QUICK_DAYS = 7.0
LOADS = {"helios": helios, "philly": philly}


@dataclass(frozen=True)
class _Task:
    """One system under one load; ``term_s`` None is the product's default."""

    load: str
    system: str
    days: float | None
    seed: int
    term_s: int | None = None


@cache
def _load(name: str, days: float | None, seed: int) -> Load:
    """The load, once in this process; processes that are forked later have it, too."""
    return LOADS[name](cluster_traces_folder(), seed, days)


def measure(seed: int, *, is_quick: bool) -> Mapping[str, Any]:
    """Simulate every system under every load, one process per processor."""
    begun_s = monotonic()
    for file in (HELIOS, PHILLY):
        if not (cluster_traces_folder() / file).exists():
            sys.exit(
                f"The trace {cluster_traces_folder() / file} is not there. Say where traces lie: "
                "SLICEWISE_CLUSTER_TRACES; studies/headline/README.md names their sources."
            )
    days = QUICK_DAYS if is_quick else None
    terms = (
        [] if is_quick else [_Task(TERMS_LOAD, SLICEWISE, days, seed, term_s) for term_s in TERMS_S]
    )
    tasks = [*(_Task(load, system, days, seed) for load in LOADS for system in SYSTEMS), *terms]
    tasks.sort(key=lambda one: one.system != SLICEWISE)
    for name in LOADS:
        _load(name, days, seed)
    found = dict(side_by_side(_simulated, tasks, "Simulating"))
    shown = {name: _of_load(name, days, seed, found) for name in LOADS}
    return {
        "loads": shown,
        "helios_recovered": shown["helios"]["systems"][-1]["recovered"],
        "self_check_error": shown["helios"]["replay_error"]["running"],
        "terms": [
            {"term_s": task.term_s or 0, **_row(found[task][0], _before(found[_first(task)]))}
            for task in (_Task(TERMS_LOAD, SLICEWISE, days, seed), *terms)
        ],
        "philly_target": PHILLY_TARGET,
        "seed": seed,
        "seconds": round(monotonic() - begun_s, 1),
        "command": " ".join(("python -m studies.headline", *sys.argv[1:])),
        "machine": machine(),
    }


def _simulated(task: _Task) -> tuple[_Task, tuple[SystemFigures, ReplayError | None]]:
    load, is_static = _load(task.load, task.days, task.seed), task.system == STATIC
    record = run(task.system, load, task.term_s)
    error = replay_error(record, load) if is_static else None
    return task, (figures_of(task.system, record, load, is_pool=not is_static), error)


def _first(task: _Task) -> _Task:
    """Static partitions under the same load."""
    return _Task(task.load, STATIC, task.days, task.seed)


def _before(static: tuple[SystemFigures, ReplayError | None]) -> Idle:
    """What could be recovered: by the record where there is one, else by the replay."""
    figures, error = static
    return figures.idle if error is None else error.idle_recorded


def _row(figures: SystemFigures, before: Idle) -> Mapping[str, Any]:
    return {
        **asdict(figures),
        "recovered": 0.0 if figures.system == STATIC else recovered(before, figures.idle),
    }


def _of_load(
    name: str,
    days: float | None,
    seed: int,
    found: Mapping[_Task, tuple[SystemFigures, ReplayError | None]],
) -> Mapping[str, Any]:
    load, static = _load(name, days, seed), found[_Task(name, STATIC, days, seed)]
    before, error = _before(static), static[1]
    return {
        "gpus": sum(load.gpus.values()),
        "virtual_clusters": load.gpus,
        "days": (load.end_s - load.begin_s) / 86_400,
        "systems": [_row(found[_Task(name, one, days, seed)][0], before) for one in SYSTEMS],
        "replay_error": None if error is None else asdict(error),
    }


_COLUMNS = ("used", "allocated", "lost", "wait", "p99", "worst tenant", "longest", "late", "Jain")
_RECOVERED = "recovered"


def show(report: Mapping[str, Any]) -> None:
    """Print the systems side by side for each load."""
    console = Console()
    for name, load in report["loads"].items():
        title = f"{name}: {load['gpus']} GPUs, {load['days']:.0f} days"
        table = Table(title=title, box=None, header_style="bold", title_justify="left")
        for column in ("system", *_COLUMNS, _RECOVERED):
            table.add_column(column, justify="left" if column == "system" else "right")
        for row in load["systems"]:
            table.add_row(*_cells(row))
        console.print(table)
        if error := load["replay_error"]:
            console.print(_error_words(error))
    _show_terms(console, report["terms"])
    console.print(f"helios_recovered: {100 * report['helios_recovered']:.1f} %")
    console.print(f"{report['seconds']:.0f} s on {report['machine']['cpu']}")


def _show_terms(console: Console, terms: Sequence[Mapping[str, Any]]) -> None:
    table = Table(
        title=f"{TERMS_LOAD}, slicewise by the term of loans",
        box=None,
        header_style="bold",
        title_justify="left",
    )
    for column in ("term", *_COLUMNS, _RECOVERED):
        table.add_column(column, justify="left" if column == "term" else "right")
    for row in terms:
        table.add_row(_time(row["term_s"]), *tuple(_cells(row))[1:])
    console.print(table)


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["system"]
    yield from (f"{100 * row[key]:.2f} %" for key in ("used", "allocated"))
    yield f"{row['lost_hours']:,.0f} h"
    yield from (_time(row[key]) for key in ("wait_mean_s", "wait_p99_s"))
    yield f"{_time(row['wait_worst_mean_s'])} {row['worst_tenant']}"
    yield _time(row["starved_s"])
    yield f"{row['late_jobs']:,}"
    yield f"{row['jain']:.3f}"
    yield f"{100 * row['recovered']:.1f} %"


def _time(seconds: float) -> str:
    """Seconds, minutes or hours, in three figures."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def _error_words(error: Mapping[str, Any]) -> str:
    return (
        f"The replay of static partitions: {error['running_replayed']:.1f} GPUs run "
        f"(recorded {error['running_recorded']:.1f}; {100 * error['running']:.1f} % off, minute by "
        f"minute), {error['waiting_replayed']:.1f} are waited for (recorded "
        f"{error['waiting_recorded']:.1f}; {100 * error['waiting']:.1f} % off). Recoverable: "
        f"{error['idle_recorded']['wanted']:,.0f} GPU-hours by the recorded minutes."
    )


def main() -> None:
    """Write build/reports/headline.json and the picture beside it, and show the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a week of each load")
    parser.add_argument("--seed", type=int, default=SEED, help="of all that is drawn")
    parser.add_argument("--report", type=Path, default=REPORTS / "headline.json")
    options = parser.parse_args()
    replayed = measure(options.seed, is_quick=options.quick)
    together = measure_mixed(options.seed, is_quick=options.quick)
    seconds = replayed["seconds"] + together["together"]["seconds"]
    report = {**replayed, **together, "seconds": round(seconds, 1)}
    save(report, options.report)
    systems = {name: load["systems"] for name, load in report["loads"].items()}
    plot.save(systems, report["terms"], options.report.with_suffix(".png"))
    mixed_plot.save_mixed(
        report["together"]["layouts"], AIMS, options.report.with_name("headline_mixed.png")
    )
    show(report)
    show_mixed(report)


if __name__ == "__main__":
    main()
