"""Draws a load of bursts: most seconds have no request, and most requests come ten a second."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from studies.autoscale.workload import Floats

Requests = tuple[Floats, Floats]
"""Arrivals (ascending) and seconds of service."""


@dataclass(frozen=True)
class Bursts:
    """What a load of bursts is drawn from; pairs are the median and sigma of a lognormal one.

    Attributes:
        hours: its length.
        gap_s: seconds from one burst to the next.
        lasts_s: seconds of a burst.
        rate: requests per second of a burst.
        most: requests of a burst at most.
        stragglers, straggle_s: requests that come one by one after a burst, and how long after it,
            both in the mean.
        service_s: seconds of each request.
    """

    hours: float = 6.0
    gap_s: tuple[float, float] = (16.0, 1.5)
    lasts_s: tuple[float, float] = (9.0, 0.8)
    rate: tuple[float, float] = (9.5, 0.5)
    most: int = 400
    stragglers: float = 3.0
    straggle_s: float = 10.0
    service_s: float = 1.25


LOADS: Mapping[str, Bursts] = {
    "bursts": Bursts(),
    "bursts-irregular": Bursts(
        hours=6.0, gap_s=(60.0, 1.0), lasts_s=(15.0, 0.8), rate=(2.0, 0.5), service_s=4.0
    ),
}


def drawn(of: Bursts, rng: np.random.Generator) -> Requests:
    """Draw arrivals and seconds of service."""
    span_s, at_s = of.hours * 3600, 0.0
    found: list[Floats] = []
    while at_s < span_s:
        at_s += _lognormal(of.gap_s, rng)
        lasts_s = _lognormal(of.lasts_s, rng)
        size = min(rng.poisson(_lognormal(of.rate, rng) * lasts_s), of.most)
        found.append(at_s + rng.uniform(0, lasts_s, size))
        at_s += lasts_s
        found.append(at_s + rng.exponential(of.straggle_s, rng.poisson(of.stragglers)))
    arrivals = np.sort(np.concatenate(found))
    arrivals = arrivals[arrivals < span_s]
    return arrivals, np.full(arrivals.size, of.service_s)


def _lognormal(of: tuple[float, float], rng: np.random.Generator) -> float:
    median, sigma = of
    return float(median * np.exp(rng.normal(0.0, sigma)))
