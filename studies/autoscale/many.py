"""Replays many services at once: slice-hours of a replica a service, of weights on nodes, of pools.

Every policy has a replica a service; the launcher's decision also has pools of 2, 4, 8 and of all
services, which share replicas (``shared.py``). Costs and requests are those of all services.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from studies import command_line
from studies.autoscale import fleets, shared, traces
from studies.autoscale.curves import ATTAINMENTS, Point, slice_hours_at
from studies.autoscale.dynamo import Dynamo
from studies.autoscale.fleets import FLEETS, Fleet, fleet, pool_words
from studies.autoscale.hpa import Hpa
from studies.autoscale.kpa import Kpa
from studies.autoscale.peak_hold import PeakHold
from studies.autoscale.policy import Policy
from studies.autoscale.ray import Ray
from studies.autoscale.seasonal import Seasonal
from studies.autoscale.shared import SharedLoad, SharedWorld
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import SLO_S
from studies.autoscale.world import Outcome
from studies.bar_panels import bar_panels
from studies.command_line import save, side_by_side

_SEED = 20_261_130
OURS = "slicewise"
_USUAL = ("gentd26", "servegen-reason")
"""Loads that are replayed where none is named; the third is larger."""
MOST = 200
"""Replicas that a service or a pool may have."""
_LOOK_S = 2
"""Seconds between two decisions of the launcher's here, to save time; it decides each second."""
_AIMS = ((0, (0.9, 0.95, 0.99, 0.999)), (1, (0.99, 0.999)))
"""Replicas that are always there, and aims."""
_USE = (0.25, 0.5, 0.8, 1.2)
RIVALS: Mapping[str, tuple[type, Sequence[float]]] = {
    "kpa": (Kpa, _USE),
    "hpa": (Hpa, _USE),
    "ray": (Ray, _USE),
    "dynamo": (Dynamo, _USE),
    "peak_hold": (PeakHold, _USE),
    "seasonal": (Seasonal, (0.8, 0.9, 0.97, 1.0)),
}
"""How each is made, and its settings."""
CACHED_TOO = ("hpa", "peak_hold")
LARGE = (8, 0)
"""Pools that are also replayed with a cache and a replica that is always there."""
SIZES = (1, 2, 4, 8, 0)
"""Services of a pool; 0: all."""


@dataclass(frozen=True)
class _Cell:
    """One replay.

    Attributes:
        size: services of a pool; 0: all.
        cached: whether nodes keep weights.
        least: replicas that each service, or pool, always has.
    """

    fleet: str
    policy: str
    size: int
    cached: bool
    target: float
    least: int

    @property
    def name(self) -> str:
        """What a report calls its policy."""
        return f"{self.policy}{pool_words(self.size)}{', cache' if self.cached else ''}"


_FLEETS: dict[str, Fleet] = {}
"""Loads by name, in this process; child processes inherit them when they are forked."""


def main() -> None:
    """Write build/reports/autoscale_many.json, draw it, and show the ratios."""
    parser = command_line.parser("autoscale_many", __doc__, _SEED)
    parser.add_argument("--only", nargs="+", choices=FLEETS, default=_USUAL)
    options = parser.parse_args()
    try:
        _FLEETS.update({name: fleet(name, options.traces, options.seed) for name in options.only})
    except traces.TraceError as error:
        sys.exit(str(error))
    cells = [*_cells(options.only)]
    points: dict[str, dict[str, list[Point]]] = {name: {} for name in options.only}
    for cell, point in side_by_side(_point, cells, "Replaying"):
        points[cell.fleet].setdefault(cell.name, []).append(point)
    report = {
        "loads": {name: _compared(policies) for name, policies in points.items()},
        "workloads": {name: _described(load) for name, load in _FLEETS.items()},
        "assumed": {
            "slo_s": SLO_S,
            "nodes": shared.NODES,
            "models_of_a_replica": shared.ROOM,
            "memory_s": shared.MEMORY_S,
            "load_from_disk": shared.FROM_DISK,
            "load_from_memory": shared.FROM_MEMORY,
            "load_that_copies": shared.TO_DISK,
            "span_s": fleets.SPAN_S,
            "warm_s": fleets.WARM_S,
        },
        "seed": options.seed,
        "command": " ".join(("python -m studies.autoscale.many", *sys.argv[1:])),
        "machine": machine(),
    }
    save(report, options.report)
    picture = options.report.with_suffix(".png")
    _draw(report["loads"], picture)
    console = Console()
    _show(report, console)
    console.print(f"{options.report} and {picture}")


def _cells(names: Sequence[str]) -> list[_Cell]:
    """Return all replays, the longest first."""
    ours = [
        _Cell(name, OURS, size, cached, aim, least)
        for size, name, cached, (least, aims) in product(SIZES, names, (False, True), _AIMS)
        for aim in aims
        if size in LARGE or not (cached or least) or (size == 1 and cached + least == 1)
    ]
    others = [
        _Cell(name, policy, 1, cached, target, least)
        for name, (policy, (_, targets)) in product(names, RIVALS.items())
        for cached, target, least in product((False, True), targets, (0, 1))
        # Dynamo's rule keeps one replica anyway. With a cache, two are enough to show its part.
        if (policy != "dynamo" or least) and (not cached or policy in CACHED_TOO)
    ]
    return [*ours, *others]


