"""NVIDIA Dynamo's static rule (components/src/dynamo/planner/core/load_scaling.py)."""

from benchmarks.autoscale.policy import Seen

_EVERY_S = 5
_UP, _DOWN = 1.0, 0.6
_LEAST = 1


class Dynamo:
    """``target``: scales both thresholds, 1.0 and 0.6 of a replica's use.

    Use is in flight and waiting over concurrency; what waits at the gateway is divided evenly. One
    replica more if any is above the upper threshold, one less if all are below the lower one; no
    decision while the last is carried out. It keeps at least one.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._concurrency = concurrency
        self._up, self._down = _UP * target, _DOWN * target
        self._wish: int | None = None

    def wanted(self, seen: Seen) -> int:
        """Each 5 s."""
        if self._wish is None:
            self._wish = max(seen.coming, _LEAST)
        elif seen.at_s % _EVERY_S == 0 and seen.ready == self._wish and not seen.draining:
            self._wish = self._decide(seen)
        return self._wish

    def _decide(self, seen: Seen) -> int:
        share = seen.waiting / seen.ready
        use = [(busy + share) / self._concurrency for busy in seen.busy]
        if max(use) > self._up:
            return seen.ready + 1
        if max(use) < self._down and seen.ready > _LEAST:
            return seen.ready - 1
        return seen.ready
