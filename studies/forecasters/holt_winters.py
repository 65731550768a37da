"""Holt and Winters' exponential smoothing: a level, a damped trend, and a season where one shows.

Holt, Forecasting seasonals and trends by exponentially weighted moving averages (1957); Winters,
Management Science 6(3), 1960; the damped trend: Gardner and McKenzie, Management Science 31(10),
1985. Its constants are those of a grid whose errors scattered least in the trained part.
"""

from itertools import product

import numpy as np

from studies.autoscale.workload import Floats
from studies.forecasters.errors import surprises
from studies.forecasters.forecaster import LoadForecast
from studies.forecasters.series import STEP_S, LoadSeries, peaks_after

_LEVELS = (1.0, 1 / 5, 1 / 20, 1 / 60)
_TRENDS = (0.0, 1 / 60, 1 / 300)
"""Share of each new value, a second, in level and trend."""
_SEASONS = (0.0, 0.3)
"""Share of each new season in the season."""
_DAMPED = 0.995
"""Share of the trend that stays with each second."""
_BINS = 60
"""Parts of a season."""
_LEAST_SEASONS = 3
"""Seasons in the trained part without which none is looked for."""


class Smoothing:
    """Several smoothings side by side, one for each row of constants.

    Attributes:
        level, trend: one value a row.
        season: one row of ``_BINS`` values a row.
    """

    def __init__(self, constants: Floats, season_s: int, first: float) -> None:
        self._bin_s = season_s / _BINS
        self._of_level, self._of_trend, of_season = constants.T
        self._of_season = of_season / self._bin_s
        self.level = np.full(len(constants), first)
        self.trend = np.zeros(len(constants))
        self.season = np.zeros((len(constants), _BINS))

    def learn(self, at_s: int, load: float) -> None:
        """Smooth one more value."""
        part = int(at_s / self._bin_s) % _BINS
        season = self.season[:, part]
        before, drift = self.level, self.trend * _DAMPED
        self.level = before + drift + self._of_level * (load - season - before - drift)
        self.trend = drift + self._of_trend * (self.level - before - drift)
        self.season[:, part] = season + self._of_season * (load - self.level - season)

    def ahead(self, at_s: int, horizon_s: float) -> Floats:
        """Return what each row expects ``horizon_s`` later, at least 0."""
        drift = _DAMPED * (1 - _DAMPED**horizon_s) / (1 - _DAMPED)
        part = int((at_s + horizon_s) / self._bin_s) % _BINS
        found: Floats = np.maximum(self.level + drift * self.trend + self.season[:, part], 0.0)
        return found


def _grid(seconds: int, season_s: int) -> Floats:
    seasons = _SEASONS if seconds >= _LEAST_SEASONS * season_s else _SEASONS[:1]
    return np.array([*product(_LEVELS, _TRENDS, seasons)])


class HoltWinters:
    """The smoothing of the grid that did best in the trained part; it goes on from its end."""

    def __init__(self) -> None:
        self._horizon_s = 0.0
        self._best = Smoothing(np.zeros((1, 3)), _BINS, 0.0)

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Choose constants, and keep the season that they have found."""
        self._horizon_s = trained.horizon_s
        grid = _grid(trained.load.size, trained.season_s)
        tried = Smoothing(grid, trained.season_s, float(trained.load[0]))
        made = np.empty((trained.load.size, len(grid)))
        for at_s, load in enumerate(trained.load.tolist()):
            tried.learn(at_s, load)
            if at_s % STEP_S == 0:
                made[at_s] = tried.ahead(at_s, trained.horizon_s)
        peaks = peaks_after(trained.load, trained.horizon_s)[::STEP_S, None]
        best = int(surprises(made[::STEP_S], peaks).var(axis=0).argmin())
        self._best = Smoothing(grid[best : best + 1], trained.season_s, 0.0)
        self._best.level = tried.level[best : best + 1]
        self._best.season = tried.season[best : best + 1]

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:  # noqa: ARG002
        """Smooth, and look ahead."""
        self._best.learn(at_s, load)
        return LoadForecast(float(self._best.ahead(at_s, self._horizon_s)[0]))
