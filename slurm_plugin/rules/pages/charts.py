"""Draws figures over time as SVG that reads without JavaScript, with a table of the same figures.

The markup is one ``<figure>`` of HTML: the drawing with its title and description, the legend, and
a table that opens. It has no ids, no styles and no scripts of its own: a page has ``CHART_CSS`` in
its style sheet, once. Texts are escaped here, whatever is in them.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Literal

from slicewise.cluster.language.palette import FIGURES, SERIES, STATES
from slicewise.cluster.language.periods import (
    Period,
    clock_text,
    clock_times_s,
    next_start_s,
    period_start_s,
)
from slicewise.slurm_plugin.rules.pages.style import palette_css

COLOURS = len(SERIES)
"""Series without a look of their own that are told apart; more begin again with the first."""

_CSS = """\
.chart { margin: 1.5rem 0; color: inherit; break-inside: avoid; container-type: inline-size; }
.chart figcaption { font-weight: 600; margin-bottom: .5rem; }
.chart svg.plot { display: block; width: 100%; height: auto; max-width: 60rem; overflow: visible; }
.chart text { fill: currentColor; font: 11px system-ui, sans-serif; }
/* The drawing shrinks with its page; its letters do not. */
@container (max-width: 640px) { .chart text { font-size: 15px; } }
@container (max-width: 500px) { .chart text { font-size: 19px; } }
@container (max-width: 400px) { .chart text { font-size: 24px; }
.chart .between { display: none; } .chart .unit { transform: translateY(-14px); }
.chart .mark { transform: translateY(8px); } .chart .line { stroke-width: 3; }
.chart svg.plot { margin: 1rem 0; } }
.chart .grid { stroke: currentColor; stroke-opacity: .15; }
.chart .axis { stroke: currentColor; stroke-opacity: .6; }
.chart .line { fill: none; stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round; }
.chart .area { stroke: none; fill-opacity: .8; }
.chart .legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .25rem 0; }
.chart .legend { padding: 0; list-style: none; font-size: .85rem; }
.chart .legend svg { width: 1.5rem; height: .75rem; vertical-align: middle; margin-right: .4rem; }
.chart details { font-size: .85rem; }
.chart table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.chart th, .chart td { padding: .1rem .6rem; text-align: right; }
.chart th, .chart td { border-bottom: 1px solid rgb(128 128 128 / .3); }
.chart th:first-child { text-align: left; }
@media print { .chart details:not([open]) { display: none; } }
"""
CHART_CSS = f"{palette_css()}{_CSS}"
"""What the style sheet of a page or a report has for charts, with the table of colours."""

_WIDTH, _HEIGHT = 760, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 22, 30
_PLOT_WIDTH, _PLOT_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_MOST_ROWS = 62
"""Rows of a table at most: of a month half days."""
_TICKS = 9
"""Marks of the time axis at most."""
_MARKS = 5
"""Marks of the axis of values, about."""
_COUNTED = frozenset({"replicas", "requests"})
"""Units of which there are no parts, though a mean may have some."""
_HOUR_S, _DAY_S = 3600, 86_400
_WITHIN_A_DAY_S = (60, 300, 600, 1800, _HOUR_S, 3 * _HOUR_S, 6 * _HOUR_S, 12 * _HOUR_S)
_DAYS = (1, 2, 5, 7, 14, 30, 61, 92, 183, 366)
_TENS, _HUNDREDS = 10, 100
_DOT = "m-1.5 0h3"
_CENTRAL, _HANGING = {"dominant-baseline": "central"}, {"dominant-baseline": "hanging"}
"""Where letters of any height stand to their place."""


@dataclass(frozen=True)
class ChartSeries:
    """A figure over time, a value for each time of its chart; None is a gap.

    Attributes:
        look: its key in the palette's STATES or FIGURES; "" has the colour of its number.
    """

    name: str
    values: tuple[float | None, ...]
    look: str = ""


@dataclass(frozen=True)
class TimeChart:
    """What a drawing shows.

    Attributes:
        title: what a reader sees above it.
        summary: one sentence that says what the drawing says, for who can't see it.
        unit: the unit of all values, as the axis names it.
        times_s: Unix seconds at which each step begins; equal steps of ``step_s`` seconds.
        zone: the time zone of the axis.
        kind: ``lines``, or ``stacked`` for parts of a whole, the first at the bottom.
    """

    title: str
    summary: str
    unit: str
    times_s: tuple[int, ...]
    step_s: int
    zone: str
    series: tuple[ChartSeries, ...]
    kind: Literal["lines", "stacked"] = "lines"


def state_series(state: str, values: tuple[float | None, ...]) -> ChartSeries:
    """What slices of a state of the palette's STATES are drawn as."""
    return ChartSeries(STATES[state].word, values, state)


