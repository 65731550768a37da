"""Replays real arrivals with autoscaling policies: slice-hours against attainment."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from studies import command_line
from studies.autoscale import bursts, llm, plot, traces
from studies.autoscale.curves import (
    ATTAINMENTS,
    Point,
    one_setting,
    point_of,
    saving,
    slice_hours_at,
)
from studies.autoscale.sweeps import BASELINES, HINDSIGHT, SWEEPS
from studies.autoscale.workload import SLO_S, Workload
from studies.command_line import save, side_by_side

_SEED = 20_261_121
_OURS = "slicewise"
_LLM = "llm"
_NAMES = (*traces.STORED, *bursts.LOADS, _LLM)


@dataclass(frozen=True)
class _Cell:
    trace: str
    policy: str
    target: float


_WORKLOADS: dict[str, Workload] = {}
"""Workloads by name, in this process; child processes inherit them when they are forked."""


def main() -> None:
    """Write build/reports/autoscale.json and the curves, and show the costs."""
    options = _options()
    console = Console()
    try:
        _WORKLOADS.update(_workloads(options))
    except traces.TraceError as error:
        sys.exit(str(error))
    cells = [
        _Cell(trace, policy, target)
        for trace in _WORKLOADS
        for policy in options.policies
        for target in SWEEPS[policy].targets
    ]
    report = _report(_replay(cells), options.seed)
    if _LLM in options.only:
        report["llm"] = llm.replayed(options.traces, options.seed)
    save(report, options.report)
    picture = options.report.with_suffix(".png")
    plot.save(report["traces"], picture)
    _show(report, console)
    if "llm" in report:
        llm.show(report["llm"])
    console.print(f"{options.report} and {picture}")


def _options() -> argparse.Namespace:
    parser = command_line.parser("autoscale", __doc__, _SEED)
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        help="one more: of any of their formats, or a CSV whose first column is arrival seconds",
    )
    parser.add_argument("--only", type=_names(_NAMES), default=_NAMES)
    parser.add_argument("--policies", type=_names(SWEEPS), default=tuple(SWEEPS))
    return parser.parse_args()


def _names(known: Iterable[str]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return names

    return parse


def _workloads(options: argparse.Namespace) -> dict[str, Workload]:
    found = [
        (traces.stored if name in traces.STORED else traces.of_bursts)(
            name, options.traces, options.seed
        )
        for name in options.only
        if name != _LLM
    ]
    found += [traces.given(path, options.traces, options.seed) for path in options.trace]
    return {workload.name: workload for workload in found}


def _replay(cells: Sequence[_Cell]) -> dict[_Cell, Point]:
    """Replay all cells with one process per processor, the longest traces first."""
    longest = sorted(cells, key=lambda cell: -_WORKLOADS[cell.trace].arrivals_s.size)
    found = dict(side_by_side(_point, longest, "Replaying"))
    return {cell: found[cell] for cell in cells}


def _point(cell: _Cell) -> tuple[_Cell, Point]:
    outcome = SWEEPS[cell.policy].replay(_WORKLOADS[cell.trace], cell.target)
    return cell, point_of(outcome, cell.target)


def _report(points: Mapping[_Cell, Point], seed: int) -> dict[str, Any]:
    found: dict[str, dict[str, list[Point]]] = {name: {} for name in _WORKLOADS}
    for cell, point in points.items():
        found[cell.trace].setdefault(cell.policy, []).append(point)
    return {
        "traces": found,
        "saving_vs_best": {
            trace: saving(policies, _OURS, BASELINES) for trace, policies in found.items()
        },
        "one_setting": {
            policy: one_setting({trace: found[trace][policy] for trace in found}, policy == _OURS)
            for policy in dict.fromkeys(cell.policy for cell in points)
            if policy in (*BASELINES, _OURS)
        },
        "hindsight": {
            policy: {trace: _cheapest(found[trace][policy]) for trace in found}
            for policy in HINDSIGHT
            if all(policy in policies for policies in found.values())
        },
        "workloads": {name: workload.described() for name, workload in _WORKLOADS.items()},
        "slo_s": SLO_S,
        "seed": seed,
        "command": " ".join(("python -m studies.autoscale", *sys.argv[1:])),
        "machine": machine(),
    }


def _cheapest(points: Sequence[Point]) -> Mapping[str, Point | None]:
    """Return the cheapest setting of one load by the attainment in %; None: none attains it."""
    found: dict[str, Point | None] = {}
    for level in ATTAINMENTS:
        enough = [point for point in points if point["attainment"] >= level]
        found[f"{100 * level:g}"] = min(enough, key=itemgetter("slice_hours"), default=None)
    return found


def _show(report: Mapping[str, Any], console: Console) -> None:
    """Print each policy's slice-hours at each attainment, and the share that Slicewise saves."""
    levels = [f"{100 * attainment:g} %" for attainment in ATTAINMENTS]
    table = Table("trace", "policy", *levels, box=None, header_style="bold")
    for trace, policies in report["traces"].items():
        for policy, points in policies.items():
            hours = [slice_hours_at(points, attainment) for attainment in ATTAINMENTS]
            table.add_row(trace, policy, *(f"{h:.1f}" if h is not None else "" for h in hours))
        savings = report["saving_vs_best"][trace].values()
        table.add_row(trace, "saved", *(f"{s:+.1%}" if s is not None else "" for s in savings))
        table.add_section()
    console.print(table)
    _show_one_setting(report["one_setting"], console)


def _show_one_setting(found: Mapping[str, Any], console: Console) -> None:
    """Print what each policy costs and attains with one setting for all loads."""
    table = Table("one setting", "attained", "target", "in time", "worst", "slice-hours", box=None)
    for policy, levels in found.items():
        for level, one in levels.items():
            figures = ("", "", "", "")
            if one is not None:
                shares = one["attainment"].values()
                hours = " ".join(f"{hours:.1f}" for hours in one["slice_hours"].values())
                mean = sum(shares) / len(shares)
                figures = (f"{one['target']:g}", f"{mean:.1%}", f"{min(shares):.1%}", hours)
            table.add_row(policy, f"{level} %", *figures)
    console.print(table)


if __name__ == "__main__":
    main()
