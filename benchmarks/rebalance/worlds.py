"""Draws clusters in which lenders want their quota back: for property tests and studies."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput

COSTS = {"1g.10gb": 1000, "2g.20gb": 2000, "3g.40gb": 3500, "7g.80gb": 7000}
"""Millislices of an instance of each type."""

_LAYOUTS: Sequence[Mapping[str, int]] = (
    {"1g.10gb": 7},
    {"2g.20gb": 3, "1g.10gb": 1},
    {"3g.40gb": 2},
    {"7g.80gb": 1},
)
"""Ways to cut a GPU: instances by type."""

_NOW_S = 1_000_000
_OLDEST_S = 86_400


@dataclass(frozen=True)
class Sizes:
    """How large a world is, and what it consists of.

    Attributes:
        runs: the most runs; there are fewer if the GPUs have fewer instances.
        tenants: number of tenants; every other one borrows, the others lend.
        wanting: number of lenders' waiting jobs.
        replicas: share of runs that are replicas.
        large: share of runs and of waiting jobs that need several instances of their type, on
            one node or on two; a replica is on one node.
        free: share of instances that no run holds.
        layouts: number of ways to cut a GPU that occur; the first has 1g.10gb alone.
        term_s: seconds after its start for which a run is left alone; the oldest is a day old.
    """

    gpus: int
    runs: int
    tenants: int
    wanting: int
    gpus_per_node: int = 8
    replicas: float = 0.8
    large: float = 0.1
    free: float = 0.02
    layouts: int = 4
    term_s: int = 600


def world(seed: int, sizes: Sizes) -> ReclaimInput:
    """Draw a world, which is the same for the same seed and sizes.

    Its instances are free or held by runs on borrowed quota; instances that guaranteed jobs hold
    are not in it.
    """
    draw = _Draw(Random(seed), sizes)  # noqa: S311 -- no secret
    running = tuple(draw.running())
    return ReclaimInput(
        wanting=tuple(draw.wanting(1_000_000 + n) for n in range(sizes.wanting)),
        running=running,
        free=draw.free,
        above_nominal_millislices=draw.above(running),
        shrink={},
        leaving=frozenset(),
        weights={name: draw.chance.choice((1, 1, 2, 4)) for name in draw.borrowers},
        now_s=_NOW_S,
        term_s=sizes.term_s,
    )


class _Draw:
    """One world while it is drawn.

    Attributes:
        borrowers: names of the tenants that borrow.
        free: instances by node and type that no run shall hold.
        _left: instances by node and type that no run holds yet.
    """

    def __init__(self, chance: Random, sizes: Sizes) -> None:
        self.chance = chance
        self._sizes = sizes
        names = [f"tenant{n}" for n in range(sizes.tenants)]
        self.borrowers, self._lenders = names[::2], names[1::2]
        self._left: dict[str, Counter[str]] = defaultdict(Counter)
        for gpu in range(sizes.gpus):
            layout = chance.choice(_LAYOUTS[: sizes.layouts])
            self._left[f"node{gpu // sizes.gpus_per_node}"].update(layout)
        self.free = {name: self._some(there) for name, there in self._left.items()}

    def _some(self, there: Counter[str]) -> Mapping[str, int]:
        found = Counter(k for k in there.elements() if self.chance.random() < self._sizes.free)
        there.subtract(found)
        return dict(found)

    def running(self) -> Iterator[Running]:
        """Draw runs on the instances that are left, in random places."""
        places = [(name, kind) for name, there in self._left.items() for kind in there.elements()]
        self.chance.shuffle(places)
        for job_id, (name, kind) in enumerate(places[: self._sizes.runs], start=1):
            if self._left[name][kind] > 0:
                yield self._run(job_id, name, kind)

    def _run(self, job_id: int, name: str, kind: str) -> Running:
        is_replica = self.chance.random() < self._sizes.replicas
        spreads = not is_replica and self._is_large()
        names = {name, *self._others(kind)} if spreads else {name}
        most = min(self._left[one][kind] for one in names)
        count = min(most, self.chance.choice((1, 2, 4))) if self._is_large() else 1
        for one in names:
            self._left[one][kind] -= count
        return Running(
            job_id=job_id,
            tenant=self.chance.choice(self.borrowers),
            cost_millislices=COSTS[kind] * count * len(names),
            start_s=_NOW_S - self.chance.randrange(_OLDEST_S),
            is_replica=is_replica,
            instances={one: {kind: count} for one in sorted(names)},
            priority=self.chance.randrange(1000),
        )

    def _is_large(self) -> bool:
        return self.chance.random() < self._sizes.large

    def _others(self, kind: str) -> Sequence[str]:
        """A node drawn by chance, if it has an instance of that type left; else no node."""
        other = self.chance.choice(list(self._left))
        return [other] if self._left[other][kind] > 0 else []

    def wanting(self, job_id: int) -> WaitingJob:
        """Draw a waiting job of a lender."""
        layout = self.chance.choice(_LAYOUTS[: self._sizes.layouts])
        kind = self.chance.choice(list(layout))
        count = self.chance.choice((1, 2, 4)) if self._is_large() else 1
        nodes = 2 if self._is_large() else 1
        return WaitingJob(
            job_id=job_id,
            tenant=self.chance.choice(self._lenders),
            priority=self.chance.randrange(1000),
            cost_millislices=COSTS[kind] * count * nodes,
            shape=((kind, count),),
            nodes=nodes,
        )

    def above(self, running: Sequence[Running]) -> Mapping[str, int]:
        """Millislices that tenants hold beyond their guaranteed quota: all of their runs, or a
        part.
        """
        held: Counter[str] = Counter()
        for run in running:
            held[run.tenant] += run.cost_millislices
        return {name: held[name] * self.chance.choice((2, 3, 4, 4)) // 4 for name in held}
