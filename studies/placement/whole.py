"""Counts the GPUs that stay wholly free if they are cut beforehand and Slurm chooses the node.

``node_weights`` compares the same jobs with Slurm's own order of nodes, and with our weights. A job
that fits nowhere is turned away, which depends on no order. ``victims`` compares services with a
number of replicas that goes up and down: the launcher does not know what else is on their nodes, or
it does.
"""

import random
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import groupby
from typing import Any

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.launcher.rules.turn.slots import Goal, Phase, Slot, SlotId, plan_slots
from slicewise.slurm_plugin.rules.mig.node_weights import changes
from studies.command_line import side_by_side
from studies.placement import pods
from studies.placement.pods import SLICES, Request
from studies.placement.repartition import first_cut

_GPUS, _REQUESTS, _WARM, _SEEDS = 32, 4_000, 0.2, 10
_PER_NODE, _LOADS = (1, 4, 8), (0.6, 0.8)
_SERVICES, _MOST, _MOVES = (24, 36), 12, 3_000
_TOLD_S = 10.0
_CORES_PER_GPU, _CORES_PER_SLICE = 32, 4
"""Cores in proportion to slices are Slurm's best case: the fewest free cores are on the fullest
node, which Slurm fills first."""
_MANAGED = frozenset({"gpu"})
_COSTS = {name: Millislices(round(1000 * slices)) for name, slices in SLICES.items()}
_SMALL = "1g.10gb"


@dataclass(frozen=True)
class _Cell:
    """One replay, with and without our rule: of a pod list or, if that is empty, of services."""

    listed: tuple[Request, ...]
    per_node: int
    seed: int
    load: float = 0.0
    services: int = 0


def measured(lists: Mapping[str, Sequence[Request]], seed: int) -> Mapping[str, Any]:
    """Measure wholly free GPUs: means over ten seeds, and our lead with its standard error."""
    weighed = {
        f"{name}, {per_node} a node, {load:.0%}": _Cell(tuple(listed), per_node, seed, load)
        for name, listed in lists.items()
        for per_node in _PER_NODE
        for load in _LOADS
    }
    gone = {
        f"{per_node} a node, {services} services": _Cell((), per_node, seed, services=services)
        for per_node in _PER_NODE
        for services in _SERVICES
    }
    cells = {**weighed, **gone}
    found = dict(zip(cells, side_by_side(_ten, [*cells.values()], "Counting"), strict=True))
    return {
        "free_gpus": {
            "gpus": _GPUS,
            "node_weights": {name: found[name] for name in weighed},
            "victims": {name: found[name] for name in gone},
        }
    }


def _ten(cell: _Cell) -> Mapping[str, float]:
    replay = _by_victims if cell.services else _by_weights
    pairs = [replay(cell, cell.seed + number) for number in range(_SEEDS)]
    ahead = [ours - others for others, ours in pairs]
    return {
        "without": round(statistics.mean(others for others, _ in pairs), 2),
        "slicewise": round(statistics.mean(ours for _, ours in pairs), 2),
        "ahead": round(statistics.mean(ahead), 2),
        "error": round(statistics.stdev(ahead) / len(ahead) ** 0.5, 2),
    }


def _by_weights(cell: _Cell, seed: int) -> tuple[float, float]:
    chance = random.Random(seed)  # noqa: S311
    requests = pods.drawn(cell.listed, _REQUESTS, _GPUS, cell.load, chance)
    layouts = [*_layouts(cell.listed)]
    chance.shuffle(layouts)
    with_slurms = Nodes(layouts, cell.per_node, weighs=False).run(requests)
    return with_slurms, Nodes(layouts, cell.per_node, weighs=True).run(requests)


@cache
def _layouts(listed: Sequence[Request]) -> Sequence[Sequence[str]]:
    """The profiles of each GPU, best for the mean of the requests; the same for all seeds."""
    requests = pods.drawn(listed, _REQUESTS, _GPUS, 1.0, random.Random(1))  # noqa: S311
    layouts: list[list[str]] = [[] for _ in range(_GPUS)]
    for step in first_cut(listed, requests, _GPUS):
        layouts[int(step.gpu)] = [one.profile for one in step.create]
    return layouts


@dataclass
class _Place:
    """An instance: its profile, its GPU, and whether a job holds it."""

    profile: str
    gpu: int
    is_held: bool = False


