"""Replays loads drawn at random, on which nothing was chosen: who keeps which aim, for how much."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from studies import command_line
from studies.autoscale import mixtures
from studies.autoscale.curves import Point, one_setting, point_of
from studies.autoscale.sweeps import STATED, SWEEPS
from studies.autoscale.workload import SLO_S, Workload
from studies.command_line import save, side_by_side

_SEED = 20_261_129
_OURS = "slicewise"
POLICIES = ("peak_hold", "kpa", "hpa", _OURS)
MISSED = 0.01
"""By more than this share an aim is missed."""
_Loads = Mapping[str, Mapping[str, Sequence[Point]]]
"""By policy and load, a point a setting."""


@dataclass(frozen=True)
class _Cell:
    number: int
    policy: str
    target: float


_WORKLOADS: dict[int, Workload] = {}
"""Workloads by number, in this process; child processes inherit them when they are forked."""


def main() -> None:
    """Write build/reports/autoscale_unseen.json, and show it."""
    parser = command_line.parser("autoscale_unseen", __doc__, _SEED)
    parser.add_argument("--first", type=int, default=0, help="number of the first load")
    parser.add_argument("--loads", type=int, default=28, help="how many; seven kinds take turns")
    parser.add_argument("--hours", type=float, default=3.0, help="length of each")
    parser.add_argument("--json", action="store_true", help="print the report, not the tables")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.loads)
    _WORKLOADS.update({n: mixtures.drawn(n, options.seed, options.hours) for n in numbers})
    cells = [
        _Cell(number, policy, target)
        for policy in POLICIES
        for target in (STATED if policy == _OURS else SWEEPS[policy].targets)
        for number in numbers
    ]
    points: dict[str, dict[str, list[Point]]] = {policy: {} for policy in POLICIES}
    for cell, point in side_by_side(_point, cells, "Replaying"):
        points[cell.policy].setdefault(_WORKLOADS[cell.number].name, []).append(point)
    report = {
        **verdict(points),
        "loads": points,
        "workloads": {one.name: one.described() for one in _WORKLOADS.values()},
        "slo_s": SLO_S,
        "seed": options.seed,
        "command": " ".join(("python -m studies.autoscale.unseen", *sys.argv[1:])),
        "machine": machine(),
    }
    save(report, options.report)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    _show(report, Console())


def _point(cell: _Cell) -> tuple[_Cell, Point]:
    workload = _WORKLOADS[cell.number]
    return cell, point_of(SWEEPS[cell.policy].replay(workload, cell.target), cell.target)


def verdict(points: _Loads) -> dict[str, Any]:
    """Return of each policy by aim what one setting attains, costs and misses; and ours by kind."""
    return {
        "one_setting": {
            policy: {
                level: one and _summary(one, float(level) / 100)
                for level, one in one_setting(loads, policy == _OURS).items()
            }
            for policy, loads in points.items()
        },
        "kinds": {
            kind: {
                f"{100 * aim:g}": _mean(
                    point["attainment"]
                    for name, settings in points[_OURS].items()
                    if name.rsplit("-", 1)[0] == kind
                    for point in settings
                    if point["target"] == aim
                )
                for aim in STATED
            }
            for kind in dict.fromkeys(name.rsplit("-", 1)[0] for name in points[_OURS])
        },
    }


def _summary(one: Mapping[str, Any], aim: float) -> dict[str, Any]:
    shares: Mapping[str, float] = one["attainment"]
    missed = [name for name, share in shares.items() if share < aim - MISSED]
    return {
        "target": one["target"],
        "attainment": _mean(shares.values()),
        "worst": min(shares.values()),
        "slice_hours": round(sum(one["slice_hours"].values()), 2),
        "missed": missed,
    }


def _mean(shares: Any) -> float:
    found = [*shares]
    return round(sum(found) / len(found), 6)


def _show(report: Mapping[str, Any], console: Console) -> None:
    loads = len(report["workloads"])
    columns = ("aim", "target", "in time", "worst", "slice-hours", f"missed, of {loads}")
    table = Table("policy", *columns, box=None, header_style="bold")
    for policy, levels in report["one_setting"].items():
        for level, one in levels.items():
            figures = ("", "", "", "", "")
            if one is not None:
                figures = (
                    f"{one['target']:g}",
                    f"{one['attainment']:.1%}",
                    f"{one['worst']:.1%}",
                    f"{one['slice_hours']:.0f}",
                    str(len(one["missed"])),
                )
            table.add_row(policy, f"{level} %", *figures)
    console.print(table)
    kinds = Table("kind", *(f"{100 * aim:g} %" for aim in STATED), box=None, header_style="bold")
    for kind, shares in report["kinds"].items():
        kinds.add_row(kind, *(f"{share:.1%}" for share in shares.values()))
    console.print(kinds)


if __name__ == "__main__":
    main()
