"""Measures what history costs the daemon and PostgreSQL: a look's figures, its rows, their sums.

The site is that of the benchmark of rebalancing, with so many services beside it. Clients and
server share the machine.
"""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.rebalance.site import COSTS, PARTITION, Size, short_lenders
from benchmarks.reporting import run
from benchmarks.server import server
from slicewise.cluster.language.gpus.mig_profiles import WholeBoard, board
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.history import (
    HOUR_S,
    MINUTE_S,
    TEN_S,
    HistorySample,
    ServiceFigures,
)
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts
from slicewise.slurm_plugin.rules.overview.samples import history_sample
from slicewise.slurm_plugin.rules.quota.standings import standings

SEED = 4_201
FULL, QUICK = Size(), Size(tenants=200, jobs=1000, gpus=800, services=20)
_SERVICES = 500
_MINUTES = 5
_BEGIN_S = 1_790_000_000 // HOUR_S * HOUR_S
_LOOKS = 7
_OPERATOR = Principal(0, "root", None)


def _facts(size: Size) -> OverviewFacts:
    found = short_lenders(size, SEED, _BEGIN_S)
    return OverviewFacts(
        now_s=_BEGIN_S,
        cluster="bench",
        mode="enforce",
        is_uninstalled=False,
        observed_s=_BEGIN_S,
        complete=True,
        launcher_silent_s=0.0,
        ledger_silent_s=0.0,
        unadmitted=0,
        jobs=found.jobs,
        seats={},
        nodes=found.nodes,
        services=(),
        reports={},
        kept_back={},
        policy=found.policy,
        standings=standings(found.policy, ()),
        left_millislice_s={},
        resets_s={},
        partitions=frozenset({PARTITION}),
        costs=COSTS,
        models=dict.fromkeys(COSTS, "A100-80GB"),
        boards=dict.fromkeys(COSTS, board("A100-80GB")),
        whole_boards=dict.fromkeys(COSTS, WholeBoard(7, Millislices(7000))),
        grace_s=60,
    )


def _cost(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of CPU of this process, and of the clock."""
    cpu_s, began_s = time.process_time(), time.monotonic()
    work()
    return 1000 * (time.process_time() - cpu_s), 1000 * (time.monotonic() - began_s)


def measure(*, is_quick: bool) -> Mapping[str, Any]:
    """Look some times, write the looks of some minutes, sum them up, and delete them."""
    facts = _facts(QUICK if is_quick else FULL)
    look_ms = median(
        # A copy: what facts compute once is part of a look.
        _cost(lambda: history_sample(replace(facts), _OPERATOR, _BEGIN_S, _SERVICES))[0]
        for _ in range(_LOOKS)
    )
    seen = history_sample(facts, _OPERATOR, _BEGIN_S, _SERVICES)
    names = [one.tenant for one in seen.tenants][:_SERVICES]
    services = tuple(ServiceFigures(name, "bert", 2, 3, 4, 12.5, 42.0) for name in names)
    with server() as postgres:
        url = postgres.url("postgres")
        schema_revisions.upgrade(url)
        with Ledger(url, "bench") as ledger:
            written = _written(ledger, replace(seen, services=services))
    return {
        "seed": SEED,
        "machine": machine(),
        "python": platform.python_version(),
        "nodes": len(facts.nodes),
        "jobs": len(facts.jobs),
        "tenants": len(seen.tenants),
        "services": len(services),
        "look_cpu_ms": look_ms,
        **written,
    }


def _written(ledger: Ledger, seen: HistorySample) -> Mapping[str, float]:
    looks = [replace(seen, at_s=_BEGIN_S + TEN_S * number) for number in range(6 * _MINUTES)]
    adds = [_cost(lambda one=one: ledger.history.add([one])) for one in looks]  # type: ignore[misc]
    sums, deletes = [], []
    for minute in range(1, _MINUTES + 1):
        now_s = _BEGIN_S + minute * MINUTE_S
        sums.append(_cost(lambda: ledger.history.sum_up(now_s))[1])  # noqa: B023 -- called now
        kept_s = {TEN_S: 0, MINUTE_S: HOUR_S, HOUR_S: HOUR_S}
        deletes.append(_cost(lambda: ledger.history.forget(now_s, kept_s, 20_000))[1])  # noqa: B023
    return {
        "write_cpu_ms": median(cpu_ms for cpu_ms, _ in adds),
        "write_ms": median(ms for _, ms in adds),
        "sum_up_ms": median(sums),
        "delete_ms": median(deletes),
    }


def show(report: Mapping[str, Any]) -> None:
    """Print the figures."""
    table = Table("what", "ms")
    for name in ("look_cpu_ms", "write_cpu_ms", "write_ms", "sum_up_ms", "delete_ms"):
        table.add_row(name.removesuffix("_ms").replace("_", " "), f"{report[name]:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    run("history", __doc__, "200 tenants", lambda quick: measure(is_quick=quick), show)