def figure_series(figure: str, values: tuple[float | None, ...]) -> ChartSeries:
    """What an amount of the palette's FIGURES is drawn as."""
    return ChartSeries(FIGURES[figure].word, values, figure)


def chart_markup(chart: TimeChart) -> str:
    """Return the chart as HTML; one that has no value says so."""
    figure = ET.Element("figure", {"class": "chart"})
    add_text(figure, "figcaption", chart.title)
    if not any(value is not None for series in chart.series for value in series.values):
        add_text(figure, "p", "Nothing was recorded in this time.")
        return markup_of(figure)
    _Drawing(chart).draw(figure)
    add_legend(figure, chart.series, areas=chart.kind == "stacked")
    _table(figure, chart)
    return markup_of(figure)


def markup_of(element: ET.Element) -> str:
    """Return the element as HTML."""
    return ET.tostring(element, encoding="unicode", short_empty_elements=False)


def add_text(above: ET.Element, tag: str, text: str, **attributes: str) -> ET.Element:
    """Add an element with a text; what no page can show becomes a replacement character."""
    element = ET.SubElement(
        above, tag, {name.strip("_"): attribute for name, attribute in attributes.items()}
    )
    element.text = "".join(char if char.isprintable() else "\ufffd" for char in text)
    return element


class _Drawing:
    """Places on the drawing, in its own units, of times and values."""

    def __init__(self, chart: TimeChart) -> None:
        self._chart = chart
        self._begin_s = chart.times_s[0]
        self._end_s = chart.times_s[-1] + chart.step_s
        self._bands = _stacked(chart.series) if chart.kind == "stacked" else None
        tops = (
            [upper for band in self._bands for _, upper in _known(band)]
            if self._bands
            else [value for series in chart.series for value in series.values if value is not None]
        )
        least = 1.0 if chart.unit in _COUNTED else 0.0
        self._marks = value_marks(min(0.0, *tops, 0.0), max(0.0, *tops, 0.0), least)

    def draw(self, figure: ET.Element) -> None:
        """Add the drawing to the figure."""
        chart = self._chart
        svg = ET.SubElement(
            figure,
            "svg",
            {"class": "plot", "viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img"},
        )
        add_text(svg, "title", chart.title)
        add_text(svg, "desc", chart.summary)
        self._axes(svg)
        for number, series in enumerate(chart.series):
            colour = class_of(series, number)
            if self._bands is not None:
                path, name = self._area(self._bands[number]), f"area {colour}"
            else:
                path, name = self._line(series.values), f"line {colour}"
            element = ET.SubElement(svg, "path", {"class": name, "d": path})
            add_text(element, "title", series.name)

    def _axes(self, svg: ET.Element) -> None:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        add_text(svg, "text", self._chart.unit, class_="unit", x="4", y="8")
        for mark in self._marks:
            y = self._y(mark)
            kind = "axis" if mark == 0 else "grid"
            ends = {"x1": str(_LEFT), "x2": str(right), "y1": y, "y2": y}
            ET.SubElement(svg, "line", {"class": kind, **ends})
            place = {"x": str(_LEFT - 6), "y": y, "text-anchor": "end", **_CENTRAL}
            ET.SubElement(svg, "text", place).text = value_text(mark)
        marks = time_marks(self._begin_s, self._end_s, self._chart.zone)
        for number, (at_s, text) in enumerate(marks):
            x = self._x(at_s)
            ends = {"x1": x, "x2": x, "y1": str(_TOP), "y2": str(bottom)}
            ET.SubElement(svg, "line", {"class": "grid", **ends})
            place = {"x": x, "y": str(bottom + 8), "text-anchor": "middle", **_HANGING}
            # A narrow page has room for every other one.
            name = "between" if number % 2 else "mark"
            ET.SubElement(svg, "text", {"class": name, **place}).text = text

    def _x(self, at_s: float) -> str:
        share = (at_s - self._begin_s) / (self._end_s - self._begin_s)
        return _number(_LEFT + share * _PLOT_WIDTH)

    def _y(self, value: float) -> str:
        low, high = self._marks[0], self._marks[-1]
        return _number(_TOP + (high - value) / (high - low) * _PLOT_HEIGHT)

    def _middle(self, place: int) -> str:
        return self._x(self._chart.times_s[place] + self._chart.step_s / 2)

    def _line(self, values: Sequence[float | None]) -> str:
        """One stroke for each stretch without a gap; a value between two gaps is a dot."""
        strokes = []
        for places in _stretches(values):
            points = [(self._middle(at), self._y(values[at] or 0.0)) for at in places]
            strokes.append("M" + "L".join(f"{x} {y}" for x, y in _bends(points)))
            if len(points) == 1:
                strokes.append(_DOT)
        return "".join(strokes)

    def _area(self, band: Sequence[tuple[float, float] | None]) -> str:
        """One polygon for each stretch, as wide as its steps."""
        times_s, step_s, polygons = self._chart.times_s, self._chart.step_s, []
        for places in _stretches(band):
            edges = [
                (x, self._y(lower), self._y(upper))
                for at in places
                for lower, upper in [band[at] or (0.0, 0.0)]
                for x in (self._x(times_s[at]), self._x(times_s[at] + step_s))
            ]
            over = _bends([(x, upper) for x, _, upper in edges])
            under = _bends([(x, lower) for x, lower, _ in reversed(edges)])
            polygons.append("M" + "L".join(f"{x} {y}" for x, y in (*over, *under)) + "Z")
        return "".join(polygons)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _stacked(series: Sequence[ChartSeries]) -> list[list[tuple[float, float] | None]]:
    """Lower and upper edge of each band; None where any of them is not known."""
    bands: list[list[tuple[float, float] | None]] = [[] for _ in series]
    for values in zip(*(drawn.values for drawn in series), strict=True):
        numbers = [value for value in values if value is not None]
        is_whole, lower = len(numbers) == len(values), 0.0
        for band, value in zip(bands, values, strict=True):
            upper = lower + max(0.0, value or 0.0)
            band.append((lower, upper) if is_whole else None)
            lower = upper
    return bands


