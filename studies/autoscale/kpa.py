"""Knative's pod autoscaler: means over a stable and a panic window (pkg/autoscaler/scaling)."""

from collections import deque
from math import ceil, floor

from studies.autoscale.policy import Seen

_EVERY_S = 2
_STABLE_S = 60
_PANIC_S = 6
_MAX_UP_RATE = 1000.0
_MAX_DOWN_RATE = 2.0
_PANIC_THRESHOLD = 2.0
_GRACE_S = 30.0
_LEAST_TARGET = 0.01


class Kpa:
    """The KPA; ``target``: share of a replica's concurrency to use (Knative's default: 0.7).

    Other defaults: buckets of a second, windows of 60 and 6 s, a decision each 2 s or immediately
    when a request comes at zero, and zero only after 30 s of grace.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._target = max(_LEAST_TARGET, concurrency * target)
        self._buckets: deque[float] = deque(maxlen=_STABLE_S)
        self._work_s = 0.0
        self._panic_s: float | None = None
        self._peak = 0
        self._active_s: float | None = None
        self._idle_s: float | None = None
        self._wish: int | None = None

    def wanted(self, seen: Seen) -> int:
        """Add a bucket each second, and decide each 2 s."""
        if self._wish is None:
            self._begin(seen)
        else:
            self._buckets.append(seen.work_s - self._work_s)
        self._work_s = seen.work_s
        wakes = self._wish == 0 and seen.load > 0
        if wakes or seen.at_s % _EVERY_S == 0:
            self._wish = self._to_zero(self._decide(seen), seen)
        return self._wish or 0

    def _begin(self, seen: Seen) -> None:
        self._wish = seen.ready
        self._active_s = seen.at_s if seen.ready else None
        if seen.ready > 1:
            self._panic_s, self._peak = seen.at_s, seen.ready

    def _decide(self, seen: Seen) -> int:
        ready = max(1, seen.ready)
        stable = ceil(_mean(self._buckets, _STABLE_S) / self._target)
        panic = ceil(_mean(self._buckets, _PANIC_S) / self._target)
        if panic / ready >= _PANIC_THRESHOLD:
            self._panic_s = seen.at_s
        elif self._panic_s is not None and seen.at_s > self._panic_s + _STABLE_S:
            self._panic_s, self._peak = None, 0
        stable, panic = _clamp(stable, ready), _clamp(panic, ready)
        if self._panic_s is None:
            return stable
        self._peak = max(self._peak, stable, panic)
        return self._peak

    def _to_zero(self, wish: int, seen: Seen) -> int:
        """Delay zero: one replica stays for the stable window, then the last wish for the grace."""
        if wish > 0:
            self._idle_s = None
            if self._active_s is None and seen.ready:
                self._active_s = seen.at_s
            return wish
        if self._active_s is not None and seen.at_s - self._active_s < _STABLE_S:
            return 1
        if self._idle_s is None:
            self._active_s, self._idle_s = None, seen.at_s
        return 0 if seen.at_s - self._idle_s >= _GRACE_S else max(self._wish or 0, 0)


def _mean(buckets: deque[float], window_s: int) -> float:
    newest = list(buckets)[-window_s:]
    return sum(newest) / len(newest) if newest else 0.0


def _clamp(replicas: int, ready: int) -> int:
    return min(max(replicas, floor(ready / _MAX_DOWN_RATE)), ceil(_MAX_UP_RATE * ready))
