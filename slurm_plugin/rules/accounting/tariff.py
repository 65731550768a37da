"""Tells what use costs: tariffs as operators write them, and which price holds at a moment.

All money is in millionths of the currency, prices are exact decimals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.currencies import CURRENCIES
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import (
    CACHED_PROMPT_TOKENS,
    ENERGY,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    SHARED_ENERGY,
    SLICES,
)
from slicewise.cluster.language.periods import (
    Period,
    clock_times_s,
    date_text,
    next_start_s,
    period_start_s,
    weekday_and_minute,
)
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.calendar import ALL, Moment, Window, WindowKind, holds
from slicewise.slurm_plugin.rules.quota.clock_words import days_from_text, minute_from_text

MILLIONTHS = 10**6
ANY_SERVICE = "*"
"""Stands in ``list_prices`` for every service that is not named."""

_MOST_NAMES = 10_000
_DAY_S = 86_400


def _exact(value: object) -> object:
    if isinstance(value, bool | float):
        raise ValueError("write a number such as 0.35")  # noqa: TRY004 -- pydantic's own
    return value


Price = Annotated[
    Decimal,
    BeforeValidator(_exact),
    Field(ge=0, le=10**9, max_digits=16, decimal_places=6, allow_inf_nan=False),
]
"""Of a unit of a meter: at most six decimals."""


def _account(value: object) -> object:
    return account_name(value) if isinstance(value, str) else value


def _trimmed(text: str) -> str:
    if text != text.strip():
        raise ValueError("leave out the blanks around it")
    return text


Name = Annotated[
    str,
    Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$"),
    AfterValidator(_trimmed),
]
TenantName = Annotated[Name, BeforeValidator(_account)]
ServiceName = Annotated[str, Field(max_length=128, pattern=r"^(\*|[^/\s]+/[^/\s]+)$")]
"""OWNER/NAME, or ``ANY_SERVICE``."""


def _currency(text: str) -> str:
    if text not in CURRENCIES:
        raise ValueError("write a currency of ISO 4217, such as EUR")
    return text


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Prices(_Part):
    """What a unit of each meter costs; of a class, what is left out is as for all others.

    What a class names takes the place of all that would stand in for it: its ``slice_hour`` is for
    every type that it does not name itself, its ``million_prompt_tokens`` for cached ones, too.

    A further meter is a further key here and in ``METER_PRICES``.

    Attributes:
        slice_hour_by_type: by GPU type as Slurm names it; a run on several has the dearest of them.
        million_cached_prompt_tokens: as those of the prompt if it is left out.
        kwh: of what meters measured of boards that one job held.
        shared_kwh: of jobs' parts of boards that several held, which are estimates.
    """

    slice_hour: Price | None = None
    slice_hour_by_type: Mapping[Name, Price] = Field({}, max_length=_MOST_NAMES)
    million_prompt_tokens: Price | None = None
    million_cached_prompt_tokens: Price | None = None
    million_output_tokens: Price | None = None
    thousand_requests: Price | None = None
    kwh: Price | None = None
    shared_kwh: Price | None = None


class TariffClass(_Part):
    """Tenants with prices of their own; who is below one of them is of the same class."""

    tenants: tuple[TenantName, ...] = Field(min_length=1, max_length=_MOST_NAMES)
    prices: Prices


class TariffWindow(_Part):
    """Hours of the week in which slice-hours cost a multiple of their price.

    Attributes:
        days: those on which it begins, as ``mon-fri``; every day if left out.
        begin, end: as ``22:00``, by the ledger's clock; an end that is not later is on the next
            day.
    """

    name: Name
    days: Name = "mon-sun"
    begin: Name = "00:00"
    end: Name = "24:00"
    factor: Annotated[Price, Field(le=100)]

    @model_validator(mode="after")
    def _is_of_the_week(self) -> Self:
        try:
            window_of(self)
        except InvalidInputError as error:
            refusal = error.refusal
            raise ValueError(f"{refusal.message} {refusal.hint}".rstrip(". ")) from None
        return self


class MoneyBudget(_Part):
    """What a tenant and those below it should not exceed: an alarm, nothing ends for it.

    Attributes:
        warn_at: part of the amount from which on it is said.
    """

    amount: Annotated[Price, Field(gt=0)]
    period: Literal["day", "week", "month"] = "month"
    warn_at: Annotated[Price, Field(gt=0, le=1)] = Decimal("0.8")


class Tariff(_Part):
    """What use costs.

    Attributes:
        currency: by ISO 4217; a cluster has one for all time.
        windows: of several that hold, the first counts.
        time_zone: by which it begins, and its days and windows are: that of the ledger when it was
            entered, which is not in the file; "" where nobody has noted it.
        list_prices: what a million tokens of a service (OWNER/NAME, or ``ANY_SERVICE``) would cost
            elsewhere: shown beside, never charged.
    """

    currency: Annotated[str, AfterValidator(_currency)]
    time_zone: str = ""
    prices: Prices
    classes: Mapping[Name, TariffClass] = Field({}, max_length=_MOST_NAMES)
    windows: tuple[TariffWindow, ...] = Field((), max_length=64)
    list_prices: Mapping[ServiceName, Price] = Field({}, max_length=_MOST_NAMES)
    budgets: Mapping[TenantName, MoneyBudget] = Field({}, max_length=_MOST_NAMES)

    @field_validator("budgets", mode="before")
    @classmethod
    def _has_each_tenant_once(cls, budgets: object) -> object:
        if isinstance(budgets, Mapping):
            names = [account_name(str(name)) for name in budgets]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"the same tenant twice: {', '.join(twice[:10])}")
        return budgets

    @field_validator("classes")
    @classmethod
    def _is_each_in_one(cls, classes: Mapping[str, TariffClass]) -> Mapping[str, TariffClass]:
        names = [tenant for each in classes.values() for tenant in each.tenants]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"in two classes, or twice in one: {', '.join(twice[:10])}")
        return classes

    @model_validator(mode="after")
    def _has_names_once(self) -> Self:
        names = [window.name for window in self.windows]
        if len(set(names)) < len(names):
            raise ValueError("two windows have the same name")
        return self


@dataclass(frozen=True)
class TariffRecord:
    """A tariff, and who has entered it.

    Attributes:
        valid_from_s: from when on, in Unix seconds; of several from the same moment the newest
            holds.
        recorded_s: when it was entered, in Unix seconds.
    """

    tariff_id: int
    valid_from_s: int
    tariff: Tariff
    author: str
    reason: str
    recorded_s: int


@dataclass(frozen=True)
class PriceBook:
    """All by which use is priced.

    Attributes:
        records: every tariff that was ever entered.
        parents: of each tenant, whose child it was since when: Unix seconds in order; "" is none.
        zone: time zone of days and windows.
    """

    records: Sequence[TariffRecord]
    parents: Mapping[str, Sequence[tuple[int, str]]]
    zone: str


@dataclass(frozen=True)
class PriceSpan:
    """A part of a day in which all prices stay.

    Attributes:
        day: its date, as ``2026-01-31``.
        tariff: None before the first one.
        window: the name of the window that holds; "" if none does.
        factor: by which prices of slice-hours are multiplied.
        begins_day: whether the day begins with it.
        class_by_tenant: the class of each tenant that the tariff names in one.
    """

    start_s: int
    end_s: int
    day: str
    tariff: Tariff | None
    window: str = ""
    factor: Decimal = Decimal(1)
    begins_day: bool = True
    class_by_tenant: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def window_of(window: TariffWindow) -> Window:
    """The window as the calendar has it; InvalidInputError (SW-VALUE) for words that are none."""
    return Window(
        0,
        ALL,
        WindowKind.CAP,
        Millislices(0),
        days_from_text(window.days),
        minute_from_text(window.begin, "begin", ends=False),
        minute_from_text(window.end, "end", ends=True),
    )


def in_force(records: Iterable[TariffRecord], at_s: float) -> TariffRecord | None:
    """The tariff that holds at a moment; None before the first one."""
    begun = (record for record in records if record.valid_from_s <= at_s)
    return max(begun, key=lambda record: (record.valid_from_s, record.tariff_id), default=None)


def price_spans(
    records: Sequence[TariffRecord], from_s: int, until_s: int, zone: str
) -> tuple[PriceSpan, ...]:
    """The time from ``from_s`` up to ``until_s``, cut where a day begins or a price changes."""
    spans: list[PriceSpan] = []
    hours = {record.tariff_id: _hours(record.tariff) for record in records}
    classes = {record.tariff_id: _class_by_tenant(record.tariff) for record in records}
    for start_s, end_s in pairwise(sorted(_cuts(records, hours, from_s, until_s, zone))):
        record = in_force(records, start_s)
        tariff = record.tariff if record else None
        held = _window_at(hours[record.tariff_id], start_s, zone) if record else None
        span = PriceSpan(
            *(start_s, end_s, date_text(start_s, zone), tariff),
            *((held.name, held.factor) if held else ("", Decimal(1))),
            begins_day=start_s == period_start_s(Period.DAY, start_s, zone),
            class_by_tenant=classes[record.tariff_id] if record else {},
        )
        last = spans[-1] if spans else None
        if last and (last.day, last.window) == (span.day, span.window) and last.tariff is tariff:
            spans[-1] = replace(last, end_s=end_s)
        else:
            spans.append(span)
    return tuple(spans)


_Hours = Sequence[tuple[TariffWindow, Window]]
"""A tariff's windows, and each as the calendar has it."""


