"""Gathers what was charged, with prices, page by page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from slicewise.cluster.rpc.read_messages import SlicePriceAnswer, SlicePriceRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.common.tariff_requests import (
    ChargeCursor,
    ChargesAnswer,
    ChargesRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    ChargeLine,
    EnergyDay,
    PassedOn,
    PooledDay,
    RequestDay,
    energy_lines,
    merged,
    pool_lines,
    request_lines,
    run_lines,
    share_lines,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    price_spans,
    prices_energy,
    slice_day_price,
    slice_hour_price,
)
from slicewise.slurm_plugin.rules.accounting.types import StatementRow

_PAGE_ROWS = 2000
_DAY_S = 86_400


def charges(
    request: ChargesRequest, principal: Principal, ledger: Ledger, zone: str
) -> ChargesAnswer:
    """One page of what the user may read: runs first, then shares and pools, requests, joules."""
    reader = None if principal.tenants is None else principal.user
    wanted = WantedCharges(request.tenant, principal.tenants, reader)
    after = request.after or ChargeCursor(part="runs", now_s=int(wall_s()))
    book = ledger.tariffs.book(zone)
    spans = price_spans(book.records, request.since_s, request.until_s, book.zone)
    lines, more = _page(_Read(ledger, wanted, spans, book), after)
    currency = book.records[-1].tariff.currency if book.records else ""
    return ChargesAnswer(
        currency=currency, zone=book.zone, now_s=after.now_s, lines=lines, more=more
    )


def slice_price(request: SlicePriceRequest, ledger: Ledger, zone: str) -> SlicePriceAnswer:
    """What a slice of a type costs a tenant now, and in the day to come."""
    book, now_s = ledger.tariffs.book(zone), int(wall_s())
    spans = price_spans(book.records, now_s, now_s + _DAY_S, book.zone)
    if spans[0].tariff is None:
        return SlicePriceAnswer()
    return SlicePriceAnswer(
        currency=spans[0].tariff.currency,
        hour=slice_hour_price(book, spans[0], request.tenant, (request.gres_type,)),
        day=slice_day_price(book, spans, request.tenant, request.gres_type),
    )


@dataclass(frozen=True)
class _Read:
    """What is read of charges, and by what it is priced."""

    ledger: Ledger
    wanted: WantedCharges
    spans: Sequence[PriceSpan]
    book: PriceBook


_Lines = tuple[ChargeLine, ...]


def _page(read: _Read, after: ChargeCursor) -> tuple[_Lines, ChargeCursor | None]:
    """The lines of a page, and where the next one begins; None after the last page."""
    rows, lines = _PARTS[after.part](read, after)
    if len(rows) >= _PAGE_ROWS:
        return lines, after.model_copy(update=_place(rows[-1]))
    parts = tuple(_PARTS)
    following = parts[parts.index(after.part) + 1 :]
    return lines, ChargeCursor(part=following[0], now_s=after.now_s) if following else None


def _place(
    last: StatementRow | PassedOn | PooledDay | RequestDay | EnergyDay,
) -> Mapping[str, object]:
    if isinstance(last, StatementRow):
        run = last.run
        return {"run": (run.tenant, run.key.start_s, run.key.job_id)}
    whose = last.owner if isinstance(last, PassedOn) else last.tenant
    rest = ("", "")
    if isinstance(last, RequestDay | EnergyDay):
        person = last.person if isinstance(last, RequestDay) else last.user
        rest = person, last.service
    return {"day": (date.fromisoformat(last.day), whose, *rest)}


def _runs(read: _Read, after: ChargeCursor) -> tuple[Sequence[StatementRow], _Lines]:
    rows = read.ledger.audit.statement_page(
        read.wanted.tenant,
        read.spans[0].start_s,
        after.now_s,
        after.run,
        _PAGE_ROWS,
        until_s=read.spans[-1].end_s,
        accounts=read.wanted.tenants,
    )
    return rows, run_lines(rows, read.spans, read.book)


def _shares(read: _Read, after: ChargeCursor) -> tuple[Sequence[PassedOn], _Lines]:
    parts = read.ledger.tariffs.passed_on(read.wanted, read.spans, after.day, _PAGE_ROWS)
    return parts, _own(read, share_lines(parts, read.spans, read.book, read.wanted.tenants))


def _pools(read: _Read, after: ChargeCursor) -> tuple[Sequence[PooledDay], _Lines]:
    days = _days(read.spans)
    parts = read.ledger.tariffs.pooled(read.wanted, days, after.day, _PAGE_ROWS)
    return parts, _own(read, pool_lines(parts, read.spans, read.book))


def _own(read: _Read, lines: _Lines) -> _Lines:
    """As of runs: what is the wanted tenant's own, and what it pays for."""
    tenant = read.wanted.tenant
    return tuple(line for line in lines if tenant in {None, line.of.tenant, line.of.payer})


def _requests(read: _Read, after: ChargeCursor) -> tuple[Sequence[RequestDay], _Lines]:
    days = _days(read.spans)
    requests = read.ledger.tariffs.requests(read.wanted, days, after.day, _PAGE_ROWS)
    # Persons that the reader may not see are one: there may be many.
    return requests, merged(request_lines(requests, read.spans, read.book))


def _energy(read: _Read, after: ChargeCursor) -> tuple[Sequence[EnergyDay], _Lines]:
    if not prices_energy(read.spans):
        return (), ()
    days, zone = _days(read.spans), read.book.zone
    parts = read.ledger.tariffs.energy(read.wanted, days, zone, after.day, _PAGE_ROWS)
    return parts, energy_lines(parts, read.spans, read.book)


_PARTS: Mapping[str, Callable[[_Read, ChargeCursor], tuple[Sequence[Any], _Lines]]] = {
    "runs": _runs,
    "shares": _shares,
    "pools": _pools,
    "requests": _requests,
    "energy": _energy,
}


def _days(spans: Sequence[PriceSpan]) -> tuple[str, ...]:
    """Days that begin in that time: of others some is in another time."""
    return tuple(dict.fromkeys(span.day for span in spans if span.begins_day))
