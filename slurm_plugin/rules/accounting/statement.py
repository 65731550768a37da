"""Computes rows and totals of a statement on what tenants' runs cost, or of a part of it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.types import (
    InvoiceLine,
    Reservation,
    ShareLine,
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


def totals(
    rows: Iterable[StatementRow], shares: Iterable[ShareLine] = ()
) -> tuple[TenantTotal, ...]:
    """One total per tenant, sorted by name."""
    summed = _summed(((row, "") for row in rows), ((share, "") for share in shares))
    # What a tenant's services used of each other's replicas is nothing of the tenant's.
    return tuple(TenantTotal(tenant, *sums[:-1]) for (tenant, _), sums in summed)


def by_service(
    rows: Iterable[StatementRow], shares: Iterable[ShareLine] = ()
) -> tuple[InvoiceLine, ...]:
    """One line per tenant and service, and one for its other jobs; they add up to the totals."""
    return _lines(
        ((row, row.service) for row in rows), ((share, _service(share)) for share in shares)
    )


def _service(share: ShareLine) -> str:
    return share.service.removeprefix(f"{share.tenant}/")


def by_user(
    rows: Iterable[StatementRow], shares: Iterable[ShareLine] = ()
) -> tuple[InvoiceLine, ...]:
    """One line per tenant and user, sorted by both; they add up to the tenants' totals."""
    # Who of a tenant used a pool is not known: its services' parts of each other are nobody's.
    between_tenants = (
        replace(share, pooled_millislice_s=MillisliceSeconds(0))
        for share in shares
        if not share.is_in_pool
    )
    return _lines(
        ((row, row.run.user) for row in rows), ((share, NOBODY) for share in between_tenants)
    )


def by_day(
    rows: Iterable[StatementRow],
    days: Sequence[Day],
    from_s: int = 0,
    until_s: int | None = None,
    shares: Iterable[ShareLine] = (),
) -> tuple[InvoiceLine, ...]:
    """One line per tenant and day, sorted by both, of the use from ``from_s`` up to ``until_s``.

    They add up to the totals of that part. ``rows`` are whole: a row that ``part`` has cut does
    not say when its use was. ``days`` are consecutive and begin before all rows or before
    ``from_s``. A run is cut at each midnight, and counts as one run on each of its days.
    """
    cut = pieces(rows, days, from_s, until_s)
    return _lines(
        ((piece, day.text) for day, piece in cut), ((share, share.day) for share in shares)
    )


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


_Keyed = Iterable[tuple[StatementRow, str]]
_KeyedShares = Iterable[tuple[ShareLine, str]]


def _lines(rows: _Keyed, shares: _KeyedShares) -> tuple[InvoiceLine, ...]:
    return tuple(InvoiceLine(*about, *sums) for about, sums in _summed(rows, shares))


def _summed(
    rows: _Keyed, shares: _KeyedShares
) -> Iterator[tuple[tuple[str, str], tuple[Any, ...]]]:
    """Sums by tenant and key, in order."""
    rows_of: dict[tuple[str, str], list[StatementRow]] = {}
    shares_of: dict[tuple[str, str], list[ShareLine]] = {}
    for row, key in rows:
        rows_of.setdefault((row.run.tenant, key), []).append(row)
    for share, key in shares:
        shares_of.setdefault((share.tenant, key), []).append(share)
    for about in sorted({*rows_of, *shares_of}):
        yield about, _sums(rows_of.get(about, ()), shares_of.get(about, ()))


def _sums(rows: Sequence[StatementRow], shares: Sequence[ShareLine]) -> tuple[Any, ...]:
    """The sums in the order of the fields of a total and of a line."""
    used = sum(row.used_millislice_s for row in rows)
    relieved = sum(share.relieved_millislice_s for share in shares)
    shared = sum(share.shared_millislice_s for share in shares)
    pooled = sum(share.pooled_millislice_s for share in shares)
    return (
        len(rows),
        sum(row.end_s is None for row in rows),
        MillisliceSeconds(used),
        MillisliceSeconds(sum(row.waived_millislice_s for row in rows)),
        MillisliceSeconds(sum(row.reserved_millislice_s for row in rows)),
        MillisliceSeconds(relieved),
        MillisliceSeconds(shared),
        MillisliceSeconds(used - relieved + shared + pooled),
        sum(share.requests for share in shares),
        sum(share.prompt_tokens for share in shares),
        sum(share.cached_prompt_tokens for share in shares),
        sum(share.output_tokens for share in shares),
        MillisliceSeconds(pooled),
    )