def _known(
    band: Iterable[tuple[float, float] | None],
) -> Iterator[tuple[float, float]]:
    return (value for value in band if value is not None)


def _stretches(values: Sequence[object]) -> Iterator[range]:
    """Places of each stretch of values without a gap."""
    edges = [at for at, value in enumerate(values) if value is None]
    for before, after in pairwise((-1, *edges, len(values))):
        if after - before > 1:
            yield range(before + 1, after)


def _bends(points: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The points without those within a level stretch, and without repetitions."""
    path: list[tuple[str, str]] = []
    for point in points:
        if path and path[-1] == point:
            continue
        if len(path) > 1 and path[-1][1] == path[-2][1] == point[1]:
            path.pop()
        path.append(point)
    return path


def value_marks(low: float, high: float, least: float = 0.0) -> tuple[float, ...]:
    """Round numbers from at most ``low`` to at least ``high``, some five of them.

    Two of them are ``least`` apart or more: there is no half of what is counted.
    """
    high = high if high > low else low + 1.0
    span = high - low
    size = 10.0 ** floor(log10(span / _MARKS))
    step = next(size * of for of in (1, 2, 5, 10) if size * of * _MARKS >= span * 0.999)
    step = max(step, least)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def value_text(value: float) -> str:
    """Write a number as short as it is exact enough for people: ``1,250``, ``12.5``, ``0.25``."""
    size = abs(value)
    text = f"{value:,.0f}" if size >= _HUNDREDS else f"{value:.1f}" if size >= _TENS else ""
    if not text:
        text = f"{value:.3f}" if size < 1 else f"{value:.2f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def time_marks(begin_s: int, end_s: int, zone: str) -> list[tuple[int, str]]:
    """Times that clocks of the zone show as round, nine at most, each as ``11-01`` or ``08:30``."""
    span_s = end_s - begin_s
    step_s = next((step_s for step_s in _WITHIN_A_DAY_S if span_s <= step_s * _TICKS), None)
    days = next((days for days in _DAYS if span_s <= days * _TICKS * _DAY_S), _DAYS[-1])
    marks, number, day_s = list[tuple[int, str]](), 0, period_start_s(Period.DAY, begin_s, zone)
    while day_s < end_s:
        next_s = next_start_s(Period.DAY, day_s, zone) or end_s
        if step_s is not None:
            minutes = range(0, _DAY_S // 60, step_s // 60)
            # These have the change of clocks, too, which need not be round.
            shown = set(map(_clock_of, minutes))
            times_s = sorted({day_s, *clock_times_s(minutes, day_s, 1, zone)})
            within = [
                time_s
                for time_s in times_s
                if time_s == day_s or clock_text(time_s, zone)[11:] in shown
            ]
            marks += [(at_s, _mark(at_s, day_s, zone)) for at_s in within]
        elif number % days == 0:
            marks.append((day_s, _mark(day_s, day_s, zone)))
        day_s, number = next_s, number + 1
    return [(at_s, text) for at_s, text in marks if begin_s <= at_s < end_s]


def _clock_of(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _mark(at_s: int, day_s: int, zone: str) -> str:
    text = clock_text(at_s, zone)
    return text[5:10] if at_s == day_s else text[11:]


def class_of(series: ChartSeries, number: int) -> str:
    """The class that colours a series, the one with this number in its chart."""
    return series.look or f"c{number % COLOURS}"


def add_legend(figure: ET.Element, series: Iterable[ChartSeries], *, areas: bool) -> None:
    """Add what each series is drawn as, a line or an area, with its name."""
    rows = ET.SubElement(figure, "ul", {"class": "legend"})
    for number, one in enumerate(series):
        row, colour = ET.SubElement(rows, "li"), class_of(one, number)
        key = ET.SubElement(row, "svg", {"viewBox": "0 0 24 12", "aria-hidden": "true"})
        if areas:
            ET.SubElement(key, "path", {"class": f"area {colour}", "d": "M0 0H24V12H0Z"})
        else:
            ET.SubElement(key, "path", {"class": f"line {colour}", "d": "M1 6H23"})
        add_text(row, "span", one.name)


def _table(figure: ET.Element, chart: TimeChart) -> None:
    """The same figures as means of as many steps as leave no more rows than a reader wants."""
    each = ceil(len(chart.times_s) / _MOST_ROWS)
    details = ET.SubElement(figure, "details")
    steps = "" if each == 1 else f", each the mean of {each} steps"
    add_text(details, "summary", "As a table")
    table = ET.SubElement(details, "table")
    add_text(table, "caption", f"{chart.title}, in {chart.unit}{steps}; time in {chart.zone}")
    head = ET.SubElement(ET.SubElement(table, "thead"), "tr")
    for name in ("from", *(series.name for series in chart.series)):
        add_text(head, "th", name, scope="col")
    body = ET.SubElement(table, "tbody")
    for first in range(0, len(chart.times_s), each):
        row = ET.SubElement(body, "tr")
        add_text(row, "th", clock_text(chart.times_s[first], chart.zone), scope="row")
        for series in chart.series:
            add_text(row, "td", _mean_text(series.values[first : first + each]))


def _mean_text(values: Iterable[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return value_text(sum(numbers) / len(numbers)) if numbers else "–"
