"""The order in which runs are chosen to end."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from slicewise.slurm_plugin.rules.quota.jobs import Shape
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity
from slicewise.slurm_plugin.rules.reclaim.running import Running


def victim_order(room: Capacity, run: Running, lacks: Mapping[str, int]) -> tuple[float, ...]:
    """Sort key of a run; the lowest is chosen first.

    Replicas come before batch jobs, then runs that free the fewest instances (by price) for
    nothing, then the largest runs. Of equal runs that of the tenant with the largest share above
    its guaranteed quota comes first, then the lowest rank. ``lacks`` is what the node on which the
    run makes room is short of, by type.
    """
    return (
        not run.is_replica,
        *_size_order(room, run.total, run.cost_millislices, lacks),
        -room.share(run.tenant),
        *run.rank(room.now_s),
    )


def _size_order(
    room: Capacity, total: Shape, cost: int, lacks: Mapping[str, int]
) -> tuple[int, int]:
    for_nothing = 0
    for gres_type, count in total:
        useful = max(lacks.get(gres_type, 0), -room.balance[gres_type])
        for_nothing += max(0, count - useful) * room.prices[gres_type]
    return for_nothing, -cost


class VictimQueue:
    """Runs in the order in which they are chosen, regardless of size.

    The order stays valid while runs are taken, but not once a run was given back.
    """

    def __init__(self, room: Capacity, runs: Iterable[Running]) -> None:
        """``runs`` must come sorted by rank."""
        self._room = room
        self._left: dict[str, list[Running]] = defaultdict(list)
        for run in runs:
            self._left[run.tenant].append(run)
        for those in self._left.values():
            those.reverse()
        self._tenants = [self._next(tenant) for tenant in self._left]
        heapify(self._tenants)

    def _next(self, tenant: str) -> tuple[float, tuple[float, ...], str]:
        return -self._room.share(tenant), self._left[tenant][-1].rank(self._room.now_s), tenant

    def first(self) -> Running | None:
        """The next run that may be taken; None if there is none."""
        # Shares only fall, and ranks rise: a top entry that is still up to date is the first.
        while self._tenants:
            top = self._tenants[0]
            left = self._left[top[-1]]
            while left and not self._room.may_take(left[-1]):
                left.pop()
            if not left:
                heappop(self._tenants)
            elif (now := self._next(top[-1])) != top:
                heapreplace(self._tenants, now)
            else:
                return left[-1]
        return None


def in_order(room: Capacity) -> Sequence[Running]:
    """All runs that may be taken, in the order of taking them until no more may; then the rest."""
    queue, going = VictimQueue(room, room.runs), list[Running]()
    may_go = [run for run in room.runs if room.may_take(run)]
    while (run := queue.first()) is not None:
        room.take(run)
        going.append(run)
    more = [run for run in may_go if run.job_id not in room.taken]
    for run in reversed(going):
        room.give_back(run)
    return [*going, *more]
