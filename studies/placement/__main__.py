"""Measures MIG placement: ParvaGPU's scenarios, replays of requests, and the time of a decision."""

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from slicewise.cluster.language.errors import InvalidInputError
from studies import command_line
from studies.command_line import save, side_by_side
from studies.placement import parvagpu, pods, repartition, whole
from studies.placement.online import replay
from studies.placement.optimum import Bounds, optimum
from studies.placement.policies import policies
from studies.placement.speed import decision_us

_PARVAGPU = Path(__file__).parents[1] / "assets" / "parvagpu"
_LISTS = ("openb_pod_list_default", "openb_pod_list_gpushare100")
_LOADS = (1.0, 1.1, 1.2, 1.3)
_SEEDS = 10
_GPUS, _REQUESTS, _WARM = 32, 20_000, 0.2
_FEW_GPUS, _FEW_REQUESTS = 3, 40
_REPARTITION_GPUS, _REPARTITION_REQUESTS = 16, 3_000
_FLEETS = (100, 1_000, 10_000)
_OURS = "slicewise"
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Cell:
    """One replay of all policies, and with few GPUs (``is_small``) of the clairvoyants, too."""

    pods: str
    load: float
    seed: int
    is_small: bool


_PODS: dict[str, Sequence[pods.Request]] = {}
"""Pod lists by name, in this process; child processes inherit them when they are forked."""


def main() -> None:
    """Write build/reports/placement.json, and show its tables."""
    options = _options()
    console = Console()
    try:
        _PODS.update({_name(path): pods.read(path) for path in options.pods or _stored(options)})
        scenarios = parvagpu.run(options.parvagpu, options.slo, options.seed)
    except (pods.PodListError, parvagpu.ScenarioError, InvalidInputError) as error:
        sys.exit(str(error))
    report = {
        "parvagpu": scenarios,
        **_report(_replay(options.seed), options.seed),
        **_repartition(options.seed),
        **whole.measured(_PODS, options.seed),
    }
    save(report, options.report)
    _show(report, console)
    console.print(str(options.report))


def _options() -> argparse.Namespace:
    parser = command_line.parser("placement", __doc__, 1)
    parser.add_argument(
        "--pods", type=Path, action="append", help="another pod list in openb's format, instead"
    )
    parser.add_argument(
        "--parvagpu", type=Path, default=_PARVAGPU, help="where ParvaGPU's data lie"
    )
    parser.add_argument("--slo", type=Path, help="other scenarios in ParvaGPU's format: a folder")
    return parser.parse_args()


def _stored(options: argparse.Namespace) -> Sequence[Path]:
    return [options.traces / f"alibaba_gpu2023_{name}.csv.xz" for name in _LISTS]


def _name(path: Path) -> str:
    return path.name.split(".")[0].removeprefix("alibaba_gpu2023_")


def _replay(seed: int) -> Mapping[_Cell, Mapping[str, float]]:
    """Replay all cells, one process per processor; integer programs, the slowest, go first."""
    cells = [
        _Cell(name, load, seed + number, is_small)
        for is_small in (True, False)
        for name in _PODS
        for load in _LOADS
        for number in range(_SEEDS)
    ]
    return dict(side_by_side(_ratios, cells, "Replaying"))


def _ratios(cell: _Cell) -> tuple[_Cell, Mapping[str, float]]:
    """Slice-hours accepted ÷ asked for, by policy."""
    listed = _PODS[cell.pods]
    gpus, count = (_FEW_GPUS, _FEW_REQUESTS) if cell.is_small else (_GPUS, _REQUESTS)
    chance = random.Random(cell.seed)  # noqa: S311
    requests = pods.drawn(listed, count, gpus, cell.load, chance)
    warm = 0.0 if cell.is_small else _WARM
    ratios = {
        name: replay(requests, gpus, policy, warm)
        for name, policy in policies(pods.mix(listed), gpus, cell.seed).items()
    }
    if cell.is_small:
        keeps = optimum(requests, gpus, refuses=False)
        ratios |= _bounds("optimum", keeps)
        ratios |= _bounds("optimum_refusing", optimum(requests, gpus, refuses=True))
    return cell, ratios


def _bounds(name: str, found: Bounds) -> Mapping[str, float]:
    return {name: found.found, f"{name}_at_most": found.most}


def _repartition(seed: int) -> Mapping[str, Any]:
    """Measure what repartitioning brings where GPUs are cut beforehand."""
    cells = [
        _Cell(name, load, seed + number, is_small=False)
        for name in _PODS
        for load in _LOADS
        for number in range(_SEEDS)
    ]
    found = dict(side_by_side(_repartitions, cells, "Cutting"))
    ratios = {
        cell: {policy: one.accepted_ratio for policy, one in outcomes.items()}
        for cell, outcomes in found.items()
    }
    lists = {name: _outcomes(found, name) for name in _PODS}
    return {
        "repartition": lists[next(iter(_PODS))],
        "repartition_pod_lists": lists,
        "repartition_margin_points": {name: _margins(ratios, name) for name in _PODS},
        "repartition_setting": {
            "gpus": _REPARTITION_GPUS,
            "requests": _REPARTITION_REQUESTS,
            "repartition_s": repartition.REPARTITION_S,
            "patience_s": repartition.PATIENCE_S,
        },
    }


