"""Adds up which services have used the replicas of pools, and tells the daemon."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from secrets import token_hex

from slicewise.cluster.rpc.usage_messages import MOST_RUNS, PoolUse, PoolUsesRequest
from slicewise.launcher.rules.pools.busy import NOTHING_BUSY, PoolLook, Used, used_ms

_MOST = 200_000
"""Sums that are remembered; of more, those of the oldest hour are given up."""
_HOUR_S = 3600


class PoolWatch:
    """Adds up looks.

    It tells the whole sum of an hour each time, by the name of this process: whatever is told
    again, or killed on the way, counts once. What was not told in time is of nobody, so it is the
    service's whose slot the replica is.
    """

    def __init__(self, note: Callable[[PoolUsesRequest], Awaitable[None]] | None = None) -> None:
        self._note = note
        self._seen_by = token_hex(16)
        self._look = NOTHING_BUSY
        self._sums = defaultdict[Used, float](float)
        self._told = dict[Used, int]()

    def turned(self, look: PoolLook) -> None:
        """Take over what a turn saw."""
        before, self._look = self._look, look
        if self._note is None:
            return
        for used, more_ms in used_ms(before, look).items():
            self._sums[used] += more_ms
        if len(self._sums) > _MOST:
            self._forget(min(used.hour_s for used in self._sums) + _HOUR_S)

    async def report(self) -> None:
        """Tell what is new. Raises SlicewiseError."""
        if self._note is None:
            return
        # A clock that is set back sees more of an hour than there is.
        sums = {used: min(int(sum_ms), 1000 * _HOUR_S) for used, sum_ms in self._sums.items()}
        new = sorted(used for used, sum_ms in sums.items() if sum_ms > self._told.get(used, 0))
        for first in range(0, len(new), MOST_RUNS):
            some = new[first : first + MOST_RUNS]
            uses = tuple(_pool_use(used, sums[used]) for used in some)
            await self._note(PoolUsesRequest(seen_by=self._seen_by, uses=uses))
            self._told |= {used: sums[used] for used in some}
        # Looks add to the hour before the newest one at most.
        self._forget(max((used.hour_s for used in self._sums), default=0) - _HOUR_S)

    def _forget(self, before_s: int) -> None:
        for used in [used for used in self._sums if used.hour_s < before_s]:
            del self._sums[used]
            self._told.pop(used, None)


def _pool_use(used: Used, used_ms: int) -> PoolUse:
    array_job_id, index, run_start_s = used.run
    return PoolUse(
        array_job_id=array_job_id,
        index=index,
        run_start_s=run_start_s,
        service=used.service,
        hour_s=used.hour_s,
        used_ms=used_ms,
    )
