"""Makes room for many jobs greedily: takes one best run after another, without backtracking."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf

from slicewise.slurm_plugin.rules.quota.jobs import JobKey, Shape, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity, Estimate, JobPlaces
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victim_order import VictimQueue, victim_order

_Key = tuple[Estimate, float, int, str]
"""What must end on the node, the largest share of a tenant there (negative), free instances, node.
"""
_Queues = Sequence[tuple[Collection[str], VictimQueue]]
"""Queues of runs of one size, with the types that they free."""


def fill(room: Capacity, needs: Sequence[WaitingJob]) -> tuple[JobPlaces, set[JobKey]]:
    """Take the runs that make room for these jobs, in this order.

    Jobs that need more than a single instance, and so certain nodes, come first. Returns their
    nodes, and the keys of jobs without room; ``room`` holds nothing for jobs without room.
    """
    places: JobPlaces = {}
    out: set[JobKey] = set()
    room.need(needs)
    nodes, hopeless = _Nodes(room), set[tuple[Shape, int]]()
    for need in needs:
        if need.is_single:
            continue
        # Room only shrinks: where one job has none, no later job of the same shape has any.
        alike = need.shape, need.nodes
        nodes_of_need = None if alike in hopeless else nodes.placed(need)
        if nodes_of_need is None:
            hopeless.add(alike)
            out.add(need.key)
            room.need([need], -1)
        else:
            places[need.key] = nodes_of_need
    _take_anywhere(room)
    return places, out | _dropped(room, [need for need in needs if need.key not in out], places)


def _dropped(room: Capacity, needs: Iterable[WaitingJob], places: JobPlaces) -> set[JobKey]:
    """Drop jobs, last first, while a type that they need is short on all nodes together.

    Returns the keys of the dropped jobs.
    """
    out: set[JobKey] = set()
    for need in reversed(tuple(needs)):
        if any(room.balance[gres_type] < 0 for gres_type, _ in need.shape):
            out.add(need.key)
            room.need([need], -1)
            for node in places.pop(need.key, ()):
                room.place(node, need.shape, -1)
    return out


class _Nodes:
    """Nodes in the order in which jobs get them, by shape; and the runs there, by size.

    While runs are taken a node's key only rises, except on nodes where a job was placed.
    """

    def __init__(self, room: Capacity) -> None:
        self._room = room
        self._heaps: dict[Shape, list[_Key]] = {}
        self._queues: dict[str, _Queues] = {}

    def placed(self, need: WaitingJob) -> tuple[str, ...] | None:
        """Place the job, taking runs on its nodes. Returns the nodes.

        Returns None, and changes nothing, if there are not enough nodes.
        """
        nodes: list[str] = []
        taken: list[Running] = []
        while len(nodes) < need.nodes and (node := self._best(need.shape, nodes)) is not None:
            self._room.place(node, need.shape)
            nodes.append(node)
            taken += self._take(node)
        if len(nodes) < need.nodes or any(self._room.lacks_at(node) for node in nodes):
            self._undo(need.shape, nodes, taken)
            return None
        for node in {*nodes, *(node for run in taken for node in run.instances)}:
            for shape in self._heaps:
                self._push(shape, node)
        return tuple(nodes)

    def _undo(self, shape: Shape, nodes: Iterable[str], taken: Sequence[Running]) -> None:
        for run in reversed(taken):
            self._room.give_back(run)
        for node in nodes:
            self._room.place(node, shape, -1)
        self._heaps.clear()
        self._queues.clear()

    def _best(self, shape: Shape, but: Collection[str]) -> str | None:
        """The node where the least must end for the shape; None if no node is left.

        Of equal nodes: where a run that could end belongs to the tenant with the largest share
        above its guaranteed quota, then where the fewest instances are free.
        """
        heap = self._heap(shape)
        current: list[_Key] = []
        best = None
        while heap and best is None:
            entry = heappop(heap)
            node = entry[-1]
            now = self._key(shape, node)
            if now == entry:
                current.append(entry)
                best = None if node in but else node
            elif now is not None and now > entry:
                heappush(heap, now)
        for known in current:
            heappush(heap, known)
        return best

    def _heap(self, shape: Shape) -> list[_Key]:
        if shape not in self._heaps:
            self._heaps[shape] = []
            for node in self._room.estimates(shape):
                self._push(shape, node)
        return self._heaps[shape]

    def _push(self, shape: Shape, node: str) -> None:
        """Push the node with the lowest key for its estimate; ``_best`` computes the exact key."""
        estimate = self._room.estimates(shape).get(node)
        if estimate is not None:
            heappush(self._heaps[shape], (estimate, -inf, 0, node))

    def _key(self, shape: Shape, node: str) -> _Key | None:
        estimate = self._room.estimates(shape).get(node)
        if estimate is None:
            return None
        free = self._room.free[node]
        short = [gres_type for gres_type, count in shape if free[gres_type] < count]
        shares = (self._room.share(run.tenant) for run in self._firsts(node, short))
        return estimate, -max(shares, default=0.0), sum(free.values()), node

    def _take(self, node: str) -> Iterator[Running]:
        """Take runs on a node until it is short of nothing, or no run is left."""
        while lacks := self._room.lacks_at(node):
            run = _best_of(self._room, self._firsts(node, lacks), lacks)
            if run is None:
                return
            self._room.take(run)
            yield run

    def _firsts(self, node: str, kinds: Collection[str]) -> Iterator[Running]:
        if kinds and node not in self._queues:
            self._queues[node] = _queues(self._room, self._room.at(node), node)
        return _firsts(self._queues[node], kinds) if kinds else iter(())


def _take_anywhere(room: Capacity) -> None:
    """Take runs on any nodes until every type suffices, or no run is left."""
    lacks = room.lacks()
    queues = _queues(room, room.runs) if lacks else ()
    for gres_type in sorted(lacks):
        while room.balance[gres_type] < 0:
            run = _best_of(room, _firsts(queues, [gres_type]), {})
            if run is None:
                break
            room.take(run)


def _queues(room: Capacity, runs: Iterable[Running], node: str = "") -> _Queues:
    """Queues of runs by size, with the types that they free on the node; "" means on any node."""
    sizes: dict[tuple[Shape, int, tuple[str, ...]], list[Running]] = defaultdict(list)
    for run in runs:
        if room.may_take(run):
            kinds = tuple(run.instances[node] if node else dict(run.total))
            sizes[run.total, run.weight, kinds].append(run)
    return [(kinds, VictimQueue(room, those)) for (_, _, kinds), those in sizes.items()]


def _firsts(queues: _Queues, kinds: Collection[str]) -> Iterator[Running]:
    """The first run of each size that frees some of these types."""
    for given, queue in queues:
        if any(gres_type in given for gres_type in kinds) and (run := queue.first()) is not None:
            yield run


def _best_of(room: Capacity, runs: Iterable[Running], lacks: Mapping[str, int]) -> Running | None:
    return min(runs, key=lambda run: victim_order(room, run, lacks), default=None)
