"""Quotas and statements for people and as JSON."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.units import slices_text
from slurm_plugin.decide.model import QuotaChange, Statement, StatementRow, TenantTotal

_PIPE_WIDTH = 200
"""Columns where there is no terminal: nothing may be cut off."""


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


def console() -> Console:
    """Colours and the terminal's width on a terminal only."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def time_text(second: int | None) -> str:
    """Local time to the second; "" for None."""
    if second is None:
        return ""
    return datetime.fromtimestamp(second, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


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


def tenants_table(lines: Iterable[TenantLine]) -> Table:
    """One line per tenant."""
    table = _table("tenant", ">nominal", ">in use", ">runs", "in force", "changed", "by", "reason")
    for line in lines:
        change = line.last
        _add(
            table,
            change.tenant,
            slices_text(change.nominal_millislices),
            slices_text(line.in_use_millislices),
            line.running,
            "yes" if line.in_force else "not yet",
            time_text(change.at_s),
            change.author,
            change.reason,
        )
    return table


def tenant_json(line: TenantLine) -> Mapping[str, object]:
    """The same as values."""
    return asdict(line.last) | {
        "in_use_millislices": line.in_use_millislices,
        "running": line.running,
        "in_force": line.in_force,
    }


def history_table(changes: Iterable[QuotaChange]) -> Table:
    """One line per change."""
    table = _table("when", ">nominal", "by", "reason")
    for change in changes:
        nominal = slices_text(change.nominal_millislices)
        _add(table, time_text(change.at_s), nominal, change.author, change.reason)
    return table


def totals_table(totals: Iterable[TenantTotal]) -> Table:
    """One line per tenant."""
    table = _table(
        "tenant", ">runs", ">running", ">slice-hours", ">slice-seconds used", ">reserved beyond"
    )
    for total in totals:
        _add(
            table,
            total.tenant,
            total.runs,
            total.running,
            slice_hours_text(total.used_millislice_s),
            slice_seconds_text(total.used_millislice_s),
            slice_seconds_text(total.reserved_millislice_s),
        )
    return table


def runs_table(rows: Iterable[StatementRow], now_s: int) -> Table:
    """One line per run."""
    table = _table(
        "tenant",
        "task",
        "user",
        "profile",
        "start",
        "end",
        ">seconds",
        ">slices",
        ">slice-seconds",
    )
    for row in rows:
        _add(
            table,
            row.run.tenant,
            row.run.task,
            row.run.user,
            gres_text(row.run.gres),
            time_text(row.run.key.start_s),
            time_text(row.end_s) or "running",
            _seconds(row, now_s),
            slices_text(row.run.cost_millislices),
            slice_seconds_text(row.used_millislice_s),
        )
    return table


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


def _table(*headings: str) -> Table:
    """Columns by heading; those that begin with ">" are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        name = heading.removeprefix(">")
        table.add_column(name, justify="left" if name == heading else "right", overflow="fold")
    return table


def _add(table: Table, *cells: object) -> None:
    # As Text: what users chose is never read as markup.
    table.add_row(*(Text(str(cell)) for cell in cells))
