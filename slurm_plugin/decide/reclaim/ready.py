"""Which waiting jobs have room now, without anybody's end."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurm_plugin.decide.reclaim.room import Need


def ready(
    needs: Iterable[Need],
    free: Mapping[str, Mapping[str, int]],
    places: Mapping[int, Sequence[str]],
) -> frozenset[int]:
    """Keys of the jobs that fit into what is free, after what earlier ones take.

    ``places`` are the nodes on which room is being made for jobs: what is free there is kept for
    them, even if it does not suffice yet. Else a later job would start on it, and one more run had
    to go.
    """
    left = _Left(free)
    found: set[int] = set()
    for need in needs:
        if need.is_single:
            if left.take_anywhere(need):
                found.add(need.key)
            continue
        planned = places.get(need.key, ())
        nodes = planned if left.is_on(planned, need) else left.nodes(need)
        left.take(need, nodes or planned)
        if nodes:
            found.add(need.key)
    return frozenset(found)


class _Left:
    """What is free of each type, by node and together; jobs of one instance have no node."""

    def __init__(self, free: Mapping[str, Mapping[str, int]]) -> None:
        self._on: dict[str, dict[str, int]] = defaultdict(dict)
        self._all: Counter[str] = Counter()
        for node, there in free.items():
            for kind, count in there.items():
                self._on[kind][node] = count
                self._all[kind] += count

    def take_anywhere(self, need: Need) -> bool:
        """Whether there was one."""
        kind = need.shape[0][0]
        is_there = self._all[kind] > 0
        self._all[kind] -= is_there
        return is_there

    def is_on(self, nodes: Sequence[str], need: Need) -> bool:
        """Whether these nodes have enough for it."""
        return all(
            self._all[kind] >= count * need.nodes
            and all(self._on[kind].get(node, 0) >= count for node in nodes)
            for kind, count in need.shape
        ) and bool(nodes)

    def nodes(self, need: Need) -> Sequence[str]:
        """Those that have least left of those that have enough; none if there are too few."""
        if any(self._all[kind] < count * need.nodes for kind, count in need.shape):
            return ()
        on = [self._on[kind] for kind, _ in need.shape]
        counts = [count for _, count in need.shape]
        fit = [
            node
            for node in on[0]
            if all(there.get(node, 0) >= count for there, count in zip(on, counts, strict=True))
        ]
        fit.sort(key=lambda node: (sum(there[node] for there in on), node))
        return fit[: need.nodes] if len(fit) >= need.nodes else ()

    def take(self, need: Need, nodes: Iterable[str]) -> None:
        """On these nodes, as far as there is that much."""
        for node in nodes:
            for kind, count in need.shape:
                taken = min(count, self._on[kind].get(node, 0), self._all[kind])
                self._on[kind][node] = self._on[kind].get(node, 0) - taken
                self._all[kind] -= taken
