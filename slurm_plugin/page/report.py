"""Writes the report of a month as one HTML file that asks for nothing else."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from slicewise.cluster.language.palette import STATES
from slicewise.cluster.language.periods import clock_text
from slicewise.cluster.rpc.history_messages import HistoryAnswer
from slicewise.slurm_plugin.page.kept_page import kept_page
from slicewise.slurm_plugin.rules.accounting.invoice import money_text
from slicewise.slurm_plugin.rules.pages import month
from slicewise.slurm_plugin.rules.pages.charts import (
    TimeChart,
    chart_markup,
    figure_series,
    state_series,
    value_text,
)
from slicewise.slurm_plugin.rules.pages.month import MonthFacts, ServiceMonth, TenantMonth
from slicewise.slurm_plugin.rules.pages.words import kwh_text

CHARTED = 40
"""Tenants with drawings at most, those that were charged most: a page of a thousand is no page."""
SERVICES_CHARTED = 3
"""Services of a tenant with drawings."""
_SERVICES = 10
"""Services of a tenant in its table."""
_POINTS = 190
"""Points of a tenant's or service's drawing: some four hours each."""
_SLICE, _SLICE_HOUR = 1000, 3_600_000
_DIVISORS = {"slices": _SLICE, "slice-hours": _SLICE_HOUR}
"""What history's amounts are divided by for a drawing in that unit."""


def report_html(facts: MonthFacts, made_s: int) -> str:
    """Return the page; ``made_s`` is when it is made, in Unix seconds."""
    most = sorted(facts.tenants, key=lambda tenant: (-tenant.charged_millislice_s, tenant.name))
    return kept_page(
        "report.html.j2",
        facts=facts,
        span=[clock_text(at_s, facts.zone) for at_s in (facts.from_s, facts.until_s)],
        made=clock_text(made_s, facts.zone),
        figures=_figures(facts),
        chart=chart_markup(_of_states(facts)),
        states=_state_rows(facts),
        tenants=[_tenant_row(tenant) for tenant in facts.tenants],
        sections=[_section(tenant) for tenant in most[:CHARTED]],
        uncharted=len(most[CHARTED:]),
    )


def _figures(facts: MonthFacts) -> Sequence[tuple[str, str, str]]:
    charged = sum(tenant.charged_millislice_s for tenant in facts.tenants)
    return (
        (percent(month.in_use(facts.slices)), "of all slices in use", "by jobs, in the mean"),
        (
            percent(month.kept(facts.slices)),
            "of guaranteed slices in time",
            "the rest waited longer than a recall may take",
        ),
        (hours(charged), "slice-hours charged", "to the tenants below"),
        (percent(month.recorded(facts.slices)), "of the time recorded", "the rest are gaps"),
    )


def percent(part: float | None) -> str:
    """``87.5 %``; not known is a dash."""
    return "–" if part is None else f"{100 * part:.1f} %"


def hours(amount_millislice_s: float | None) -> str:
    """Slice-hours as a statement has them: ``1,234.50``."""
    return "–" if amount_millislice_s is None else f"{amount_millislice_s / _SLICE_HOUR:,.2f}"


def money(millionths: int | None) -> str:
    """An exact amount in the currency."""
    return "–" if millionths is None else money_text(millionths)


def slices(amount_millislices: float | None) -> str:
    """Slices as a chart has them."""
    return "–" if amount_millislices is None else value_text(amount_millislices / _SLICE)


def _of_states(facts: MonthFacts) -> TimeChart:
    used = percent(month.in_use(facts.slices))
    return TimeChart(
        title="Slices by state",
        summary=f"All slices of {facts.cluster} by state; {used} of them were in use.",
        unit="slices",
        times_s=facts.slices.times_s,
        step_s=facts.slices.step_s,
        zone=facts.zone,
        series=tuple(
            state_series(name, _divided(month.values_of(facts.slices, name), _SLICE))
            for name in STATES
        ),
        kind="stacked",
    )


