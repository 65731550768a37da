"""How long the limits of many tenants take to get into a real slurmdbd, and how many commands.

Beside it what slurmdbd takes for as many bare QOS by one sacctmgr.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from cluster.units import Millislices
from sandbox.cluster import Sandbox
from sandbox.inventory import CLUSTER
from slurm_plugin.decide.policy import TenantUpdate
from slurm_plugin.ledger.store import Ledger

SEED = 0
"""Nothing is drawn."""
AIM_S = 60.0
"""At most, for the first compilation."""

_DEPARTMENTS = 20
_KINDS = 40
"""So many different nominals, as sites have: a command serves all QOS that get the same."""
_NAMES_AT_ONCE = 500
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Size:
    """How many tenants there are, and of how many the quota changes later."""

    tenants: int
    changed: int


FULL = Size(tenants=1000, changed=100)
QUICK = Size(tenants=60, changed=10)


def measure(size: Size) -> Mapping[str, Any]:
    """The whole report."""
    with _sandbox() as sandbox, Ledger(_url(sandbox), CLUSTER) as ledger:
        parents = _accounts(sandbox, size.tenants)
        bare_s = _bare(sandbox, 2 * size.tenants)
        ledger.tenants.change_together(
            [_update(name, parent, n) for n, (name, parent) in enumerate(parents.items())],
            "bench",
            "bench",
            _no_budget,
        )
        first = _compiled(sandbox)
        quiet = _compiled(sandbox)
        some = list(parents)[-size.changed :]
        ledger.tenants.change_together(
            [_nominal(name, n + 1) for n, name in enumerate(some)], "bench", "bench", _no_budget
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
        "aim_s": AIM_S,
        "seed": SEED,
        "command": " ".join(("python -m benchmarks.limits", *sys.argv[1:])),
        "machine": machine(),
    }


def _url(sandbox: Sandbox) -> str:
    return sandbox.layout.database_url(sandbox.state.users["slurm"].name)


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    """With a ledger, and nobody who compiles but the benchmark."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-bench-")), progress=print)
    try:
        sandbox.stop("launcher")
        sandbox.stop("daemon")
        yield sandbox
    finally:
        sandbox.down()


def _accounts(sandbox: Sandbox, tenants: int) -> Mapping[str, str]:
    """New accounts in Slurm, with a user each: the account above each, those above first."""
    departments = [f"dept{n}" for n in range(_DEPARTMENTS)]
    below = {
        department: [f"team{n}" for n in range(at, tenants - _DEPARTMENTS, _DEPARTMENTS)]
        for at, department in enumerate(departments)
    }
    _sacctmgr(sandbox, "add", "account", ",".join(departments))
    for department, teams in below.items():
        _sacctmgr(sandbox, "add", "account", ",".join(teams), f"parent={department}")
        _sacctmgr(sandbox, "add", "user", "alice", f"account={','.join(teams)}")
    above = {team: department for department, teams in below.items() for team in teams}
    return {**dict.fromkeys(departments, ""), **above}


def _bare(sandbox: Sandbox, count: int) -> float:
    """Seconds in which slurmdbd makes so many QOS; they are gone afterwards."""
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
    return _nominal(name, number % _KINDS + 1, parent)


def _nominal(name: str, amount: int, parent: str | None = None) -> TenantUpdate:
    """In millislices, so that a thousand fit into the sandbox's few GPUs."""
    return TenantUpdate(name, parent=parent, nominal_millislices=Millislices(amount))


def _no_budget(*_: object) -> Any:
    raise AssertionError("nobody has a budget")


def _compiled(sandbox: Sandbox) -> dict[str, Any]:
    began_s = time.monotonic()
    done = sandbox.run("root", ("slicewise", "compile", "--json"), timeout_s=_TIMEOUT_S)
    took_s = time.monotonic() - began_s
    return {"seconds": round(took_s, 2), "commands": len(json.loads(done.stdout)["changes"])}


def show(report: Mapping[str, Any]) -> None:
    """As a table."""
    table = Table("compilation", "seconds", "sacctmgr commands", "aim", box=None)
    for name in ("first", "quiet", "busy"):
        one = report[name]
        aim = ""
        if name == "first":
            aim = f"{AIM_S:g} s" + ("" if one["seconds"] <= AIM_S else ": missed")
        table.add_row(name, f"{one['seconds']:,.2f}", str(one["commands"]), aim)
    table.add_row(f"{2 * report['tenants']} bare QOS", f"{report['bare_qos_s']:,.2f}", "", "")
    Console().print(table)


def main() -> None:
    """Write build/reports/limits.json."""
    run(
        "limits",
        __doc__,
        "60 tenants",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )


if __name__ == "__main__":
    main()
