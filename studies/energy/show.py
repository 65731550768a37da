"""Shows what each system draws, as tables and as a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from studies.bar_panels import bar_panels
from studies.energy.figures import BOARDS, FINAL, OURS


def show(loads: Mapping[str, Any], console: Console) -> None:
    """Print each replay's joules, and ours beside the best of the others."""
    for name, load in loads.items():
        table = Table(name, "target", "in time", "p99 s", *(f"kJ {one}" for one in BOARDS), "boots")
        for row in load["rows"]:
            table.add_row(
                row["name"],
                f"{row['target']:g}",
                f"{row['attainment']:.1%} ± {row['sure']:.1%}",
                f"{row['wait_p99_s']:.0f}",
                *(f"{row[board] / 1000:,.0f}" for board in BOARDS),
                str(row["tally"]["boots"]),
            )
        console.print(table)
        ratios = Table(
            f"{name}: ours",
            "in time",
            *BOARDS,
            "best of the others",
            "no hindsight",
            "straight, busy",
        )
        for ours, found in load["ours"].items():
            ratios.add_row(
                ours,
                f"{found['attainment']:.1%}",
                *(_ratio(found[board]["ratio"]) for board in BOARDS),
                found[BOARDS[1]]["best"] or "none attains it",
                _ratio(found[BOARDS[1]]["ratio_without_hindsight"]),
                f"{_ratio(found['straight'])}, {_ratio(found['busy'])}",
            )
        console.print(ratios)
        levers = Table(f"{name}: saved by", *BOARDS)
        for lever in load["saved_by"][BOARDS[0]]:
            levers.add_row(lever, *(f"{load['saved_by'][one].get(lever, 0):.1%}" for one in BOARDS))
        console.print(levers)


def _ratio(ratio: float | None) -> str:
    return f"{ratio:.2f}" if ratio else "–"


def draw(loads: Mapping[str, Any], path: Path) -> None:
    """Draw all beside static replicas for as many in time: a row a load, a column a board."""
    drawn = {
        name: load["of_static"] for name, load in loads.items() if load["of_static"][BOARDS[0]]
    }
    with bar_panels([*drawn], len(BOARDS), 16, 4.5, path) as axes:
        for row, boards in zip(axes, drawn.values(), strict=True):
            for axis, board in zip(row, BOARDS, strict=True):
                ratios = dict(reversed([*boards[board].items()]))
                colours = [_colour(name) for name in ratios]
                bars = axis.barh([*ratios], [one or 0.0 for one in ratios.values()], color=colours)
                axis.bar_label(bars, [_ratio(one) for one in ratios.values()])
                axis.set_xlim(0, 1.6)
                axis.set_title(f"{board}: joules, static = 1", loc="left", fontsize=9)


def _colour(name: str) -> str:
    if not name.startswith(OURS):
        return "#999999"
    return "#D55E00" if name == FINAL else "#E69F00"