def _point(cell: _Cell) -> tuple[_Cell, Point]:
    """Replay all services, or all pools, with one setting."""
    waits, slice_s, changes, loads, shares = [], 0.0, 0, 0, []
    for load in _FLEETS[cell.fleet].pools(cell.size, cached=cell.cached):
        outcome, world = replayed(load, cell.policy, cell.target, cell.least)
        counted, models = outcome.waits_s[outcome.counted], load.models[outcome.counted]
        waits.append(counted)
        shares += [np.mean(counted[models == model] <= SLO_S) for model in np.unique(models)]
        slice_s += outcome.slice_s
        changes += outcome.changes
        loads += world.loads
    waits_s = np.concatenate(waits)
    return cell, {
        "target": cell.target,
        "least": cell.least,
        "attainment": round(float(np.mean(waits_s <= SLO_S)), 6),
        "mean_of_services": round(float(np.mean(shares)), 6),
        "slice_hours": round(slice_s / 3600, 4),
        "changes": changes,
        "model_loads": loads,
        "wait_p99_s": round(float(np.quantile(waits_s, 0.99)), 3),
    }


def replayed(
    load: SharedLoad, policy: str, target: float, least: int
) -> tuple[Outcome, SharedWorld]:
    """Replay one service, or one pool, and return what came of it, and the world at the end."""
    world = SharedWorld(load)
    if policy == OURS:
        _launcher(world, Slicewise(load.concurrency, target, least, MOST))
    else:
        _rival(world, RIVALS[policy][0](load.concurrency, target), least)
    world.pass_until(load.duration_s)
    return world.outcome(), world


def _rival(world: SharedWorld, policy: Policy, least: int) -> None:
    for second in range(world.workload.duration_s):
        world.pass_until(second)
        world.want(min(max(policy.wanted(world.look()), least), MOST))


def _launcher(world: SharedWorld, policy: Slicewise) -> None:
    """Decide as the launcher does, which asks nothing of a service at rest."""
    duration_s, arrivals = world.workload.duration_s, world.requests.arrivals
    second = 0
    while second < duration_s:
        world.pass_until(second)
        world.place()
        policy.refill_s = world.refill_s
        world.want(min(world.with_room(policy.wanted(world.look())), MOST))
        # A pool's gateway serves in the order in which requests came.
        world.requests.in_time = policy.in_time if world.workload.count == 1 else None
        looks = 0
        if world.is_at_rest and policy.is_at_rest:
            next_s = min(arrivals[world.requests.arrived], duration_s)
            looks = max(0, int(-(-(next_s - second) // _LOOK_S)) - 1)
        if looks:
            policy.rest(second + looks * _LOOK_S, looks)
        second += _LOOK_S * (1 + looks)


def _described(load: Fleet) -> Mapping[str, float]:
    work_s = sum(float(work.sum()) for _, work in load.services)
    sizes = [arrivals.size for arrivals, _ in load.services]
    return {
        "services": len(sizes),
        "requests": sum(sizes),
        "requests_of_the_median_service": float(np.median(sizes)),
        "concurrency": load.concurrency,
        "mean_service_s": round(work_s / sum(sizes), 2),
        "mean_replicas_full": round(work_s / fleets.SPAN_S / load.concurrency, 2),
    }


def _compared(policies: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """Return slice-hours by attainment, and beside the cheapest rival without a cache."""
    hours = {
        policy: {f"{100 * level:g}": slice_hours_at(points, level) for level in ATTAINMENTS}
        for policy, points in policies.items()
    }
    rivals = [hours[policy] for policy in RIVALS if policy in hours]
    best = {
        level: min((costs[level] for costs in rivals if costs[level] is not None), default=None)
        for level in next(iter(hours.values()))
    }
    return {
        "ratio": {
            policy: {
                level: round(cost / best[level], 3) if cost and best[level] else None
                for level, cost in levels.items()
            }
            for policy, levels in hours.items()
        },
        "best_rival": best,
        "slice_hours": hours,
        "points": policies,
    }


def _show(report: Mapping[str, Any], console: Console) -> None:
    """Print slice-hours beside the cheapest rival's, and themselves."""
    for name, load in report["loads"].items():
        levels = [f"{level} %" for level in load["best_rival"]]
        table = Table(name, *(f"ratio {level}" for level in levels), *levels, box=None)
        for policy, ratios in load["ratio"].items():
            shown = [f"{ratio:.2f}" if ratio else "–" for ratio in ratios.values()]
            hours = load["slice_hours"][policy].values()
            table.add_row(policy, *shown, *(f"{cost:.1f}" if cost else "–" for cost in hours))
        console.print(table)


def _draw(loads: Mapping[str, Any], path: Path) -> None:
    """Draw slice-hours beside the cheapest rival's: a row a load, a column an attainment."""
    levels = [f"{100 * level:g}" for level in ATTAINMENTS]
    with bar_panels([*loads], len(levels), 13, 2.6, path) as axes:
        for row, load in zip(axes, loads.values(), strict=True):
            names = [name for name in reversed([*load["ratio"]]) if name.startswith(OURS)]
            for axis, level in zip(row, levels, strict=True):
                ratios = [load["ratio"][name][level] for name in names]
                bars = axis.barh(names, [ratio or 0.0 for ratio in ratios], color="#D55E00")
                axis.bar_label(bars, [f"{ratio:.2f}" if ratio else "missed" for ratio in ratios])
                axis.axvline(1.0, color="#666666", linewidth=1, linestyle=":")
                axis.set_xlim(0, 1.5)
                axis.set_title(f"{level} % in time", loc="left", fontsize=9)


if __name__ == "__main__":
    main()
