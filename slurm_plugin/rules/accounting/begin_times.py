"""Chooses when a job should begin, so that its time costs least money or least CO2."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple


class Rate(NamedTuple):
    """A time from ``start_s`` up to ``end_s`` in which each second costs the same."""

    start_s: int
    end_s: int
    a_second: Fraction


@dataclass(frozen=True)
class BeginSpan:
    """When a job may begin.

    Attributes:
        first_s, last_s: the first and the last moment, in Unix seconds.
        lasts_s: the job's time limit: as long as it may run.
    """

    first_s: int
    last_s: int
    lasts_s: int


@dataclass(frozen=True)
class Begin:
    """What a job costs that begins at a moment and runs for its whole time limit.

    Attributes:
        millionths: of the currency; None without a price for all of the time.
        carbon_g: grams of CO2; None if they are not known for all of the time.
    """

    at_s: int
    millionths: int | None = None
    carbon_g: float | None = None


@dataclass(frozen=True)
class BeginTimes:
    """A job's begin now, and the best of all that it may have; of equals the earliest.

    Attributes:
        cheapest, greenest: None if no begin has a known price, or known grams.
    """

    now: Begin
    cheapest: Begin | None
    greenest: Begin | None


class RateCurve:
    """What a second costs, over a time that may have gaps."""

    def __init__(self, rates: Iterable[Rate]) -> None:
        """``rates`` do not overlap."""
        self._rates = sorted(rates)
        self._starts_s = [rate.start_s for rate in self._rates]
        lengths = [rate.end_s - rate.start_s for rate in self._rates]
        costs = (rate.a_second * length for rate, length in zip(self._rates, lengths, strict=True))
        self._known_s = [0, *accumulate(lengths)]
        self._costs = [Fraction(), *accumulate(costs)]

    def cost(self, begin_s: int, end_s: int) -> Fraction | None:
        """What the time from ``begin_s`` up to ``end_s`` costs; None if it has a gap."""
        first, last = self._until(begin_s), self._until(end_s)
        return last[1] - first[1] if last[0] - first[0] == end_s - begin_s else None

    def best(self, span: BeginSpan) -> int | None:
        """The begin that costs least, of equals the earliest; None if each has a gap.

        What a begin costs changes evenly between moments at which the job's begin or its end
        crosses a change of rates, so the least is at one of these.
        """
        changes_s = {moment_s for rate in self._rates for moment_s in rate[:2]}
        moments_s = {span.first_s, span.last_s, *changes_s}
        moments_s.update(moment_s - span.lasts_s for moment_s in changes_s)
        costs = [
            (cost, begin_s)
            for begin_s in moments_s
            if span.first_s <= begin_s <= span.last_s
            and (cost := self.cost(begin_s, begin_s + span.lasts_s)) is not None
        ]
        return min(costs)[1] if costs else None

    def _until(self, at_s: int) -> tuple[int, Fraction]:
        """Seconds whose cost is known before a moment, and what they cost."""
        place = bisect_right(self._starts_s, at_s) - 1
        if place < 0:
            return 0, Fraction()
        rate = self._rates[place]
        passed_s = min(at_s, rate.end_s) - rate.start_s
        return self._known_s[place] + passed_s, self._costs[place] + rate.a_second * passed_s


def begin_times(money: Sequence[Rate], grams: Sequence[Rate], span: BeginSpan) -> BeginTimes:
    """Choose by millionths of the currency, and by grams of CO2, that each second costs."""
    prices, carbon = RateCurve(money), RateCurve(grams)

    def begin(at_s: int) -> Begin:
        cost, carbon_g = (rates.cost(at_s, at_s + span.lasts_s) for rates in (prices, carbon))
        return Begin(
            at_s,
            None if cost is None else round(cost),
            None if carbon_g is None else round(float(carbon_g), 3),
        )

    cheapest_s, greenest_s = prices.best(span), carbon.best(span)
    return BeginTimes(
        begin(span.first_s),
        None if cheapest_s is None else begin(cheapest_s),
        None if greenest_s is None else begin(greenest_s),
    )
