"""The hybrid histogram of Shahrad et al. (USENIX ATC 2020), for each replica's worth of load.

Theirs keeps the histogram of a function's idle times, and lets it be warm from the 5th to the 99th
percentile of them. A service here is not one function that is warm or not: it needs a number of
replicas. So each level of load counts as one function: it is used while more than that many
replicas' requests are in parallel, and idle between. What they do by ARIMA, where most idle times
are longer than the histogram, is left out: the level then stays warm for as long as it reaches.
"""

import numpy as np

from slicewise.launcher.rules.autoscale.forecasts import AFTER
from studies.autoscale.workload import MAX_REPLICAS
from studies.forecasters.forecaster import LoadForecast
from studies.forecasters.series import LoadSeries

_BIN_S, _BINS = 60, 240
_HEAD, _TAIL = 0.05, 0.99
_MARGIN = 0.1
_VARIED = 2.0
"""Coefficient of variation of the bins' counts below which a histogram says nothing."""
_UNKNOWN = (0.0, float(_BIN_S * _BINS))


class HybridHistogram:
    """Forecasts the requests of the highest level that is used or is kept warm."""

    def __init__(self) -> None:
        self._horizon_s, self._unit = 0.0, 1
        self._counts = np.zeros((MAX_REPLICAS, _BINS))
        self._used_s = np.full(MAX_REPLICAS, -np.inf)
        self._heads, self._tails = (np.full(MAX_REPLICAS, value) for value in _UNKNOWN)

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Learn the idle times of the trained part."""
        self._horizon_s, self._unit = trained.horizon_s, trained.unit
        for at_s, load in enumerate(trained.load.tolist()):
            self._learn(at_s, load)
        # Times of a run may begin before the end of what was learnt.
        self._used_s[:] = -np.inf

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:  # noqa: ARG002
        """Learn, and return what the warm levels take."""
        self._learn(at_s, load)
        idle_s = at_s - self._used_s
        has_begun = idle_s + AFTER * self._horizon_s >= self._heads
        warm = np.flatnonzero(has_begun & (idle_s + self._horizon_s <= self._tails))
        most = float(max(load, (warm[-1] + 1) * self._unit if warm.size else 0))
        return LoadForecast(most, most)

    def _learn(self, at_s: int, load: float) -> None:
        used = min(MAX_REPLICAS, -int(-load // self._unit))
        idle_s = at_s - self._used_s[:used]
        for level in np.flatnonzero((idle_s > 1) & np.isfinite(idle_s)):
            self._counts[level, min(int(idle_s[level] / _BIN_S), _BINS - 1)] += 1
            self._heads[level], self._tails[level] = window(self._counts[level])
        self._used_s[:used] = at_s


def window(counts: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Return after how many idle seconds a level is warm, and until when, by its idle times."""
    if counts.std() < _VARIED * counts.mean():
        return _UNKNOWN
    below = counts.cumsum() / counts.sum()
    head, tail = np.searchsorted(below, (_HEAD, _TAIL))
    return (1 - _MARGIN) * head * _BIN_S, (1 + _MARGIN) * (tail + 1) * _BIN_S
