"""Draws the policies side by side: slowdown, waits, and the longest wait."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from studies.bar_panels import bar_panels

_PRODUCT, _RULES, _TRAINED = "#D55E00", "#56B4E9", "#009E73"
"""Colours of Okabe and Ito's palette, which readers with any colour vision can tell apart."""
_OURS = ("slicewise", "slicewise_24h", "slicewise_72h", "slicewise_sizeless")
_LEARNT = ("linear", "ppo")
_PANELS = (
    ("slowdown", "mean bounded slowdown", 1.0),
    ("wait_s", "mean wait, minutes", 1 / 60),
    ("p99_s", "99th percentile of waits, hours", 1 / 3600),
    ("longest_s", "longest wait, hours", 1 / 3600),
)


def save(report: Mapping[str, Any], path: Path) -> None:
    """Draw a row of panels for each load into a PNG file."""
    loads = report["means"]
    with bar_panels([*loads], len(_PANELS), 11, 2.6, path) as axes:
        for row, policies in zip(axes, loads.values(), strict=True):
            for axis, panel in zip(row, _PANELS, strict=True):
                _draw(axis, policies, *panel)


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
