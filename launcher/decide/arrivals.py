"""How many requests come: rates, and by how much they have surprised.

Numbers of requests are compared by twice the difference of their square roots: for a Poisson
process that has a deviation of 1 at any rate (Anscombe, 1948), so one distribution of surprises
serves a service that gets a request a minute and one that gets a thousand a second. What is not
Poisson (bursts, drift) makes it wider, and is learnt.
"""

from dataclasses import dataclass, replace
from math import exp, sqrt
from operator import add

from launcher.decide.sketch import added

_AVERAGED_S = (15.0, 60.0, 240.0)
"""Each rate may be the forecast: whichever has surprised least."""
_LONG_S = 3600.0
"""What is usual for the service."""
_LOSS_S = 600.0
_MARKS = 8
"""Forecasts under way at a time, each a start's delay long."""
_SURPRISE_S = 1800.0
_EDGES = (-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 13, 17)
_BODY = (0.4, 2.8, 3.0, 3.8, 3.8, 3.0, 1.8, 0.8, 0.4)
_TAIL = (0.12, 0.06, 0.02, 0.01, 0.004, 0.002, 0.001, 0.0004, 0.0002)
_ALWAYS = (*_BODY, *_TAIL)
"""Besides what was seen: nearly Poisson, with the heavier upper tail that a burst comes from."""
_CALM = 0.375
"""Makes the deviation 1 at small numbers too."""


@dataclass(frozen=True)
class Mark:
    """A forecast under way: at that time so many had come, and such were the rates per second."""

    at_s: float
    arrived: int
    rates: tuple[float, ...]


@dataclass(frozen=True)
class Arrivals:
    """What is known of a service's arrivals.

    Attributes:
        seen_s: how long it has been looked at.
        total: requests meanwhile.
        counts: requests, and ``spans`` seconds, of which old ones fade away, by average.
        losses: of each average as a forecast.
        surprises: weights of their distribution.
    """

    seen_s: float = 0.0
    total: int = 0
    counts: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    spans: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    losses: tuple[float, ...] = (0.0, 0.0, 0.0)
    marks: tuple[Mark, ...] = ()
    surprises: tuple[float, ...] = (0.0,) * len(_ALWAYS)

    @property
    def rate(self) -> float:
        """Requests per second to be expected next; a first one is no rate of one a second."""
        best = self.losses.index(min(self.losses))
        return self.counts[best] / max(self.spans[best], _AVERAGED_S[0])

    @property
    def usual_rate(self) -> float:
        """Requests per second within the last hour or so."""
        return self.counts[-1] / max(self.spans[-1], 1.0)


def learn_arrivals(
    known: Arrivals, arrived: int, elapsed_s: float, at_s: float, horizon_s: float
) -> Arrivals:
    """With ``arrived`` requests of the last ``elapsed_s`` seconds.

    Each eighth of ``horizon_s`` the rates are marked, and ``horizon_s`` later held against what
    has come.
    """
    fades = [exp(-elapsed_s / averaged_s) for averaged_s in (*_AVERAGED_S, _LONG_S)]
    known = replace(
        known,
        seen_s=known.seen_s + elapsed_s,
        total=known.total + arrived,
        counts=tuple(n * fade + arrived for n, fade in zip(known.counts, fades, strict=True)),
        spans=tuple(s * fade + elapsed_s for s, fade in zip(known.spans, fades, strict=True)),
    )
    if known.marks and at_s - known.marks[0].at_s >= horizon_s:
        known = _judged(known, at_s, horizon_s)
    every_s = horizon_s / _MARKS
    if known.seen_s >= 2 * horizon_s and (
        not known.marks or at_s - known.marks[-1].at_s >= every_s
    ):
        rates = [n / s for n, s in zip(known.counts[:-1], known.spans[:-1], strict=True)]
        known = replace(known, marks=(*known.marks, Mark(at_s, known.total, tuple(rates))))
    return known


def _judged(known: Arrivals, at_s: float, horizon_s: float) -> Arrivals:
    """The oldest forecast has come to its end."""
    mark, *left = known.marks
    span_s = at_s - mark.at_s
    if span_s > 2 * horizon_s:
        return replace(known, marks=())
    came = sqrt(known.total - mark.arrived + _CALM)
    off = [2 * (came - sqrt(rate * span_s + _CALM)) for rate in mark.rates]
    best = known.losses.index(min(known.losses))
    fade = exp(-span_s / _MARKS / _LOSS_S)
    return replace(
        known,
        marks=tuple(left),
        losses=tuple(loss * fade + x * x for loss, x in zip(known.losses, off, strict=True)),
        surprises=added(known.surprises, _EDGES, off[best], exp(-span_s / _MARKS / _SURPRISE_S)),
    )


@dataclass(frozen=True)
class Case:
    """With that probability so many requests come within the horizon."""

    probability: float
    arrivals: float


def cases(known: Arrivals, horizon_s: float) -> list[Case]:
    """What may come within ``horizon_s``, the most first."""
    calm = sqrt(known.rate * horizon_s + _CALM)
    weights = tuple(map(add, known.surprises, _ALWAYS))
    total = sum(weights)
    lows = (_EDGES[0] - 1, *_EDGES)
    return [
        Case(weight / total, max(0.0, max(0.0, calm + low / 2 + 0.125) ** 2 - _CALM))
        for low, weight in zip(reversed(lows), reversed(weights), strict=True)
    ]
