"""A policy that keeps what a quantile of the same minutes of earlier hours, and of now, needed."""

from array import array
from math import ceil

import numpy as np

from studies.autoscale.policy import Seen

_SEASON_S = 3600
_HOURS = 24
_AROUND_S = 150
_EACH_S = 10


class Seasonal:
    """Seasonal quantiles; ``target``: the quantile of the requests in parallel to have room for.

    It looks at the last 300 s, and at the 300 s around this time of each of the last 24 hours. What
    waits now counts, too, as else a queue would never end. It decides each 10 s.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._concurrency, self._quantile = concurrency, target
        self._loads = array("i")
        self._wish = 0

    def wanted(self, seen: Seen) -> int:
        """Decide each second."""
        self._loads.append(seen.load)
        if len(self._loads) == 1:
            self._wish = seen.coming
        elif int(seen.at_s) % _EACH_S == 0:
            self._wish = self._needed()
        waits = ceil(seen.load / self._concurrency) if not seen.ready else 0
        return max(self._wish, waits)

    def _needed(self) -> int:
        loads = np.frombuffer(self._loads, np.intc)
        now = loads.size
        seasons = range(_SEASON_S, min(now, _HOURS * _SEASON_S) + _AROUND_S, _SEASON_S)
        windows = [
            loads[max(now - ago - _AROUND_S, 0) : max(now - ago + _AROUND_S, 0)] for ago in seasons
        ]
        like = np.concatenate([loads[-2 * _AROUND_S :], *windows])
        return ceil(float(np.quantile(like, self._quantile)) / self._concurrency)
