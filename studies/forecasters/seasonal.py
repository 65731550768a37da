"""The load of the same time in earlier seasons, as a distribution."""

import numpy as np

from slicewise.launcher.rules.autoscale.forecasts import AFTER
from studies.forecasters.forecaster import NEEDED, LoadForecast
from studies.forecasters.series import LoadSeries

_SEASONS = 7
_AROUND_S = 60
"""Seconds before and after the same time of earlier seasons that count, too."""
_EACH_S = 10
"""Seconds for which a quantile is repeated."""


class SeasonalQuantile:
    """Quantiles of the load around the same time in the last seven seasons.

    Where no season has passed it repeats the load.
    """

    def __init__(self) -> None:
        self._past = np.zeros(0)
        self._horizon_s, self._season_s = 0.0, 0
        self._at_s: int | None = None
        self._said: LoadForecast | None = None

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Remember the trained part."""
        self._past = trained.load.copy()
        self._horizon_s, self._season_s = trained.horizon_s, trained.season_s

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:  # noqa: ARG002
        """Remember the load, and return the quantiles."""
        if at_s >= self._past.size:
            self._past = np.concatenate((self._past, np.zeros(at_s + 1)))
        self._past[at_s] = load
        if self._at_s is None or at_s - self._at_s >= _EACH_S:
            self._at_s, self._said = at_s, self._quantiles(at_s)
        return self._said or LoadForecast(load)

    def _quantiles(self, at_s: int) -> LoadForecast | None:
        first = int(at_s + self._horizon_s) - _AROUND_S
        last = int(at_s + AFTER * self._horizon_s) + _AROUND_S
        back = [number * self._season_s for number in range(1, _SEASONS + 1)]
        parts = [self._past[first - s : last - s] for s in back if first - s >= 0]
        if not parts:
            return None
        middle, high = np.quantile(np.concatenate(parts), (0.5, NEEDED))
        return LoadForecast(float(middle), float(high))
