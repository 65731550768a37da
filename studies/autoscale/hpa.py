"""Kubernetes' horizontal pod autoscaler v2 on a queue metric (pkg/controller/podautoscaler)."""

from collections import deque
from math import ceil

from studies.autoscale.policy import Seen

_EVERY_S = 15
_TOLERANCE = 0.1
_DOWN_WINDOW_S = 300.0
_UP_FACTOR, _UP_LEAST = 2, 4


class Hpa:
    """The HPA; ``target``: requests per replica (AverageValue) as a share of its concurrency.

    There is no behavior block: scaling down uses the maximum recommendation of 300 s, and scaling
    up goes to at most twice as many replicas (or 4). The metric is the mean over the 15 s since the
    last decision.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._target = concurrency * target
        self._wish: int | None = None
        self._work_s = 0.0
        self._recommended: deque[tuple[float, int]] = deque()

    def wanted(self, seen: Seen) -> int:
        """Decide each 15 s."""
        if self._wish is None:
            self._wish = seen.coming
            self._recommended.append((seen.at_s, seen.coming))
        elif seen.at_s % _EVERY_S == 0:
            metric = (seen.work_s - self._work_s) / _EVERY_S
            self._work_s = seen.work_s
            self._wish = self._bounded(self._recommend(metric, seen.coming), seen.at_s)
        return self._wish

    def _recommend(self, metric: float, replicas: int) -> int:
        if replicas and abs(1 - metric / (self._target * replicas)) <= _TOLERANCE:
            return replicas
        return ceil(metric / self._target)

    def _bounded(self, recommended: int, at_s: float) -> int:
        self._recommended.append((at_s, recommended))
        while self._recommended[0][0] < at_s - _DOWN_WINDOW_S:
            self._recommended.popleft()
        stable = max(replicas for _, replicas in self._recommended)
        return min(stable, max(_UP_FACTOR * (self._wish or 0), _UP_LEAST))
