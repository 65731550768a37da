"""A clairvoyant, which knows all arrivals, service times and start delays; a heuristic, no proof.

It plans the fewest replicas that keep up: one more when a request has waited nearly as long as the
SLO allows, one less as soon as the others can take the rest. Peaks of that staircase that are
shorter than the target are cut off. Each layer stays through gaps that are shorter than a load and
a drain. The plan is carried out in the same world as any policy. Each replica is released early
enough to be ready when it is needed.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np

from studies.autoscale.workload import SLO_S, Starts, Workload
from studies.autoscale.world import Outcome, World

_PATIENCE = 0.95
"""Share of the SLO that is used: a plan to the last moment would be late by rounding."""


@dataclass(frozen=True)
class Run:
    """A replica that is needed from ``ready_s`` to ``end_s``."""

    ready_s: float
    end_s: float


def replay_optimum(workload: Workload, target: float) -> Outcome:
    """Replay the plan; peaks shorter than ``target`` seconds get no replica of their own."""
    runs = planned(workload, target)
    starts, releases = _releases(runs[workload.first_replicas :], workload.starts)
    world = World(replace(workload, starts=starts))
    ends = _by_second([run.end_s for run in runs])
    for second in range(workload.duration_s):
        world.pass_until(second)
        for _ in range(releases[second]):
            world.release()
        for _ in range(min(ends[second], len(world.ready))):
            world.drain()
    world.pass_until(workload.duration_s)
    return world.outcome()


def planned(workload: Workload, shortest_s: float) -> list[Run]:
    """Runs in the order of when they must be ready, without peaks shorter than ``shortest_s``."""
    keep_s = float(workload.starts.load_s.mean() + workload.service_s.mean())
    layers: defaultdict[int, list[Run]] = defaultdict(list)
    begun: list[float] = []
    for at_s, replicas in needed(workload, _PATIENCE * SLO_S):
        while len(begun) < replicas:
            begun.append(at_s)
        while len(begun) > replicas:
            run = Run(begun.pop(), at_s)
            if at_s - run.ready_s >= shortest_s:
                _extend(layers[len(begun)], run, keep_s)
    return sorted((run for layer in layers.values() for run in layer), key=lambda run: run.ready_s)


def _extend(layer: list[Run], run: Run, keep_s: float) -> None:
    if layer and run.ready_s - layer[-1].end_s <= keep_s:
        run = Run(layer.pop().ready_s, run.end_s)
    layer.append(run)


def needed(workload: Workload, patience_s: float) -> Iterator[tuple[float, int]]:
    """Steps (time, replicas): one more when a request waited ``patience_s``, fewer when idle."""
    arrivals, service = [*workload.arrivals_s.tolist(), inf], workload.service_s.tolist()
    queue: deque[int] = deque()
    ends: list[float] = []
    replicas = arrived = 0
    while arrived < len(service) or ends or queue:
        hurry_s = arrivals[queue[0]] + patience_s if queue else inf
        at_s = min(arrivals[arrived], hurry_s, ends[0] if ends else inf)
        if ends and ends[0] == at_s:
            heappop(ends)
        elif hurry_s == at_s:
            replicas += 1
            yield at_s, replicas
        else:
            queue.append(arrived)
            arrived += 1
        while queue and len(ends) < replicas * workload.concurrency:
            heappush(ends, at_s + service[queue.popleft()])
        if ceil(len(ends) / workload.concurrency) < replicas:
            replicas -= 1
            yield at_s, replicas


def _releases(runs: Sequence[Run], starts: Starts) -> tuple[Starts, Counter[int]]:
    """Start delays in the order of the releases, and the number of releases in each second."""
    queue_s, load_s = starts.queue_s[: len(runs)], starts.load_s[: len(runs)]
    ready_s = np.array([run.ready_s for run in runs])
    release_s = np.maximum(np.floor(ready_s - queue_s - load_s), 0)
    order = np.argsort(release_s, kind="stable")
    return Starts(queue_s[order], load_s[order]), _by_second(release_s.tolist())


def _by_second(times_s: Iterable[float]) -> Counter[int]:
    return Counter(ceil(time_s) for time_s in times_s)
