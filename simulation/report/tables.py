"""Tables of simulated runs for terminals."""

from collections.abc import Sequence

from rich.text import Text

from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.simulation.rules.report.comparison import ChangeVerdict
from slicewise.simulation.rules.report.figure_rows import (
    FigureRow,
    NodeRow,
    Pair,
    ServiceRow,
    TenantRow,
    TrustRow,
)
from slicewise.simulation.rules.report.figure_texts import NOTHING

_STYLES = {
    ChangeVerdict.BETTER: "green",
    ChangeVerdict.WORSE: "red",
    ChangeVerdict.UNCLEAR: "yellow",
    ChangeVerdict.SAME: "dim",
}


def trust_table(rows: Sequence[TrustRow]) -> FittingTable:
    """One line per figure: as it was, as the simulation has it."""
    return FittingTable(
        (
            column("present policy", (row.words for row in rows)),
            column("as it was", (row.history for row in rows), right=True),
            column("simulated", (row.replayed for row in rows), right=True),
            column("error", (row.error for row in rows), right=True),
        )
    )


def figures_table(rows: Sequence[FigureRow]) -> FittingTable:
    """One line per figure of the cluster, by the present policy and, if there is one, the other."""
    columns = [
        column("figure", (row.words for row in rows)),
        column("present", (row.present for row in rows), right=True),
    ]
    is_compared = any(row.verdict for row in rows)
    if is_compared:
        steps = (_styled(row.difference, row.verdict) for row in rows)
        columns += [
            column("changed", (row.changed for row in rows), right=True),
            column("difference", steps, right=True),
        ]
    if any(row.interval for row in rows):
        columns.append(column("95 % interval", (row.interval for row in rows), right=True, rank=1))
    if is_compared:
        columns.append(column("", (_styled(str(row.verdict), row.verdict) for row in rows)))
    return FittingTable(tuple(columns))


def tenants_table(rows: Sequence[TenantRow]) -> FittingTable:
    """One line per tenant, in the order of the rows; by both policies an arrow leads over."""
    is_compared = any(row.verdict for row in rows)
    columns = [
        column("tenant", (row.tenant for row in rows)),
        column("jobs", (row.jobs for row in rows), right=True, rank=3),
        column("wait, mean", (_led(row.mean) for row in rows), right=True),
    ]
    if is_compared:
        steps = (_styled(row.mean_step, row.verdict) for row in rows)
        columns.append(column("difference", steps, right=True))
    columns += [
        column("99 % within", (_led(row.p99) for row in rows), right=True, rank=2),
        column("slices", (_led(row.held) for row in rows), right=True, rank=1),
    ]
    columns.append(column("late jobs", (_led(row.late) for row in rows), right=True, rank=2))
    if is_compared:
        columns.append(column("", (_styled(row.word, row.verdict) for row in rows)))
    return FittingTable(tuple(columns))


def nodes_table(rows: Sequence[NodeRow]) -> FittingTable:
    """One line per figure of nodes that failed or whose GPUs were cut again."""
    columns = [
        column("nodes", (row.words for row in rows)),
        column("present", (row.of.present for row in rows), right=True),
    ]
    if any(row.of.changed for row in rows):
        columns.append(column("changed", (row.of.changed for row in rows), right=True))
    return FittingTable(tuple(columns))


def services_table(rows: Sequence[ServiceRow]) -> FittingTable:
    """One line per service; by both policies an arrow leads over."""
    columns = [
        column("service", (row.service for row in rows)),
        column("requests", (row.requests for row in rows), right=True, rank=2),
        column("in time", (_led(row.attainment) for row in rows), right=True),
    ]
    if any(row.interval for row in rows):
        columns.append(column("95 % interval", (row.interval for row in rows), right=True, rank=1))
    columns += [
        column("99 % within", (_led(row.p99) for row in rows), right=True),
        column("slice-hours", (_led(row.slice_hours) for row in rows), right=True),
        column("starts, ends", (_led(row.changes) for row in rows), right=True, rank=1),
    ]
    if any({row.loads.present, row.loads.changed} - {"0", "", NOTHING} for row in rows):
        columns.append(column("loads", (_led(row.loads) for row in rows), right=True))
    columns += [
        column("lost", (_led(row.lost) for row in rows), right=True, rank=3),
    ]
    if any(row.verdict for row in rows):
        columns.append(column("", (_styled(row.word, row.verdict) for row in rows)))
    return FittingTable(tuple(columns))


def _led(of: Pair) -> Text:
    """``41 min → 12 min``; one text where both are the same or there is no changed one."""
    if of.changed in ("", of.present):
        return Text(of.present)
    return Text.assemble((f"{of.present} → ", "dim"), of.changed)


def _styled(text: str, verdict: ChangeVerdict | None) -> Text:
    return Text(text, style=_STYLES[verdict] if verdict else "")
