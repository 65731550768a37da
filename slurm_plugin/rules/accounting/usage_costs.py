"""Tells what requests, and a part of replicas' time, cost: of sums by the day."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.periods import day_start_s, next_day_s
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    RequestDay,
    lines_of_requests,
    mean_price,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    money,
    price_spans,
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
    prices: dict[Place, Fraction | None] = {}

    def price(place: Place) -> Fraction | None:
        if place not in prices:
            day, _, service = place
            owner = service.partition("/")[0]
            prices[place] = _mixed(book, spans_of[day], owner, mixes.get(place, {}))
        return prices[place]

    def cost(part: UsedPart) -> int | None:
        use, spans = part.use, spans_of[part.use.day]
        if any(span.tariff is None for span in spans):
            return None
        asked = sum(line.millionths or 0 for line in lines_of_requests(use, spans, book))
        if not part.millislice_s:
            return asked
        slice_hour = price((use.day, use.tenant, use.service))
        return (
            None
            if slice_hour is None
            else asked + money(SLICES.name, part.millislice_s, slice_hour)
        )

    return tuple(map(cost, parts))


def _mixed(
    book: PriceBook,
    spans: Sequence[PriceSpan],
    owner: str,
    mix: Mapping[tuple[str, ...], int],
) -> Fraction | None:
    total, whole = Fraction(0), sum(mix.values())
    for types, amount in mix.items():
        price = mean_price(book, spans, owner, types)
        if price is None:
            return None
        total += price * amount
    return total / whole if whole else None


def spans_of_days(days: Collection[str], book: PriceBook) -> Mapping[str, Sequence[PriceSpan]]:
    """The spans of each day from the first to the last of these dates."""
    begin_s, end_s = day_start_s(min(days), book.zone), next_day_s(max(days), book.zone)
    spans = price_spans(book.records, begin_s, end_s, book.zone)
    return {day: tuple(group) for day, group in groupby(spans, key=lambda span: span.day)}
