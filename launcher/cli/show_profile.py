"""Shows measurements and their progress to users."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.measurements import Measurement, TokenFigures
from slicewise.cluster.language.token_cost import (
    TokenCost,
    TokenObjective,
    cheapest,
    slice_hours,
    token_cost,
)
from slicewise.cluster.language.token_weights import DEFAULT, SCALE, measured_weights
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.launcher.profiling.jobs import Progress
from slicewise.launcher.rules.profiling.figures import numbers

_LEGEND = (
    "In ms: TTFT until the first token, TPOT from one token to the next, p95 until the end.\n"
    "slice-h/M: slice-hours for a million output tokens."
)
_WHOLE_MS, _WHOLE_RATE = 100, 1000
"""From which on milliseconds, and tokens per second, have no decimals."""


def progress_table(seen: Sequence[Progress]) -> FittingTable:
    """Return a table with a line for each job."""
    return FittingTable(
        (
            column("GPU type", (progress.job.gres_type for progress in seen)),
            column("job", (progress.job.job_id for progress in seen), right=True),
            column("", map(progress_text, seen)),
        )
    )


def progress_text(progress: Progress) -> Text:
    """Return what a job does now."""
    done, failed = numbers(progress.points)
    if progress.is_complete:
        what = f"{done} points measured" + (f", {failed} of them can't be served" if failed else "")
        return Text(what, style="green")
    if progress.view is not None and progress.view.state is JobState.ENDED:
        return Text(f"{progress.view.ended.lower()} after {done} points", style="red")
    if progress.view is not None and progress.view.state is JobState.PENDING:
        return Text(_waiting(progress.view), style="yellow")
    if progress.begun is None:
        starts = f"{progress.job.title} starts"
        return Text(starts if progress.view is not None else "submitted", style="yellow")
    now = progress.begun
    where = f"measuring {now.number} of {progress.job.points}"
    if progress.job.makes_tokens:
        return Text(f"{where}: concurrency {now.batch}")
    return Text(f"{where}: batch {now.batch}, {_processes(now.processes)}")


def _waiting(view: JobView) -> str:
    if view.reason == "None":
        return "submitted"
    return f"waits ({view.reason}); why: slicewise why {view.job_id}"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def measurements_shown(rows: Sequence[Measurement], costs: Mapping[str, int]) -> RenderableType:
    """Return a table of each kind of model that there is.

    ``costs`` are millislices by GRES type.
    """
    batches = [row for row in rows if row.tokens is None]
    tokens = [row for row in rows if row.tokens is not None]
    shown = [measurements_table(batches)] if batches or not tokens else []
    if not tokens:
        return Group(*shown)
    cannot = [token for token in tokens if not token.throughput_mrps]
    reasons = (Text(f"{case.type}, concurrency {case.batch}: {case.reason}") for case in cannot)
    return Group(*shown, tokens_table(tokens, costs), *reasons, Text(_LEGEND))


def tokens_table(rows: Sequence[Measurement], costs: Mapping[str, int]) -> FittingTable:
    """Return a table with a line for each measurement of a model that makes tokens."""
    figures = [row.tokens for row in rows if row.tokens is not None]
    return FittingTable(
        (
            column("model", (row.model for row in rows), rank=5),
            column("GPU model", (row.board for row in rows), rank=6),
            column("type", (row.type for row in rows)),
            column("tokens", map(_tokens, figures), right=True, rank=4),
            column("concurrency", (row.batch for row in rows), right=True),
            column("requests/s", map(_rate, rows), right=True, rank=3),
            column(
                "tokens/s", (_thousandths(figure.output_mtps) for figure in figures), right=True
            ),
            column("TTFT p50", (_ms(figure.ttft_p50_us) for figure in figures), right=True, rank=1),
            column("TTFT p99", (_ms(figure.ttft_p99_us) for figure in figures), right=True),
            column("TPOT p50", (_ms(figure.tpot_p50_us) for figure in figures), right=True, rank=1),
            column("TPOT p99", (_ms(figure.tpot_p99_us) for figure in figures), right=True),
            column("p95", (_ms(row.latency_us) for row in rows), right=True, rank=2),
            column("slice-h/M", (_cost(token_cost(row, costs)) for row in rows), right=True),
            column("", map(_token_remark, rows)),
        )
    )


def _token_remark(row: Measurement) -> Text:
    if not row.throughput_mrps:
        return Text("can't", style="red")
    return _remark(row)


def cheapest_lines(
    rows: Sequence[Measurement], costs: Mapping[str, int], objective: TokenObjective
) -> Sequence[str]:
    """Return the cheapest point in words and as lines for a service's file; () without tokens."""
    if not any(row.tokens for row in rows):
        return ()
    bounds = ", ".join(f"{name} {bound:,}" for name, bound in objective.keys.items())
    within = f" within {bounds}" if bounds else ""
    cost = cheapest(rows, costs, objective)
    unpriced = {row.type for row in rows if objective.is_kept(row)} - costs.keys()
    if cost is None and unpriced:
        names = ", ".join(sorted(unpriced))
        return (f"Served{within}: {names}. What that costs is unknown: not in slicewise.toml.",)
    if cost is None:
        return (f"Nothing that was measured is served{within}.",)
    row, hours = cost.row, slice_hours(cost.millislice_s)
    return (
        f"Cheapest{within}: {row.type} with concurrency {row.batch}.",
        f"A million output tokens cost {hours} slice-hours there.",
        *_weight_lines([one for one in rows if (one.board, one.type) == (row.board, row.type)]),
        f'profile = "{row.type}"',
        f"concurrency = {row.batch}",
        *(f"{name} = {bound}" for name, bound in objective.keys.items()),
    )


