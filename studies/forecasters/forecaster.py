"""The interface of the forecasters: what they see each second, and what they say."""

from typing import NamedTuple, Protocol

import numpy as np

from studies.forecasters.series import LoadSeries

NEEDED = 0.95
"""The quantile that the policy needs.

By its newsvendor's rule a replica is started while requests in more than ``(1 − aim) / 0.2`` of the
cases would be late without it, where 0.2 is the share of a peak's period that is late; at the usual
aim of 0.99 that leaves one case in 20.
"""


class LoadForecast(NamedTuple):
    """What is said of the requests in parallel when a start that begins now would have ended.

    Attributes:
        middle: how many there will be; how far off that is, is learnt.
        high: how many there will be at most in the share ``NEEDED`` of the cases; None if the
            forecaster says nothing of that by itself.
    """

    middle: float
    high: float | None = None


class Forecaster(Protocol):
    """Says how many requests there will be in parallel, a start's delay later."""

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:
        """Learn from the first part of a trace."""
        ...

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:
        """See one second: ``load`` in parallel or waiting, ``arrived`` since the last look."""
        ...
