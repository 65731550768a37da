"""The report for people: a few tables on a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sandbox.demo.live import milliseconds
from sandbox.demo.report import Report


def summary(report: Report) -> RenderableType:
    """The report for people: verdict, numbers, services, both books."""
    shortfalls = report.shortfalls()
    verdict = (
        Text("\n".join(f"- {text}" for text in shortfalls), style="bold red")
        if shortfalls
        else Text("Everything that the demo promises was shown.", style="bold green")
    )
    return Group(_numbers(report), _service_table(report), _ledger_view(report), verdict)


def _numbers(report: Report) -> Table:
    refusal = report.refused_over_quota
    wake_s = report.first_response_after_wake_s
    rows = (
        (
            "requests",
            f"{report.requests} ({report.wake_requests} to wake services), failed {report.failed}",
        ),
        ("latency", f"p50 {milliseconds(report.p50_ms)} ms, p95 {milliseconds(report.p95_ms)} ms"),
        ("replicas", f"at most {report.replicas_max}, at the end {report.replicas_end}"),
        (
            "woke from zero",
            f"{'yes' if report.woke_from_zero else 'no'}"
            + ("" if wake_s is None else f", first answer after {wake_s:.1f} s"),
        ),
        ("refused", "nobody" if refusal is None else refusal.text()),
        ("ledger", f"off balance by {report.ledger_imbalance}"),
        ("took", f"{report.duration_s:.0f} s"),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _service_table(report: Report) -> Table:
    table = Table(title="Services (replicas, backlog: at most)", title_justify="left")
    table.add_column("service", no_wrap=True)
    for title in ("requests", "failed", "p50 ms", "p95 ms", "replicas", "backlog"):
        table.add_column(title, justify="right")
    for name, part in report.services.items():
        table.add_row(
            name,
            str(part.requests),
            str(part.failed),
            milliseconds(part.p50_ms),
            milliseconds(part.p95_ms),
            str(part.replicas_max),
            str(part.backlog_max),
        )
    return table


def _ledger_view(report: Report) -> Table:
    table = Table(title="Slice-seconds by both books", title_justify="left")
    table.add_column("tenant")
    for title in ("ledger", "sacct", "apart"):
        table.add_column(title, justify="right")
    for tenant, use in report.slice_seconds_by_tenant.items():
        table.add_row(tenant, f"{use.ledger:.3f}", f"{use.sacct:.3f}", f"{use.deviation:.2%}")
    return table
