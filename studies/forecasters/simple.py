"""Forecasters of a line or two, and one that is told the future."""

from collections import deque

import numpy as np

from studies.autoscale.workload import Floats
from studies.forecasters.forecaster import LoadForecast
from studies.forecasters.series import LoadSeries

_HELD_S = 300


class LastValue:
    """There will be as many as there are."""

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:
        """Learn nothing."""

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:  # noqa: ARG002
        """Repeat the load."""
        return LoadForecast(load)


class HeldPeak:
    """There will be as many as there were at most in the last 300 s, Kubernetes' window."""

    def __init__(self) -> None:
        self._peaks: deque[tuple[int, int]] = deque()

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:
        """Learn nothing."""

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:  # noqa: ARG002
        """Return the largest load of the window."""
        while self._peaks and self._peaks[-1][1] <= load:
            self._peaks.pop()
        self._peaks.append((at_s, load))
        while self._peaks[0][0] <= at_s - _HELD_S:
            self._peaks.popleft()
        return LoadForecast(self._peaks[0][1], self._peaks[0][1])


class ToldFuture:
    """Knows the peak that will come if no request has to wait. No candidate, but a control."""

    def __init__(self, peaks: Floats) -> None:
        self._peaks = peaks

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:
        """Learn nothing."""

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:  # noqa: ARG002
        """Return what will come."""
        peak = float(self._peaks[min(at_s, self._peaks.size - 1)])
        return LoadForecast(peak, peak)
