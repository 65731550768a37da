"""How many requests come: rates per second, over shorter and longer times."""

from dataclasses import dataclass, replace
from math import exp

AVERAGED_S = (30.0, 120.0, 480.0)
"""Each is the base of a forecast; which is believed, ``forecasts.py`` says."""
_LONG_S = 3600.0
"""What is usual for the service."""
_LEAST_S = 15.0
"""A first request is no rate of one a second."""
_ALL_S = (*AVERAGED_S, _LONG_S)
_ASSUMED = (0.0, 0.0, 0.0, 300.0)
"""A request a second for five minutes: who is new is not taken for the rarest of services."""


@dataclass(frozen=True)
class Arrivals:
    """What is known of a service's arrivals.

    Attributes:
        seen_s: how long it has been looked at.
        total: requests meanwhile.
        counts: requests, and ``spans`` seconds, of which old ones fade away, by average.
    """

    seen_s: float = 0.0
    total: int = 0
    counts: tuple[float, ...] = _ASSUMED
    spans: tuple[float, ...] = _ASSUMED

    @property
    def rates(self) -> tuple[float, ...]:
        """Requests per second, by average."""
        averages = zip(self.counts[:-1], self.spans[:-1], strict=True)
        return tuple(count / max(span_s, _LEAST_S) for count, span_s in averages)

    @property
    def usual_rate(self) -> float:
        """Requests per second within the last hour or so."""
        return self.counts[-1] / self.spans[-1]


def learn_arrivals(known: Arrivals, arrived: int, elapsed_s: float) -> Arrivals:
    """With ``arrived`` requests of the last ``elapsed_s`` seconds."""
    fades = [exp(-elapsed_s / averaged_s) for averaged_s in _ALL_S]
    return replace(
        known,
        seen_s=known.seen_s + elapsed_s,
        total=known.total + arrived,
        counts=tuple(n * fade + arrived for n, fade in zip(known.counts, fades, strict=True)),
        spans=tuple(s * fade + elapsed_s for s, fade in zip(known.spans, fades, strict=True)),
    )
