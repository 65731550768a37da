"""Draws loads of every kind at random, on which nothing was chosen.

A kind is the course of a rate by the second. It is scaled to the places that its busiest moment
shall need, and requests come at random at that rate.
"""

from collections.abc import Callable, Mapping
from math import ceil, log

import numpy as np

from studies.autoscale.workload import Floats, Workload, draw_starts, enough, warm_up_s

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
MOST_REQUESTS = 40_000
"""So many are expected at most, so that a replay takes seconds."""
_PEAKS = (2.0, 26.0)
"""Fewest and most replicas that the busiest moment needs."""
_SERVICE_S = (0.5, 60.0)
_SIGMAS = (0.0, 0.8)
"""Of the lognormal seconds of requests: all alike, or a coefficient of variation of 0.95."""
_LOAD_S, _LOAD_SIGMA = (8.0, 40.0), 0.25
"""Seconds that a model loads: least and most medians of a service, and how its own starts vary."""
_LOADS = 1000

Course = Callable[[int, np.random.Generator], Floats]
"""A rate by the second, of any scale, over so many seconds."""


def _steady(span_s: int, _: np.random.Generator) -> Floats:
    return np.ones(span_s)


def _daily(span_s: int, rng: np.random.Generator) -> Floats:
    """A day that lasts one to three hours, with a night of none to half of its noon's load."""
    turns = np.arange(span_s) / rng.uniform(3600, 3 * 3600) + rng.uniform()
    depth: float = rng.uniform(1 / 3, 1)
    return 1 + depth * np.sin(2 * np.pi * turns)


def _bursts(span_s: int, rng: np.random.Generator) -> Floats:
    """Bursts of seconds; their sizes have a Pareto tail, and so have in half of the loads the gaps,
    else lognormal.
    """
    rate = np.zeros(span_s)
    gap_s, lasts_s = _between(30, 300, rng), _between(4, 40, rng)
    tail, sigma, is_pareto = rng.uniform(1.2, 2.5), rng.uniform(0.3, 1.5), rng.choice([True, False])
    at_s = rng.uniform(0, gap_s)
    while at_s < span_s:
        ends_s = at_s + lasts_s * rng.lognormal(0, 0.5)
        rate[int(at_s) : ceil(ends_s)] += min(1 + rng.pareto(tail), 12.0)
        gap = 1 + rng.pareto(1.5) if is_pareto else rng.lognormal(0, sigma)
        at_s = ends_s + gap_s * min(gap, 20.0)
    return rate


def _crowds(span_s: int, rng: np.random.Generator) -> Floats:
    """A steady load, and one to four crowds of 3 to 15 times as much that come within a minute and
    leave within minutes.
    """
    seconds, rate = np.arange(span_s), np.ones(span_s)
    for _ in range(rng.integers(1, 5)):
        begun_s, rise_s = rng.uniform(0, span_s), rng.uniform(5, 60)
        since_s = np.maximum(seconds - begun_s, 0.0)
        falls = np.exp(-np.maximum(since_s - rise_s, 0.0) / _between(60, 600, rng))
        rate += _between(2, 14, rng) * np.minimum(since_s / rise_s, 1.0) * falls
    return rate


def _on_off(span_s: int, rng: np.random.Generator) -> Floats:
    """Nothing for 1 to 20 minutes in the median, then an even load for 1 to 15."""
    rate, on_s, off_s = np.zeros(span_s), _between(60, 900, rng), _between(60, 1200, rng)
    at_s = rng.uniform(0, off_s)
    while at_s < span_s:
        ends_s = at_s + on_s * rng.lognormal(0, 0.5)
        rate[int(at_s) : ceil(ends_s)] = 1
        at_s = ends_s + off_s * rng.lognormal(0, 0.5)
    return rate


def _ramps(span_s: int, rng: np.random.Generator) -> Floats:
    """Straight lines between four to ten levels at any times."""
    knots = int(rng.integers(4, 11))
    times = np.sort([0.0, span_s, *rng.uniform(0, span_s, knots - 2)])
    return np.interp(np.arange(span_s), times, rng.uniform(0, 1, knots))


def _mixed(span_s: int, rng: np.random.Generator) -> Floats:
    """Two of the others, of which one needs a tenth to all of the other's places."""
    first, second = rng.choice([name for name in KINDS if name != "mixed"], 2, replace=False)
    parts = [KINDS[name](span_s, rng) for name in (first, second)]
    strong, weak = (part / max(float(part.max()), 1e-9) for part in parts)
    return strong + _between(0.1, 1, rng) * weak


KINDS: Mapping[str, Course] = {
    "steady": _steady,
    "daily": _daily,
    "bursts": _bursts,
    "crowds": _crowds,
    "on-off": _on_off,
    "ramps": _ramps,
    "mixed": _mixed,
}


def drawn(number: int, seed: int, hours: float) -> Workload:
    """Draw the load of that number; kinds take turns."""
    rng = np.random.default_rng([seed, number])
    kind = [*KINDS][number % len(KINDS)]
    span_s = round(3600 * hours)
    course = KINDS[kind](span_s, rng)
    mean_s = _between(*_SERVICE_S, rng)
    per_place = busiest_places(course, mean_s)
    peak = _between(*_PEAKS, rng)
    requests = [float(course.sum()) / per_place * peak * places for places in CONCURRENCIES]
    fits = [
        places
        for places, most in zip(CONCURRENCIES, requests, strict=True)
        if most <= MOST_REQUESTS
    ]
    concurrency = int(rng.choice(fits or CONCURRENCIES[:1]))
    scale = min(peak * concurrency / per_place, MOST_REQUESTS / float(course.sum()))
    counts = rng.poisson(course * scale)
    arrivals_s = np.sort(np.repeat(np.arange(span_s), counts) + rng.random(int(counts.sum())))
    sigma = float(rng.choice(_SIGMAS))
    service_s = mean_s * rng.lognormal(-(sigma**2) / 2, sigma, arrivals_s.size)
    loads_s = _between(*_LOAD_S, rng) * rng.lognormal(0, _LOAD_SIGMA, _LOADS)
    warm_s = warm_up_s(span_s)
    return Workload(
        name=f"{kind}-{number}",
        arrivals_s=arrivals_s,
        service_s=service_s,
        duration_s=span_s,
        concurrency=concurrency,
        starts=draw_starts(loads_s, rng),
        first_replicas=enough(arrivals_s, service_s, concurrency, warm_s),
        warm_s=warm_s,
    )


def busiest_places(course: Floats, mean_s: float) -> float:
    """Return the most requests at a time if none waits and each takes ``mean_s``."""
    window = max(1, round(mean_s))
    sums = np.cumsum([0.0, *course])
    return float(np.max(sums[window:] - sums[:-window])) * mean_s / window


def _between(least: float, most: float, rng: np.random.Generator) -> float:
    """Draw a number whose logarithm is spread evenly."""
    return float(np.exp(rng.uniform(log(least), log(most))))
