"""Computes rows and totals of a statement on what tenants' runs cost, or of a part of it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.types import (
    InvoiceLine,
    Reservation,
    StatementRow,
    TenantTotal,
)


@dataclass(frozen=True)
class Day:
    """A day of the calendar: when it begins, in Unix seconds, and its date, ``2026-01-31``."""

    start_s: int
    text: str


def open_row(held: Reservation, now_s: int) -> StatementRow:
    """The row of a run that is not settled: its use up to ``now_s``, and what is left reserved."""
    unposted = min(held.reserved_millislice_s, unposted_millislice_s(held, now_s))
    return StatementRow(
        held,
        end_s=None,
        used_millislice_s=MillisliceSeconds(held.posted_millislice_s + unposted),
        waived_millislice_s=MillisliceSeconds(0),
        reserved_millislice_s=MillisliceSeconds(held.reserved_millislice_s - unposted),
    )


def unposted_millislice_s(held: Reservation, at_s: int) -> int:
    """Millislice-seconds that a run used up to ``at_s`` beyond what is posted; at least 0."""
    used = (at_s - held.key.start_s) * held.cost_millislices
    return max(0, used - held.posted_millislice_s)


def part(
    rows: Iterable[StatementRow], from_s: int, until_s: int | None
) -> tuple[StatementRow, ...]:
    """The rows cut to the time from ``from_s`` up to ``until_s``, without runs with no use then.

    Amounts are cut to the millislice-second, so consecutive parts add up to the whole. The amount
    that an unfinished run still has reserved is in the part in which its use so far ends.
    """
    until_s = _NEVER_S if until_s is None else until_s
    cut = (_cut(row, from_s, until_s) for row in rows)
    return tuple(row for row in cut if row is not None)


_NEVER_S = 2**62


def _cut(row: StatementRow, from_s: int, until_s: int) -> StatementRow | None:
    start_s, amount = row.run.key.start_s, row.used_millislice_s + row.waived_millislice_s
    seconds = -(-amount // row.run.cost_millislices)
    ends_here = from_s <= start_s + seconds < until_s
    first, last = (min(max(0, at_s - start_s), seconds) for at_s in (from_s, until_s))
    # A run that ended in the second of its start is in the part that contains this second.
    if first == last and not (ends_here and (seconds == 0 or row.end_s is None)):
        return None

    def within(whole: int) -> MillisliceSeconds:
        if not seconds:
            return MillisliceSeconds(0)
        return MillisliceSeconds(whole * last // seconds - whole * first // seconds)

    return replace(
        row,
        used_millislice_s=within(row.used_millislice_s),
        waived_millislice_s=within(row.waived_millislice_s),
        reserved_millislice_s=row.reserved_millislice_s if ends_here else MillisliceSeconds(0),
    )


def totals(rows: Iterable[StatementRow]) -> tuple[TenantTotal, ...]:
    """One total per tenant, sorted by name."""
    by_tenant: dict[str, list[StatementRow]] = {}
    for row in rows:
        by_tenant.setdefault(row.run.tenant, []).append(row)
    return tuple(TenantTotal(tenant, *_sums(by_tenant[tenant])) for tenant in sorted(by_tenant))


def by_service(rows: Iterable[StatementRow]) -> tuple[InvoiceLine, ...]:
    """One line per tenant and service, and one for its other jobs; they add up to the totals."""
    return _lines((row.service, row) for row in rows)


def by_user(rows: Iterable[StatementRow]) -> tuple[InvoiceLine, ...]:
    """One line per tenant and user, sorted by both; they add up to the tenants' totals."""
    return _lines((row.run.user, row) for row in rows)


def by_day(
    rows: Iterable[StatementRow], days: Sequence[Day], from_s: int = 0, until_s: int | None = None
) -> tuple[InvoiceLine, ...]:
    """One line per tenant and day, sorted by both, of the use from ``from_s`` up to ``until_s``.

    They add up to the totals of that part. ``rows`` are whole: a row that ``part`` has cut does
    not say when its use was. ``days`` are consecutive and begin before all rows or before
    ``from_s``. A run is cut at each midnight, and counts as one run on each of its days.
    """
    cut = pieces(rows, days, from_s, until_s)
    return _lines((day.text, piece) for day, piece in cut)


def pieces(
    rows: Iterable[StatementRow], days: Sequence[Day], from_s: int, until_s: int | None
) -> Iterator[tuple[Day, StatementRow]]:
    """The use of each row on each day, as ``by_day`` sums it up."""
    until_s = _NEVER_S if until_s is None else until_s
    starts = [day.start_s for day in days]
    ends = [*starts[1:], _NEVER_S]
    for row in rows:
        place = max(0, bisect_right(starts, max(from_s, row.run.key.start_s)) - 1)
        amount = row.used_millislice_s + row.waived_millislice_s
        last_s = row.run.key.start_s - (-amount // row.run.cost_millislices)
        while place < len(days) and starts[place] <= last_s:
            begin_s, end_s = max(from_s, starts[place]), min(until_s, ends[place])
            piece = _cut(row, begin_s, end_s) if begin_s < end_s else None
            if piece is not None:
                yield days[place], piece
            place += 1


def _lines(keyed: Iterable[tuple[str, StatementRow]]) -> tuple[InvoiceLine, ...]:
    rows_by_line: dict[tuple[str, str], list[StatementRow]] = {}
    for key, row in keyed:
        rows_by_line.setdefault((row.run.tenant, key), []).append(row)
    return tuple(
        InvoiceLine(tenant, key, *_sums(rows))
        for (tenant, key), rows in sorted(rows_by_line.items())
    )


def _sums(
    rows: Sequence[StatementRow],
) -> tuple[int, int, MillisliceSeconds, MillisliceSeconds, MillisliceSeconds]:
    """Runs, running ones, and what all used, were waived, and have reserved."""
    return (
        len(rows),
        sum(row.end_s is None for row in rows),
        MillisliceSeconds(sum(row.used_millislice_s for row in rows)),
        MillisliceSeconds(sum(row.waived_millislice_s for row in rows)),
        MillisliceSeconds(sum(row.reserved_millislice_s for row in rows)),
    )
