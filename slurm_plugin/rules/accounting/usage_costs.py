"""Tells what requests, and a part of replicas' time, cost: of sums by the day."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import groupby

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.periods import day_start_s, next_day_s
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    RequestDay,
    mean_price,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    money,
    price_spans,
    usage_prices,
)

Place = tuple[str, str, str]
"""A day, the tenant that is charged, and the service as OWNER/NAME."""
TypeMixes = Mapping[Place, Mapping[tuple[str, ...], int]]
"""Of which GPU types the replicas were, by what was charged of each: absolute amounts."""


@dataclass(frozen=True)
class UsedPart:
    """Requests of a day, and what of replicas' time they were charged."""

    use: RequestDay
    millislice_s: int


def usage_costs(
    parts: Sequence[UsedPart], mixes: TypeMixes, book: PriceBook
) -> tuple[int | None, ...]:
    """Millionths of the currency that each costs; None without a tariff, or if the time has a price
    and nobody knows of which GPU types it was.

    The hours of the time are not known: it has the owner's mean price of the day.
    """
    if not parts:
        return ()
    spans_of = spans_of_days({part.use.day for part in parts}, book)
    has_tariff = {day: all(span.tariff for span in spans) for day, spans in spans_of.items()}

    @cache
    def prices(day: str, tenant: str) -> Mapping[str, Decimal | None]:
        return usage_prices(book, spans_of[day][0], tenant)

    @cache
    def mean(day: str, owner: str, types: Sequence[str]) -> Fraction:
        return mean_price(book, spans_of[day], owner, types) or Fraction(0)

    @cache
    def slice_hour(place: Place) -> Fraction | None:
        day, _, service = place
        owner, mix = service.partition("/")[0], mixes.get(place, {})
        whole = sum(mix.values())
        return (
            sum(mean(day, owner, types) * amount for types, amount in mix.items()) / Fraction(whole)
            if whole
            else None
        )

    def cost(part: UsedPart) -> int | None:
        use = part.use
        if not has_tariff[use.day]:
            return None
        of_meter = prices(use.day, use.tenant)
        asked = sum(
            money(meter, amount, of_meter[meter] or 0)
            for meter, amount in use.by_meter().items()
            if amount
        )
        if not part.millislice_s:
            return asked
        price = slice_hour((use.day, use.tenant, use.service))
        return None if price is None else asked + money(SLICES.name, part.millislice_s, price)

    return tuple(map(cost, parts))


def spans_of_days(days: Collection[str], book: PriceBook) -> Mapping[str, Sequence[PriceSpan]]:
    """The spans of each day from the first to the last of these dates."""
    begin_s, end_s = day_start_s(min(days), book.zone), next_day_s(max(days), book.zone)
    spans = price_spans(book.records, begin_s, end_s, book.zone)
    return {day: tuple(group) for day, group in groupby(spans, key=lambda span: span.day)}
