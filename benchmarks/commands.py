"""Measures CPU and wall time of commands in a sandbox, with squeue as the yardstick.

CPU time is the user and system time of the command and of the commands that it runs, such as
sacctmgr. Each round runs every command once. The first round finds cold files and does not count.
"""

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from benchmarks.wake import FILE, PROFILE, TENANT, USER
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

FULL_ROUNDS, QUICK_ROUNDS = 5, 1
SERVICE = "chat"
OPERATOR = "root"
AIM_S = 0.25
"""Most acceptable CPU seconds, of those that ask the daemon or nobody."""
YARDSTICK = "squeue"
FILES = {
    "quotas.toml": f"[tenants.{TENANT}]\nnominal = 3\n",
    "quotas.cfg": "Cluster - 'sandbox':\nParent - 'root'\n"
    f"Account - '{TENANT}':GrpTRES=gres/gpu=3\n",
}
"""Files in the operator's home that commands read."""
OF_USERS = (
    "--help",
    "mig costs",
    "mig profiles",
    f"why {TENANT}",
    f"why {TENANT} --limits",
    "ledger balance",
    "service list",
    f"service status {SERVICE}",
    "key list",
    "sbatch --preview --gres=gpu:1g.10gb:1 --wrap=true",
)
OF_OPERATORS = (
    "tenant list",
    f"tenant show {TENANT}",
    f"tenant-quota history {TENANT}",
    f"tenant-quota set {TENANT} --nominal 2",
    "tenant-quota loans",
    "budget show",
    "tenant-quota apply quotas.toml --dry-run",
    "tenant-quota propose quotas.cfg",
    "tenant-quota calendar list",
    "ledger statement",
    "ledger export",
    "compile --dry-run",
    "compile",
    "rebalance history",
    "repartition history",
    "observe",
)
WITHOUT_DAEMON = ("ledger verify", "ledger db current")
"""Those that open PostgreSQL themselves, for comparison."""
COMMANDS = (
    (USER, YARDSTICK),
    *((USER, f"slicewise {words}") for words in OF_USERS),
    *((OPERATOR, f"slicewise {words}") for words in (*OF_OPERATORS, *WITHOUT_DAEMON)),
)


@dataclass(frozen=True)
class Cost:
    """CPU and wall time of one run, in seconds."""

    cpu_s: float
    wall_s: float


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    """A sandbox in which a tenant has a quota and a service at zero."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-commands-")), progress=print)
    try:
        operators = ("tenant-quota", "set", TENANT, "--nominal", "2"), ("rebalance", "--quiet")
        for words in operators:
            sandbox.run(OPERATOR, ("slicewise", *words))
        for name, text in FILES.items():
            (sandbox.layout.home / sandbox.state.users[OPERATOR].name / name).write_text(text)
        home = sandbox.layout.home / sandbox.state.users[USER].name
        models = publish_models(sandbox.layout.models)
        text = FILE.format(name=SERVICE, tenant=TENANT, profile=PROFILE, models=models)
        (home / f"{SERVICE}.toml").write_text(text)
        sandbox.run(USER, ("slicewise", "service", "apply", f"{SERVICE}.toml"))
        yield sandbox
    finally:
        sandbox.down()


def _cost(sandbox: Sandbox, user: str, words: str) -> Cost:
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    sandbox.run(user, words.split())
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Cost(cpu_s, wall_s)


def measure(rounds: int) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with _sandbox() as sandbox:
        found = [
            [_cost(sandbox, user, words) for user, words in COMMANDS] for _ in range(rounds + 1)
        ][1:]
    costs = {
        words: _summary(user, [each[place] for each in found])
        for place, (user, words) in enumerate(COMMANDS)
    }
    return {
        "worst_cpu_s": max(one["cpu_s"] for words, one in costs.items() if _is_bounded(words)),
        "commands": costs,
        "aim_cpu_s": AIM_S,
        "rounds": rounds,
        "machine": machine(),
    }


def _is_bounded(words: str) -> bool:
    return words.removeprefix("slicewise ") not in WITHOUT_DAEMON


def _summary(user: str, costs: Sequence[Cost]) -> dict[str, Any]:
    cpu_s, wall_s = [one.cpu_s for one in costs], [one.wall_s for one in costs]
    return {
        "user": user,
        "cpu_s": median(cpu_s),
        "wall_s": median(wall_s),
        "cpus_s": cpu_s,
        "walls_s": wall_s,
    }


def show(report: Mapping[str, Any]) -> None:
    """Print the report as a table."""
    table = Table("command", "as", "CPU s", "wall s", "aim", box=None)
    for words, one in report["commands"].items():
        missed = ": missed" if one["cpu_s"] > AIM_S else ""
        aim = f"{AIM_S:g}{missed}" if words != YARDSTICK and _is_bounded(words) else ""
        table.add_row(words, one["user"], f"{one['cpu_s']:.3f}", f"{one['wall_s']:.3f}", aim)
    Console().print(table)


if __name__ == "__main__":
    run(
        "commands",
        __doc__,
        "one round",
        lambda quick: measure(QUICK_ROUNDS if quick else FULL_ROUNDS),
        show,
    )
