"""In which order runs go."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from slurm_plugin.decide.reclaim.room import Room, Run, Shape


def order(room: Room, run: Run, lacks: Mapping[str, int]) -> tuple[float, ...]:
    """The lowest goes first: replicas; those of whose instances the fewest are for nothing, then
    the largest; of alike ones that of the tenant with the largest share above its own part; then by
    rank. ``lacks`` is what the node is short of on which it is to make room.
    """
    return (
        run.is_batch,
        *_size_order(room, run.total, run.cost, lacks),
        -room.share(run.tenant),
        *run.rank,
    )


def _size_order(room: Room, total: Shape, cost: int, lacks: Mapping[str, int]) -> tuple[int, int]:
    for_nothing = 0
    for kind, count in total:
        useful = max(lacks.get(kind, 0), -room.balance[kind])
        for_nothing += max(0, count - useful) * room.prices[kind]
    return for_nothing, -cost


class Queue:
    """Runs in the order in which they go, whatever their size.

    It holds while runs are taken; once one was given back, it does not.
    """

    def __init__(self, room: Room, runs: Iterable[Run]) -> None:
        """The runs come by rank."""
        self._room = room
        self._left: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            self._left[run.tenant].append(run)
        for those in self._left.values():
            those.reverse()
        self._tenants = [self._next(tenant) for tenant in self._left]
        heapify(self._tenants)

    def _next(self, tenant: str) -> tuple[float, tuple[float, ...], str]:
        return -self._room.share(tenant), self._left[tenant][-1].rank, tenant

    def first(self) -> Run | None:
        """The next one that may go; after it its tenant's next one."""
        # Shares only fall, and ranks rise: what stands at the top as it is now is the first.
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


def in_order(room: Room) -> Sequence[Run]:
    """All runs that may go, as they would go one after the other until no more may."""
    queue, found = Queue(room, room.runs), list[Run]()
    may_go = [run for run in room.runs if room.may_take(run)]
    while (run := queue.first()) is not None:
        room.take(run)
        found.append(run)
    more = [run for run in may_go if run.job_id not in room.taken]
    for run in reversed(found):
        room.give_back(run)
    return [*found, *more]
