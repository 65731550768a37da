"""Charts of history: the cluster's slices by state, a tenant's quota and budget, a service's load.

A chart is drawn once for all who look at the same figures in the same zone.
"""

from collections.abc import Sequence
from functools import lru_cache

from markupsafe import Markup

from slicewise.cluster.language.palette import STATES
from slicewise.cluster.rpc.history_messages import HistoryAnswer
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
from slicewise.slurm_plugin.rules.pages.charts import (
    ChartSeries,
    TimeChart,
    chart_markup,
    figure_series,
    state_series,
    value_text,
)

RANGES = (("hour", "an hour"), ("day", "a day"), ("week", "a week"), ("month", "a month"))
"""Spans that a viewer may choose, the first without a choice."""
_SPANS_S = {
    "hour": (3600, 10),
    "day": (86_400, 60),
    "week": (7 * 86_400, 600),
    "month": (31 * 86_400, 3600),
}
"""Seconds of each span, and those within which it is the same for all who ask."""


def history_span(chosen: str, now_s: float) -> tuple[int, int]:
    """The Unix seconds from which and up to which history is asked for."""
    span_s, step_s = _SPANS_S.get(chosen, _SPANS_S["hour"])
    until_s = int(now_s) // step_s * step_s
    return until_s - span_s, until_s


def cluster_chart(answer: HistoryAnswer, zone: str) -> Markup:
    """Slices by state."""
    return _drawn_markup(
        _chart(answer, zone, _SLICES, "Slices by state", (*STATES,), of_states=True)
    )


def tenant_chart(answer: HistoryAnswer, zone: str) -> Markup:
    """A tenant's nominal, and what it had in use, borrowed, lent and waited for."""
    names = ("nominal", "in_use", "borrowed", "lent", "waiting")
    return _drawn_markup(_chart(answer, zone, _SLICES, "Quota and use", names))


def service_charts(answer: HistoryAnswer, zone: str) -> Sequence[Markup]:
    """Replicas, requests that wait, how long answers take, and how many requests come."""
    return [
        _drawn_markup(_chart(answer, zone, (unit, 1), title, names))
        for title, unit, names in (
            ("Replicas", "replicas", ("ready", "desired")),
            ("Requests that wait", "requests", ("backlog",)),
            ("Time within which 95 % were answered", "ms", ("p95",)),
            ("Requests that came", "requests/s", ("requests",)),
        )
    ]


def budget_chart(answer: HistoryAnswer, budget: BudgetStatus, zone: str) -> Markup:
    """What is left of a budget, against an even use of it until the next period begins."""
    begin_s, end_s = budget.period_start_s or 0, budget.resets_s
    left = {
        at_s: value
        for series in answer.series
        if series.name == _LEFT
        for at_s, value in zip(answer.times_s, series.values, strict=True)
        if at_s >= begin_s
    }
    last_s = end_s or max(left, default=0) + 1
    times_s = tuple(range(min(left, default=last_s), last_s, answer.step_s))
    per, unit = _SLICE_HOURS[1], _SLICE_HOURS[0]
    series = [figure_series(_LEFT, tuple(_divided(left.get(at_s), per) for at_s in times_s))]
    if begin_s and end_s:
        whole, length_s = budget.budget.amount / per, end_s - begin_s
        even = tuple(whole * (end_s - at_s) / length_s for at_s in times_s)
        series.append(figure_series("even_use", even))
    is_known = any(value is not None for value in series[0].values)
    title = f"Left of the budget of {budget.tenant}"
    made = TimeChart(
        title=title,
        summary=_summary(title, series[:1]),
        unit=unit,
        times_s=times_s,
        step_s=answer.step_s,
        zone=zone,
        series=tuple(series) if is_known else (),
    )
    return _drawn_markup(made)


_LEFT = "budget_left"
_SLICES, _SLICE_HOURS = ("slices", 1000), ("slice-hours", 3_600_000)
"""Units of charts, and how many of the wire's units are one of them."""


def _chart(
    answer: HistoryAnswer,
    zone: str,
    unit: tuple[str, int],
    title: str,
    names: Sequence[str],
    *,
    of_states: bool = False,
) -> TimeChart:
    drawn = {series.name: series for series in answer.series}
    drawn_as = state_series if of_states else figure_series
    series = tuple(
        drawn_as(name, tuple(_divided(value, unit[1]) for value in drawn[name].values))
        for name in names
        if name in drawn
    )
    return TimeChart(
        title=title,
        summary=_summary(title, series),
        unit=unit[0],
        times_s=answer.times_s,
        step_s=answer.step_s,
        zone=zone,
        series=series,
        kind="stacked" if of_states else "lines",
    )


def _divided(value: float | None, by: int) -> float | None:
    return None if value is None else value / by


def _summary(title: str, series: Sequence[ChartSeries]) -> str:
    """``Replicas: ready 1 to 4, at last 2; desired ...``."""
    words = []
    for drawn in series:
        numbers = [value for value in drawn.values if value is not None]
        if numbers:
            low, high, last = map(value_text, (min(numbers), max(numbers), numbers[-1]))
            words.append(f"{drawn.name} {low} to {high}, at last {last}")
    return f"{title}: {'; '.join(words) or 'nothing was recorded'}."


@lru_cache(maxsize=128)
def _drawn_markup(chart: TimeChart) -> Markup:
    return Markup(chart_markup(chart))  # noqa: S704 -- the chart escapes every text
