"""Clients of the ledger: processes that book as fast as they can, one operation a transaction."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Self

from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

CLUSTER = "bench"
COST = Millislices(1000)
LIMIT_S, LONGER_S, USED_S = 3600, 7200, 600
START_S = 1_800_000_000
_RUNS_PER_BLOCK = 10_000_000
_WARM_UP = 20


@dataclass(frozen=True)
class Task:
    """What each client is to do.

    Attributes:
        url: the database's URL.
        block: a number unique to the task, which keeps its runs apart from other tasks' runs.
        tenants: number of tenants, to which the runs belong in turn.
        lifecycle: whether to reserve, extend, and post with void; if false, only to reserve.
        runs: number of runs for which a call reserves.
        seconds: how long to book.
    """

    url: str
    block: int
    tenants: int
    lifecycle: bool
    seconds: float
    runs: int = 1


@dataclass(frozen=True)
class Outcome:
    """What one client did: its number of runs, and the seconds of each transaction."""

    runs: int
    latencies_s: Sequence[float]


class Clients:
    """A pool of client processes, started once."""

    def __init__(self, count: int) -> None:
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in range(count)]
        self._lines = [mine for mine, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(theirs, number), daemon=True)
            for number, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def work(self, count: int, task: Task) -> Sequence[Outcome]:
        """Let the first ``count`` clients do the task at the same time; return their outcomes."""
        working = self._lines[:count]
        for order in (task, None):
            for line in working:
                line.send(order)
            if order is not None:
                for line in working:
                    line.recv()
        return [line.recv() for line in working]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join()


def _serve(line: Connection, number: int) -> None:
    while True:
        try:
            task: Task = line.recv()
        except EOFError:
            return
        with Ledger(task.url, CLUSTER) as ledger:
            runs = _runs(task, number)
            for _ in range(_WARM_UP):
                _book(ledger, task, runs, [])
            line.send("ready")
            line.recv()
            line.send(_timed(ledger, task, runs))


def _timed(ledger: Ledger, task: Task, runs: Iterator[Run]) -> Outcome:
    latencies_s: list[float] = []
    done, end_s = 0, time.perf_counter() + task.seconds
    while time.perf_counter() < end_s:
        _book(ledger, task, runs, latencies_s)
        done += task.runs
    return Outcome(done, latencies_s)


def _runs(task: Task, number: int) -> Iterator[Run]:
    first = (task.block * 100 + number) * _RUNS_PER_BLOCK
    for job_id in range(first, first + _RUNS_PER_BLOCK):
        # Each client begins with another tenant, as different users would.
        tenant = f"tenant{(job_id + number * 137) % task.tenants}"
        key = RunKey(CLUSTER, job_id, START_S)
        yield Run(key, tenant, "alice", str(job_id), {"1g.10gb": 1}, COST, tenant)


def _book(ledger: Ledger, task: Task, runs: Iterator[Run], latencies_s: list[float]) -> None:
    charges = [_charges(run) for run in islice(runs, task.runs)]
    for together in list(zip(*charges, strict=True))[: None if task.lifecycle else 1]:
        begin_s = time.perf_counter()
        changed = ledger.charges.post(together)
        latencies_s.append(time.perf_counter() - begin_s)
        if len(changed) < task.runs:
            raise AssertionError(together)


def _charges(run: Run) -> Sequence[Charge]:
    end_s = START_S + USED_S
    return (
        Charge(run, 0, (_transfer(TransferKind.RESERVE, LIMIT_S, START_S + LIMIT_S),)),
        Charge(run, 1, (_transfer(TransferKind.EXTEND, LONGER_S - LIMIT_S, START_S + LONGER_S),)),
        Charge(
            run,
            2,
            (
                _transfer(TransferKind.POST, USED_S, end_s),
                _transfer(TransferKind.VOID, LONGER_S - USED_S, end_s),
            ),
        ),
    )


def _transfer(kind: TransferKind, seconds: int, until_s: int) -> Transfer:
    return Transfer(kind, MillisliceSeconds(COST * seconds), until_s)
