"""Compares forecasters of load: what their quantiles cost, and slice-hours of the decision."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import reporting
from benchmarks.machine import machine
from studies.autoscale import traces
from studies.autoscale.workload import Workload
from studies.command_line import side_by_side, traces_folder
from studies.forecasters.contest import FORECASTERS, effect, fitted, quality
from studies.forecasters.forecaster import NEEDED
from studies.forecasters.histories import with_history
from studies.forecasters.series import LoadSeries
from studies.forecasters.verdict import CONTROLS, PRODUCT, Standing, chosen, standings

SEEDS = (20_261_121, 20_261_122, 20_261_123)
AIMS, QUICK_AIMS = (0.8, 0.93, 0.98, 0.996), (0.8, 0.98)
QUICK_TRACES = ("azure", "mooncake")


@dataclass(frozen=True)
class Contest:
    """One forecaster on one trace with one seed."""

    trace: str
    seed: int
    forecaster: str
    aims: tuple[float, ...]


_SERIES: dict[tuple[str, int], tuple[Workload, LoadSeries]] = {}
"""Traces by name and seed, in this process; child processes inherit them when they are forked."""


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Replay all traces with all forecasters and seeds, one process per processor."""
    folder = traces_folder()
    names = QUICK_TRACES if is_quick else tuple(traces.STORED)
    seeds, aims = (SEEDS[:1], QUICK_AIMS) if is_quick else (SEEDS, AIMS)
    try:
        for name, seed in product(names, seeds):
            _SERIES[name, seed] = with_history(name, folder, seed)
    except traces.TraceError as error:
        sys.exit(str(error))
    contests = [
        Contest(name, seed, forecaster, aims)
        for name in sorted(names, key=lambda one: -_SERIES[one, seeds[0]][0].duration_s)
        for seed in seeds
        for forecaster in reversed((*FORECASTERS, *CONTROLS))
    ]
    found = side_by_side(_held, contests, "Forecasting")
    results = sorted(found, key=lambda one: (one["trace"], one["forecaster"], one["seed"]))
    rows = standings(results)
    return {
        "quantile": NEEDED,
        "results": results,
        "standings": [asdict(row) for row in rows],
        "chosen": chosen(rows, tuple(FORECASTERS)),
        "horizon_s": {name: round(_SERIES[name, seeds[0]][1].horizon_s, 1) for name in names},
        "seeds": seeds,
        "command": " ".join(("python -m studies.forecasters", *sys.argv[1:])),
        "machine": machine(),
    }


def _held(contest: Contest) -> Mapping[str, Any]:
    workload, series = _SERIES[contest.trace, contest.seed]
    name = contest.forecaster
    forecaster, took_s = fitted(name, series, np.random.default_rng(contest.seed))
    points = [effect(name, workload, series, forecaster, aim) for aim in contest.aims]
    return {
        "trace": contest.trace,
        "seed": contest.seed,
        "forecaster": name,
        "trained_s": round(took_s, 2),
        "pinball": asdict(quality(series, forecaster)),
        "points": points,
    }


def show(report: Mapping[str, Any]) -> None:
    """Print what each forecaster's quantiles cost by trace, and what follows in slice-hours."""
    console = Console()
    rows = [Standing(**row) for row in report["standings"]]
    names = list(rows[0].pinball)
    for title, cells in (("pinball loss, % of the mean peak", _losses), ("slice-hours", _hours)):
        table = Table(title=title, box=None, header_style="bold", title_justify="left")
        for column in ("forecaster", *names, *_SUMMED[title]):
            table.add_column(column, justify="left" if column == "forecaster" else "right")
        for row in rows:
            table.add_row(row.forecaster, *cells(row))
        console.print(table)
    said = "the product's" if report["chosen"] == PRODUCT else "not the product's"
    console.print(f"Simplest within 2 % of the best: {report['chosen']}, {said}")


_SUMMED = {
    "pinball loss, % of the mean peak": ("beside the product's",),
    "slice-hours": ("all", "by seed", "missed", "training, min"),
}


def _losses(row: Standing) -> Iterator[str]:
    yield from (f"{100 * loss:.2f}" for loss in row.pinball.values())
    yield f"{row.pinball_ratio:.2f}"


def _hours(row: Standing) -> Iterator[str]:
    yield from ("–" if ratio is None else f"{ratio:.3f}" for ratio in row.hours.values())
    yield "–" if row.all_hours is None else f"{row.all_hours:.3f}"
    yield _span(row.by_seed)
    yield f"{row.missed} of {row.asked}"
    yield f"{row.trained_min:.1f}"


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else "–"


if __name__ == "__main__":
    reporting.run("forecasters", __doc__, "two traces, one seed, two aims", measure, show)
