"""Computes what is billed: what each payer is charged, day by day and price by price."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Literal

from slicewise.cluster.language.meters import REQUESTS, SLICES
from slicewise.cluster.language.persons import NOBODY
from slicewise.slurm_plugin.rules.accounting.statement import Day, pieces
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    list_price,
    money,
    slice_hour_price,
    usage_prices,
)
from slicewise.slurm_plugin.rules.accounting.types import StatementRow

ChargeKind = Literal["run", "share", "pool", "request", "energy"]
ChargeMeter = Literal[
    "slice-seconds",
    "prompt-tokens",
    "cached-prompt-tokens",
    "output-tokens",
    "requests",
    "millijoules",
    "shared-millijoules",
]
"""Of the ledger's meters those that have prices."""


@dataclass(frozen=True)
class Charged:
    """For what a line is.

    Attributes:
        start_s: begin of the day, or of the part of it that has this price, in Unix seconds.
        end_s: end of that; exclusive.
        payer: the tenant whose budget pays; of requests, the tenant.
        service: "" for jobs that are no replicas.
        user: of runs of that user, or requests of that person; "-" for shares.
        gpu_types: types of the GPU instances, sorted; not how many each run has.
        owner: whose service it is, if it is another tenant's.
        kind: what a run used, a share of another's run (below 0 for who is relieved of it), what
            a service used of its pool's other replicas, requests, or joules of runs.
        meter: that of the amount; of ``prompt-tokens`` those that the engine had not in its cache.
        price: of a slice-hour, of a million tokens, of a thousand requests or of a kilowatt-hour;
            None without a tariff.
        list_price: of a million tokens of that service elsewhere; None if nobody has said.
    """

    start_s: int
    end_s: int
    day: str
    payer: str
    tenant: str
    service: str
    user: str
    gpu_types: tuple[str, ...]
    owner: str = ""
    kind: ChargeKind = "run"
    meter: ChargeMeter = "slice-seconds"
    price: Decimal | None = None
    list_price: Decimal | None = None


@dataclass(frozen=True)
class ChargeLine:
    """What was used, without what was waived.

    Attributes:
        amount: in the meter's unit.
        millionths: what it costs, in millionths of the currency; None where it is the price of the
            amount, once all pages' amounts of the same are added.
    """

    of: Charged
    amount: int
    millionths: int | None = None


@dataclass(frozen=True)
class PassedOn:
    """A part of a service's runs that another tenant is charged, in the time of one price.

    Attributes:
        start_s: when the span of its price begins, in Unix seconds.
        replica_of: the service whose replica it was; ``service`` is the one that was asked.
    """

    gpu_types: tuple[str, ...]
    day: str
    start_s: int
    owner: str
    owner_payer: str
    replica_of: str
    tenant: str
    payer: str
    service: str
    amount: int


@dataclass(frozen=True)
class PooledDay:
    """What a service used of its pool's other replicas on a day, less what others used of its own.

    ``service`` is OWNER/NAME, ``gpu_types`` are those of the replicas.
    """

    day: str
    tenant: str
    payer: str
    gpu_types: tuple[str, ...]
    service: str
    amount: int


@dataclass(frozen=True)
class RequestDay:
    """What a person's requests to a service used on a day.

    Attributes:
        tenant: of whose keys they were, and who pays.
        person: the name as the reader may see it.
    """

    day: str
    tenant: str
    person: str
    service: str
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int

    def by_meter(self) -> Mapping[ChargeMeter, int]:
        """Amounts as they are priced: tokens of the cache are not those of the prompt."""
        return {
            "prompt-tokens": self.prompt_tokens - self.cached_prompt_tokens,
            "cached-prompt-tokens": self.cached_prompt_tokens,
            "output-tokens": self.output_tokens,
            "requests": self.requests,
        }


@dataclass(frozen=True)
class EnergyDay:
    """What meters measured of a user's runs on a day.

    Attributes:
        service: its name; "" for jobs that are no replicas.
        is_shared: whether it is their part of boards that several jobs held.
    """

    day: str
    payer: str
    tenant: str
    service: str
    user: str
    is_shared: bool
    energy_mj: int


