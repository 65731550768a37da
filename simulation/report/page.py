"""Writes the report of simulated runs as one HTML file that asks for nothing else."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from slicewise.cluster.language.periods import clock_text
from slicewise.simulation.rules.report.comparison import (
    TenantDifference,
    gains_words,
    tenant_differences,
)
from slicewise.simulation.rules.report.figure_rows import (
    figure_rows,
    node_rows,
    service_rows,
    tenant_rows,
    trust_rows,
)
from slicewise.simulation.rules.report.figure_texts import (
    MEANINGS,
    SERVICE_MEANINGS,
    chance_text,
    share_text,
    span_text,
    trust_text,
)
from slicewise.simulation.rules.runs.run_figures import (
    ClusterSample,
    Figures,
    ReplayedTenant,
    SimulationResult,
)
from slicewise.slurm_plugin.page.kept_page import kept_page
from slicewise.slurm_plugin.rules.pages.bars import BarChart, bars_markup
from slicewise.slurm_plugin.rules.pages.charts import ChartSeries, TimeChart, chart_markup

DRAWN = 20
"""Tenants of a drawing at most, those whose jobs waited most; the table has all."""
_SLICE, _HOUR_S, _MINUTE_S = 1000, 3600, 60
_LONG_S = 2 * _HOUR_S
"""Waits are drawn in hours from here on."""


def simulation_html(
    result: SimulationResult, changes: Sequence[str], zone: str, made_s: int
) -> str:
    """Return the page.

    ``changes`` says what the changed policy sets, a line for each tenant; ``zone`` is the time zone
    of the drawings; ``made_s`` is when the page is made, in Unix seconds.
    """
    tenants = tenant_differences(result)
    present, rows = result.present, figure_rows(result)
    return kept_page(
        "simulation.html.j2",
        result=result,
        is_compared=result.changed is not None,
        span=span_text(result),
        times=[clock_text(at_s, zone) for at_s in (present.start_s, present.end_s)],
        zone=zone,
        made=clock_text(made_s, zone),
        changes=changes,
        trust=trust_text(result.self_check, result.unchecked),
        checked=trust_rows(result.self_check) if result.self_check else (),
        figures=rows,
        has_intervals=any(row.interval for row in rows),
        chance=chance_text(result),
        meanings=MEANINGS,
        charts=[chart_markup(chart) for chart in _over_time(result, zone) if chart.times_s],
        gains=gains_words(tenants),
        tenants=tenant_rows(result),
        waits=bars_markup(_waits(result, tenants)),
        undrawn=max(0, len(tenants) - DRAWN),
        services=service_rows(result),
        service_meanings=SERVICE_MEANINGS,
        nodes=node_rows(result),
    )


def _over_time(result: SimulationResult, zone: str) -> Sequence[TimeChart]:
    runs = _runs(result)
    held = " and ".join(f"{share_text(run.utilisation)} {name}" for name, run in runs)

    def chart(
        title: str, summary: str, unit: str, figure: Callable[[ClusterSample, Figures], float]
    ) -> TimeChart:
        steps = result.present.steps
        return TimeChart(
            title=title,
            summary=summary,
            unit=unit,
            times_s=tuple(int(step.at_s) for step in steps),
            step_s=_step_s(steps),
            zone=zone,
            series=tuple(ChartSeries(name, _values(run, len(steps), figure)) for name, run in runs),
        )

    return (
        chart(
            "Slices in use",
            f"In the mean, {held} of all slices were held.",
            "%",
            lambda step, run: 100 * step.held_millislices / run.capacity_millislices,
        ),
        chart(
            "Slices that jobs wait for",
            "How many slices all waiting jobs asked for, over time.",
            "slices",
            lambda step, _: step.waiting_millislices / _SLICE,
        ),
        chart(
            "Slices on loan",
            "How many slices jobs held beyond the quota of their own tenants, over time.",
            "slices",
            lambda step, _: step.lent_millislices / _SLICE,
        ),
    )


def _runs(result: SimulationResult) -> Sequence[tuple[str, Figures]]:
    runs = [("present", result.present)]
    return runs if result.changed is None else [*runs, ("changed", result.changed)]


def _step_s(steps: Sequence[ClusterSample]) -> int:
    return max(1, round(min((b.at_s - a.at_s for a, b in pairwise(steps)), default=1.0)))


def _values(
    run: Figures, count: int, figure: Callable[[ClusterSample, Figures], float]
) -> tuple[float | None, ...]:
    """Return a value for each step of the present run; a run that ended earlier has gaps."""
    steps = [figure(step, run) for step in run.steps[:count]]
    return (*steps, *(None for _ in range(count - len(steps))))


def _waits(result: SimulationResult, tenants: Sequence[TenantDifference]) -> BarChart:
    most = sorted(tenants, key=lambda tenant: (-_waited_s(tenant), tenant.tenant))[:DRAWN]
    sides = [[difference.present for difference in most]]
    if result.changed is not None:
        sides.append([difference.changed for difference in most])
    longest_s = max(
        (tenant.wait_mean_s for side in sides for tenant in side if tenant), default=0.0
    )
    unit, length_s = ("hours", _HOUR_S) if longest_s >= _LONG_S else ("minutes", _MINUTE_S)
    return BarChart(
        title="Mean wait by tenant",
        summary=gains_words(tenants) or "How long the jobs of each tenant waited in the mean.",
        unit=unit,
        noun="tenant",
        names=tuple(difference.tenant for difference in most),
        series=tuple(
            ChartSeries(
                name, tuple(tenant.wait_mean_s / length_s if tenant else None for tenant in side)
            )
            for (name, _), side in zip(_runs(result), sides, strict=True)
        ),
    )


def _waited_s(tenant_difference: TenantDifference) -> float:
    """Seconds that its jobs waited together, by the policy by which they waited longer."""
    return max(_sum_s(side) for side in (tenant_difference.present, tenant_difference.changed))


def _sum_s(side: ReplayedTenant | None) -> float:
    return side.jobs * side.wait_mean_s if side else 0.0