def _repartitions(cell: _Cell) -> tuple[_Cell, Mapping[str, repartition.Outcome]]:
    chance = random.Random(cell.seed)  # noqa: S311
    requests = pods.in_order(
        _PODS[cell.pods], _REPARTITION_REQUESTS, _REPARTITION_GPUS, cell.load, chance
    )
    return cell, repartition.outcomes(_PODS[cell.pods], requests, _REPARTITION_GPUS, _WARM)


def _outcomes(
    cells: Mapping[_Cell, Mapping[str, repartition.Outcome]], name: str
) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Means over the seeds, by load and policy."""
    return {
        _percent(load): {
            policy: {
                key: round(statistics.mean(getattr(each[policy], key) for each in outcomes), 4)
                for key in ("accepted_ratio", "repartitions", "drained_slice_hours")
            }
            for policy in outcomes[0]
        }
        for load, outcomes in _by_load(cells, name, is_small=False).items()
    }


def _report(cells: Mapping[_Cell, Mapping[str, float]], seed: int) -> Mapping[str, Any]:
    first = next(iter(_PODS))
    mix = pods.mix(_PODS[first])
    online = {name: _means(cells, name, is_small=False) for name in _PODS}
    return {
        "online": online[first],
        "pod_lists": online,
        "margin_points": {name: _margins(cells, name) for name in _PODS},
        "small": {name: _means(cells, name, is_small=True) for name in _PODS},
        "decision_us": {str(gpus): decision_us(gpus, mix, seed) for gpus in _FLEETS},
        "setting": {
            "gpus": _GPUS,
            "requests": _REQUESTS,
            "warm": _WARM,
            "small_gpus": _FEW_GPUS,
            "small_requests": _FEW_REQUESTS,
            "seeds": _SEEDS,
            "seed": seed,
        },
        "mix": {name: pods.mix(listed) for name, listed in _PODS.items()},
        "command": " ".join(("python -m studies.placement", *sys.argv[1:])),
        "machine": machine(),
    }


def _means(
    cells: Mapping[_Cell, Mapping[str, float]], name: str, *, is_small: bool
) -> Mapping[str, Mapping[str, float]]:
    """Mean ratios over the seeds, by load and policy."""
    return {
        _percent(load): {
            policy: round(statistics.mean(each[policy] for each in ratios), 4)
            for policy in ratios[0]
        }
        for load, ratios in _by_load(cells, name, is_small=is_small).items()
    }


def _margins(
    cells: Mapping[_Cell, Mapping[str, float]], name: str
) -> Mapping[str, Mapping[str, Any]]:
    """Our lead in percentage points, with its standard error, by load and policy."""
    return {
        _percent(load): {
            policy: _margin([100 * (each[_OURS] - each[policy]) for each in ratios])
            for policy in ratios[0]
            if policy != _OURS
        }
        for load, ratios in _by_load(cells, name, is_small=False).items()
    }


def _margin(points: Sequence[float]) -> Mapping[str, float]:
    error = statistics.stdev(points) / len(points) ** 0.5
    return {"mean": round(statistics.mean(points), 3), "error": round(error, 3)}


def _by_load(
    cells: Mapping[_Cell, _Found], name: str, *, is_small: bool
) -> Mapping[float, Sequence[_Found]]:
    found: dict[float, list[_Found]] = defaultdict(list)
    for cell in sorted(cells, key=lambda one: (one.load, one.seed)):
        if (cell.pods, cell.is_small) == (name, is_small):
            found[cell.load].append(cells[cell])
    return found


def _percent(load: float) -> str:
    return f"{load:.0%}"


def _show(report: Mapping[str, Any], console: Console) -> None:
    console.print(_parvagpu(report["parvagpu"]))
    for name in report["pod_lists"]:
        console.print(_ratio_table(f"{name}: {_GPUS} GPUs", report["pod_lists"][name]))
        console.print(_ratio_table(f"{name}: {_FEW_GPUS} GPUs", report["small"][name]))
        console.print(_ratio_table(f"{name}: cut beforehand", _accepted(report, name)))
    table = Table("GPUs", "p50 µs", "p99 µs", title="One decision", box=None, header_style="bold")
    for gpus, times in report["decision_us"].items():
        table.add_row(gpus, str(times["p50"]), str(times["p99"]))
    console.print(table)


def _parvagpu(scenarios: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = ("published", "optimum", "ours", "seconds")
    table = Table("scenario", *columns, title="ParvaGPU: GPUs", box=None, header_style="bold")
    for name, found in scenarios.items():
        table.add_row(name, *(_or_blank(found[column]) for column in columns))
    return table


def _or_blank(value: object) -> str:
    return "" if value is None else str(value)


def _accepted(report: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, float]]:
    return {
        load: {policy: one["accepted_ratio"] for policy, one in outcomes.items()}
        for load, outcomes in report["repartition_pod_lists"][name].items()
    }


def _ratio_table(title: str, loads: Mapping[str, Mapping[str, float]]) -> Table:
    names: Iterable[str] = next(iter(loads.values()))
    table = Table("accepted", *loads, title=title, box=None, header_style="bold")
    for name in names:
        table.add_row(name, *(f"{100 * ratios[name]:.2f} %" for ratios in loads.values()))
    return table


if __name__ == "__main__":
    main()