def run_lines(
    rows: Iterable[StatementRow], spans: Sequence[PriceSpan], book: PriceBook
) -> tuple[ChargeLine, ...]:
    """Lines of what runs used in these spans, in order, none of them of nothing.

    ``rows`` are whole; runs are cut to the second, and their amounts to the millislice-second, so
    that lines of consecutive times add up.
    """
    if not spans:
        return ()
    sums: Counter[Charged] = Counter()
    of_start = {span.start_s: span for span in spans}
    days = [Day(span.start_s, span.day) for span in spans]
    for day, piece in pieces(rows, days, spans[0].start_s, spans[-1].end_s):
        run, span = piece.run, of_start[day.start_s]
        charged = Charged(
            start_s=span.start_s,
            end_s=span.end_s,
            day=span.day,
            payer=run.payer,
            tenant=run.tenant,
            service=piece.service,
            user=run.user,
            gpu_types=tuple(sorted(run.gres)),
        )
        sums[charged] += piece.used_millislice_s
    prices: dict[tuple[int, str, tuple[str, ...]], Decimal | None] = {}
    lines = []
    for charged, amount in sorted(sums.items(), key=lambda item: _order(item[0])):
        if amount:
            about = charged.start_s, charged.tenant, charged.gpu_types
            if about not in prices:
                prices[about] = slice_hour_price(book, of_start[charged.start_s], *about[1:])
            lines.append(ChargeLine(replace(charged, price=prices[about]), amount))
    return tuple(lines)


def share_lines(
    parts: Iterable[PassedOn],
    spans: Sequence[PriceSpan],
    book: PriceBook,
    tenants: Collection[str] | None,
) -> tuple[ChargeLine, ...]:
    """Lines of what these tenants (None: all) were charged and relieved of services' runs.

    Each part has the price of the run, that of the owner, when its hour began, and is rounded once:
    so the owner is relieved of exactly what the others pay.
    """
    lines = []
    of_start = {span.start_s: span for span in spans}
    for part in parts:
        span = of_start[part.start_s]
        price = slice_hour_price(book, span, part.owner, part.gpu_types)
        costs = None if price is None else money(SLICES.name, part.amount, price)
        whole = Charged(
            start_s=span.start_s,
            end_s=span.end_s,
            day=span.day,
            payer=part.payer,
            tenant=part.tenant,
            service=part.service,
            user=NOBODY,
            gpu_types=part.gpu_types,
            owner=part.owner,
            kind="share",
            price=price,
        )
        if tenants is None or part.tenant in tenants:
            lines.append(ChargeLine(whole, part.amount, costs or 0))
        if tenants is None or part.owner in tenants:
            own = replace(
                whole,
                payer=part.owner_payer,
                tenant=part.owner,
                service=part.replica_of,
                owner="",
            )
            lines.append(ChargeLine(own, -part.amount, -(costs or 0)))
    return tuple(lines)


def pool_lines(
    days: Iterable[PooledDay], spans: Sequence[PriceSpan], book: PriceBook
) -> tuple[ChargeLine, ...]:
    """Lines of what services used of each other's replicas; a tenant's of a day and of the
    same GPU types cost 0 together.

    No hour is kept of them: they have the mean price of the day. ``days`` are in order, and have
    all services of a tenant; what rounding leaves over is the last one's.
    """
    lines: list[ChargeLine] = []
    for (day, tenant, payer, types), group in groupby(
        days, key=lambda pooled: (pooled.day, pooled.tenant, pooled.payer, pooled.gpu_types)
    ):
        own, of_day = list(group), [span for span in spans if span.day == day]
        if not of_day:
            continue
        price = mean_price(book, of_day, tenant, types)
        costs = [money(SLICES.name, each.amount, price or Fraction(0)) for each in own]
        costs[-1] -= sum(costs)
        shown = None if price is None else round(Decimal(price.numerator) / price.denominator, 6)
        for each, cost in zip(own, costs, strict=True):
            service = each.service.removeprefix(f"{tenant}/")
            charged = Charged(
                start_s=of_day[0].start_s,
                end_s=of_day[-1].end_s,
                day=day,
                payer=payer,
                tenant=tenant,
                service=service,
                user=NOBODY,
                gpu_types=types,
                kind="pool",
                price=shown,
            )
            lines.append(ChargeLine(charged, each.amount, cost))
    return tuple(lines)


