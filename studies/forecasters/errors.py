"""How far forecasts are off, and what that costs.

As in the product, forecasts are compared with what came by twice the difference of square roots,
quiet ones apart from others, and errors of an hour or so count
(launcher/rules/autoscale/forecasts.py). Bins are finer here, since a quantile is asked for.
"""

from math import exp, sqrt

import numpy as np

from slicewise.launcher.rules.autoscale.forecasts import QUIET
from studies.autoscale.workload import Floats
from studies.forecasters.series import STEP_S

_CALM = 0.375
_KEEP = exp(-STEP_S / 3600)
_BIN = 0.25
_EDGES = np.arange(-24.0, 32.0 + _BIN, _BIN)
_ASSUMED = 20.0
_ASSUMED_MEAN = 0.9
"""Weight and mean of the errors that are assumed at first; a short peak is above the mean load."""


def surprises(forecast: Floats, came: Floats) -> Floats:
    """Return how far forecasts were off, in deviations of a Poisson process."""
    found: Floats = 2 * (np.sqrt(came + _CALM) - np.sqrt(forecast + _CALM))
    return found


def pinball(quantile: Floats, came: Floats, share: float) -> float:
    """Return the mean pinball loss of a quantile, in requests."""
    off = came - quantile
    return float(np.maximum(share * off, (share - 1) * off).mean())


def _assumed() -> Floats:
    """Return weights of bins of a normal distribution, below and above which nothing is."""
    middles = (_EDGES[1:] + _EDGES[:-1]) / 2
    weights = np.exp(-((middles - _ASSUMED_MEAN) ** 2) / 2)
    found: Floats = _ASSUMED * weights / weights.sum()
    return found


class LearntErrors:
    """Learns how far a forecaster's middles were off, and makes quantiles of them."""

    def __init__(self) -> None:
        self._assumed = _assumed()
        self._quiet, self._busy = np.zeros_like(self._assumed), np.zeros_like(self._assumed)

    def learn(self, middle: float, peak: float) -> None:
        """Learn what came after a forecast."""
        weights = self._quiet if middle < QUIET else self._busy
        off = 2 * (sqrt(peak + _CALM) - sqrt(middle + _CALM))
        weights *= _KEEP
        weights[min(max(int((off - _EDGES[0]) / _BIN), 0), weights.size - 1)] += 1.0

    def quantile(self, middle: float, share: float) -> float:
        """Return the number of requests that is not exceeded in that share of the cases."""
        weights = self._assumed + (self._quiet if middle < QUIET else self._busy)
        below = np.concatenate(((0.0,), weights.cumsum()))
        off = float(np.interp(share * below[-1], below, _EDGES))
        return max(0.0, max(0.0, sqrt(middle + _CALM) + off / 2) ** 2 - _CALM)