def _state_rows(facts: MonthFacts) -> Sequence[tuple[str, str, str]]:
    amounts = {name: month.sum_millislice_s(facts.slices, name) for name in STATES}
    whole = sum(amounts.values())
    return [
        (STATES[name].word, hours(amount), percent(month.ratio(amount, whole)))
        for name, amount in amounts.items()
    ]


def _tenant_row(tenant: TenantMonth) -> Mapping[str, str]:
    history = tenant.history
    means = {name: month.mean(history, name) for name in month.HELD}
    return {
        "name": tenant.name,
        "charged": hours(tenant.charged_millislice_s),
        **{name: slices(value) for name, value in means.items()},
        "kept": percent(month.kept_by_tenant(history)),
        "left": hours(month.last(history, "budget_left")),
        "cost": money(tenant.millionths),
        "kwh": kwh_text(tenant.energy_mj),
    }


def _section(tenant: TenantMonth) -> Mapping[str, Any]:
    history, name = tenant.history, tenant.name
    row = _tenant_row(tenant)
    held = ("in_use", "nominal", "borrowed", "lent", "waiting")
    summary = (
        f"In the mean {name} had a nominal of {row['nominal']} slices and {row['in_use']} in use;"
        f" it borrowed {row['borrowed']} and lent {row['lent']}."
    )
    charts = [_lines(f"Slices of {name}", summary, "slices", history, held)]
    if any(value is not None for value in month.values_of(history, "budget_left")):
        burnt = f"In the end {row['left']} slice-hours were left."
        title = f"Budget of {name}"
        charts.append(_lines(title, burnt, "slice-hours", history, ("budget_left",)))
    for service in tenant.services[:SERVICES_CHARTED]:
        charts += _of_service(tenant, service)
    return {
        "row": row,
        "charts": [chart_markup(chart) for chart in charts],
        "services": [_service_row(service) for service in tenant.services[:_SERVICES]],
        "others": len(tenant.services[_SERVICES:]),
    }


def _of_service(tenant: TenantMonth, service: ServiceMonth) -> Sequence[TimeChart]:
    history = service.history
    if history is None:
        return ()
    full = f"{tenant.name}/{service.name}"
    row = _service_row(service)
    replicas = f"In the mean {row['ready']} replicas were ready, at most {row['most']}."
    times = f"In the mean 95 % of the requests were answered within {row['p95']} ms."
    return (
        _lines(f"Replicas of {full}", replicas, "replicas", history, ("ready", "desired")),
        _lines(f"95th percentile of {full}", times, "ms", history, ("p95",)),
    )


def _service_row(service: ServiceMonth) -> Mapping[str, str]:
    row = {"name": service.name or "other jobs", "charged": hours(service.charged_millislice_s)}
    if (history := service.history) is None:
        return {**row, "ready": "", "most": "", "p95": "", "worst": ""}
    return {
        **row,
        "ready": _plain(month.mean(history, "ready")),
        "most": _plain(month.highest_of(history, "ready")),
        "p95": _plain(month.mean(history, "p95")),
        "worst": _plain(month.highest_of(history, "p95")),
    }


def _plain(value: float | None) -> str:
    return "–" if value is None else value_text(value)


def _lines(
    title: str, summary: str, unit: str, history: HistoryAnswer, names: Sequence[str]
) -> TimeChart:
    divisor = _DIVISORS.get(unit, 1)
    each = max(1, ceil(len(history.times_s) / _POINTS))
    return TimeChart(
        title=title,
        summary=summary,
        unit=unit,
        times_s=history.times_s[::each],
        step_s=history.step_s * each,
        zone=history.zone,
        series=tuple(
            figure_series(name, _thinned(_divided(month.values_of(history, name), divisor), each))
            for name in names
        ),
    )


def _thinned(values: Sequence[float | None], each: int) -> tuple[float | None, ...]:
    return tuple(_mean(values[at : at + each]) for at in range(0, len(values), each))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _divided(values: Sequence[float | None], divisor: int) -> tuple[float | None, ...]:
    return tuple(None if value is None else value / divisor for value in values)
