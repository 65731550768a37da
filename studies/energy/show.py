"""Shows what each system draws, as tables and as a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from studies.bar_panels import bar_panels
from studies.energy.figures import BOARDS, FINAL, OF_8, OF_ALL, OURS

_H100 = BOARDS[1]
_OTHERS = ("kpa", "hpa", "static")
_DRAWN = {
    "always on": "always on",
    **{name: name for name in _OTHERS},
    **{f"{name}, nodes off": f"{name}, nodes off" for name in _OTHERS},
    FINAL: "slicewise",
    OF_8: "slicewise, pools of 8",
    OF_ALL: "slicewise, one pool",
    **{f"{name}, one pool, nodes off": f"{name}, with that pool" for name in _OTHERS},
}
"""Whom the picture shows, and what it calls them."""


def show(loads: Mapping[str, Any], console: Console) -> None:
    """Print each replay's joules, and ours beside the best of the others."""
    for name, load in loads.items():
        table = Table(
            name, "target", "in time", "services", "p99 s", f"J a request, {_H100}", "boots"
        )
        for row in load["rows"]:
            table.add_row(
                row["name"],
                f"{row['target']:g}",
                f"{row['attainment']:.1%} ± {row['sure']:.1%}",
                f"{row['mean_of_services']:.0%}",
                f"{row['wait_p99_s']:.0f}",
                f"{row[_H100] / row['requests']:,.0f}",
                str(row["tally"]["boots"]),
            )
        console.print(table)
        ratios = Table(
            f"{name}: ours",
            "in time",
            "best of the others: A100, H100, H200, B200",
            "known",
            "pooled, known",
            "straight, busy",
        )
        for ours, found in load["ours"].items():
            ratios.add_row(
                ours,
                f"{found['attainment']:.1%}",
                ", ".join(_best(found[board], "best") for board in BOARDS),
                _best(found[_H100], "best_known"),
                f"{_best(found[_H100], 'best_pooled')}, {_best(found[_H100], 'best_pooled_known')}",
                f"{_ratio(found['straight'])}, {_ratio(found['busy'])}",
            )
        console.print(ratios)
        levers = Table(f"{name}: saved by", *BOARDS)
        for lever in load["saved_by"][BOARDS[0]]:
            levers.add_row(lever, *(f"{load['saved_by'][one].get(lever, 0):.1%}" for one in BOARDS))
        console.print(levers)


def _best(found: Mapping[str, Any], which: str) -> str:
    return _ratio(found[which] and found[which]["ratio"])


def _ratio(ratio: float | None) -> str:
    return f"{ratio:.2f}" if ratio else "–"


def draw(loads: Mapping[str, Any], path: Path) -> None:
    """Draw all beside static replicas for as many in time: a row a load, a column a board."""
    drawn = {
        name: load["of_static"] for name, load in loads.items() if load["of_static"][BOARDS[0]]
    }
    with bar_panels([*drawn], len(BOARDS), 15, 3.3, path) as axes:
        for row, boards in zip(axes, drawn.values(), strict=True):
            for axis, board in zip(row, BOARDS, strict=True):
                shown = [name for name in reversed(_DRAWN) if name in boards[board]]
                ratios = [boards[board][name] for name in shown]
                bars = axis.barh(
                    [_DRAWN[name] for name in shown],
                    [ratio or 0.0 for ratio in ratios],
                    color=[_colour(name) for name in shown],
                )
                axis.bar_label(bars, [_ratio(ratio) for ratio in ratios], padding=2)
                axis.axvline(1.0, color="#666666", linewidth=1, linestyle=":", zorder=0)
                axis.set_xlim(0, 1.7)
                axis.set_title(f"{board}: joules, static = 1", loc="left", fontsize=9)


def _colour(name: str) -> str:
    if name.startswith(OURS):
        return "#E69F00" if name == FINAL else "#D55E00"
    return "#56B4E9" if "pool" in name else "#999999"
