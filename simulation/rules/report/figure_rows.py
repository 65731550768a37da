"""Rows of the tables of simulated runs, as texts: what the terminal and the page both show."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from slicewise.simulation.rules.report.comparison import (
    MEASURES,
    SERVICE_IN_TIME,
    TENANT_WAIT,
    TOGETHER,
    ChangeVerdict,
    FigureDifference,
    Measure,
    ServiceDifference,
    TenantDifference,
    differences,
    service_differences,
    tenant_differences,
    together,
)
from slicewise.simulation.rules.report.figure_texts import (
    NOTHING,
    difference_text,
    figure_text,
    held_text,
    interval_text,
    request_wait_text,
    share_text,
    slice_hours_text,
    wait_text,
)
from slicewise.simulation.rules.runs.run_figures import (
    Figures,
    RepartitionFigures,
    ReplayedService,
    ReplayedTenant,
    SelfCheck,
    SimulationResult,
)

_BY_FIGURE = {measure.figure: measure for measure in MEASURES}


@dataclass(frozen=True)
class TrustRow:
    """A figure as it really was, and as the present policy gives it in the simulation."""

    words: str
    history: str
    replayed: str
    error: str


@dataclass(frozen=True)
class FigureRow:
    """A figure by both policies; "" where there is no changed one or no interval."""

    words: str
    present: str
    changed: str
    difference: str
    interval: str
    verdict: ChangeVerdict | None


@dataclass(frozen=True)
class Pair:
    """A figure by the present policy and by the changed one; "" where there is none."""

    present: str
    changed: str


@dataclass(frozen=True)
class TenantRow:
    """A tenant by both policies; without a changed one steps are empty."""

    tenant: str
    jobs: str
    mean: Pair
    mean_step: str
    p99: Pair
    held: Pair
    late: Pair
    verdict: ChangeVerdict | None
    word: str


@dataclass(frozen=True)
class ServiceRow:
    """A service by both policies; ``interval`` is of the share in time, "" where there is none."""

    service: str
    requests: str
    attainment: Pair
    interval: str
    p99: Pair
    slice_hours: Pair
    changes: Pair
    loads: Pair
    lost: Pair
    verdict: ChangeVerdict | None
    word: str


@dataclass(frozen=True)
class NodeRow:
    """What became of nodes by both policies; "" for a changed one that there is not."""

    words: str
    of: Pair


def trust_rows(check: SelfCheck) -> Sequence[TrustRow]:
    """Return the figures of the self-check that both history and simulation have."""
    pairs = (
        ("wait_mean_s", check.wait_mean_of_history_s, check.wait_mean_s),
        ("wait_p99_s", check.wait_p99_of_history_s, check.wait_p99_s),
        ("utilisation", check.utilisation_of_history, check.utilisation),
    )
    return [
        TrustRow(
            measure.words,
            figure_text(measure, was),
            figure_text(measure, now),
            difference_text(measure, was, now),
        )
        for name, was, now in pairs
        for measure in (_BY_FIGURE[name],)
    ]


def figure_rows(result: SimulationResult) -> Sequence[FigureRow]:
    """Return a row for each figure of the cluster."""
    return [
        _figure_row(_BY_FIGURE[difference.figure], difference) for difference in differences(result)
    ]


def _figure_row(measure: Measure, figure_difference: FigureDifference) -> FigureRow:
    is_compared = figure_difference.changed is not None
    return FigureRow(
        words=measure.words,
        present=figure_text(measure, figure_difference.present),
        changed=figure_text(measure, figure_difference.changed) if is_compared else "",
        difference=difference_text(measure, figure_difference.present, figure_difference.changed)
        if is_compared
        else "",
        interval=interval_text(measure, figure_difference.interval, is_step=is_compared),
        verdict=figure_difference.verdict,
    )


def tenant_rows(result: SimulationResult) -> Sequence[TenantRow]:
    """Return a row for each tenant, those that lose most first."""
    return [_tenant_row(difference, result.present) for difference in tenant_differences(result)]


def _tenant_row(tenant_difference: TenantDifference, run: Figures) -> TenantRow:
    sides, length_s = (
        (tenant_difference.present, tenant_difference.changed),
        run.end_s - run.start_s,
    )
    is_compared = tenant_difference.verdict is not None
    # Services hold slices for a tenant, and are no jobs that wait.
    mean, mean_changed = (side.wait_mean_s if side and side.jobs else None for side in sides)

    def pair(write: Callable[[ReplayedTenant], str]) -> Pair:
        present, changed = (write(side) if side else NOTHING for side in sides)
        return Pair(present, changed if is_compared else "")

    return TenantRow(
        tenant=tenant_difference.tenant,
        jobs=next(f"{side.jobs:,}" for side in sides if side),
        mean=pair(lambda side: wait_text(side.wait_mean_s if side.jobs else None)),
        mean_step=difference_text(TENANT_WAIT, mean, mean_changed) if is_compared else "",
        p99=pair(lambda side: wait_text(side.wait_p99_s if side.jobs else None)),
        held=pair(lambda side: held_text(side, length_s)),
        late=pair(lambda side: f"{side.late_jobs:,}"),
        verdict=tenant_difference.verdict,
        word=_WORDS[tenant_difference.verdict] if tenant_difference.verdict else "",
    )


_WORDS = {
    ChangeVerdict.BETTER: "gains",
    ChangeVerdict.WORSE: "loses",
    ChangeVerdict.SAME: "as before",
    ChangeVerdict.UNCLEAR: "unclear",
}


def node_rows(result: SimulationResult) -> Sequence[NodeRow]:
    """Return rows of GPUs that were cut again and of failures, where there can be any."""
    sides = [result.present, *([result.changed] if result.changed else [])]
    return [*_repartition_rows([side.repartitions for side in sides]), *_failure_rows(sides)]


def _repartition_rows(sides: Sequence[RepartitionFigures | None]) -> Iterator[NodeRow]:
    if not any(sides):
        return
    yield _node_row("GPUs cut again", [f"{side.done:,}" if side else NOTHING for side in sides])
    if any(side.in_vain for side in sides if side):
        in_vain = [f"{side.in_vain:,}" if side else NOTHING for side in sides]
        yield _node_row("cut in vain", in_vain)
    lost = [slice_hours_text(side.lost_slice_s) if side else NOTHING for side in sides]
    yield _node_row("slice-hours idle for cutting", lost)


def _failure_rows(sides: Sequence[Figures]) -> Iterator[NodeRow]:
    those = [side.failures for side in sides if side.failures is not None]
    if not those:
        return
    yield _node_row("failures of nodes", [f"{figures.failures:,}" for figures in those])
    yield _node_row("runs that they ended", [f"{figures.runs_broken:,}" for figures in those])
    yield _node_row(
        "slice-hours that these had run",
        [slice_hours_text(figures.broken_slice_s) for figures in those],
    )
    yield _node_row(
        "slice-hours of nodes down", [slice_hours_text(figures.down_slice_s) for figures in those]
    )


def _node_row(words: str, sides: Sequence[str]) -> NodeRow:
    return NodeRow(words, Pair(sides[0], sides[1] if len(sides) > 1 else ""))


def service_rows(result: SimulationResult) -> Sequence[ServiceRow]:
    """Return a row for each service, and one for all of several."""
    rows = [_service_row(difference) for difference in service_differences(result)]
    present, changed = together(result.present), together(result.changed)
    if present is not None or changed is not None:
        rows.append(_row_of_all(present, changed, is_compared=result.changed is not None))
    return rows


def _row_of_all(
    present: ReplayedService | None, changed: ReplayedService | None, *, is_compared: bool
) -> ServiceRow:
    """Return the row of all services, of which nobody gains: waits are those of each."""
    verdict = ChangeVerdict.UNCLEAR if is_compared else None
    row = _service_row(ServiceDifference(TOGETHER, present, changed, None, verdict))
    return replace(row, p99=Pair("", ""), interval="", verdict=None, word="")


def _service_row(service_difference: ServiceDifference) -> ServiceRow:
    sides = (service_difference.present, service_difference.changed)

    def pair(write: Callable[[ReplayedService], str]) -> Pair:
        present, changed = (write(side) if side else NOTHING for side in sides)
        return Pair(present, changed if service_difference.verdict else "")

    return ServiceRow(
        service=service_difference.service,
        requests=next(f"{side.requests:,}" for side in sides if side),
        attainment=pair(lambda side: share_text(side.attainment) if side.requests else NOTHING),
        interval=interval_text(
            SERVICE_IN_TIME,
            service_difference.interval,
            is_step=service_difference.verdict is not None,
        ),
        p99=pair(lambda side: request_wait_text(side.wait_p99_s) if side.requests else NOTHING),
        slice_hours=pair(lambda side: slice_hours_text(side.slice_s)),
        changes=pair(lambda side: f"{side.changes:,}"),
        loads=pair(lambda side: f"{side.loads:,}"),
        lost=pair(lambda side: f"{side.lost:,}"),
        verdict=service_difference.verdict,
        word=_WORDS[service_difference.verdict] if service_difference.verdict else "",
    )
