"""Draws the curves: late requests against slice-hours, one panel a trace."""

from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from studies.autoscale.curves import lower_edge

_COLOURS = {
    "kpa": "#E69F00",
    "hpa": "#56B4E9",
    "ray": "#CC79A7",
    "dynamo": "#999999",
    "peak_hold": "#009E73",
    "seasonal": "#F0E442",
    "fixed": "#666633",
    "optimum": "#000000",
    "slicewise_fifo": "#0072B2",
    "slicewise": "#D55E00",
}
"""Colours of Okabe and Ito's palette, which readers with any colour vision can tell apart."""
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
_COLUMNS = 3
_MOST_LATE, _LEAST_LATE = 0.2, 0.0005
_LATE = (0.1, 0.05, 0.01, 0.001)
_WIDEST = 2.2
"""Multiple of the cheapest point's slice-hours beyond which points are left out of the picture."""


def save(traces: Mapping[str, Mapping[str, Iterable[Mapping[str, Any]]]], path: Path) -> None:
    """Draw the curves of all traces into a PNG file."""
    rows = ceil(len(traces) / _COLUMNS)
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(rows, _COLUMNS, figsize=(11, 3.3 * rows + 0.6), squeeze=False)
        for axis, (trace, policies) in zip(axes.flat, traces.items(), strict=False):
            _draw(axis, trace, policies)
        for axis in axes.flat[len(traces) :]:
            axis.set_visible(False)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper center", ncols=9)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / (3.3 * rows)))
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _draw(axis: Axes, trace: str, policies: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    cheapest = min(p["slice_hours"] for points in policies.values() for p in points)
    for policy, points in policies.items():
        dots = [(1 - p["attainment"], p["slice_hours"]) for p in points]
        _line(axis, policy, lower_edge(points), dots)
    axis.set_title(trace, loc="left", fontweight="bold")
    axis.set_xlabel("slice-hours (to the left is cheaper)")
    axis.set_ylabel("requests in time")
    axis.set_xlim(0.97 * cheapest, _WIDEST * cheapest)
    axis.set_yscale("log")
    axis.set_ylim(_MOST_LATE, _LEAST_LATE)
    axis.yaxis.set_major_locator(FixedLocator(_LATE))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda late, _: f"{100 * (1 - late):g} %"))


def _line(
    axis: Axes,
    policy: str,
    edge: Iterable[tuple[float, float]],
    dots: Iterable[tuple[float, float]],
) -> None:
    """Draw each setting as a dot, and a line through the settings that no other beats."""
    is_ours = policy in {"slicewise", "optimum"}
    style: dict[str, Any] = {"color": _COLOURS[policy], "zorder": 3 if is_ours else 2}
    late, hours = zip(*edge, strict=True)
    axis.plot(
        hours,
        np.maximum(late, _LEAST_LATE),
        linestyle="--" if policy == "optimum" else "-",
        linewidth=2.2 if is_ours else 1.2,
        label=policy,
        **style,
    )
    late, hours = zip(*dots, strict=True)
    axis.scatter(hours, np.maximum(late, _LEAST_LATE), s=9, **style)
