"""Ray Serve's default policy (python/ray/serve/autoscaling_policy.py)."""

from collections import deque
from math import ceil

from studies.autoscale.policy import Seen

_LOOK_BACK_S = 30
_PUSH_S = 10
_UP_DELAY_S = 30
_DOWN_DELAY_S = 600


class Ray:
    """Ray Serve's policy; ``target``: ongoing requests per replica as a share of its concurrency.

    Other defaults: the load is the mean over 30 s, pushed each 10 s. A rise must last for 30 s and
    a fall for 600 s; then the latest number counts. Ray's loop of 0.1 s is one of a second here: a
    delay of 30 s is 300 loops there and 30 here.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._target = concurrency * target
        self._work_s: deque[float] = deque(maxlen=_LOOK_BACK_S + 1)
        self._load = 0.0
        self._wish: int | None = None
        self._counter = 0

    def wanted(self, seen: Seen) -> int:
        """Decide each second."""
        if self._wish is None:
            self._wish = seen.coming
        self._work_s.append(seen.work_s)
        if seen.at_s % _PUSH_S == 0 and len(self._work_s) > 1:
            span_s = len(self._work_s) - 1
            self._load = (self._work_s[-1] - self._work_s[0]) / span_s
        self._wish = self._decide(seen, self._wish)
        return self._wish

    def _decide(self, seen: Seen, wish: int) -> int:
        if not seen.ready:
            # Ray's handles report their requests immediately when no replica runs.
            return max(1, wish) if seen.load else wish
        number = self._number(wish)
        if number == wish:
            self._counter = 0
        elif number > wish:
            self._counter = max(self._counter, 0) + 1
        else:
            self._counter = min(self._counter, 0) - 1
        if self._counter > _UP_DELAY_S or self._counter < -_DOWN_DELAY_S:
            self._counter = 0
            return number
        return wish

    def _number(self, wish: int) -> int:
        """The replicas that the load needs; zero only if at most one is wanted now."""
        number = ceil(self._load / self._target)
        return max(number, 1) if wish > 1 else number
