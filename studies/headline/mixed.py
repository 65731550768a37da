"""Services and batch jobs of several tenants on the same GPUs, under six systems side by side."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import reporting
from benchmarks.machine import machine
from benchmarks.reporting import REPORTS
from studies.autoscale.traces import TraceError
from studies.command_line import cluster_traces_folder, side_by_side, traces_folder
from studies.headline import mixed_plot
from studies.headline.loads import PHILLY
from studies.headline.mixed_drawn import drawn
from studies.headline.mixed_figures import MixedFigures, mixed_figures, rows_of, saving
from studies.headline.mixed_load import (
    CAPACITY_MILLISLICES,
    DRAWN,
    LAYOUTS,
    MixedLoad,
    load_of,
    mixed,
    wanted,
)
from studies.headline.mixed_services import HOURS, mixed_services, places
from studies.headline.mixed_systems import (
    MIXED_SETS,
    SLICEWISE,
    STATIC,
    STATIC_GPUS,
    sets_on,
)

SEED, SEEDS = 20_261_127, 3
QUICK_HOURS = 1.5
MAIN = "mixed"
"""The layout whose figures are the headline."""
AIMS = {"of_bound": 0.97, "attainment": 0.99, "cost_saving_vs_static": 0.5}
PICTURE = REPORTS / "headline_mixed.png"


def measure_mixed(seed: int, *, is_quick: bool) -> Mapping[str, Any]:
    """Simulate every system on both layouts for each seed, one process per processor."""
    begun_s = monotonic()
    hours = QUICK_HOURS if is_quick else HOURS
    seeds = range(seed, seed + (1 if is_quick else SEEDS))
    try:
        with get_context("fork").Pool(os.cpu_count()) as pool:
            made = pool.starmap(_loads, [(one, hours) for one in seeds])
    except TraceError as error:
        sys.exit(str(error))
    _LOADS.update((key, load) for loads in made for key, load in loads.items())
    # Slicewise takes longest, so it begins first.
    tasks = [
        (name, layout, one)
        for name in reversed([*MIXED_SETS])
        for layout, one in _LOADS
        if name in sets_on(layout)
    ]
    done = dict(side_by_side(_simulated, tasks, "Simulating"))
    layouts = {
        layout: rows_of(
            {name: [done[name, layout, one] for one in seeds] for name in sets_on(layout)}
        )
        for layout in LAYOUTS
    }
    systems = layouts[MAIN]
    ours = systems[SLICEWISE]
    return {
        "utilisation": {name: row["utilisation"] for name, row in systems.items()},
        "of_bound": {name: row["of_bound"] for name, row in systems.items()},
        "attainment": {name: row["attainment"] for name, row in systems.items()},
        "cost_saving_vs_static": saving(ours, systems[STATIC]),
        "cost_saving_vs_static_gpus": saving(ours, systems[STATIC_GPUS]),
        "together": {
            "layouts": layouts,
            "services": {str(one): _described(_LOADS[MAIN, one]) for one in seeds},
            "capacity_slices": CAPACITY_MILLISLICES / 1000,
            "hours": hours,
            "seeds": [*seeds],
            "aims": AIMS,
            "seconds": round(monotonic() - begun_s, 1),
        },
    }


_LOADS: dict[tuple[str, int], MixedLoad] = {}
"""Loads by layout and seed, in this process; child processes inherit them when they are forked."""


def _loads(seed: int, hours: float) -> Mapping[tuple[str, int], MixedLoad]:
    requests = traces_folder()
    jobs = cluster_traces_folder()
    if not (jobs / PHILLY).exists():
        raise TraceError(f"The trace {jobs / PHILLY} is not there: SLICEWISE_CLUSTER_TRACES")
    services = mixed_services(requests, seed, hours)
    asked = wanted(services, LAYOUTS[DRAWN], hours * 3600)
    return {
        (layout, seed): load_of(services, drawn(asked, seed, hours), seed, instances, hours)
        if layout == DRAWN
        else mixed(services, jobs, seed, instances, hours)
        for layout, instances in LAYOUTS.items()
    }


def _simulated(task: tuple[str, str, int]) -> tuple[tuple[str, str, int], MixedFigures]:
    name, layout, seed = task
    load = _LOADS[layout, seed]
    return task, mixed_figures(name, MIXED_SETS[name](load), load)


def _described(load: MixedLoad) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "service": one.slices.key,
            "model": one.model,
            "requests": len(one.slices.arrivals_s),
            "places": places(one.slices),
            "request_s": round(one.slices.engine.service_s[-1], 3),
            "p95_ms": one.slices.spec.p95_ms,
            "replicas": one.replicas,
            "gpus": one.gpus,
        }
        for one in load.services
    ]


_SERVED = (
    "system", "work done", "of the bound", "bound", "cut freely", "services", "batch",
    "allocated", "worst in time", "mean", "slice-h a million", "lost requests",
)  # fmt: skip
_SHARES = (
    "system", "services", "batch", "headroom", "loading", "lost", "idle: wanted", "other type",
    "unwanted",
)  # fmt: skip
_BATCH = ("system", "wait, mean", "p99", "worst tenant", "late", "lost slice-h", "Jain")


def show_mixed(report: Mapping[str, Any]) -> None:
    """Print the systems side by side, for each load."""
    console, found = Console(), report["together"]
    seeds = ", ".join(map(str, found["seeds"]))
    for layout, systems in found["layouts"].items():
        title = (
            f"services and batch, {layout}: {found['capacity_slices']:.0f} slices, seeds {seeds}"
        )
        for columns, cells in ((_SERVED, _served), (_SHARES, _shares), (_BATCH, _batch)):
            table = Table(title=title, box=None, header_style="bold", title_justify="left")
            for column in columns:
                table.add_column(column, justify="left" if column == "system" else "right")
            for row in systems.values():
                table.add_row(*cells(row))
            console.print(table)
    for name, aim in AIMS.items():
        reached = report[name] if name.startswith("cost") else report[name][SLICEWISE]
        word = "met" if reached >= aim else "missed"
        console.print(f"{name}: {100 * reached:.1f} %, aim {100 * aim:.0f} %: {word}")
    console.print(f"{found['seconds']:.0f} s")


def _served(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["system"]
    for key in (
        "utilisation", "of_bound", "bound", "bound_any_cut", "utilisation_services",
        "utilisation_batch", "allocated",
    ):  # fmt: skip
        yield f"{100 * row[key]:.1f} %"
    for key in ("attainment", "attainment_mean"):
        yield f"{100 * row[key]:.2f} %"
    yield f"{row['per_million']:,.0f}"
    yield f"{row['lost_requests']:,.0f}"


def _shares(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["system"]
    for key in (
        "utilisation_services", "utilisation_batch", "headroom", "loading", "lost",
        "idle_wanted", "idle_other_type", "idle_unwanted",
    ):  # fmt: skip
        yield f"{100 * row[key]:.1f} %"


def _batch(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["system"]
    for key in ("wait_mean_s", "wait_p99_s", "wait_worst_mean_s"):
        yield f"{row[key] / 60:,.1f} min"
    yield f"{row['late_jobs']:,.0f}"
    yield f"{row['lost_slice_hours']:,.0f}"
    yield f"{row['jain']:.3f}"


def _measure(is_quick: bool) -> Mapping[str, Any]:
    command = " ".join(("python -m studies.headline.mixed", *sys.argv[1:]))
    return {**measure_mixed(SEED, is_quick=is_quick), "command": command, "machine": machine()}


def _show(report: Mapping[str, Any]) -> None:
    mixed_plot.save_mixed(report["together"]["layouts"], AIMS, PICTURE)
    show_mixed(report)


if __name__ == "__main__":
    reporting.run("headline_mixed", __doc__, "one seed, an hour and a half", _measure, _show)
