"""A policy that keeps as many replicas as the last minutes needed at most."""

from collections import deque
from math import ceil

from studies.autoscale.policy import Seen

_KEEP_ALIVE_S = 300.0


class PeakHold:
    """Peak-hold; ``target``: requests per replica as a share of its concurrency.

    It wants the replicas that the load needs now or needed at most within the last 300 s.
    """

    def __init__(self, concurrency: int, target: float) -> None:
        self._target = concurrency * target
        self._peaks: deque[tuple[float, int]] = deque()

    def wanted(self, seen: Seen) -> int:
        """Decide each second."""
        if not self._peaks:
            self._peaks.append((seen.at_s, seen.coming))
        need = ceil(seen.load / self._target)
        while self._peaks and self._peaks[-1][1] <= need:
            self._peaks.pop()
        self._peaks.append((seen.at_s, need))
        while self._peaks[0][0] <= seen.at_s - _KEEP_ALIVE_S:
            self._peaks.popleft()
        return self._peaks[0][1]
