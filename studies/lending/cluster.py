"""Cuts GPUs as the tenants' partitions would be cut, and replays tenants on their partitions."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.gpus.layouts import geometry
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from studies.lending.tenants import BOARD, COSTS, SPAN_S, Wishes

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Cluster:
    """A number of whole GPUs, and the ``instances`` of their nodes by type."""

    gpus: int
    instances: Mapping[str, Mapping[str, int]]

    @property
    def millislices(self) -> int:
        """The cost of all instances, as Slicewise counts a cluster's capacity."""
        nodes = self.instances.values()
        return sum(COSTS[kind] * count for types in nodes for kind, count in types.items())


def packed(nominal: Mapping[str, int]) -> Cluster:
    """The fewest GPUs with at least ``nominal`` instances of each type, by an integer program."""
    fillings = _fillings()
    program = LinearProgram([float(nominal.get(kind, 0)) for kind in COSTS])
    for filling in fillings:
        entries = {row: float(filling[kind]) for row, kind in enumerate(COSTS) if filling[kind]}
        program.add(1.0, entries, whole=True)
    counts = [round(value) for value in program.solve().values]
    gpus = [one for one, count in zip(fillings, counts, strict=True) for _ in range(count)]
    nodes: dict[str, Counter[str]] = {}
    for number, filling in enumerate(gpus):
        # GPUs that are cut in the same way are spread over different nodes.
        nodes.setdefault(f"node{number % -(-len(gpus) // GPUS_PER_NODE)}", Counter()).update(
            filling
        )
    return Cluster(len(gpus), nodes)


def _fillings() -> Sequence[Counter[str]]:
    """The counts of these types that fill a GPU, so that no further instance of them fits."""
    found = {
        tuple(sorted(Counter(one.profile for one in layout).items()))
        for layout in geometry(BOARD).layouts
        if all(one.profile in COSTS for one in layout)
    }
    counts = [Counter(dict(one)) for one in sorted(found)]
    return [one for one in counts if not any(one < other for other in counts)]


@dataclass(frozen=True)
class Alone:
    """The replay of a tenant on its own partition.

    Attributes:
        waits_s: seconds that each ask waited; None for a replica or job that never started there.
        held_millislice_s: millislice-seconds held within the span.
    """

    waits_s: tuple[int | None, ...]
    held_millislice_s: int


def alone(wishes: Wishes, instances: int) -> Alone:
    """Serve a tenant's asks first come, first served, on ``instances`` instances of its type."""
    if any(ask.level for ask in wishes.asks):
        return _replicas_alone(wishes, instances)
    ends = [0] * instances
    waits: list[int | None] = []
    held_s = 0
    for ask in wishes.asks:
        if not ends:
            waits.append(None)
            continue
        start_s = max(ask.submit_s, heapq.heappop(ends))
        heapq.heappush(ends, start_s + (ask.lasts_s or 0))
        waits.append(start_s - ask.submit_s)
        held_s += max(0, min(SPAN_S, start_s + (ask.lasts_s or 0)) - start_s)
    return Alone(tuple(waits), held_s * COSTS[wishes.kind])


def _replicas_alone(wishes: Wishes, instances: int) -> Alone:
    """Run the first replicas immediately and the others never: the first are wanted longest."""
    waits = tuple(0 if ask.level <= instances else None for ask in wishes.asks)
    held_s = sum((ask.until_s or 0) - ask.submit_s for ask in wishes.asks if ask.level <= instances)
    return Alone(waits, held_s * COSTS[wishes.kind])
