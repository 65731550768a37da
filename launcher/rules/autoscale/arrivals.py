"""How many requests come: rates per second, averaged over shorter and longer times."""

from dataclasses import dataclass, replace
from math import exp
from typing import Annotated

from slicewise.launcher.rules.autoscale.histogram import of_length

AVERAGED_S = (30.0, 120.0, 480.0)
"""Seconds over which rates are averaged. Each is the base of a forecast; ``forecasts.py`` chooses
the one to use."""
_LONG_S = 3600.0
"""Seconds over which the service's usual rate is averaged."""
_LEAST_S = 15.0
"""Seconds over which a rate is taken at least: a first request is no rate of one a second."""
_ALL_S = (*AVERAGED_S, _LONG_S)
_Averages = Annotated[tuple[float, ...], of_length(len(_ALL_S))]
_ASSUMED = (0.0, 0.0, 0.0, 300.0)
"""One request a second for five minutes, so that a new service does not count as one of the
rarest."""


@dataclass(frozen=True)
class Arrivals:
    """What is known of a service's arrivals.

    Attributes:
        seen_s: seconds for which it has been looked at.
        total: requests in that time.
        counts: requests by average; old ones fade away.
        spans: seconds in which ``counts`` have come, by average; old ones fade away.
    """

    seen_s: float = 0.0
    total: int = 0
    counts: _Averages = _ASSUMED
    spans: _Averages = _ASSUMED

    @property
    def rates(self) -> tuple[float, ...]:
        """Requests per second, by average."""
        averages = zip(self.counts[:-1], self.spans[:-1], strict=True)
        return tuple(count / max(span_s, _LEAST_S) for count, span_s in averages)

    @property
    def usual_rate(self) -> float:
        """Requests per second in the last hour or so."""
        return self.counts[-1] / self.spans[-1]


def learn_arrivals(known: Arrivals, arrived: int, elapsed_s: float) -> Arrivals:
    """Learn from a look: ``arrived`` requests have come in the last ``elapsed_s`` seconds."""
    fades = [exp(-elapsed_s / averaged_s) for averaged_s in _ALL_S]
    return replace(
        known,
        seen_s=known.seen_s + elapsed_s,
        total=known.total + arrived,
        counts=tuple(n * fade + arrived for n, fade in zip(known.counts, fades, strict=True)),
        spans=tuple(s * fade + elapsed_s for s, fade in zip(known.spans, fades, strict=True)),
    )


def learn_silence(known: Arrivals, looks: int, look_s: float) -> Arrivals:
    """Learn from ``looks`` looks, one every ``look_s`` seconds, that saw neither a request nor a
    replica: as by ``learn_arrivals`` and ``at_rest``, one after the other.
    """
    fades = [exp(-look_s / averaged_s) for averaged_s in _ALL_S]
    spans = zip(known.spans, fades, strict=True)
    return replace(
        known,
        seen_s=known.seen_s + looks * look_s,
        counts=(*(0.0 for _ in AVERAGED_S), known.counts[-1] * fades[-1] ** looks),
        spans=tuple(s * fade**looks + look_s * (1 - fade**looks) / (1 - fade) for s, fade in spans),
    )


def at_rest(known: Arrivals) -> Arrivals:
    """Return what counts for a service that has neither a request nor a replica.

    Its load has ended: the shorter averages no longer expect the requests of before. The usual rate
    stays.
    """
    return replace(known, counts=(*(0.0 for _ in AVERAGED_S), known.counts[-1]))
