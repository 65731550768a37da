"""Measures how long ``slicewise compile`` takes to set many tenants' limits in a real slurmdbd.

It also counts the sacctmgr commands. Some tenants have budgets, some may borrow, some have jobs
that run. The yardstick is the time that slurmdbd takes to add twice as many bare QOS as there are
tenants, 500 with one sacctmgr.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CLUSTER
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.budgets import Amend, amend_of
from slicewise.slurm_plugin.rules.common.qos_names import qos_name
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate

SEED = 0
"""The report names a seed, but no random numbers are drawn."""
AIM_S = 60.0
"""Longest acceptable first compilation, in seconds."""

_DEPARTMENTS = 20
_KINDS = 40
"""Number of different nominals, as at real sites: a command serves all QOS with equal limits."""
_BUDGETS = _BORROWERS = 10
"""One team in this many has a budget of its own, and another one may borrow."""
_BUDGET = Budget(Period.MONTH, MillisliceSeconds(3_600_000_000))
_RUNNING = 7
"""Number of teams with a nominal of one slice and a job on it: the sandbox has few more slices."""
_KIND, _COST = "1g.10gb", 1000
_USER = "alice"
_START_S, _PAUSE_S = 30.0, 0.5
_NAMES_AT_ONCE = 500
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Size:
    """How many tenants there are, and for how many the quota changes later."""

    tenants: int
    changed: int


FULL = Size(tenants=1000, changed=100)
QUICK = Size(tenants=60, changed=10)


def measure(size: Size) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with _sandbox() as sandbox, Ledger(_url(sandbox), CLUSTER) as ledger:
        parents = _accounts(sandbox, size.tenants)
        bare_s = _bare(sandbox, 2 * size.tenants)
        ledger.tenants.change_together(
            [_update(name, parent, n) for n, (name, parent) in enumerate(parents.items())],
            "bench",
            "bench",
            _amend(sandbox),
        )
        first = _compiled(sandbox)
        running = _run_jobs(sandbox)
        quiet = _compiled(sandbox)
        some = list(parents)[-size.changed :]
        ledger.tenants.change_together(
            [_nominal(name, n + 1) for n, name in enumerate(some)],
            "bench",
            "bench",
            _amend(sandbox),
        )
        busy = _compiled(sandbox)
    return {
        "first_vs_bare": round(first["seconds"] / bare_s, 2),
        "first": first,
        "quiet": quiet,
        "busy": busy,
        "bare_qos_s": round(bare_s, 2),
        "tenants": size.tenants,
        "changed": size.changed,
        "budgets": sum(_has_budget(name) for name in parents),
        "borrowers": sum(_borrows(name) for name in parents),
        "running": running,
        "aim_s": AIM_S,
        "seed": SEED,
        "command": " ".join(("python -m benchmarks.limits", *sys.argv[1:])),
        "machine": machine(),
    }


def _url(sandbox: Sandbox) -> str:
    return sandbox.layout.database_url(sandbox.state.users["slurm"].name)


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    """A sandbox with a ledger, without launcher and daemon: only the benchmark compiles."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-bench-")), progress=print)
    try:
        sandbox.stop("launcher")
        sandbox.stop("daemon")
        yield sandbox
    finally:
        sandbox.down()


def _accounts(sandbox: Sandbox, tenants: int) -> Mapping[str, str]:
    """Add accounts to Slurm, with a user in each team.

    Return each account's parent, parents first; "" for departments, which have none.
    """
    departments = [f"dept{n}" for n in range(_DEPARTMENTS)]
    below = {
        department: [f"team{n}" for n in range(at, tenants - _DEPARTMENTS, _DEPARTMENTS)]
        for at, department in enumerate(departments)
    }
    _sacctmgr(sandbox, "add", "account", ",".join(departments))
    for department, teams in below.items():
        _sacctmgr(sandbox, "add", "account", ",".join(teams), f"parent={department}")
        _sacctmgr(sandbox, "add", "user", _USER, f"account={','.join(teams)}")
    above = {team: department for department, teams in below.items() for team in teams}
    return {**dict.fromkeys(departments, ""), **above}


