"""Room for many jobs at once, in one go: the next best run, over and over, nothing taken back."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from slurm_plugin.decide.reclaim.room import Need, Room, Run, Shape

_TIES = 16
"""So many nodes that would cost the same are compared by whose runs go."""

Places = dict[int, tuple[str, ...]]
"""The nodes of jobs that need more than a single instance, by key."""


def fill(room: Room, needs: Sequence[Need]) -> tuple[Places, set[int]]:
    """Take the runs that make room for these jobs, in this order; those that matter where first.

    Returns the nodes of those, and the keys of jobs without room: the room has nothing of them.
    """
    places: Places = {}
    out: set[int] = set()
    room.need(needs)
    for need in needs:
        if not need.is_single:
            found = _placed(room, need)
            if found is None:
                out.add(need.key)
                room.need([need], -1)
            else:
                places[need.key] = found
    take_anywhere(room)
    return places, out | _dropped(room, [need for need in needs if need.key not in out], places)


def _dropped(room: Room, needs: Iterable[Need], places: Places) -> set[int]:
    """The last jobs that need what there is too little of on all nodes have no room."""
    out: set[int] = set()
    for need in reversed(tuple(needs)):
        if any(room.balance[kind] < 0 for kind, _ in need.shape):
            out.add(need.key)
            room.need([need], -1)
            for node in places.pop(need.key, ()):
                room.place(node, need.shape, -1)
    return out


def _placed(room: Room, need: Need) -> tuple[str, ...] | None:
    """The nodes that it got, with runs taken there; None, and nothing changed, if there are not
    enough of them.
    """
    nodes: list[str] = []
    taken: list[Run] = []
    for _ in range(need.nodes):
        node = _best_node(room, need.shape, nodes)
        if node is None:
            break
        room.place(node, need.shape)
        nodes.append(node)
        taken += _take_at(room, node)
    if len(nodes) == need.nodes and not any(room.lacks_at(node) for node in nodes):
        return tuple(nodes)
    for run in reversed(taken):
        room.give_back(run)
    for node in nodes:
        room.place(node, need.shape, -1)
    return None


def _best_node(room: Room, shape: Shape, but: Collection[str]) -> str | None:
    """Where least must go; of equals where those go first who hold most above their own part,
    then where it leaves least free.
    """
    estimates = room.estimates(shape)
    if but:
        estimates = {node: cost for node, cost in estimates.items() if node not in but}
    least = min(estimates.values(), default=None)
    nodes = sorted(node for node, cost in estimates.items() if cost == least)
    return min(nodes[:_TIES], key=lambda node: (*_order_at(room, node, shape), node), default=None)


def _order_at(room: Room, node: str, shape: Shape) -> tuple[float, int]:
    free = room.free[node]
    kinds = {kind for kind, count in shape if free[kind] < count}
    runs = (run for run in room.at(node) if kinds and room.may_take(run))
    shares = (room.share(run.tenant) for run in runs if kinds & run.instances[node].keys())
    return -max(shares, default=0.0), sum(free.values())


def _take_at(room: Room, node: str) -> Sequence[Run]:
    """Runs on a node that is short, as far as there are any."""
    taken: list[Run] = []
    while (lacks := room.lacks_at(node)) and (options := options_at(room, node, lacks)):
        room.take(options[0])
        taken.append(options[0])
    return taken


def options_at(room: Room, node: str, lacks: Mapping[str, int]) -> Sequence[Run]:
    """The runs that give a node some of what it is short of, the best first."""
    giving = [
        run
        for run in room.at(node)
        if not lacks.keys().isdisjoint(run.instances[node]) and room.may_take(run)
    ]
    return sorted(giving, key=lambda run: order(room, run, lacks))


def order(room: Room, run: Run, lacks: Mapping[str, int]) -> tuple[float, ...]:
    """The lowest goes first: replicas; those of whose instances the fewest are for nothing, then
    the largest; of alike ones that of the tenant with the largest share above its own part; then by
    rank.
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


def take_anywhere(room: Room) -> Sequence[Run]:
    """Runs on any nodes until there is enough of every type, as far as there are any."""
    taken: list[Run] = []
    queues = _queues(room)
    for kind in sorted(room.lacks()):
        while room.balance[kind] < 0:
            nexts = [run for queue in queues.get(kind, ()) if (run := queue.first()) is not None]
            if not nexts:
                break
            run = min(nexts, key=lambda one: order(room, one, {}))
            room.take(run)
            taken.append(run)
    return taken


class _Queue:
    """Runs of one size, in the order in which they go."""

    def __init__(self, room: Room, runs: Iterable[Run]) -> None:
        self._room = room
        self._runs: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            self._runs[run.tenant].append(run)
        for found in self._runs.values():
            found.sort(key=lambda run: run.rank, reverse=True)
        self._tenants = [(-room.share(tenant), tenant) for tenant in self._runs]
        heapify(self._tenants)

    def first(self) -> Run | None:
        """The next one that may go."""
        # Shares only fall: one that stands at the heap's top as it is now is the largest.
        while self._tenants:
            share, tenant = self._tenants[0]
            runs, now = self._runs[tenant], -self._room.share(tenant)
            while runs and runs[-1].job_id in self._room.taken:
                runs.pop()
            if runs and share == now and self._room.may_take(runs[-1]):
                return runs[-1]
            heappop(self._tenants)
            if runs and self._room.may_take(runs[-1]):
                heappush(self._tenants, (now, tenant))
        return None


def _queues(room: Room) -> Mapping[str, Sequence[_Queue]]:
    """By type that is short: the runs that give some of it, by size."""
    short = room.lacks().keys()
    sizes: dict[tuple[Shape, int], list[Run]] = defaultdict(list)
    for run in room.runs:
        if room.may_take(run) and any(kind in short for kind, _ in run.total):
            sizes[run.total, run.weight].append(run)
    queues: dict[str, list[_Queue]] = defaultdict(list)
    for (total, _), runs in sizes.items():
        queue = _Queue(room, runs)
        for kind, _ in total:
            queues[kind].append(queue)
    return queues
