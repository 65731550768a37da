"""NVIDIA Dynamo's static rule (components/src/dynamo/planner/core/load_scaling.py)."""

from studies.autoscale.policy import Seen

_EVERY_S = 5
_UP, _DOWN = 1.0, 0.6
_LEAST = 1


class Dynamo:
    """Dynamo's static rule; ``target`` scales both thresholds, 1.0 and 0.6 of a replica's use.

    A replica's use is its requests in flight and waiting, divided by its concurrency; requests that
    wait at the gateway are divided evenly. The rule adds one replica if any is above the upper
    threshold, and removes one if all are below the lower threshold. It does not decide while the
    last decision is carried out, and keeps at least one replica.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._concurrency = concurrency
        self._up, self._down = _UP * target, _DOWN * target
        self._wish: int | None = None

    def wanted(self, seen: Seen) -> int:
        """Decide each 5 s."""
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