def _bare(sandbox: Sandbox, count: int) -> float:
    """Seconds that slurmdbd takes to add ``count`` QOS, which are removed afterwards."""
    names = [f"bare{n}" for n in range(count)]
    parts = [names[at : at + _NAMES_AT_ONCE] for at in range(0, count, _NAMES_AT_ONCE)]
    began_s = time.monotonic()
    for part in parts:
        _sacctmgr(sandbox, "add", "qos", ",".join(part), "GrpTRES=billing=1")
    took_s = time.monotonic() - began_s
    for part in parts:
        _sacctmgr(sandbox, "remove", "qos", f"name={','.join(part)}")
    return took_s


def _sacctmgr(sandbox: Sandbox, *words: str) -> None:
    sandbox.run("root", ("sacctmgr", "--immediate", *words), timeout_s=_TIMEOUT_S)


def _update(name: str, parent: str, number: int) -> TenantUpdate:
    if not parent:
        return TenantUpdate(name, parent="", nominal_millislices=Millislices(0))
    runs = _number(name) < _RUNNING
    update = _nominal(name, _COST if runs else number % _KINDS + 1, parent)
    return replace(
        update,
        borrowing_limit_millislices=Millislices(_COST if _borrows(name) else 0),
        budget=_BUDGET if _has_budget(name) else None,
    )


def _number(team: str) -> int:
    return int(team.removeprefix("team"))


def _has_budget(name: str) -> bool:
    return name.startswith("team") and _number(name) % _BUDGETS == 0


def _borrows(name: str) -> bool:
    return name.startswith("team") and _number(name) % _BORROWERS == 1


def _nominal(name: str, amount: int, parent: str | None = None) -> TenantUpdate:
    """An update of the nominal: in millislices, so that 1,000 tenants fit into a few GPUs."""
    return TenantUpdate(name, parent=parent, nominal_millislices=Millislices(amount))


def _amend(sandbox: Sandbox) -> Callable[[str, Budget], Amend]:
    zone = load_settings(sandbox.layout.settings_file).ledger.time_zone

    def amend(tenant: str, budget: Budget) -> Amend:
        begun_s = period_start_s(budget.period, int(time.time()), zone)
        return amend_of(tenant, budget, begun_s, "root", "bench")

    return amend


def _run_jobs(sandbox: Sandbox) -> int:
    """Start a job in the own QOS of each of the first teams; return how many run."""
    for number in range(_RUNNING):
        team = f"team{number}"
        job = (f"--account={team}", f"--qos={qos_name(team)}", f"--gres=gpu:{_KIND}:1")
        argv = ("sbatch", *job, "--time=60", "--output=/dev/null")
        sandbox.run(_USER, argv, input="#!/bin/sh\nsleep 3000\n")
    until_s = time.monotonic() + _START_S
    while True:
        shown = sandbox.run(_USER, ("squeue", "--noheader", "--states=running")).stdout
        if (running := len(shown.splitlines())) == _RUNNING:
            return running
        if time.monotonic() > until_s:
            shown = sandbox.run(_USER, ("squeue", "--noheader", "--format=%a %q %T %r")).stdout
            raise AssertionError(f"only {running} run:\n{shown}")
        time.sleep(_PAUSE_S)


def _compiled(sandbox: Sandbox) -> dict[str, Any]:
    began_s = time.monotonic()
    argv = (sys.executable, "-m", "slicewise.sandbox.compile_main")
    done = sandbox.run("root", argv, timeout_s=_TIMEOUT_S)
    took_s = time.monotonic() - began_s
    return {"seconds": round(took_s, 2), "commands": len(json.loads(done.stdout)["changes"])}


def show(report: Mapping[str, Any]) -> None:
    """Print the report as a table."""
    table = Table("compilation", "seconds", "sacctmgr commands", "aim", box=None)
    for name in ("first", "quiet", "busy"):
        one = report[name]
        aim = ""
        if name == "first":
            aim = f"{AIM_S:g} s" + ("" if one["seconds"] <= AIM_S else ": missed")
        table.add_row(name, f"{one['seconds']:,.2f}", str(one["commands"]), aim)
    table.add_row(f"{2 * report['tenants']} bare QOS", f"{report['bare_qos_s']:,.2f}", "", "")
    Console().print(table)


if __name__ == "__main__":
    run("limits", __doc__, "60 tenants", lambda quick: measure(QUICK if quick else FULL), show)
