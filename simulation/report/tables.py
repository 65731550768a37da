"""Tables of simulated runs for terminals."""

from collections.abc import Sequence

from rich.text import Text

from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.simulation.rules.report.comparison import ChangeVerdict
from slicewise.simulation.rules.report.rows import (
    FigureRow,
    NodeRow,
    Pair,
    ServiceRow,
    TenantRow,
    TrustRow,
)

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
            column("present policy", (one.words for one in rows)),
            column("as it was", (one.history for one in rows), right=True),
            column("simulated", (one.replayed for one in rows), right=True),
            column("error", (one.error for one in rows), right=True),
        )
    )


def figures_table(rows: Sequence[FigureRow]) -> FittingTable:
    """One line per figure of the cluster, by the present policy and, if there is one, the other."""
    found = [
        column("figure", (one.words for one in rows)),
        column("present", (one.present for one in rows), right=True),
    ]
    is_compared = any(one.verdict for one in rows)
    if is_compared:
        steps = (_styled(one.difference, one.verdict) for one in rows)
        found += [
            column("changed", (one.changed for one in rows), right=True),
            column("difference", steps, right=True),
        ]
    if any(one.interval for one in rows):
        found.append(column("95 % interval", (one.interval for one in rows), right=True, rank=1))
    if is_compared:
        found.append(column("", (_styled(str(one.verdict), one.verdict) for one in rows)))
    return FittingTable(tuple(found))


def tenants_table(rows: Sequence[TenantRow]) -> FittingTable:
    """One line per tenant, in the order of the rows; by both policies an arrow leads over."""
    is_compared = any(one.verdict for one in rows)
    found = [
        column("tenant", (one.tenant for one in rows)),
        column("jobs", (one.jobs for one in rows), right=True, rank=3),
        column("wait, mean", (_led(one.mean) for one in rows), right=True),
    ]
    if is_compared:
        steps = (_styled(one.mean_step, one.verdict) for one in rows)
        found.append(column("difference", steps, right=True))
    found += [
        column("99 % within", (_led(one.p99) for one in rows), right=True, rank=2),
        column("slices", (_led(one.held) for one in rows), right=True, rank=1),
    ]
    found.append(column("late jobs", (_led(one.late) for one in rows), right=True, rank=2))
    if is_compared:
        found.append(column("", (_styled(one.word, one.verdict) for one in rows)))
    return FittingTable(tuple(found))


def nodes_table(rows: Sequence[NodeRow]) -> FittingTable:
    """One line per figure of nodes that failed or whose GPUs were cut again."""
    found = [
        column("nodes", (one.words for one in rows)),
        column("present", (one.of.present for one in rows), right=True),
    ]
    if any(one.of.changed for one in rows):
        found.append(column("changed", (one.of.changed for one in rows), right=True))
    return FittingTable(tuple(found))


def services_table(rows: Sequence[ServiceRow]) -> FittingTable:
    """One line per service; by both policies an arrow leads over."""
    found = [
        column("service", (one.service for one in rows)),
        column("requests", (one.requests for one in rows), right=True, rank=2),
        column("in time", (_led(one.attainment) for one in rows), right=True),
    ]
    if any(one.interval for one in rows):
        found.append(column("95 % interval", (one.interval for one in rows), right=True, rank=1))
    found += [
        column("99 % within", (_led(one.p99) for one in rows), right=True),
        column("slice-hours", (_led(one.slice_hours) for one in rows), right=True),
        column("starts, ends", (_led(one.changes) for one in rows), right=True, rank=1),
        column("lost", (_led(one.lost) for one in rows), right=True, rank=3),
    ]
    if any(one.verdict for one in rows):
        found.append(column("", (_styled(one.word, one.verdict) for one in rows)))
    return FittingTable(tuple(found))


def _led(of: Pair) -> Text:
    """``41 min → 12 min``; one text where both are the same or there is no changed one."""
    if of.changed in ("", of.present):
        return Text(of.present)
    return Text.assemble((f"{of.present} → ", "dim"), of.changed)


def _styled(text: str, verdict: ChangeVerdict | None) -> Text:
    return Text(text, style=_STYLES[verdict] if verdict else "")
