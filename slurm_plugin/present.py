"""Quotas and statements for people and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal

from cluster.console import Column, FittingTable, column
from cluster.units import slices_text
from slurm_plugin.decide.model import QuotaChange, Statement, StatementRow, TenantTotal

_TIME, _BRIEF_TIME = "%Y-%m-%d %H:%M:%S", "%m-%d %H:%M:%S"


@dataclass(frozen=True)
class TenantLine:
    """A tenant as ``tenant-quota show`` and ``list`` present it.

    Attributes:
        in_use_millislices: what its running jobs hold now.
        in_force: whether Slurm's limits contain the last change.
    """

    last: QuotaChange
    in_use_millislices: int
    running: int
    in_force: bool


def time_text(second: int, form: str = _TIME) -> str:
    """Local time to the second."""
    return datetime.fromtimestamp(second, tz=UTC).astimezone().strftime(form)


def _times(heading: str, seconds: Iterable[int | None], rank: int = 0) -> Column:
    """Points in time; None is the end of what still runs. Narrow terminals leave the year out."""
    known = tuple(seconds)
    whole, brief = (
        ["running" if second is None else time_text(second, form) for second in known]
        for form in (_TIME, _BRIEF_TIME)
    )
    return column(heading, whole, brief=brief, rank=rank)


def slice_seconds_text(amount_millislice_s: int) -> str:
    """Slice-seconds to the millislice-second: ``12,345.500``."""
    return f"{Decimal(amount_millislice_s) / 1000:,.3f}"


def slice_hours_text(amount_millislice_s: int) -> str:
    """Slice-hours, rounded: ``3.43``."""
    return f"{Decimal(amount_millislice_s) / 3_600_000:,.2f}"


def gres_text(gres: Mapping[str, int]) -> str:
    """``1g.10gb`` or ``2 × 1g.10gb + 3g.40gb``."""
    return " + ".join(
        kind if count == 1 else f"{count} × {kind}" for kind, count in sorted(gres.items())
    )


def tenants_table(lines: Sequence[TenantLine]) -> FittingTable:
    """One line per tenant."""
    last = [line.last for line in lines]
    return FittingTable(
        (
            column("tenant", (change.tenant for change in last)),
            column("nominal", _slices(change.nominal_millislices for change in last), right=True),
            column("in use", _slices(line.in_use_millislices for line in lines), right=True),
            column("runs", (line.running for line in lines), right=True, rank=1),
            column("in force", ("yes" if line.in_force else "not yet" for line in lines)),
            _times("changed", (change.at_s for change in last), rank=3),
            column("by", (change.author for change in last), rank=2),
            column("reason", (change.reason for change in last), folds=True),
        )
    )


def _slices(amounts_millislices: Iterable[int]) -> Iterable[str]:
    return map(slices_text, amounts_millislices)


def tenant_json(line: TenantLine) -> Mapping[str, object]:
    """The same as values."""
    return asdict(line.last) | {
        "in_use_millislices": line.in_use_millislices,
        "running": line.running,
        "in_force": line.in_force,
    }


def history_table(changes: Sequence[QuotaChange]) -> FittingTable:
    """One line per change."""
    nominal = _slices(change.nominal_millislices for change in changes)
    return FittingTable(
        (
            _times("when", (change.at_s for change in changes)),
            column("nominal", nominal, right=True),
            column("by", (change.author for change in changes), rank=1),
            column("reason", (change.reason for change in changes), folds=True),
        )
    )


def totals_table(totals: Sequence[TenantTotal]) -> FittingTable:
    """One line per tenant."""
    used = [total.used_millislice_s for total in totals]
    reserved = (slice_seconds_text(total.reserved_millislice_s) for total in totals)
    return FittingTable(
        (
            column("tenant", (total.tenant for total in totals)),
            column("runs", (total.runs for total in totals), right=True, rank=1),
            column("running", (total.running for total in totals), right=True, rank=2),
            column("slice-hours", map(slice_hours_text, used), right=True, rank=3),
            column("slice-seconds used", map(slice_seconds_text, used), right=True),
            column("reserved beyond", reserved, right=True),
        )
    )


def runs_table(rows: Sequence[StatementRow], now_s: int) -> FittingTable:
    """One line per run."""
    used = (slice_seconds_text(row.used_millislice_s) for row in rows)
    return FittingTable(
        (
            column("tenant", (row.run.tenant for row in rows), rank=1),
            column("task", (row.run.task for row in rows)),
            column("user", (row.run.user for row in rows), rank=3),
            column("profile", (gres_text(row.run.gres) for row in rows), rank=2),
            _times("start", (row.run.key.start_s for row in rows)),
            _times("end", (row.end_s for row in rows)),
            column("seconds", (_seconds(row, now_s) for row in rows), right=True, rank=5),
            column("slices", _slices(row.run.cost_millislices for row in rows), right=True, rank=4),
            column("slice-seconds", used, right=True),
        )
    )


def statement_json(statement: Statement, now_s: int) -> Mapping[str, object]:
    """The same in integers; ``now_s`` is up to when running ones are counted."""
    return {
        "now_s": now_s,
        "tenants": [asdict(total) for total in statement.totals],
        "runs": [_row_json(row, now_s) for row in statement.rows],
    }


def _row_json(row: StatementRow, now_s: int) -> Mapping[str, object]:
    run = asdict(row.run)
    return {
        **run.pop("key"),
        **run,
        "end_s": row.end_s,
        "seconds": _seconds(row, now_s),
        "used_millislice_s": row.used_millislice_s,
        "reserved_millislice_s": row.reserved_millislice_s,
    }


def _seconds(row: StatementRow, now_s: int) -> int:
    return max(0, (now_s if row.end_s is None else row.end_s) - row.run.key.start_s)
