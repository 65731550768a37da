"""Draws the systems under the mixed load side by side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from studies.bar_panels import bar_panels
from studies.headline.plot import bars

_SERVICES, _BATCH = "#0072B2", "#56B4E9"
_PANELS = (
    ("per_million", "slice-hours a million requests", 1.0),
    ("wait_mean_s", "batch: mean wait, minutes", 1 / 60),
    ("late_jobs", "batch: late in the guarantee", 1.0),
)


def save_mixed(
    layouts: Mapping[str, Mapping[str, Mapping[str, Any]]], aims: Mapping[str, float], path: Path
) -> None:
    """Draw a row for each layout into a PNG file: work, attainment, cost, waits, late jobs."""
    with bar_panels([*layouts], 2 + len(_PANELS), 14, 2.3, path) as axes:
        for row, systems in zip(axes, layouts.values(), strict=True):
            _work(row[0], systems)
            _attainment(row[1], systems, aims["attainment"])
            for axis, panel in zip(row[2:], _PANELS, strict=True):
                bars(axis, [*systems.values()], *panel)


def _work(axis: Axes, systems: Mapping[str, Mapping[str, Any]]) -> None:
    names = [*reversed([*systems])]
    served = [100 * systems[name]["utilisation_services"] for name in names]
    batch = [100 * systems[name]["utilisation_batch"] for name in names]
    axis.barh(names, served, color=_SERVICES)
    drawn = axis.barh(names, batch, left=served, color=_BATCH)
    total = [f"{one + other:.1f}" for one, other in zip(served, batch, strict=True)]
    axis.bar_label(drawn, total, padding=2)
    axis.plot([100 * systems[name]["bound"] for name in names], names, "k|")
    axis.set_xlim(0, 125)
    axis.set_title("work done, % (dark: services; |: the bound)", loc="left", fontsize=9)


def _attainment(axis: Axes, systems: Mapping[str, Mapping[str, Any]], aim: float) -> None:
    bars(axis, [*systems.values()], "attainment", "worst service in time, %", 100.0)
    axis.set_xlim(0, 125)
    axis.axvline(100 * aim, color="#666666", linewidth=1, linestyle=":")