class Nodes:
    """Nodes with GPUs cut by ``layouts``; ``weighs``: whether our weights order the nodes."""

    def __init__(self, layouts: Sequence[Sequence[str]], per_node: int, *, weighs: bool) -> None:
        self._weighs = weighs
        self._places = [
            [_Place(name, gpu) for gpu in range(first, first + per_node) for name in layouts[gpu]]
            for first in range(0, len(layouts), per_node)
        ]
        self._free_cores = [_CORES_PER_GPU * per_node for _ in self._places]
        self._weights = dict.fromkeys(map(str, range(len(self._places))), 1)
        self._on_gpus = [0 for _ in layouts]
        self._ends: list[tuple[float, int, int, _Place]] = []
        self._now_s = self._free_gpu_s = 0.0
        self._told_s = -_TOLD_S

    def run(self, requests: Sequence[Request]) -> float:
        """Mean number of wholly free GPUs after the first fifth of the time."""
        from_s = _WARM * requests[-1].at_s
        for number, request in enumerate(requests):
            while self._ends and self._ends[0][0] <= request.at_s:
                self._until(self._ends[0][0], from_s)
                _, _, node, place = heappop(self._ends)
                self._hold(node, place, is_held=False)
            self._until(request.at_s, from_s)
            if self._weighs and self._now_s >= self._told_s + _TOLD_S:
                self._told_s = self._now_s
                self._weights |= changes(self._views(), _MANAGED, _COSTS)
            if (found := self._place_for(request.profile)) is not None:
                self._hold(*found, is_held=True)
                heappush(self._ends, (self._now_s + request.held_s, number, *found))
        return self._free_gpu_s / (self._now_s - from_s)

    def _until(self, at_s: float, from_s: float) -> None:
        span_s = at_s - max(self._now_s, from_s)
        self._free_gpu_s += max(0.0, span_s) * self._on_gpus.count(0)
        self._now_s = at_s

    def _hold(self, node: int, place: _Place, *, is_held: bool) -> None:
        place.is_held = is_held
        sign = 1 if is_held else -1
        self._on_gpus[place.gpu] += sign
        self._free_cores[node] -= sign * round(_CORES_PER_SLICE * SLICES[place.profile])

    def _place_for(self, profile: str) -> tuple[int, _Place] | None:
        """The node and, on it, the first free instance, which Slurm takes; None if all are held."""
        free = {
            node: place
            for node, places in enumerate(self._places)
            for place in reversed(places)
            if place.profile == profile and not place.is_held
        }
        if not free:
            return None
        node = slurms_choice(sorted(free), self._weights, self._free_cores)
        return node, free[node]

    def _views(self) -> Iterator[NodeView]:
        for number, places in enumerate(self._places):
            there = Counter(place.profile for place in places)
            held = Counter(place.profile for place in places if place.is_held)
            weight = self._weights[str(number)]
            yield NodeView(str(number), "", frozenset(), there, held, _MANAGED, weight)


def slurms_choice(
    nodes: Sequence[int], weights: Mapping[str, int], free_cores: Sequence[int]
) -> int:
    """Choose a node for a job among these as select/cons_tres does.

    Of the nodes of lowest weight it takes the row of neighbours with the fewest free cores, and of
    that row the node with the fewest.
    """
    lightest = min(weights[str(node)] for node in nodes)
    those = [node for node in nodes if weights[str(node)] == lightest]
    rows = [
        [node for _, node in row]
        for _, row in groupby(enumerate(those), key=lambda one: one[1] - one[0])
    ]
    row = min(rows, key=lambda row: sum(free_cores[node] for node in row))
    return min(row, key=lambda node: free_cores[node])


def _by_victims(cell: _Cell, seed: int) -> tuple[float, float]:
    unknown, known = (
        Services(cell.per_node, cell.services, is_known=known).run(seed) for known in (False, True)
    )
    return unknown, known


class Services:
    """Services of idle 1g replicas on nodes cut into 1g; replicas start where most is held.

    ``is_known``: whether the launcher knows how much is held of the replicas' nodes.
    """

    def __init__(self, per_node: int, services: int, *, is_known: bool) -> None:
        self._is_known = is_known
        self._places = [
            [_Place(_SMALL, gpu) for gpu in range(first, first + per_node) for _ in range(7)]
            for first in range(0, _GPUS, per_node)
        ]
        self._replicas: list[dict[int, tuple[int, _Place]]] = [{} for _ in range(services)]

    def run(self, seed: int) -> float:
        """Mean number of wholly free GPUs after the first fifth of the changes."""
        chance = random.Random(seed)  # noqa: S311
        free: list[int] = []
        for _ in range(_MOVES):
            replicas = chance.choice(self._replicas)
            wanted = len(replicas) + chance.choice((-3, -2, -1, 1, 2, 3))
            is_unused = chance.random() < 1 / 10
            self._scale(replicas, 0 if is_unused else max(0, min(_MOST, wanted)))
            held = {place.gpu for node in self._places for place in node if place.is_held}
            free.append(_GPUS - len(held))
        return statistics.mean(free[int(_WARM * _MOVES) :])

    def _scale(self, replicas: dict[int, tuple[int, _Place]], wanted: int) -> None:
        modes = plan_slots([*self._slots(replicas)], Goal(wanted, 0)).modes
        for slot, mode in modes.items():
            if mode != "ready":
                replicas.pop(slot.index)[1].is_held = False
        for index in (index for index in range(_MOST) if index not in replicas):
            if len(replicas) < wanted and (found := self._fullest()) is not None:
                found[1].is_held = True
                replicas[index] = found

    def _slots(self, replicas: Mapping[int, tuple[int, _Place]]) -> Iterator[Slot]:
        for index, (node, _) in replicas.items():
            held = self._held(node) if self._is_known else 0
            yield Slot(SlotId(0, index), Phase.SERVING, allotted=True, node_held_millislices=held)

    def _fullest(self) -> tuple[int, _Place] | None:
        for node in sorted(range(len(self._places)), key=lambda node: -self._held(node)):
            for place in self._places[node]:
                if not place.is_held:
                    return node, place
        return None

    def _held(self, node: int) -> int:
        return 1000 * sum(place.is_held for place in self._places[node])
