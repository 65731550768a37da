"""Tracks free instances per node while runs are chosen to end and waiting jobs are placed."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from slicewise.slurm_plugin.rules.quota.jobs import JobKey, Shape, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.running import Running

_FIRST = 10.0**12


JobPlaces = dict[JobKey, tuple[str, ...]]
"""The nodes of jobs that need more than a single instance, by key."""


@dataclass(frozen=True)
class VictimSet:
    """A set of runs whose end makes enough room.

    Attributes:
        size: total weight and number of the runs.
        places: the nodes that jobs get once the runs have ended.
    """

    size: tuple[int, int] = (0, 0)
    runs: tuple[Running, ...] = ()
    places: JobPlaces = field(default_factory=dict, hash=False)


Estimate = tuple[int, int, int]
"""What must end on a node: instances of batch jobs, then total weight, then number of runs."""


class Capacity:
    """Instances that are free or become free, and runs that may end for more. Each step can be
    undone.

    A node may be short of instances for a while (a negative number is free), until runs there are
    taken.

    Attributes:
        runs: all candidates, by rank.
        free: free instances, by node and type.
        balance: by type, what is free on all nodes less what all jobs need, placed or not.
        taken: runs chosen to end, by job id, in the order of choice.
        above: millislices by tenant that may still be taken from it.
        weight: total weight of the taken runs.
        now_s: Unix seconds.
        prices: by type, the least weight for which a run frees an instance.
    """

    def __init__(
        self,
        free: Mapping[str, Mapping[str, int]],
        runs: Iterable[Running],
        above: Mapping[str, int],
        weights: Mapping[str, int],
        first: Mapping[str, int],
        *,
        now_s: float = 0,
    ) -> None:
        """``first``: millislices by tenant that are taken before anything of other tenants."""
        self.now_s = now_s
        self.runs = tuple(sorted(runs, key=lambda run: run.rank(now_s)))
        self.free = defaultdict(Counter, {node: Counter(counts) for node, counts in free.items()})
        self.balance = Counter[str]()
        for counts in self.free.values():
            self.balance.update(counts)
        self.taken: dict[int, Running] = {}
        self.above = Counter(above)
        self.weight = 0
        self.prices = _prices(self.runs)
        self._weights = weights
        self._first = Counter(first)
        self._most = _most(self.runs)
        self._is_pure = all(len(run.total) == 1 for run in self.runs)
        self._at: dict[str, list[Running]] = defaultdict(list)
        self._sizes: dict[tuple[str, str, bool], Counter[int]] = defaultdict(Counter)
        for run in self.runs:
            for node in run.instances:
                self._at[node].append(run)
            self._count(run, 1)
        self._estimates: dict[Shape, dict[str, Estimate]] = {}
        self._stale: dict[Shape, set[str]] = {}

    def need(self, jobs: Iterable[WaitingJob], sign: int = 1) -> None:
        """Count what these jobs need; a ``sign`` of -1 undoes this."""
        for job in jobs:
            for gres_type, count in job.shape:
                self.balance[gres_type] -= sign * count * job.nodes

    def may_take(self, run: Running) -> bool:
        """Whether the run is not taken yet, and its tenant holds its cost above its guaranteed
        quota.
        """
        return run.job_id not in self.taken and run.cost_millislices <= self.above[run.tenant]

    def take(self, run: Running) -> None:
        """Choose the run to end."""
        self.taken[run.job_id] = run
        self._move(run, 1)

    def give_back(self, run: Running) -> None:
        """Undo ``take``: the run stays."""
        del self.taken[run.job_id]
        self._move(run, -1)

    def _move(self, run: Running, sign: int) -> None:
        self.weight += sign * run.weight
        self.above[run.tenant] -= sign * run.cost_millislices
        self._first[run.tenant] -= sign * run.cost_millislices
        self._count(run, -sign)
        self.leave(run, sign)

    def _count(self, run: Running, sign: int) -> None:
        for node, instance in run.instances.items():
            for gres_type, count in instance.items():
                self._sizes[node, gres_type, run.is_replica][count] += sign

    def leave(self, run: Running, sign: int = 1) -> None:
        """Count the run's instances as free; a ``sign`` of -1 undoes this."""
        for gres_type, count in run.total:
            self.balance[gres_type] += sign * count
        for node, instance in run.instances.items():
            self._put(node, instance.items(), sign)

    def place(self, node: str, shape: Shape, sign: int = 1) -> None:
        """Place a job's shape on the node; a ``sign`` of -1 undoes this."""
        self._put(node, shape, -sign)

    def _put(self, node: str, counts: Iterable[tuple[str, int]], sign: int) -> None:
        free = self.free[node]
        for gres_type, count in counts:
            free[gres_type] += sign * count
        for stale in self._stale.values():
            stale.add(node)

    def at(self, node: str) -> Sequence[Running]:
        """All runs on the node, taken or not."""
        return self._at.get(node, ())

    def share(self, tenant: str, given: int = 0) -> float:
        """What the tenant holds above its guaranteed quota, divided by its weight.

        A tenant that still has to give before others ranks above all of these. ``given`` are
        millislices that it gives up besides.
        """
        share = (self.above[tenant] - given) / self._weights.get(tenant, 1)
        return share + _FIRST if self._first[tenant] > given else share

    def estimates(self, shape: Shape) -> Mapping[str, Estimate]:
        """Estimates of what must end for the shape, on each node where it can have room at all."""
        if shape not in self._estimates:
            self._estimates[shape] = {}
            self._stale[shape] = {*self.free, *self._at}
        estimates = self._estimates[shape]
        for node in self._stale[shape]:
            estimates.pop(node, None)
            if (estimate := self._estimate(node, shape)) is not None:
                estimates[node] = estimate
        self._stale[shape].clear()
        return estimates

    def _estimate(self, node: str, shape: Shape) -> Estimate | None:
        free, batch, cost, runs = self.free[node], 0, 0, 0
        for gres_type, count in shape:
            if (lacks := count - free[gres_type]) > 0:
                given, gone, lacks = _given(self._sizes[node, gres_type, True], lacks)
                more, beside, lacks = _given(self._sizes[node, gres_type, False], lacks)
                if lacks:
                    return None
                batch += more
                cost += (given + more) * self.prices[gres_type]
                runs += gone + beside
        return batch, cost, runs

    def lacks_at(self, node: str) -> Mapping[str, int]:
        """Instances that the node is short of, by type."""
        return {gres_type: -count for gres_type, count in self.free[node].items() if count < 0}

    def lacks(self) -> Mapping[str, int]:
        """Instances that are short on all nodes together, by type."""
        return {gres_type: -count for gres_type, count in self.balance.items() if count < 0}

    def at_least(self) -> tuple[int, int]:
        """Lower bound of weight and number of taken runs with which nothing is short any more."""
        lacks = self.lacks()
        cost = sum(self.prices.get(gres_type, 0) * count for gres_type, count in lacks.items())
        runs = [_runs(self._most.get(gres_type, ()), count) for gres_type, count in lacks.items()]
        more = sum(runs) if self._is_pure else max(runs, default=0)
        return self.weight + cost, len(self.taken) + more

    def supply(self) -> Counter[str]:
        """Upper bound of instances, by type, if all runs ended that may."""
        given: Counter[tuple[str, str]] = Counter()
        costs: dict[tuple[str, str], int] = {}
        for run in self.runs:
            if self.may_take(run):
                for gres_type, count in run.total:
                    pair = run.tenant, gres_type
                    given[pair] += count
                    costs[pair] = min(
                        costs.get(pair, run.cost_millislices), run.cost_millislices // count
                    )
        supply = Counter(self.balance)
        for (tenant, gres_type), count in given.items():
            cost = costs[tenant, gres_type]
            supply[gres_type] += min(count, self.above[tenant] // cost) if cost else count
        return supply

    def is_needless(self, run: Running) -> bool:
        """Whether every job would still have its room if the run stayed."""
        return all(self.balance[gres_type] >= count for gres_type, count in run.total) and all(
            self.free[node][gres_type] >= count
            for node, instance in run.instances.items()
            for gres_type, count in instance.items()
        )


def _prices(runs: Iterable[Running]) -> Mapping[str, int]:
    prices: dict[str, int] = {}
    for run in runs:
        each = run.weight // max(1, sum(count for _, count in run.total))
        for gres_type, _ in run.total:
            prices[gres_type] = min(each, prices.get(gres_type, each))
    return prices


def _most(runs: Iterable[Running]) -> Mapping[str, Sequence[int]]:
    """By type, the instances that the 1, 2, ... runs with most of that type free together."""
    counts: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        for gres_type, count in run.total:
            counts[gres_type].append(count)
    return {
        gres_type: [*accumulate(sorted(count, reverse=True))] for gres_type, count in counts.items()
    }


def _runs(most: Sequence[int], count: int) -> int:
    """Least number of runs that must end for that many instances."""
    return bisect_left(most, count) + 1


def _given(sizes: Mapping[int, int], lacks: int) -> tuple[int, int, int]:
    """Instances freed and runs ended to free ``lacks`` instances, the largest runs first.

    The third value is how many instances are still lacking then.
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
