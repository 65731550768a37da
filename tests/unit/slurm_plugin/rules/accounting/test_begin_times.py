"""When a job begins so that it costs least: by windows, tariffs, clocks and hours of grams."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from random import Random

import pytest
from builders.tariffs import BERLIN, book_of, local_s, tariff

from slicewise.slurm_plugin.rules.accounting.begin_times import (
    Begin,
    BeginSpan,
    Rate,
    RateCurve,
    begin_times,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    price_spans,
    slice_hour_price,
)

HOUR_S = 3600
NIGHTS = """
[[windows]]
name = "night"
begin = "22:00"
end = "06:00"
factor = 0.5
"""
OCTOBER = local_s("2026-10-01 00:00")


def rates_of(book: PriceBook, from_s: int, until_s: int) -> tuple[Rate, ...]:
    """Euros of a slice, in seconds."""
    return tuple(
        Rate(span.start_s, span.end_s, Fraction(price) / HOUR_S)
        for span in price_spans(book.records, from_s, until_s, BERLIN)
        if (price := slice_hour_price(book, span, "vision", ("1g.10gb",))) is not None
    )


def cheapest(book: PriceBook, first: str, last: str, hours: int) -> tuple[int | None, Fraction]:
    """The best begin, and what it costs."""
    span = BeginSpan(local_s(first), local_s(last), hours * HOUR_S)
    rates = RateCurve(rates_of(book, span.first_s, span.last_s + span.lasts_s))
    best_s = rates.best(span)
    cost = None if best_s is None else rates.cost(best_s, best_s + span.lasts_s)
    return best_s, Fraction(-1) if cost is None else cost


@pytest.mark.parametrize(
    ("hours", "begins", "costs"),
    [
        # All of it fits into the night: as soon as that begins.
        (4, "2026-10-05 22:00", "0.72"),
        # It is longer than the night, so it may begin before: of equals the earliest.
        (10, "2026-10-05 20:00", "2.16"),
        # The deadline comes first: as much of the night as there is time for.
        (14, "2026-10-05 16:00", "3.60"),
    ],
)
def test_a_job_begins_where_most_of_it_is_in_the_night(hours: int, begins: str, costs: str) -> None:
    book = book_of((OCTOBER, tariff(NIGHTS)))
    last = f"2026-10-06 {8 - hours:02}:00" if hours <= 8 else "2026-10-05 22:00"
    best_s, cost = cheapest(book, "2026-10-05 12:00", last, hours)
    assert (best_s, cost) == (local_s(begins), Fraction(costs))


def test_without_windows_a_job_begins_now() -> None:
    book = book_of((OCTOBER, tariff()))
    best_s, _ = cheapest(book, "2026-10-05 12:00", "2026-10-06 12:00", 4)
    assert best_s == local_s("2026-10-05 12:00")


def test_a_cheap_night_of_a_changed_clock_is_as_long_as_it_is() -> None:
    book = book_of((OCTOBER, tariff(NIGHTS)))
    # Nine hours in October, when clocks go back, and seven in March.
    for first, last, costs in (
        ("2026-10-24 12:00", "2026-10-25 12:00", Fraction("1.62")),
        ("2027-03-27 12:00", "2027-03-28 12:00", Fraction("1.98")),
    ):
        best_s, cost = cheapest(book, first, last, 9)
        assert cost == costs
        assert best_s is not None
        assert local_s(f"{first[:10]} 20:00") <= best_s <= local_s(f"{first[:10]} 22:00")


def test_a_tariff_to_come_is_waited_for_or_run_from() -> None:
    midnight = local_s("2026-10-10 00:00")
    for before, after, begins in (("0.36", "0.18", midnight), ("0.18", "0.36", None)):
        book = book_of((OCTOBER, tariff(slice_hour=before)), (midnight, tariff(slice_hour=after)))
        best_s, _ = cheapest(book, "2026-10-09 20:00", "2026-10-10 10:00", 2)
        assert best_s == (begins or local_s("2026-10-09 20:00"))


def test_a_time_without_a_price_is_no_bargain() -> None:
    book = book_of((local_s("2026-10-10 00:00"), tariff()))
    assert cheapest(book, "2026-10-08 00:00", "2026-10-09 10:00", 4)[0] is None
    best_s, _ = cheapest(book, "2026-10-08 00:00", "2026-10-11 10:00", 4)
    assert best_s == local_s("2026-10-10 00:00")


def by_trying(rates: Sequence[Rate], span: BeginSpan) -> int | None:
    """The best begin of all seconds."""

    def cost(begin_s: int) -> Fraction | None:
        seconds = [
            next((rate.a_second for rate in rates if rate.start_s <= at_s < rate.end_s), None)
            for at_s in range(begin_s, begin_s + span.lasts_s)
        ]
        known = [each for each in seconds if each is not None]
        return sum(known, Fraction()) if len(known) == len(seconds) else None

    tried = [(cost(begin_s), begin_s) for begin_s in range(span.first_s, span.last_s + 1)]
    return min(((c, at_s) for c, at_s in tried if c is not None), default=(None, None))[1]


@pytest.mark.parametrize("seed", range(40))
def test_no_second_is_better_than_what_is_chosen(seed: int) -> None:
    random = Random(seed)  # noqa: S311 -- a load, no secret
    rates, at_s = [], 0
    for _ in range(random.randint(1, 7)):
        start_s = at_s + random.choice((0, 0, 0, 2))
        at_s = start_s + random.randint(1, 9)
        rates.append(Rate(start_s, at_s, Fraction(random.randint(0, 3))))
    first_s = random.randint(0, 6)
    span = BeginSpan(first_s, first_s + random.randint(0, 20), random.randint(1, 12))
    assert RateCurve(rates).best(span) == by_trying(rates, span)


def test_the_cheapest_and_the_greenest_begin_stand_beside_now() -> None:
    price = Fraction(Decimal("0.5"))
    money = [Rate(0, 100, price * 2), Rate(100, 200, price)]
    grams = [Rate(0, 60, Fraction(3)), Rate(60, 90, Fraction(1, 8)), Rate(90, 150, Fraction(5))]
    times = begin_times(money, grams, BeginSpan(0, 150, 20))
    assert times.now == Begin(0, 20, 60.0)
    assert times.cheapest == Begin(100, 10, 100.0)
    assert times.greenest == Begin(60, 20, 2.5)
    assert begin_times(money, (), BeginSpan(0, 150, 20)).greenest is None
    # Of the cheapest begin nobody knows the grams.
    assert begin_times(money, grams[:1], BeginSpan(0, 150, 20)).cheapest == Begin(100, 10, None)
