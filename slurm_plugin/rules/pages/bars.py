"""Draws a figure of each of several names as SVG: bars, one for each series, beside a table."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass

from slicewise.slurm_plugin.rules.pages.charts import (
    ChartSeries,
    add_legend,
    add_text,
    class_of,
    markup_of,
    value_marks,
    value_text,
)

_WIDTH, _NAMES, _VALUES = 760, 150, 58
"""Widths of the drawing, of the names on its left and of the values on its right."""
_BAR, _GAP, _TOP = 12, 10, 22
"""Heights of a bar, between two names, and of the line of marks."""
_LONGEST = 20
"""Characters of a name that fit."""


@dataclass(frozen=True)
class BarChart:
    """What a drawing shows.

    Attributes:
        title: what a reader sees above it.
        summary: one sentence that says what the drawing says, for who can't see it.
        unit: the unit of all values, none of which is below 0.
        noun: what the names are of.
        series: each has a value for each name, in order; None draws no bar.
    """

    title: str
    summary: str
    unit: str
    noun: str
    names: tuple[str, ...]
    series: tuple[ChartSeries, ...]


def bars_markup(chart: BarChart) -> str:
    """Return the chart as HTML; one without names says so."""
    figure = ET.Element("figure", {"class": "chart"})
    add_text(figure, "figcaption", chart.title)
    if not chart.names:
        add_text(figure, "p", "There is nothing to draw.")
        return markup_of(figure)
    _draw(figure, chart)
    add_legend(figure, chart.series, areas=True)
    _table(figure, chart)
    return markup_of(figure)


def _draw(figure: ET.Element, chart: BarChart) -> None:
    group = _BAR * len(chart.series) + _GAP
    height = _TOP + group * len(chart.names)
    svg = ET.SubElement(
        figure, "svg", {"class": "plot", "viewBox": f"0 0 {_WIDTH} {height}", "role": "img"}
    )
    add_text(svg, "title", chart.title)
    add_text(svg, "desc", chart.summary)
    marks = value_marks(0.0, max(v or 0.0 for series in chart.series for v in series.values))
    add_text(svg, "text", chart.unit, x="4", y="12")
    for mark in marks:
        x = _number(_NAMES + _length(mark, marks[-1]))
        kind = "axis" if mark == 0 else "grid"
        ends = {"x1": x, "x2": x, "y1": str(_TOP - 4), "y2": str(height)}
        ET.SubElement(svg, "line", {"class": kind, **ends})
        place = {"x": x, "y": "12", "text-anchor": "middle"}
        ET.SubElement(svg, "text", place).text = value_text(mark)
    for at, name in enumerate(chart.names):
        top = _TOP + at * group
        middle = top + _BAR * len(chart.series) / 2 + 4
        label = ET.SubElement(
            svg, "text", {"x": str(_NAMES - 8), "y": _number(middle), "text-anchor": "end"}
        )
        label.text = _short(name)
        for number, series in enumerate(chart.series):
            _bar(svg, series, (at, number), top + number * _BAR, marks[-1])


def _bar(
    svg: ET.Element, series: ChartSeries, place: tuple[int, int], top: float, most: float
) -> None:
    at, number = place
    value = series.values[at]
    if value is None:
        return
    length = _length(value, most)
    size = {"x": str(_NAMES), "y": _number(top), "width": _number(length), "height": str(_BAR - 1)}
    bar = ET.SubElement(svg, "rect", {"class": f"area {class_of(series, number)}", **size})
    add_text(bar, "title", series.name)
    end = {"x": _number(_NAMES + length + 5), "y": _number(top + _BAR - 2)}
    ET.SubElement(svg, "text", end).text = value_text(value)


def _length(value: float, most: float) -> float:
    return max(0.0, value) / most * (_WIDTH - _NAMES - _VALUES)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _short(name: str) -> str:
    text = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _table(figure: ET.Element, chart: BarChart) -> None:
    details = ET.SubElement(figure, "details")
    add_text(details, "summary", "As a table")
    table = ET.SubElement(details, "table")
    add_text(table, "caption", f"{chart.title}, in {chart.unit}")
    head = ET.SubElement(ET.SubElement(table, "thead"), "tr")
    for name in (chart.noun, *(series.name for series in chart.series)):
        add_text(head, "th", name, scope="col")
    body = ET.SubElement(table, "tbody")
    for at, name in enumerate(chart.names):
        row = ET.SubElement(body, "tr")
        add_text(row, "th", name, scope="row")
        for series in chart.series:
            value = series.values[at]
            add_text(row, "td", "–" if value is None else value_text(value))
