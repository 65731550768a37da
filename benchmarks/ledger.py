"""Measures how fast the ledger books, in turn with ``pgbench -N`` on the same server."""

import platform
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.clients import CLUSTER, Clients, Task
from benchmarks.compiling import compile_s
from benchmarks.machine import machine
from benchmarks.reporting import run
from benchmarks.server import SETTINGS, Server, server
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.booking import OPTIONS
from slicewise.slurm_plugin.ledger.store import Ledger

MANY_CLIENTS, MANY_TENANTS = 8, 1000
PGBENCH, IN_SQL, MANY_A_CALL = "pgbench", "reserve in SQL", "reserve ten a call"
_RUNS_A_CALL = 10
SEED = 5_171_717
_FEW_TENANTS = 10
_SCALE = 10
_TPS = re.compile(r"tps = ([0-9.]+)")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: number of rounds; each has every cell once, so that other load hits all cells.
        seconds: duration of each cell in a round.
        transfers: number of transfers in the ledger that has a history.
    """

    rounds: int
    seconds: int
    transfers: int


FULL = Size(rounds=6, seconds=3, transfers=5_000_000)
QUICK = Size(rounds=1, seconds=1, transfers=30_000)


@dataclass(frozen=True)
class Cell:
    """One combination that is measured.

    Attributes:
        operation: ``reserve`` or ``lifecycle`` through the class ``Ledger`` in Python processes,
            one run a call; ``reserve ten a call``: as a turn of the daemon does;
            ``reserve in SQL``: the same statement sent by pgbench; ``pgbench``: pgbench's own
            "simple update".
        database: ``ledger`` begins empty, ``loaded`` with a history.
        tenants: number of tenants booked for; 0 for pgbench.
    """

    operation: str
    database: str
    clients: int
    tenants: int = 0

    @property
    def name(self) -> str:
        """The cell's key in the report."""
        words = [self.operation, f"{self.clients} clients"]
        words += [f"{self.tenants} tenants"] if self.tenants else []
        return ", ".join([*words, "loaded"] if self.database == "loaded" else words)


@dataclass
class Measured:
    """What was measured of one cell: rates (per second) by round, latencies of transactions."""

    rates: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)


RESERVE = Cell("reserve", "ledger", MANY_CLIENTS, MANY_TENANTS)
LOADED = Cell("reserve", "loaded", MANY_CLIENTS, MANY_TENANTS)
LIFECYCLE = Cell("lifecycle", "ledger", MANY_CLIENTS, MANY_TENANTS)
YARDSTICK = Cell(PGBENCH, PGBENCH, MANY_CLIENTS)
RESERVE_MANY = Cell(MANY_A_CALL, "ledger", MANY_CLIENTS, MANY_TENANTS)
RESERVE_IN_SQL = Cell(IN_SQL, "ledger", MANY_CLIENTS, MANY_TENANTS)
CELLS = (
    RESERVE_IN_SQL,
    YARDSTICK,
    RESERVE,
    RESERVE_MANY,
    LOADED,
    LIFECYCLE,
    Cell(PGBENCH, PGBENCH, 1),
    *(
        Cell(operation, "ledger", clients, tenants)
        for operation in ("reserve", "lifecycle")
        for clients in (1, MANY_CLIENTS)
        for tenants in (_FEW_TENANTS, MANY_TENANTS)
        if (clients, tenants) != (MANY_CLIENTS, MANY_TENANTS)
    ),
)


@dataclass(frozen=True)
class Bench:
    """A server and clients, and how much to measure with them."""

    server: Server
    clients: Clients
    size: Size

    def rounds(self) -> Mapping[Cell, Measured]:
        """Measure all cells in each round, in reverse order in every other round."""
        measured = {cell: Measured() for cell in CELLS}
        for number in range(self.size.rounds):
            for position, cell in enumerate(CELLS if number % 2 else CELLS[::-1]):
                block = number * len(CELLS) + position
                if cell.operation in {PGBENCH, IN_SQL}:
                    measured[cell].rates.append(self.pgbench(cell, block))
                else:
                    self.book(cell, block, measured[cell])
        return measured

    def pgbench(self, cell: Cell, block: int) -> float:
        """Run pgbench and return transactions per second; each block has other random numbers."""
        options = [f"--client={cell.clients}", f"--jobs={min(cell.clients, 2)}", "--no-vacuum"]
        options += [f"--time={self.size.seconds}", f"--random-seed={SEED + block}"]
        what = ["--builtin=simple-update"]
        if cell.operation == IN_SQL:
            script = files("benchmarks") / "reserve.sql"
            what = [f"--file={script}", f"--define=tenants={cell.tenants}", "--protocol=prepared"]
        reply = self.server.run("pgbench", *options, *what, _like_the_ledger(cell.database))
        found = _TPS.search(reply)
        if found is None:
            raise AssertionError(reply)
        return float(found[1])

    def book(self, cell: Cell, block: int, into: Measured) -> None:
        """Let the clients book one block of a cell, and add rate and latencies to ``into``."""
        lifecycle, seconds = cell.operation == "lifecycle", self.size.seconds
        runs = _RUNS_A_CALL if cell.operation == MANY_A_CALL else 1
        url = self.server.url(cell.database)
        task = Task(url, block, cell.tenants, lifecycle, seconds, runs)
        outcomes = self.clients.work(cell.clients, task)
        into.rates.append(sum(outcome.runs for outcome in outcomes) / seconds)
        for outcome in outcomes:
            into.latencies_s.extend(outcome.latencies_s)


