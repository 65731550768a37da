"""The report for people: a few tables on a terminal."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.sandbox.demo.live import milliseconds
from slicewise.sandbox.demo.record import BatchJob, Repartition
from slicewise.sandbox.demo.report import P95_AIM_S, ChatReport, Report


def summary(report: Report) -> RenderableType:
    """The report for people: numbers, services, both books, promises, verdict."""
    shortfalls = report.shortfalls()
    verdict = (
        Text(f"Not everything was shown: {'; '.join(shortfalls)}.", style="bold red")
        if shortfalls
        else Text("Everything that the demo promises was shown.", style="bold green")
    )
    tables = (_numbers(report), _service_table(report), _ledger_view(report), _promises(report))
    return Group(_headline(report), *tables, verdict)


def _headline(report: Report) -> Text:
    """How soon requests were answered, and on whose slices: what most readers look for."""
    if report.p95_ms is None:
        return Text("No request was answered.", style="bold red")
    borrowed = max((service.borrowed_max for service in report.services.values()), default=0)
    filler, p95_s = report.filler, report.p95_ms / 1000
    waited = ""
    if report.no_wait_share is not None:
        waited = f"; {report.no_wait_share:.0%} of the time none waited for a replica"
    return Text(
        f"95 % of {report.requests} requests were answered within {p95_s:.1f} s (aim "
        f"{P95_AIM_S:g} s: {'met' if p95_s <= P95_AIM_S else 'missed'}), wakes from zero included, "
        f"on own slices and up to {borrowed} borrowed ones{waited}. A batch job filled up to "
        f"{filler.most} idle slices and gave way {filler.gave_way} times.",
        style="bold",
    )


def _promises(report: Report) -> Table:
    table = Table(title="What was shown", title_justify="left", box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for promise in report.promises():
        mark = Text("yes", style="green") if promise.is_kept else Text("NO", style="bold red")
        table.add_row(mark, Text(promise.shown if promise.is_kept else promise.shortfall))
    return table


def _numbers(report: Report) -> Table:
    refusal = report.refused_over_quota
    wake_s = report.first_response_after_wake_s
    rows = (
        (
            "requests",
            f"{report.requests} ({report.wake_requests} to wake services), failed {report.failed}",
        ),
        (
            "latency with waits",
            f"p50 {milliseconds(report.p50_ms)} ms, p95 {milliseconds(report.p95_ms)} ms",
        ),
        ("replicas", f"at most {report.replicas_max}, at the end {report.replicas_end}"),
        (
            "woke from zero",
            f"{'yes' if report.woke_from_zero else 'no'}"
            + ("" if wake_s is None else f", first answer after {wake_s:.1f} s")
            + (
                ""
                if report.replicas_woken is None
                else f"; replicas that the last request started: {report.replicas_woken}"
            ),
        ),
        *((f"{batch_job.user}'s job", _job(batch_job)) for batch_job in report.batch_jobs),
        *(("repartition", _repartition(repartition)) for repartition in report.repartitions),
        ("chat", _chat(report.chat)),
        ("refused", "none" if refusal is None else refusal.text()),
        ("ledger", _balance(report.ledger_imbalance)),
        ("took", f"{report.duration_s:.0f} s"),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _balance(millislice_s: int) -> str:
    if millislice_s == 0:
        return "debits and credits are equal"
    return f"debits and credits differ by {millislice_s} millislice-seconds"


def _chat(chat: ChatReport | None) -> str:
    if chat is None:
        return "none was asked for"
    first, others = _seconds(chat.first_token_s), _seconds(chat.next_first_token_s)
    return (
        f"{chat.requests} by the openai client, first token after {first}, then {others}; "
        f"{chat.tokens} tokens, failed {chat.failed}"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g} s"


def _job(job: BatchJob) -> str:
    if job.waited_s is None:
        return f"asked for a {job.profile} and did not start"
    return f"asked for a {job.profile}, waited {job.waited_s:.0f} s, ran"


def _repartition(repartition: Repartition) -> str:
    took_s = repartition.ended_s - repartition.begun_s
    before, after = _layout(repartition.before), _layout(repartition.after)
    return f"{repartition.node} in {took_s:.0f} s: {before} became {after}"


def _layout(placements: str) -> str:
    counts = Counter(part.partition("@")[0] for part in placements.split(","))
    return " + ".join(f"{count} × {profile}" for profile, count in counts.items())


def _service_table(report: Report) -> Table:
    table = Table(
        title="Services (replicas, borrowed, backlog: the most at one time)",
        title_justify="left",
        padding=(0, 0),
    )
    table.add_column("service", no_wrap=True)
    for title in ("requests", "failed", "p50 ms", "p95 ms", "replicas", "borrowed", "backlog"):
        table.add_column(title, justify="right")
    for name, part in report.services.items():
        table.add_row(
            name,
            str(part.requests),
            str(part.failed),
            milliseconds(part.p50_ms),
            milliseconds(part.p95_ms),
            str(part.replicas_max),
            str(part.borrowed_max),
            str(part.backlog_max),
        )
    return table


def _ledger_view(report: Report) -> Table:
    table = Table(title="Slice-seconds used, by both books", title_justify="left")
    table.add_column("tenant")
    for title in ("ledger", "sacct", "difference"):
        table.add_column(title, justify="right")
    for tenant, use in report.slice_seconds_by_tenant.items():
        table.add_row(tenant, f"{use.ledger:.3f}", f"{use.sacct:.3f}", f"{use.deviation:.2%}")
    return table