def _hours(tariff: Tariff) -> _Hours:
    return [(window, window_of(window)) for window in tariff.windows]


def _class_by_tenant(tariff: Tariff) -> Mapping[str, str]:
    return {tenant: name for name, each in tariff.classes.items() for tenant in each.tenants}


def _cuts(
    records: Sequence[TariffRecord],
    hours: Mapping[int, _Hours],
    from_s: int,
    until_s: int,
    zone: str,
) -> Iterator[int]:
    seen = {from_s, until_s}
    day_s: int | None = period_start_s(Period.DAY, from_s, zone)
    while day_s is not None and day_s < until_s:
        seen.add(max(from_s, day_s))
        day_s = next_start_s(Period.DAY, day_s, zone)
    seen.update(record.valid_from_s for record in records)
    minutes = {
        minute
        for each in hours.values()
        for _, window in each
        for minute in (window.begin_min, window.end_min)
    }
    if minutes:
        seen.update(clock_times_s(minutes, from_s, (until_s - from_s) // _DAY_S + 2, zone))
    return (at_s for at_s in seen if from_s <= at_s <= until_s)


def _window_at(hours: _Hours, at_s: int, zone: str) -> TariffWindow | None:
    if not hours:
        return None
    moment = Moment(at_s, *weekday_and_minute(at_s, zone))
    return next((named for named, window in hours if holds(window, moment)), None)


def _class_of(book: PriceBook, span: PriceSpan, tenant: str) -> str:
    """The tenant's class: its own, or that of the nearest tenant above it; "" for none."""
    above = upward(book, tenant, span.start_s)
    classes = (span.class_by_tenant[name] for name in above if name in span.class_by_tenant)
    return next(classes, "")


def upward(book: PriceBook, tenant: str, at_s: int) -> Iterator[str]:
    """The tenant, and those that were above it at the moment."""
    seen: set[str] = set()
    while tenant and tenant not in seen:
        yield tenant
        seen.add(tenant)
        tenant = _parent(book, tenant, at_s)


def _parent(book: PriceBook, tenant: str, at_s: int) -> str:
    parents = book.parents.get(tenant, ())
    begun = [parent for from_s, parent in parents if from_s <= at_s]
    return begun[-1] if begun else parents[0][1] if parents else ""


def slice_hour_price(
    book: PriceBook, span: PriceSpan, tenant: str, types: Iterable[str]
) -> Decimal | None:
    """What a slice-hour costs a tenant on these GPU types; None without a tariff."""
    if span.tariff is None:
        return None
    layers = _layers(book, span, span.tariff, tenant)
    prices = [_of_type(layers, gres_type) for gres_type in (*types,) or ("",)]
    return max(prices) * span.factor


def _layers(book: PriceBook, span: PriceSpan, tariff: Tariff, tenant: str) -> tuple[Prices, ...]:
    """The tenant's prices, those that go first before the others."""
    name = _class_of(book, span, tenant)
    return (tariff.classes[name].prices, tariff.prices) if name else (tariff.prices,)


def _of_type(layers: Iterable[Prices], gres_type: str) -> Decimal:
    for prices in layers:
        price = prices.slice_hour_by_type.get(gres_type, prices.slice_hour)
        if price is not None:
            return price
    return Decimal(0)


def slice_day_price(
    book: PriceBook, spans: Sequence[PriceSpan], tenant: str, gres_type: str
) -> Decimal | None:
    """What a slice costs in all of these spans; None if one of them has no tariff."""
    whole = Decimal(0)
    for span in spans:
        price = slice_hour_price(book, span, tenant, (gres_type,))
        if price is None:
            return None
        whole += price * (span.end_s - span.start_s)
    return (whole / 3600).quantize(Decimal("1e-6"))


METER_PRICES: Mapping[str, tuple[str, ...]] = {
    PROMPT_TOKENS.name: ("million_prompt_tokens",),
    CACHED_PROMPT_TOKENS.name: ("million_cached_prompt_tokens", "million_prompt_tokens"),
    OUTPUT_TOKENS.name: ("million_output_tokens",),
    REQUESTS.name: ("thousand_requests",),
    ENERGY.name: ("kwh",),
    SHARED_ENERGY.name: ("shared_kwh",),
}
"""Which price a meter of usage has: the first that is set."""

UNITS: Mapping[str, int] = {
    SLICES.name: SLICES.scale,
    **dict.fromkeys((PROMPT_TOKENS.name, CACHED_PROMPT_TOKENS.name, OUTPUT_TOKENS.name), 10**6),
    REQUESTS.name: 1000,
    **{meter.name: meter.scale for meter in (ENERGY, SHARED_ENERGY)},
}
"""How many of the ledger's units a price is for, by meter."""


def usage_prices(book: PriceBook, span: PriceSpan, tenant: str) -> Mapping[str, Decimal | None]:
    """What a million tokens, a thousand requests or a kilowatt-hour cost a tenant, by meter; None
    without a tariff.
    """
    if span.tariff is None:
        return dict.fromkeys(METER_PRICES)
    layers = _layers(book, span, span.tariff, tenant)
    return {meter: _of_keys(layers, keys) for meter, keys in METER_PRICES.items()}


def _of_keys(layers: Iterable[Prices], keys: Iterable[str]) -> Decimal:
    prices = (getattr(layer, key) for layer in layers for key in keys)
    return next((price for price in prices if price is not None), Decimal(0))


def prices_energy(spans: Iterable[PriceSpan]) -> bool:
    """Whether kilowatt-hours have a price in one of these spans."""
    tariffs = (span.tariff for span in spans if span.tariff is not None)
    return any(
        prices.kwh or prices.shared_kwh
        for tariff in tariffs
        for prices in (tariff.prices, *(each.prices for each in tariff.classes.values()))
    )


def list_price(tariff: Tariff | None, service: str) -> Decimal | None:
    """What a million tokens of a service would cost elsewhere; None if nobody has said."""
    prices: Mapping[str, Decimal] = tariff.list_prices if tariff else {}
    return prices.get(service, prices.get(ANY_SERVICE))


def money(meter: str, amount: int, price: Decimal | Fraction | int) -> int:
    """Millionths of the currency that an amount in the meter's own units costs: half to even."""
    numerator, denominator = price.as_integer_ratio()
    whole, rest = divmod(numerator * amount * MILLIONTHS, denominator := denominator * UNITS[meter])
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1))


def document(tariff: Tariff) -> Mapping[str, Any]:
    """The tariff as the ledger keeps it; ``Tariff.model_validate`` reads it."""
    return tariff.model_dump(mode="json", exclude_none=True)