def mean_price(
    book: PriceBook, spans: Sequence[PriceSpan], tenant: str, types: Sequence[str]
) -> Fraction | None:
    """What a slice-hour of these GPU types costs a tenant in these spans, on the mean; None if one
    of them has no tariff.
    """
    whole_s, total = 0, Fraction(0)
    for span in spans:
        price = slice_hour_price(book, span, tenant, types)
        if price is None:
            return None
        whole_s += span.end_s - span.start_s
        total += Fraction(price) * (span.end_s - span.start_s)
    return total / whole_s


def request_lines(
    days: Iterable[RequestDay], spans: Sequence[PriceSpan], book: PriceBook
) -> Iterator[ChargeLine]:
    """Lines of requests and tokens, by the day in which they ended: windows are nothing to them.

    Each person's day, service and meter is rounded once, whoever may see the person.
    """
    of_day = _by_day(spans)
    for day in days:
        if day.day in of_day:
            yield from _lines_of_requests(day, of_day[day.day], book)


def _lines_of_requests(
    day: RequestDay, spans: Sequence[PriceSpan], book: PriceBook
) -> Iterator[ChargeLine]:
    owner, _, service = day.service.partition("/")
    prices = usage_prices(book, spans[0], day.tenant)
    for meter, amount in day.by_meter().items():
        if amount:
            price, is_token = prices[meter], meter != REQUESTS.name
            charged = Charged(
                start_s=spans[0].start_s,
                end_s=spans[-1].end_s,
                day=day.day,
                payer=day.tenant,
                tenant=day.tenant,
                service=service,
                user=day.person,
                gpu_types=(),
                owner="" if owner == day.tenant else owner,
                kind="request",
                meter=meter,
                price=price,
                list_price=list_price(spans[0].tariff, day.service) if is_token else None,
            )
            yield ChargeLine(charged, amount, money(meter, amount, price or Decimal(0)))


def energy_meter(is_shared: bool) -> ChargeMeter:
    """The meter of joules of boards that several jobs held, or one."""
    return "shared-millijoules" if is_shared else "millijoules"


def energy_lines(
    days: Iterable[EnergyDay], spans: Sequence[PriceSpan], book: PriceBook
) -> tuple[ChargeLine, ...]:
    """Lines of runs' joules that have a price, by the day: windows are nothing to them. Each is
    rounded once.
    """
    of_day = _by_day(spans)
    lines = []
    for day in days:
        meter = energy_meter(day.is_shared)
        own = of_day.get(day.day)
        price = usage_prices(book, own[0], day.tenant)[meter] if own else None
        if own and price:
            charged = Charged(
                start_s=own[0].start_s,
                end_s=own[-1].end_s,
                day=day.day,
                payer=day.payer,
                tenant=day.tenant,
                service=day.service,
                user=day.user,
                gpu_types=(),
                kind="energy",
                meter=meter,
                price=price,
            )
            lines.append(ChargeLine(charged, day.energy_mj, money(meter, day.energy_mj, price)))
    return tuple(lines)


def _by_day(spans: Iterable[PriceSpan]) -> Mapping[str, list[PriceSpan]]:
    of_day: dict[str, list[PriceSpan]] = {}
    for span in spans:
        of_day.setdefault(span.day, []).append(span)
    return of_day


def merged(lines: Iterable[ChargeLine]) -> tuple[ChargeLine, ...]:
    """Lines of the same added up, in order, each with what it costs: rounded once, half to even.

    Lines without a tariff cost nothing.
    """
    amounts: Counter[Charged] = Counter()
    given: Counter[Charged] = Counter()
    counted: Counter[Charged] = Counter()
    for line in lines:
        amounts[line.of] += line.amount
        if line.millionths is None:
            counted[line.of] += line.amount
        else:
            given[line.of] += line.millionths
    return tuple(
        ChargeLine(
            charged,
            amounts[charged],
            given[charged] + money(charged.meter, counted[charged], charged.price or Decimal(0)),
        )
        for charged in sorted(amounts, key=_order)
        if amounts[charged] or given[charged]
    )


def _order(charged: Charged) -> tuple[object, ...]:
    who = (charged.payer, charged.tenant, charged.service, charged.user)
    what = (charged.gpu_types, charged.owner, charged.kind, charged.meter)
    return charged.start_s, *who, *what