def _like_the_ledger(database: str) -> str:
    """A connection string with the settings of the ledger's own connections that book."""
    options = OPTIONS.replace("\\", r"\\")
    return f"dbname={database} options='{options}'"


def measure(size: Size) -> dict[str, Any]:
    """Measure, and return the whole report."""
    with server() as running, Clients(MANY_CLIENTS) as clients:
        prepare(running, size)
        measured = Bench(running, clients, size).rounds()
        return {
            **figures(measured),
            **verified(running),
            "compile_s_1000_tenants": min(compile_s(MANY_TENANTS) for _ in range(3)),
            "cells": {cell.name: summary(measured[cell]) for cell in CELLS},
            "rounds": size.rounds,
            "seconds_per_cell": size.seconds,
            "seed": SEED,
            "postgresql_settings": dict(SETTINGS),
            "machine": machine(),
            "versions": versions(running),
        }


def prepare(running: Server, size: Size) -> None:
    """Create a pgbench database, an empty ledger, and a ledger with a history."""
    for database in (PGBENCH, "ledger", "loaded"):
        running.run("createdb", database)
    running.run("pgbench", "--initialize", "--quiet", f"--scale={_SCALE}", PGBENCH)
    for database in ("ledger", "loaded"):
        schema_revisions.upgrade(running.url(database))
    history = str(files("benchmarks") / "history.sql")
    runs = f"--set=runs={size.transfers // 3 + 1}"
    running.run("psql", "--quiet", "--set=ON_ERROR_STOP=1", runs, f"--file={history}", "loaded")


def figures(measured: Mapping[Cell, Measured]) -> Mapping[str, float]:
    """The figures that have aims.

    Ratios are medians over the rounds: rates that were measured close in time are compared.
    """
    return {
        "reserve_vs_pgbench": ratio(measured[RESERVE], measured[YARDSTICK]),
        "reserve_ten_a_call_vs_pgbench": ratio(measured[RESERVE_MANY], measured[YARDSTICK]),
        "reserve_in_sql_vs_pgbench": ratio(measured[RESERVE_IN_SQL], measured[YARDSTICK]),
        "loaded_vs_empty": ratio(measured[LOADED], measured[RESERVE]),
        "reserves_per_s": statistics.median(measured[RESERVE].rates),
        "lifecycles_per_s": statistics.median(measured[LIFECYCLE].rates),
        "reserve_p99_ms": percentile_ms(measured[RESERVE].latencies_s, 99),
    }


def ratio(one: Measured, other: Measured) -> float:
    """The median over the rounds of the ratio of the two rates."""
    return statistics.median(a / b for a, b in zip(one.rates, other.rates, strict=True))


def percentile_ms(latencies_s: Sequence[float], percent: int) -> float:
    """Milliseconds within which ``percent`` percent of the transactions were done."""
    return statistics.quantiles(latencies_s, n=100)[percent - 1] * 1000


def summary(measured: Measured) -> Mapping[str, object]:
    """A cell's entry in the report."""
    times = measured.latencies_s
    percentiles = {f"p{each}_ms": percentile_ms(times, each) for each in (50, 99)} if times else {}
    return {
        "per_s": statistics.median(measured.rates),
        "rates_per_s": measured.rates,
        **percentiles,
    }


def verified(running: Server) -> Mapping[str, object]:
    """Verify both ledgers, and time the replay of the one with a history.

    Raises AssertionError if either ledger has a fault.
    """
    with Ledger(running.url("loaded"), CLUSTER) as ledger:
        begin_s = time.perf_counter()
        verification = ledger.audit.verify()
        took_s = time.perf_counter() - begin_s
    with Ledger(running.url("ledger"), CLUSTER) as ledger:
        faults = (*verification.faults, *ledger.audit.verify().faults)
    if faults:
        raise AssertionError(faults)
    return {
        "verify_entries_per_s": verification.transfers / took_s,
        "verified_transfers": verification.transfers,
    }


def versions(running: Server) -> Mapping[str, str]:
    """Versions of the software on which the figures depend."""
    packages = {name: version(name) for name in ("psycopg", "sqlalchemy", "slicewise")}
    server_version = running.run("psql", "-Atc", "SHOW server_version", PGBENCH).strip()
    return {"postgresql": server_version, "python": platform.python_version(), **packages}


def show(report: Mapping[str, Any]) -> None:
    """Print the report as tables."""
    table = Table("figure", "value", box=None)
    for key, value in report.items():
        if isinstance(value, float):
            table.add_row(key, f"{value:,.3f}")
    cells = Table("cell", "per s", "median ms", "p99 ms", box=None)
    for name, cell in report["cells"].items():
        times = (f"{cell[key]:.2f}" if key in cell else "" for key in ("p50_ms", "p99_ms"))
        cells.add_row(name, f"{cell['per_s']:,.0f}", *times)
    console = Console()
    console.print(table)
    console.print(cells)


if __name__ == "__main__":
    run(
        "ledger",
        __doc__,
        "a smoke test of some seconds",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )
