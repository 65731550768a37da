"""Draws the systems side by side, and Slicewise by the term of loans."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from studies.bar_panels import bar_panels

_COLOURS = {
    "static": "#999999",
    "fair_share": "#56B4E9",
    "fifo": "#E69F00",
    "priority": "#CC79A7",
    "kueue": "#009E73",
    "static_gpus": "#666666",
    "kueue_hpa": "#009E73",
    "slicewise_by_id": "#F0E442",
    "slicewise": "#D55E00",
}
"""Colours of Okabe and Ito's palette, which readers with any colour vision can tell apart."""
_PANELS = (
    ("recovered", "recoverable GPU-hours recovered, %", 100.0),
    ("lost_hours", "GPU-hours lost to preemption", 1.0),
    ("wait_mean_s", "mean wait, minutes", 1 / 60),
    ("late_jobs", "jobs late within the guarantee", 1.0),
)


def save(
    loads: Mapping[str, Sequence[Mapping[str, Any]]],
    terms: Sequence[Mapping[str, Any]],
    path: Path,
) -> None:
    """Draw a row of panels for each load into a PNG file, and one by terms if there are several."""
    rows = {**loads, "philly, by term": [_named(one) for one in terms if len(terms) > 1]}
    rows = {name: systems for name, systems in rows.items() if systems}
    with bar_panels([*rows], len(_PANELS), 11, 2.2, path) as axes:
        for row, systems in zip(axes, rows.values(), strict=True):
            for axis, panel in zip(row, _PANELS, strict=True):
                bars(axis, systems, *panel)


def _named(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of terms, named by its term."""
    return {**row, "system": f"{row['term_s'] / 60:,.0f} min"}


def bars(axis: Axes, systems: Sequence[Mapping[str, Any]], key: str, title: str, by: float) -> None:
    """Draw one bar for each system, times ``by``."""
    names = [one["system"] for one in reversed(systems)]
    values = [one[key] * by for one in reversed(systems)]
    drawn = axis.barh(
        names, values, color=[_COLOURS.get(name, _COLOURS["slicewise"]) for name in names]
    )
    axis.bar_label(drawn, fmt="{:,.3g}".format if by != 1.0 else "{:,.0f}".format, padding=2)
    axis.set_title(title, loc="left", fontsize=9)
    if any(values):
        axis.set_xlim(0, 1.25 * max(values))
    else:
        # Matplotlib would choose an axis of numbers that nothing has.
        axis.set_xlim(0, 1)
        axis.set_xticks([0])
