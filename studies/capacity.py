"""Measures how well a replica's concurrency is learnt, on ParvaGPU's tables of batching models.

A table says how long a model takes for a batch of so many requests on a MIG slice (A100 80 GB). A
replica with one instance of it works on one batch at a time: when a batch ends, all that waits in
the replica is the next one, and the gateway fills the places of those answered. So with c requests
at the replica batches have c/2 of them, and a request takes two batches. Each batch's time is
multiplied by noise (log-normal). What is learnt is compared with one request at a time, and with
the best fixed concurrency, which is found with knowledge of the table.
"""

import csv
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.launcher.rules.autoscale.capacity import (
    MOST,
    CapacityBounds,
    Level,
    ReplicaCapacity,
    learn_capacity,
)
from slicewise.launcher.rules.autoscale.policy import SERVICE_SHARE

TABLES = Path(__file__).parent / "assets" / "parvagpu" / "prof_data"
P95_S = (0.1, 0.4)
NOISE = (0.1, 0.5, 1.0)
LOAD = 0.7
"""Requests that come, as a share of what a replica with the best concurrency answers."""
LOOK_S = 0.25
SEED = 31
_BEST = range(1, 257)

Table = tuple[tuple[int, float], ...]
"""Requests in a batch, and the seconds that it takes, ascending."""


def tables() -> Mapping[str, Table]:
    """Each model on each slice, with one process."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(TABLES.glob("*.csv")):
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["Workload Number"] == "1" and float(row["Throughput"]):
                    batch = int(row["Batch size"])
                    name = f"{path.stem} {row['Mig instance']}g"
                    found.setdefault(name, {})[batch] = batch / float(row["Throughput"])
    return {name: tuple(sorted(one.items())) for name, one in found.items()}


def batch_s(table: Table, requests: int) -> float:
    """Seconds that a batch takes: between the table's rows a straight line."""
    sizes = [size for size, _ in table]
    at = bisect_right(sizes, requests) - 1
    if requests >= sizes[-1]:
        return table[-1][1] * requests / sizes[-1]
    (low, low_s), (high, high_s) = table[at], table[at + 1]
    return low_s + (high_s - low_s) * (requests - low) / (high - low)


def service_s(table: Table, concurrency: int) -> float:
    """Seconds that a request takes in a full replica: the batch before its own, and its own."""
    half = concurrency // 2
    own_s = batch_s(table, concurrency - half)
    return own_s + batch_s(table, half) if half else own_s


def rate(table: Table, concurrency: int) -> float:
    """Answers a second of a full replica."""
    return concurrency / service_s(table, concurrency)


def best(table: Table, within_s: float) -> int:
    """The concurrency with which it answers most, of those with which a request takes no longer."""
    fit = [c for c in _BEST if service_s(table, c) <= within_s]
    return max(fit, key=lambda c: rate(table, c), default=1)


@dataclass
class Replica:
    """A replica behind a gateway that gives it ``limit`` requests at a time.

    Attributes:
        waiting: when each request came that waits at the gateway.
        inside: when each request at the replica came to the gateway, and to the replica.
        batch: how many of these are worked on, the oldest; until ``ends_s``.
        took: seconds at the replica, and in all, of each answer.
    """

    table: Table
    random: Random
    noise: float
    limit: int
    now_s: float = 0.0
    waiting: list[float] = field(default_factory=list)
    inside: list[tuple[float, float]] = field(default_factory=list)
    batch: int = 0
    ends_s: float = 0.0
    busy_s: float = 0.0
    slower: float = 1.0
    took: list[tuple[float, float]] = field(default_factory=list)

    def until(self, at_s: float, came: Callable[[], float | None]) -> None:
        """Work until then. ``came`` returns when the next request comes, None if one always waits;
        each call after that time is the one after it.
        """
        while True:
            comes_s = came()
            self._fill(comes_s is None)
            events = [at_s, *([self.ends_s] if self.batch else [])]
            next_s = min(*events, *([] if comes_s is None else [comes_s]), at_s)
            self.busy_s += len(self.inside) * (next_s - self.now_s)
            self.now_s = next_s
            if next_s >= at_s:
                return
            if self.batch and next_s == self.ends_s:
                self._end()
            else:
                self.waiting.append(next_s)

    def _fill(self, is_endless: bool) -> None:
        while len(self.inside) < self.limit and (self.waiting or is_endless):
            came_s = self.waiting.pop(0) if self.waiting else self.now_s
            self.inside.append((came_s, self.now_s))
            # The first one is worked on alone: those after it come while it is.
            self._begin()

    def _begin(self) -> None:
        if self.batch or not self.inside:
            return
        self.batch = min(len(self.inside), self.table[-1][0])
        varies = self.random.lognormvariate(-(self.noise**2) / 2, self.noise)
        self.ends_s = self.now_s + batch_s(self.table, self.batch) * varies * self.slower

    def _end(self) -> None:
        ended = self.inside[: self.batch]
        self.took += [(self.now_s - began_s, self.now_s - came_s) for came_s, began_s in ended]
        del self.inside[: self.batch]
        self.batch = 0
        # What waits in the replica is the next batch before the gateway has sent more.
        self._begin()


def endless() -> float | None:
    """There is always one more request."""
    return None


class Poisson:
    """Requests that come at random."""

    def __init__(self, replica: Replica, per_s: float) -> None:
        self._replica, self._per_s = replica, per_s
        self._next_s = replica.now_s + replica.random.expovariate(per_s)

    def __call__(self) -> float:
        """Return when the next one comes."""
        while self._next_s <= self._replica.now_s:
            self._next_s += self._replica.random.expovariate(self._per_s)
        return self._next_s


