"""Gathers what was charged, with prices, page by page."""

from collections.abc import Iterator, Sequence
from typing import Literal

from slicewise.cluster.rpc.read_messages import SlicePriceAnswer, SlicePriceRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.common.ledger_requests import StatementCursor
from slicewise.slurm_plugin.common.tariff_requests import (
    ChargeCursor,
    ChargesAnswer,
    ChargesRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    ChargeLine,
    pool_lines,
    request_lines,
    run_lines,
    share_lines,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    price_spans,
    slice_day_price,
    slice_hour_price,
)

_PAGE_ROWS = 2000
_DAY_S = 86_400


def charges(
    request: ChargesRequest, principal: Principal, ledger: Ledger, zone: str
) -> ChargesAnswer:
    """One page of what the user may read: runs first, then shares and pools, then requests."""
    reader = None if principal.tenants is None else principal.user
    wanted = WantedCharges(request.tenant, principal.tenants, reader)
    after = request.after or ChargeCursor(part="runs", now_s=int(wall_s()))
    book = ledger.tariffs.book(zone)
    spans = price_spans(book.records, request.since_s, request.until_s, book.zone)
    lines, more = _PARTS[after.part](ledger, wanted, spans, book, after)
    currency = book.records[-1].tariff.currency if book.records else ""
    return ChargesAnswer(currency=currency, now_s=after.now_s, lines=lines, more=more)


def all_charges(
    ledger: Ledger, wanted: WantedCharges, spans: Sequence[PriceSpan], book: PriceBook, now_s: int
) -> Iterator[ChargeLine]:
    """All of it."""
    after: ChargeCursor | None = ChargeCursor(part="runs", now_s=now_s)
    while after is not None:
        lines, after = _PARTS[after.part](ledger, wanted, spans, book, after)
        yield from lines


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


_Page = tuple[tuple[ChargeLine, ...], ChargeCursor | None]


def _runs(
    ledger: Ledger,
    wanted: WantedCharges,
    spans: Sequence[PriceSpan],
    book: PriceBook,
    after: ChargeCursor,
) -> _Page:
    place = after.run
    rows = ledger.audit.statement_page(
        wanted.tenant,
        spans[0].start_s,
        after.now_s,
        (place.tenant, place.start_s, place.job_id) if place else None,
        _PAGE_ROWS,
        until_s=spans[-1].end_s,
        accounts=wanted.tenants,
    )
    more = ChargeCursor(part="shares", now_s=after.now_s)
    if len(rows) == _PAGE_ROWS:
        run = rows[-1].run
        last = StatementCursor(
            tenant=run.tenant, start_s=run.key.start_s, job_id=run.key.job_id, now_s=after.now_s
        )
        more = ChargeCursor(part="runs", run=last, now_s=after.now_s)
    return run_lines(rows, spans, book), more


def _shares(
    ledger: Ledger,
    wanted: WantedCharges,
    spans: Sequence[PriceSpan],
    book: PriceBook,
    after: ChargeCursor,
) -> _Page:
    parts = ledger.tariffs.passed_on(wanted, spans, after.skip, _PAGE_ROWS)
    lines = share_lines(parts, spans, book, wanted.tenants)
    if not after.skip:
        lines += pool_lines(ledger.tariffs.pooled(wanted, _days(spans)), spans, book)
    if wanted.tenant is not None:
        # As of runs: its own, and what it pays for.
        lines = tuple(line for line in lines if wanted.tenant in {line.of.tenant, line.of.payer})
    return lines, _next(after, len(parts), "requests")


def _requests(
    ledger: Ledger,
    wanted: WantedCharges,
    spans: Sequence[PriceSpan],
    book: PriceBook,
    after: ChargeCursor,
) -> _Page:
    requests = ledger.tariffs.requests(wanted, _days(spans), after.skip, _PAGE_ROWS)
    return request_lines(requests, spans, book), _next(after, len(requests), None)


_PARTS = {"runs": _runs, "shares": _shares, "requests": _requests}


def _next(after: ChargeCursor, rows: int, then: Literal["requests"] | None) -> ChargeCursor | None:
    if rows == _PAGE_ROWS:
        return after.model_copy(update={"skip": after.skip + rows})
    return None if then is None else ChargeCursor(part=then, now_s=after.now_s)


def _days(spans: Sequence[PriceSpan]) -> tuple[str, ...]:
    """Days that begin in that time: of others some is in another time."""
    return tuple(dict.fromkeys(span.day for span in spans if span.begins_day))
