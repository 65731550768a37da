"""Makes arrivals of ServeGen's traces, which are rates of each client in windows of ten minutes.

A row is: window start in seconds, mean rate, coefficient of variation, fitted distribution of the
gaps (Gamma, Weibull, or none), and its two parameters. The first parameter is the shape.
"""

import csv
import io
import tarfile
from dataclasses import dataclass
from math import gamma
from pathlib import Path

import numpy as np

from studies.autoscale.workload import Floats

_WINDOW_S = 600
BUSIEST_PLACES = 104.0
"""Rates are scaled so that the busiest window needs 26 replicas of four places."""
_SIGMA = 0.8
"""Sigma of the lognormal service times: a coefficient of variation of 0.95."""


@dataclass(frozen=True)
class Window:
    """Ten minutes of one client.

    Attributes:
        start_s: its beginning, in seconds from the span's first second.
        rate: mean requests per second, from which the mean gap follows.
        is_weibull: whether the gaps' distribution is Weibull; else it is Gamma.
        shape: the shape of that distribution.
    """

    start_s: float
    rate: float
    is_weibull: bool
    shape: float


def clients(path: Path, first_s: int, span_s: int) -> list[list[Window]]:
    """Windows of each client within a span of ``span_s`` seconds that begins at ``first_s``.

    Windows without requests or without a distribution are left out.
    """
    with tarfile.open(path) as archive:
        members = sorted(archive.getnames())
        texts = [archive.extractfile(name) for name in members if name.endswith(".csv")]
        return [
            _windows(io.TextIOWrapper(text, encoding="utf-8"), first_s, span_s)
            for text in texts
            if text is not None
        ]


def _windows(text: io.TextIOWrapper, first_s: int, span_s: int) -> list[Window]:
    rows = ([*row] for row in csv.reader(text))
    return [
        Window(float(start) - first_s, float(rate), kind == "Weibull", float(shape))
        for start, rate, _, kind, shape, _ in rows
        if 0 <= float(start) - first_s < span_s and float(rate) > 0 and kind
    ]


def requests(
    found: list[list[Window]], span_s: int, mean_s: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Arrivals of all clients together, ascending, and lognormal service times of that mean."""
    parts = arrivals_by_client(found, span_s, BUSIEST_PLACES / mean_s, rng)
    arrivals = np.sort(np.concatenate(parts))
    return arrivals, service_times(arrivals.size, mean_s, rng)


def service_times(count: int, mean_s: float, rng: np.random.Generator) -> Floats:
    """Draw ``count`` lognormal service times of that mean, in seconds."""
    return rng.lognormal(np.log(mean_s) - _SIGMA**2 / 2, _SIGMA, count)


def arrivals_by_client(
    found: list[list[Window]], span_s: int, busiest: float, rng: np.random.Generator
) -> list[Floats]:
    """Arrivals of each client, ascending.

    All rates are scaled by one factor, so that in the busiest window ``busiest`` requests a second
    come from all clients together. The gaps keep their shape.
    """
    factor = busiest / busiest_rate(found, span_s)
    parts = ([_arrivals(window, factor, rng) for window in client] for client in found)
    return [np.sort(np.concatenate((np.zeros(0), *windows))) for windows in parts]


def busiest_rate(found: list[list[Window]], span_s: int) -> float:
    """Return the requests a second that come from all clients together in the busiest window."""
    totals = np.zeros(span_s // _WINDOW_S)
    for client in found:
        for window in client:
            totals[int(window.start_s) // _WINDOW_S] += window.rate
    return float(totals.max())


def _arrivals(window: Window, factor: float, rng: np.random.Generator) -> Floats:
    """Draw a window's arrivals: a renewal process that begins somewhere within its first gap."""
    mean_s = 1 / (window.rate * factor)
    count = int(_WINDOW_S / mean_s) + 10
    times = np.zeros(0)
    while not times.size or times[-1] < _WINDOW_S:
        gaps = mean_s * _gaps(window, count, rng)
        first = times[-1] if times.size else -rng.random() * gaps[0]
        times = np.concatenate((times, first + np.cumsum(gaps)))
    return window.start_s + times[times < _WINDOW_S]


def _gaps(window: Window, count: int, rng: np.random.Generator) -> Floats:
    """Draw ``count`` gaps of mean 1."""
    if window.is_weibull:
        return np.divide(rng.weibull(window.shape, count), gamma(1 + 1 / window.shape))
    return rng.gamma(window.shape, 1 / window.shape, count)
