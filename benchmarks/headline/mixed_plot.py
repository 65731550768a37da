"""Draws the systems under the mixed load side by side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.headline.plot import STYLE, bars

_SERVICES, _BATCH = "#0072B2", "#56B4E9"
_PANELS = (
    ("per_million", "slice-hours for a million requests", 1.0),
    ("wait_mean_s", "batch: mean wait, minutes", 1 / 60),
    ("late_jobs", "batch: late within the guarantee", 1.0),
    ("lost_slice_hours", "slice-hours lost to preemption", 1.0),
)


def save_mixed(
    systems: Mapping[str, Mapping[str, Any]], aims: Mapping[str, float], path: Path
) -> None:
    """Draw work done, attainment, cost, waits, late jobs and lost work into a PNG file."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(11, 4.6))
        _work(axes[0, 0], systems, aims["utilisation"])
        _attainment(axes[0, 1], systems, aims["attainment"])
        others = (axes[0, 2], *axes[1])
        for axis, panel in zip(others, _PANELS, strict=True):
            bars(axis, [*systems.values()], *panel)
        for axis in (*axes[0, 1:], *axes[1, 1:]):
            axis.set_yticklabels([])
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=90)
        plt.close(figure)


def _work(axis: Axes, systems: Mapping[str, Mapping[str, Any]], aim: float) -> None:
    names = [*reversed([*systems])]
    served = [100 * systems[name]["utilisation_services"] for name in names]
    batch = [100 * systems[name]["utilisation_batch"] for name in names]
    axis.barh(names, served, color=_SERVICES, label="services")
    drawn = axis.barh(names, batch, left=served, color=_BATCH, label="batch")
    total = [f"{one + other:.1f}" for one, other in zip(served, batch, strict=True)]
    axis.bar_label(drawn, total, padding=2)
    axis.axvline(100 * aim, color="#666666", linewidth=1, linestyle=":")
    axis.set_xlim(0, 115)
    axis.set_title("work done, % (dark: services; dotted: aim)", loc="left", fontsize=9)


def _attainment(axis: Axes, systems: Mapping[str, Mapping[str, Any]], aim: float) -> None:
    bars(axis, [*systems.values()], "attainment", "worst service in time, % (dotted: aim)", 100.0)
    lowest = min(row["attainment"] for row in systems.values())
    axis.set_xlim(100 * min(lowest, aim) - 2, 101)
    axis.axvline(100 * aim, color="#666666", linewidth=1, linestyle=":")