def learnt(
    replica: Replica,
    known: ReplicaCapacity,
    bounds: CapacityBounds,
    came: Callable[[], float | None],
    answers: int,
) -> ReplicaCapacity:
    """Let the replica answer so many requests; the launcher looks at it and sets its limit."""
    goal = len(replica.took) + answers
    busy_s, done, queued = replica.busy_s, len(replica.took), len(replica.waiting)
    while len(replica.took) < goal:
        replica.limit = known.limit
        replica.until(replica.now_s + LOOK_S, came)
        seen = Level(replica.busy_s - busy_s, LOOK_S, len(replica.took) - done, 1)
        is_full = came is endless or bool(queued and replica.waiting)
        known = learn_capacity(known, seen, bounds, is_full=is_full)
        busy_s, done, queued = replica.busy_s, len(replica.took), len(replica.waiting)
    return known


def full(table: Table, p95_s: float, noise: float, answers: int) -> Mapping[str, float]:
    """What is learnt while requests always wait, beside one at a time and the best."""
    replica = Replica(table, Random(SEED), noise, 1)  # noqa: S311 -- seeded on purpose
    bounds = CapacityBounds(MOST, p95_s * SERVICE_SHARE)
    found = learnt(replica, ReplicaCapacity(), bounds, endless, answers)
    knows = best(table, p95_s * SERVICE_SHARE)
    late = sum(at_replica_s > p95_s for at_replica_s, _ in replica.took)
    replica.slower = 2.0
    begun = len(replica.took)
    slow = learnt(replica, found, bounds, endless, answers)
    late_slow = sum(at_replica_s > p95_s for at_replica_s, _ in replica.took[begun:])
    slow_table = tuple((size, 2 * took_s) for size, took_s in table)
    knows_slow = best(slow_table, p95_s * SERVICE_SHARE)
    return {
        "learnt": found.limit,
        "best": knows,
        "gain": rate(table, found.limit) / rate(table, 1),
        "best_gain": rate(table, knows) / rate(table, 1),
        "of_best": rate(table, found.limit) / rate(table, knows),
        "late": late / begun,
        "of_best_slower": rate(table, slow.limit) / rate(table, knows_slow),
        "late_slower": late_slow / (len(replica.took) - begun),
    }


def steady(table: Table, p95_s: float, noise: float, answers: int) -> Mapping[str, float]:
    """Late answers at a steady load, waiting included: with what was learnt, and with the best."""
    knows = best(table, p95_s * SERVICE_SHARE)
    per_s = LOAD * rate(table, knows)
    bounds = CapacityBounds(MOST, p95_s * SERVICE_SHARE)
    replica = Replica(table, Random(SEED), noise, 1)  # noqa: S311 -- seeded on purpose
    found = learnt(replica, ReplicaCapacity(), bounds, endless, answers)
    begun = len(replica.took)
    learnt(replica, found, bounds, Poisson(replica, per_s), answers)
    fixed = Replica(table, Random(SEED), noise, knows)  # noqa: S311 -- seeded on purpose
    came = Poisson(fixed, per_s)
    while len(fixed.took) < answers:
        fixed.until(fixed.now_s + LOOK_S, came)
    late = [all_s > p95_s for _, all_s in replica.took[begun:]]
    return {"late": statistics.mean(late), "late_best": _share(fixed.took, p95_s)}


def _share(took: Sequence[tuple[float, float]], p95_s: float) -> float:
    return sum(all_s > p95_s for _, all_s in took) / len(took)


def _measure(quick: bool) -> Mapping[str, Any]:
    answers, found = (2_000 if quick else 10_000), tables()
    cells = [
        {"p95_ms": round(1000 * p95_s), "noise": noise, **_cell(found, p95_s, noise, answers)}
        for p95_s in P95_S
        for noise in NOISE
    ]
    return {"machine": machine(), "seed": SEED, "answers": answers, "load": LOAD, "cells": cells}


def _cell(
    found: Mapping[str, Table], p95_s: float, noise: float, answers: int
) -> Mapping[str, Any]:
    each = {name: full(table, p95_s, noise, answers) for name, table in found.items()}
    loads = [steady(table, p95_s, noise, answers) for table in found.values()]
    return {
        **{key: _spread([one[key] for one in each.values()]) for key in next(iter(each.values()))},
        "load_late": _spread([one["late"] for one in loads]),
        "load_late_best": _spread([one["late_best"] for one in loads]),
        "models": each,
    }


def _spread(values: Sequence[float]) -> Mapping[str, float]:
    return {
        "median": statistics.median(values),
        "mean": statistics.mean(values),
        "least": min(values),
        "most": max(values),
    }


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "p95_ms noise | answers/s beside 1 at a time: learnt, best | of the best: median, least |"
        " late: mean, most | after twice as slow: of the best, late |"
        f" late at {LOAD:.0%} load: learnt, best"
    )
    for one in report["cells"]:
        yield (
            f"{one['p95_ms']:6} {one['noise']:5} | {one['gain']['median']:.2f} "
            f"{one['best_gain']['median']:.2f} | {one['of_best']['median']:.3f} "
            f"{one['of_best']['least']:.3f} | "
            f"{one['late']['mean']:.4f} {one['late']['most']:.4f} | "
            f"{one['of_best_slower']['median']:.3f} {one['late_slower']['mean']:.4f} | "
            f"{one['load_late']['mean']:.4f} {one['load_late_best']['mean']:.4f}"
        )


def _show(report: Mapping[str, Any]) -> None:
    for line in _lines(report):
        print(line)  # noqa: T201


if __name__ == "__main__":
    run("capacity", __doc__, "a fifth of the answers", _measure, _show)
