"""Finds the waiting jobs that have room now, without the end of any run."""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slicewise.slurm_plugin.rules.quota.jobs import JobKey, WaitingJob


def ready(
    needs: Iterable[WaitingJob],
    free: Mapping[str, Mapping[str, int]],
    places: Mapping[JobKey, Sequence[str]],
) -> frozenset[JobKey]:
    """Keys of the jobs that fit into what is free, after what earlier jobs take.

    ``places`` are the nodes on which room is being made for jobs: what is free there is kept for
    these jobs, even if it does not suffice yet. Otherwise a later job would start on it, and one
    more run would have to end.
    """
    left = FreeInstances(free)
    startable: set[JobKey] = set()
    for need in needs:
        if need.is_single:
            if left.take_anywhere(need):
                startable.add(need.key)
            continue
        planned = places.get(need.key, ())
        nodes = planned if left.is_on(planned, need) else left.nodes(need)
        left.take(need, nodes or planned)
        if nodes:
            startable.add(need.key)
    return frozenset(startable)


class FreeInstances:
    """Free instances of each type, by node and in total.

    A job of a single instance takes one from the total, and has no node.
    """

    def __init__(self, free: Mapping[str, Mapping[str, int]]) -> None:
        self._on: dict[str, dict[str, int]] = defaultdict(dict)
        self._all: Counter[str] = Counter()
        for node, counts in free.items():
            for gres_type, count in counts.items():
                self._on[gres_type][node] = count
                self._all[gres_type] += count
        # Nodes sorted by their number of free instances.
        self._sorted = {
            gres_type: sorted((count, node) for node, count in nodes.items())
            for gres_type, nodes in self._on.items()
        }

    def take_anywhere(self, need: WaitingJob) -> bool:
        """Take one instance for a job that needs a single one. Returns whether there was one."""
        gres_type = need.shape[0][0]
        is_there = self._all[gres_type] > 0
        self._all[gres_type] -= is_there
        return is_there

    def is_on(self, nodes: Sequence[str], need: WaitingJob) -> bool:
        """Whether these nodes, at least one, have enough for the job."""
        return all(
            self._all[gres_type] >= count * need.nodes
            and all(self._on[gres_type].get(node, 0) >= count for node in nodes)
            for gres_type, count in need.shape
        ) and bool(nodes)

    def has(self, node: str, need: WaitingJob, more: Mapping[str, int]) -> bool:
        """Whether one node has enough for the job, with some ``more`` instances there."""
        return all(
            self._on[gres_type].get(node, 0) + more.get(gres_type, 0) >= count
            for gres_type, count in need.shape
        )

    def nodes(self, need: WaitingJob) -> Sequence[str]:
        """Nodes with enough for the job, the fullest first; empty if there are too few."""
        if any(self._all[gres_type] < count * need.nodes for gres_type, count in need.shape):
            return ()
        if len(need.shape) == 1:
            ((gres_type, count),) = need.shape
            by_count = self._sorted.get(gres_type, ())
            first = bisect_left(by_count, (count, ""))
            fit = [node for _, node in by_count[first : first + need.nodes]]
        else:
            fit = self._with_all(need)[: need.nodes]
        return fit if len(fit) == need.nodes else ()

    def _with_all(self, need: WaitingJob) -> list[str]:
        on = [self._on[gres_type] for gres_type, _ in need.shape]
        counts = [count for _, count in need.shape]
        fit = [
            node
            for node in on[0]
            if all(there.get(node, 0) >= count for there, count in zip(on, counts, strict=True))
        ]
        return sorted(fit, key=lambda node: (sum(counts[node] for counts in on), node))

    def place(self, need: WaitingJob) -> bool:
        """Take what the job needs, on the fullest nodes. False if there is not enough."""
        nodes = self.nodes(need)
        self.take(need, nodes)
        return bool(nodes)

    def on(self, node: str) -> Counter[str]:
        """Instances left on a node, by type."""
        return Counter({gres_type: counts.get(node, 0) for gres_type, counts in self._on.items()})

    def by_node(self) -> dict[str, Mapping[str, int]]:
        """Instances left on each node, by type."""
        sorted_counts: dict[str, dict[str, int]] = defaultdict(dict)
        for gres_type, nodes in self._on.items():
            for node, count in nodes.items():
                sorted_counts[node][gres_type] = count
        return dict(sorted_counts)

    def take(self, need: WaitingJob, nodes: Iterable[str]) -> None:
        """Take what the job needs on these nodes, or what is left there if that is less."""
        for node in nodes:
            for gres_type, count in need.shape:
                before = self._on[gres_type].get(node, 0)
                taken = min(count, before, self._all[gres_type])
                self._on[gres_type][node] = before - taken
                self._all[gres_type] -= taken
                by_count = self._sorted.setdefault(gres_type, [])
                place = bisect_left(by_count, (before, node))
                del by_count[place : place + (by_count[place : place + 1] == [(before, node)])]
                insort(by_count, (before - taken, node))
