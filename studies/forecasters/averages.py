"""The product's forecast: present requests end, new ones come at one of three averaged rates."""

import numpy as np

from slicewise.launcher.rules.autoscale.arrivals import Arrivals, learn_arrivals
from slicewise.launcher.rules.autoscale.forecasts import (
    Forecasts,
    SeenLoad,
    expected,
    learn_forecasts,
)
from slicewise.launcher.rules.autoscale.service_time import WorkDone, learn_work
from studies.forecasters.forecaster import LoadForecast
from studies.forecasters.series import LoadSeries


class ProductAverages:
    """The launcher's own functions, of the average whose forecasts have scattered least."""

    def __init__(self) -> None:
        self._horizon_s = 0.0
        self._arrivals, self._forecasts, self._work = Arrivals(), Forecasts(), WorkDone()
        self._before: int | None = None

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Learn how long a start takes; the rest is learnt as it comes."""
        self._horizon_s = trained.horizon_s

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:
        """Learn as the launcher does from a look, and forecast."""
        if self._before is not None:
            answered = max(0, self._before + arrived - load)
            self._work = learn_work(self._work, (self._before + load) / 2, answered)
            self._arrivals = learn_arrivals(self._arrivals, arrived, 1.0)
        self._before = load
        service_s = self._work.service_s
        rates = self._arrivals.rates
        made = tuple(expected(load, rate, self._horizon_s, service_s) for rate in rates)
        seen = SeenLoad(load, load)
        self._forecasts = learn_forecasts(self._forecasts, seen, at_s, self._horizon_s, made)
        return LoadForecast(made[self._forecasts.best])
