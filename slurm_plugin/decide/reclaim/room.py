"""Room for waiting jobs, while runs are taken out of it and jobs put into it."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

Shape = tuple[tuple[str, int], ...]
"""GPU instances by type on one node, in order."""


_BATCH = 10**9
_FIRST = 10.0**12


@dataclass(frozen=True)
class Need:
    """A waiting job: the shape on so many different nodes; ``key`` is told back."""

    key: int
    shape: Shape
    nodes: int

    @property
    def is_single(self) -> bool:
        """One instance: then it does not matter on which node it is."""
        return self.nodes == 1 and sum(count for _, count in self.shape) == 1


@dataclass(frozen=True)
class Run:
    """A run that may go.

    Attributes:
        cost: in millislices.
        is_batch: no replica: it goes only if no replicas do.
        instances: by node, by type; ``total`` by type on all nodes.
        rank: the lower goes first among runs of a tenant.
    """

    job_id: int
    tenant: str
    cost: int
    is_batch: bool
    rank: tuple[float, ...]
    instances: Mapping[str, Mapping[str, int]] = field(hash=False)
    total: Shape

    @property
    def weight(self) -> int:
        """What counts if it goes: all replicas together are less than one batch job."""
        return self.cost * _BATCH if self.is_batch else self.cost


Places = dict[int, tuple[str, ...]]
"""The nodes of jobs that need more than a single instance, by key."""


@dataclass(frozen=True)
class Found:
    """A set of runs that suffices.

    Attributes:
        size: their weight and number.
        places: of jobs, once they are gone.
    """

    size: tuple[int, int] = (0, 0)
    runs: tuple[Run, ...] = ()
    places: Places = field(default_factory=dict, hash=False)


Estimate = tuple[int, int, int]
"""Instances of batch jobs, weight but for that, and runs."""


class Room:
    """What is free or comes free, and which runs may go for more; all of it can be undone.

    A node may be short of instances for a while (fewer than none are free), until runs there go.

    Attributes:
        runs: by rank.
        free: by node, by type.
        balance: by type: what is free on all nodes, less all that is needed, placed or not.
        taken: runs that go, by job id, in the order in which they were chosen.
        above: millislices by tenant that it may still be asked for.
        weight: of all runs that are taken.
        prices: by type: no run gives an instance for less weight.
    """

    def __init__(
        self,
        free: Mapping[str, Mapping[str, int]],
        runs: Iterable[Run],
        above: Mapping[str, int],
        weights: Mapping[str, int],
        first: Mapping[str, int],
    ) -> None:
        """``first`` is what tenants are to give before all others."""
        self.runs = tuple(sorted(runs, key=lambda run: run.rank))
        self.free = defaultdict(Counter, {node: Counter(there) for node, there in free.items()})
        self.balance = Counter[str]()
        for there in self.free.values():
            self.balance.update(there)
        self.taken: dict[int, Run] = {}
        self.above = Counter(above)
        self.weight = 0
        self.prices = _prices(self.runs)
        self._weights = weights
        self._first = Counter(first)
        self._most = _most(self.runs)
        self._is_pure = all(len(run.total) == 1 for run in self.runs)
        self._at: dict[str, list[Run]] = defaultdict(list)
        self._sizes: dict[tuple[str, str, bool], Counter[int]] = defaultdict(Counter)
        for run in self.runs:
            for node in run.instances:
                self._at[node].append(run)
            self._count(run, 1)
        self._estimates: dict[Shape, dict[str, Estimate]] = {}
        self._stale: dict[Shape, set[str]] = {}

    def need(self, needs: Iterable[Need], sign: int = 1) -> None:
        """Count what these jobs need; with a sign of -1 no more."""
        for need in needs:
            for kind, count in need.shape:
                self.balance[kind] -= sign * count * need.nodes

    def may_take(self, run: Run) -> bool:
        """Whether it is still there, and its tenant holds so much above its own part."""
        return run.job_id not in self.taken and run.cost <= self.above[run.tenant]

    def take(self, run: Run) -> None:
        """It goes."""
        self.taken[run.job_id] = run
        self._move(run, 1)

    def give_back(self, run: Run) -> None:
        """It stays after all."""
        del self.taken[run.job_id]
        self._move(run, -1)

    def _move(self, run: Run, sign: int) -> None:
        self.weight += sign * run.weight
        self.above[run.tenant] -= sign * run.cost
        self._first[run.tenant] -= sign * run.cost
        self._count(run, -sign)
        self.leave(run, sign)

    def _count(self, run: Run, sign: int) -> None:
        for node, there in run.instances.items():
            for kind, count in there.items():
                self._sizes[node, kind, run.is_batch][count] += sign

    def leave(self, run: Run, sign: int = 1) -> None:
        """What the run has comes free; with a sign of -1 it does not after all."""
        for kind, count in run.total:
            self.balance[kind] += sign * count
        for node, there in run.instances.items():
            self._put(node, there.items(), sign)

    def place(self, node: str, shape: Shape, sign: int = 1) -> None:
        """A job, or with a sign of -1 none any more, has that on the node."""
        self._put(node, shape, -sign)

    def _put(self, node: str, there: Iterable[tuple[str, int]], sign: int) -> None:
        free = self.free[node]
        for kind, count in there:
            free[kind] += sign * count
        for stale in self._stale.values():
            stale.add(node)

    def at(self, node: str) -> Sequence[Run]:
        """Runs on the node, those that go with them."""
        return self._at.get(node, ())

    def share(self, tenant: str, given: int = 0) -> float:
        """What it holds above its own part, for its weight; of who is first, more than any.

        ``given`` are millislices that it has given up since.
        """
        share = (self.above[tenant] - given) / self._weights.get(tenant, 1)
        return share + _FIRST if self._first[tenant] > given else share

    def estimates(self, shape: Shape) -> Mapping[str, Estimate]:
        """About what must go on each node where the shape may have room at all."""
        if shape not in self._estimates:
            self._estimates[shape] = {}
            self._stale[shape] = {*self.free, *self._at}
        known = self._estimates[shape]
        for node in self._stale[shape]:
            known.pop(node, None)
            if (found := self._estimate(node, shape)) is not None:
                known[node] = found
        self._stale[shape].clear()
        return known

    def _estimate(self, node: str, shape: Shape) -> Estimate | None:
        free, batch, cost, runs = self.free[node], 0, 0, 0
        for kind, count in shape:
            if (lacks := count - free[kind]) > 0:
                given, gone, lacks = _given(self._sizes[node, kind, False], lacks)
                more, beside, lacks = _given(self._sizes[node, kind, True], lacks)
                if lacks:
                    return None
                batch += more
                cost += (given + more) * self.prices[kind]
                runs += gone + beside
        return batch, cost, runs

    def lacks_at(self, node: str) -> Mapping[str, int]:
        """By type, what the node is short of."""
        return {kind: -count for kind, count in self.free[node].items() if count < 0}

    def lacks(self) -> Mapping[str, int]:
        """By type, what there is too little of on all nodes together."""
        return {kind: -count for kind, count in self.balance.items() if count < 0}

    def at_least(self) -> tuple[int, int]:
        """Weight and number of the runs that are taken, once it suffices: no fewer are possible."""
        lacks = self.lacks()
        cost = sum(self.prices.get(kind, 0) * count for kind, count in lacks.items())
        runs = [_runs(self._most.get(kind, ()), count) for kind, count in lacks.items()]
        more = sum(runs) if self._is_pure else max(runs, default=0)
        return self.weight + cost, len(self.taken) + more

    def supply(self) -> Counter[str]:
        """By type, how many instances there could be at most, if all runs went that may."""
        given: Counter[tuple[str, str]] = Counter()
        costs: dict[tuple[str, str], int] = {}
        for run in self.runs:
            if self.may_take(run):
                for kind, count in run.total:
                    pair = run.tenant, kind
                    given[pair] += count
                    costs[pair] = min(costs.get(pair, run.cost), run.cost // count)
        supply = Counter(self.balance)
        for (tenant, kind), count in given.items():
            cost = costs[tenant, kind]
            supply[kind] += min(count, self.above[tenant] // cost) if cost else count
        return supply

    def is_needless(self, run: Run) -> bool:
        """Whether every job would still have its room, if the run stayed."""
        return all(self.balance[kind] >= count for kind, count in run.total) and all(
            self.free[node][kind] >= count
            for node, there in run.instances.items()
            for kind, count in there.items()
        )


def shape_of(instances: Mapping[str, int]) -> Shape:
    """Types without an instance are left out."""
    return tuple(sorted((kind, count) for kind, count in instances.items() if count))


def _prices(runs: Iterable[Run]) -> Mapping[str, int]:
    prices: dict[str, int] = {}
    for run in runs:
        each = run.weight // max(1, sum(count for _, count in run.total))
        for kind, _ in run.total:
            prices[kind] = min(each, prices.get(kind, each))
    return prices


def _most(runs: Iterable[Run]) -> Mapping[str, Sequence[int]]:
    """By type: instances that the first, the first two, ... runs with the most of it give."""
    counts: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        for kind, count in run.total:
            counts[kind].append(count)
    return {kind: [*accumulate(sorted(found, reverse=True))] for kind, found in counts.items()}


def _runs(most: Sequence[int], count: int) -> int:
    """So many runs must go at least for that many instances."""
    return bisect_left(most, count) + 1


def _given(sizes: Mapping[int, int], lacks: int) -> tuple[int, int, int]:
    """Instances and runs that go if so many instances must, the largest first; and how many lack
    even so.
    """
    left, runs, too_large = lacks, 0, 0
    for size in sorted((size for size, count in sizes.items() if count > 0), reverse=True):
        used = min(sizes[size], left // size)
        left -= used * size
        runs += used
        if sizes[size] > used:
            too_large = size
    if left and too_large:
        return lacks - left + too_large, runs + 1, 0
    return lacks - left, runs, left