def _weight_lines(rows: Sequence[Measurement]) -> Sequence[str]:
    weights = measured_weights(rows)
    if weights == DEFAULT:
        return ()
    return (
        f"One takes as much as {weights.output / SCALE:,.1f} of the prompt: ledger.output_weights.",
    )


def _tokens(figures: TokenFigures) -> str:
    if not figures.output_mtps:
        return "-"
    return f"{figures.prompt_tokens:,}+{figures.output_tokens:,}"


def _ms(microseconds: int) -> str:
    if not microseconds:
        return "-"
    ms = microseconds / 1000
    return f"{ms:,.0f}" if ms >= _WHOLE_MS else f"{ms:.1f}"


def _thousandths(number: int) -> str:
    return f"{number / 1000:,.0f}" if number >= 1000 * _WHOLE_RATE else _small(number)


def _small(number: int) -> str:
    return f"{number / 1000:.1f}" if number else "-"


def _cost(cost: TokenCost | None) -> str:
    return "-" if cost is None else slice_hours(cost.millislice_s)


def measurements_table(rows: Sequence[Measurement]) -> FittingTable:
    """Return a table with a line for each measurement; one that can't be served has its reason."""
    return FittingTable(
        (
            column("model", (row.model for row in rows)),
            column("GPU model", (row.board for row in rows), rank=2),
            column("type", (row.type for row in rows)),
            column("batch", (row.batch for row in rows), right=True),
            column("processes", (row.processes for row in rows), right=True),
            column("requests/s", map(_rate, rows), right=True),
            column("p95 ms", map(_latency, rows), right=True),
            column("samples", (row.samples for row in rows), right=True, rank=1),
            column("", map(_remark, rows), folds=True),
        )
    )


def _rate(row: Measurement) -> str:
    return f"{row.throughput_mrps / 1000:,.1f}" if row.throughput_mrps else "-"


def _latency(row: Measurement) -> str:
    return f"{row.latency_us / 1000:,.1f}" if row.throughput_mrps else "-"


def _remark(row: Measurement) -> Text:
    if not row.throughput_mrps:
        return Text(row.reason, style="red")
    return Text("" if row.steady else "not steady", style="yellow")
