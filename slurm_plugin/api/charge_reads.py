"""Gathers what was charged, with prices, page by page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.power import POWERS
from slicewise.cluster.language.gres import parse_gpu_requests, parse_shared
from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.rpc.read_messages import SlicePriceAnswer, SlicePriceRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.carbon import grams_between
from slicewise.slurm_plugin.api.energy import priced_types
from slicewise.slurm_plugin.common.tariff_requests import (
    MOST_AHEAD_S,
    ChargeCursor,
    ChargesAnswer,
    ChargesRequest,
    CheapestAnswer,
    CheapestRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.rules.accounting.begin_times import BeginSpan, Rate, begin_times
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
from slicewise.slurm_plugin.rules.accounting.energy import (
    MJ_PER_KWH,
    UnmeasuredRow,
    modelled,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    MILLIONTHS,
    PriceBook,
    PriceSpan,
    price_spans,
    prices_energy,
    slice_day_price,
    slice_hour_price,
)
from slicewise.slurm_plugin.rules.accounting.types import StatementRow

_PAGE_ROWS = 2000
_MOST_RATES = 10_000
"""Grams by the quarter of an hour, until the farthest deadline. Each takes the daemon's time."""
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


def cheapest(request: CheapestRequest, ledger: Ledger, settings: Settings) -> CheapestAnswer:
    """When a tenant's job costs least money by the tariffs, and least CO2 by the series of grams.

    Raises InvalidInputError: SW-GRES, SW-PROFILE-UNKNOWN for GPUs without a price; SW-VALUE for
    what ends too late, or if the file of grams can't be read.
    """
    gpus = _gpus(request.gres, settings)
    book, now_s = ledger.tariffs.book(settings.ledger.time_zone), int(wall_s())
    span = BeginSpan(now_s, max(now_s, request.last_s), request.lasts_s)
    until_s = span.last_s + span.lasts_s
    if until_s > now_s + MOST_AHEAD_S:
        raise InvalidInputError(
            Code.VALUE,
            "The deadline is too far away.",
            f"Name one within {MOST_AHEAD_S // _DAY_S} days.",
        )
    spans = price_spans(book.records, now_s, until_s, book.zone)
    money = tuple(_money(spans, book, request.tenant, gpus, settings))
    grams = tuple(_grams(now_s, until_s, gpus, settings))
    if len(grams) > _MOST_RATES:
        raise InvalidInputError(
            Code.VALUE,
            f"Grams change more than {_MOST_RATES} times until then.",
            "Name a nearer deadline, or give energy.carbon_file by the hour.",
        )
    times = begin_times(money, grams, span)
    tariff = spans[0].tariff
    return CheapestAnswer(currency=tariff.currency if tariff else "", now_s=now_s, times=times)


def _money(
    spans: Sequence[PriceSpan],
    book: PriceBook,
    tenant: str,
    gpus: Mapping[str, int],
    settings: Settings,
) -> Iterator[Rate]:
    """Millionths of the currency."""
    held = sum(settings.costs[gres_type] * count for gres_type, count in gpus.items())
    for span in spans:
        price = slice_hour_price(book, span, tenant, gpus)
        if price is not None:
            cost = Fraction(price) * held * MILLIONTHS / SLICES.scale
            yield Rate(span.start_s, span.end_s, cost)


def _grams(
    since_s: int, until_s: int, gpus: Mapping[str, int], settings: Settings
) -> Iterator[Rate]:
    """Grams of CO2 by the table of watts; none of a job with boards that it lacks."""
    types = priced_types(settings)
    if not all(each in types and types[each].model in POWERS for each in gpus):
        return
    of_a_second = modelled(UnmeasuredRow("", "", "", "", gpus, 1), types)
    if of_a_second.model_mj:
        kwh = Fraction(of_a_second.model_mj, MJ_PER_KWH)
        for start_s, end_s, grams in grams_between(settings.energy, since_s, until_s):
            yield Rate(start_s, end_s, kwh * Fraction(grams))


def _gpus(gres: str, settings: Settings) -> Mapping[str, int]:
    """GPUs by type; each has a price."""
    requests = (*parse_gpu_requests(gres), *parse_shared(gres))
    gpus = dict[str, int]()
    for each in requests:
        if each.gres_type is not None and not each.is_open:
            gpus[each.gres_type] = gpus.get(each.gres_type, 0) + each.count
    if not gpus or len(gpus) < len(requests):
        raise InvalidInputError(
            Code.GRES, f"{gres!r} does not name each type once.", "Write gpu:TYPE:N."
        )
    if unknown := sorted(gpus.keys() - settings.costs.keys()):
        raise InvalidInputError(
            Code.PROFILE_UNKNOWN,
            f"{unknown[0]!r} is not a type of this cluster.",
            f"Take one of: {', '.join(sorted(settings.costs))}.",
        )
    return gpus


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
