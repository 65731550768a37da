"""Draws the policies side by side: slowdown, waits, and the longest wait."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

_PRODUCT, _RULES, _TRAINED = "#D55E00", "#56B4E9", "#009E73"
"""Colours of Okabe and Ito's palette, which readers with any colour vision can tell apart."""
_OURS, _LEARNT = ("slicewise", "slicewise_area"), ("linear", "ppo")
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
}
_PANELS = (
    ("slowdown", "mean bounded slowdown", 1.0),
    ("wait_s", "mean wait, minutes", 1 / 60),
    ("p99_s", "99th percentile of waits, hours", 1 / 3600),
    ("longest_s", "longest wait, hours", 1 / 3600),
)


def save(report: Mapping[str, Any], path: Path) -> None:
    """Draw a row of panels for each load into a PNG file."""
    loads = report["means"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(
            len(loads), len(_PANELS), figsize=(11, 2.6 * len(loads)), squeeze=False
        )
        for row, (load, policies) in zip(axes, loads.items(), strict=True):
            for axis, panel in zip(row, _PANELS, strict=True):
                _draw(axis, policies, *panel)
            row[0].set_ylabel(load, fontweight="bold")
            for axis in row[1:]:
                axis.set_yticklabels([])
        figure.tight_layout()
        figure.savefig(path, dpi=90)
        plt.close(figure)


def _draw(
    axis: Axes, policies: Mapping[str, Mapping[str, float]], key: str, title: str, by: float
) -> None:
    names = list(policies)[::-1]
    values = [policies[name][key] * by for name in names]
    bars = axis.barh(names, values, color=[_colour(name) for name in names])
    axis.bar_label(bars, fmt="{:,.3g}".format, padding=2)
    axis.set_title(title, loc="left", fontsize=9)
    axis.set_xlim(0, 1.25 * max(*values, 1e-9))


def _colour(name: str) -> str:
    if name in _OURS:
        return _PRODUCT
    return _TRAINED if name in _LEARNT else _RULES
