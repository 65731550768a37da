"""A light scheduler to train on: one pool of GPUs without nodes, and EASY backfill.

Whatever is trained on it is judged on the model of Slurm.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from studies.autoscale.workload import Floats
from studies.priorities.loads import Window
from studies.priorities.queues import Policy, Queue

SHORTEST_S = 10.0
"""Shorter runs count as that long in slowdowns."""
Order = Callable[[Queue, float], list[int]]
"""Puts the waiting jobs into an order. Is also told what waiting has cost so far: seconds of all
jobs, each in lengths of its run."""


def in_order_of(policy: Policy) -> Order:
    """The highest score first, and of equal ones the oldest."""

    def order(queue: Queue, _: float) -> list[int]:
        found: list[int] = np.argsort(-policy(queue), kind="stable").tolist()
        return found

    return order


def mean_slowdown(window: Window, order: Order) -> float:
    """The mean bounded slowdown of the jobs that count."""
    waits_s = LightPool(window, order).run()
    took = (waits_s + window.run_s) / np.maximum(window.run_s, SHORTEST_S)
    return float(np.maximum(1.0, took)[window.counts].mean())


def judged(windows: Sequence[Window], policy: Policy) -> float:
    """The mean log of slowdowns over windows: what training makes small."""
    order = in_order_of(policy)
    return float(np.mean([np.log(mean_slowdown(one, order)) for one in windows]))


class LightPool:
    """One window under one order, until all of its jobs have started."""

    def __init__(self, window: Window, order: Order) -> None:
        self._window, self._order = window, order
        self._gpus = window.gpus.astype(int).tolist()
        self._rates = (1.0 / np.maximum(window.run_s, SHORTEST_S)).tolist()
        self._free = window.pool_gpus
        self._waiting: list[int] = []
        self._held = np.zeros(window.own.size)
        self._ends: list[tuple[float, float, int]] = []
        self._limits: list[tuple[float, int]] = []
        self._waits_s = np.zeros(len(self._gpus))
        self.cost = 0.0

    def run(self) -> Floats:
        """Return how long each job waited."""
        come_s = self._window.submit_s.tolist()
        now_s, following, rate = self._window.begin_s, 0, 0.0
        while following < len(come_s) or self._waiting:
            comes_s = come_s[following] if following < len(come_s) else inf
            at_s = min(comes_s, self._ends[0][0] if self._ends else inf)
            self.cost += rate * (at_s - now_s)
            now_s = at_s
            while following < len(come_s) and come_s[following] <= now_s:
                self._waiting.append(following)
                following += 1
            while self._ends and self._ends[0][0] <= now_s:
                self._end(*heappop(self._ends)[1:])
            if self._waiting and self._free:
                self._schedule(now_s)
            rate = sum(self._rates[job] for job in self._waiting)
        return self._waits_s

    def _end(self, limit_s: float, job: int) -> None:
        del self._limits[bisect_left(self._limits, (limit_s, job))]
        self._free += self._gpus[job]
        self._held[self._window.tenant[job]] -= self._gpus[job]

    def _start(self, job: int, now_s: float) -> None:
        window, gpus = self._window, self._gpus[job]
        limit_s = now_s + float(window.limit_s[job])
        insort(self._limits, (limit_s, job))
        heappush(self._ends, (now_s + float(window.run_s[job]), limit_s, job))
        self._free -= gpus
        self._held[window.tenant[job]] += gpus
        self._waits_s[job] = now_s - window.submit_s[job]

    def _schedule(self, now_s: float) -> None:
        """Start jobs in order; behind the first without room those that do not delay it."""
        queue = self._window.queue(self._waiting, now_s, self._held, self._free)
        order = [self._waiting[nth] for nth in self._order(queue, self.cost)]
        started: set[int] = set()
        for nth, job in enumerate(order):
            if self._gpus[job] > self._free:
                started |= self._backfill(job, order[nth + 1 :], now_s)
                break
            self._start(job, now_s)
            started.add(job)
        if started:
            self._waiting = [job for job in self._waiting if job not in started]

    def _backfill(self, head: int, others: list[int], now_s: float) -> set[int]:
        starts_s, spare = self._reserved(self._gpus[head])
        started: set[int] = set()
        for job in others:
            if not self._free:
                break
            gpus = self._gpus[job]
            if gpus > self._free:
                continue
            is_short = now_s + self._window.limit_s[job] <= starts_s
            if is_short or gpus <= spare:
                self._start(job, now_s)
                started.add(job)
                spare -= 0 if is_short else gpus
        return started

    def _reserved(self, gpus: int) -> tuple[float, int]:
        """When so many GPUs are free by time limits, and how many beside them then."""
        free = self._free
        for limit_s, job in self._limits:
            free += self._gpus[job]
            if free >= gpus:
                return limit_s, free - gpus
        return inf, 0
