"""Writes rows as CSV that no spreadsheet takes for formulas; the runs of a statement have most."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal

from slicewise.slurm_plugin.rules.accounting.types import StatementRow

_FORMULA = tuple("=+-@\t\r")


@dataclass(frozen=True)
class RunLine:
    """A run of a job in a statement, in integers."""

    cluster: str
    job_id: int
    start_s: int
    tenant: str
    payer: str
    user: str
    task: str
    gres: Mapping[str, int]
    cost_millislices: int
    service: str
    end_s: int | None
    seconds: int
    used_millislice_s: int
    waived_millislice_s: int
    reserved_millislice_s: int


def csv_text(
    rows: Iterable[Mapping[str, object]], columns: Iterable[str], *, header: bool = True
) -> str:
    """Write rows, whose keys are the columns, under a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, tuple(columns), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(map(inert, rows))
    return text.getvalue()


def inert(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row as CSV may have it: texts that a spreadsheet takes for a formula get a ' before."""
    return {name: _cell(value) for name, value in row.items()}


def _cell(value: object) -> object:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def gres_text(gres: Mapping[str, int]) -> str:
    """``1g.10gb`` or ``2 × 1g.10gb + 3g.40gb``."""
    return " + ".join(
        gres_type if count == 1 else f"{count} × {gres_type}"
        for gres_type, count in sorted(gres.items())
    )


def run_line(row: StatementRow, now_s: int) -> RunLine:
    """The run of that row; ``now_s`` is the time up to which running ones are counted."""
    run = row.run
    return RunLine(
        cluster=run.key.cluster,
        job_id=run.key.job_id,
        start_s=run.key.start_s,
        tenant=run.tenant,
        payer=run.payer,
        user=run.user,
        task=run.task,
        gres=run.gres,
        cost_millislices=run.cost_millislices,
        service=row.service,
        end_s=row.end_s,
        seconds=run_seconds(row, now_s),
        used_millislice_s=row.used_millislice_s,
        waived_millislice_s=row.waived_millislice_s,
        reserved_millislice_s=row.reserved_millislice_s,
    )


def runs_csv(rows: Iterable[StatementRow], now_s: int, *, header: bool = True) -> str:
    """One line per run, with the same names and integers as JSON."""
    shown = ({**vars(run_line(row, now_s)), "gres": gres_text(row.run.gres)} for row in rows)
    return csv_text(shown, (field.name for field in fields(RunLine)), header=header)


def run_seconds(row: StatementRow, now_s: int) -> int:
    """Seconds that a run has lasted, of a running one up to ``now_s``."""
    return max(0, (now_s if row.end_s is None else row.end_s) - row.run.key.start_s)
