"""Measures how Slurm is read: by its commands, pyslurm and slurmrestd, of one cluster.

Of each reader: the time and the CPU of a look, its memory after many looks, and what it says while
slurmctld is restarted. A look is what the daemon asks at each turn: all jobs, and the steps of
running replicas. That all say the same is a test's: tests/integration/test_slurm_contract.py.
"""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.jobs import JobState, JobView, StepView
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.language.slurm.unread import LogsEvent, ignored
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.pyslurm_client import PyslurmSlurm
from slicewise.cluster.slurm.rest_client import RestSlurm
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.packages import SEARCH_PATH
from slicewise.sandbox.servers.slurmrestd import slurmrestd

USER = "alice"
_ARRAY = 500
_TASKS_AT_ONCE = 250
_DOWN_S, _PAUSE_S = 3.0, 0.1
_PATIENCE_S = 120.0
_WORKER = b"slicewise.cluster.slurm.pyslurm_worker"
_TICKS = os.sysconf("SC_CLK_TCK")
_SCRIPT = "#!/bin/bash\nsrun --resv-ports=2 --mem=20 sleep 3600\n"


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        jobs: numbers of jobs at which looks are timed, rising.
        looks: how many are timed at each of them.
        lasting: how many looks memory is watched for, at the first number of jobs.
        lasting_s: how long it is watched at most.
    """

    jobs: tuple[int, ...]
    looks: int
    lasting: int
    lasting_s: float


FULL = Size(jobs=(1000, 5000), looks=15, lasting=1000, lasting_s=400.0)
QUICK = Size(jobs=(200, 400), looks=3, lasting=20, lasting_s=60.0)


def _fill(sandbox: Sandbox, count: int) -> str:
    """Submit ``count`` array tasks, each with a record of its own; return the last array."""
    while count > 0:
        size = min(_ARRAY, count)
        count -= size
        options = (f"--array=0-{size}", "--hold", "--output=/dev/null", "--mem=20")
        argv = ("sbatch", "--parsable", *options)
        array = sandbox.run(USER, argv, input="#!/bin/bash\nsleep 3600\n").stdout.strip()
        # Tasks that are changed get records of their own while another one, the last, does not.
        for first in range(0, size, _TASKS_AT_ONCE):
            tasks = f"{array}_[{first}-{min(first + _TASKS_AT_ONCE, size) - 1}]"
            sandbox.run("root", ("scontrol", "update", f"JobId={tasks}", "Nice=7"))
    return array


@contextmanager
def cluster() -> Iterator[Sandbox]:
    """A sandbox of Slurm alone, two of whose jobs run with reserved ports."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-readers-")), progress=print, services=False)
    try:
        # slicewise.lua's kill switch: it decides some things without a daemon.
        (sandbox.layout.etc / "off").touch()
        for _ in range(2):
            sandbox.run(USER, ("sbatch", "--mem=20", "--output=/dev/null"), input=_SCRIPT)
        yield sandbox
    finally:
        sandbox.down()


@contextmanager
def _environment(sandbox: Sandbox) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(sandbox.environment("root"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass
class Reader:
    """One way to read Slurm, with what it logged, and the process that it asks, if it has one."""

    slurm: Slurm
    logged: list[str] = field(default_factory=list)
    helper: Callable[[], int | None] = lambda: None

    async def look(self) -> tuple[tuple[JobView, ...], tuple[StepView, ...]]:
        """What the daemon asks for at each turn."""
        jobs = await self.slurm.jobs()
        running = [job for job in jobs if job.state is JobState.RUNNING]
        return jobs, await self.slurm.steps(running)


@contextmanager
def _readers(sandbox: Sandbox) -> Iterator[Mapping[str, Reader]]:
    """Those that work with this Slurm and this Python."""
    found = {"commands": Reader(CommandSlurm(ignored))}
    if find_spec("pyslurm"):
        logged: list[str] = []
        log = _logger(logged)
        found["pyslurm"] = Reader(PyslurmSlurm(log, log, ignored), logged, _worker)
    if not which("slurmrestd", path=SEARCH_PATH):
        yield found
        return
    with slurmrestd(sandbox) as (socket, pid):
        logged = []
        log = _logger(logged)
        rest = RestSlurm(str(socket), None, log, log, ignored)
        yield found | {"slurmrestd": Reader(rest, logged, lambda: pid)}


def _logger(logged: list[str]) -> LogsEvent:
    def log(event: str, /, **fields: object) -> None:
        logged.append(" ".join((event, *(f"{key}={value}" for key, value in fields.items()))))

    return log


async def _timed(
    reader: Reader, slurmctld: Path, looks: int, change: Callable[[], object] = lambda: None
) -> Mapping[str, float]:
    """Time looks, before each of which, untimed, something is changed."""
    await reader.look()
    reader.logged.clear()
    walls_s, spent_s = [], dict.fromkeys(_cpu_s(slurmctld, reader), 0.0)
    for _ in range(looks):
        await asyncio.to_thread(change)
        before_s, began_s = _cpu_s(slurmctld, reader), time.perf_counter()
        await reader.look()
        walls_s.append(time.perf_counter() - began_s)
        after_s = _cpu_s(slurmctld, reader)
        spent_s = {name: spent_s[name] + after_s[name] - before_s[name] for name in spent_s}
    return {
        "wall_ms": _ms(median(walls_s)),
        "least_wall_ms": _ms(min(walls_s)),
        **{f"{name}_cpu_ms": _ms(spent / looks) for name, spent in spent_s.items()},
        # Looks that the commands answered in the reader's place.
        "failed": sum("_failed " in line for line in reader.logged),
    }


def _cpu_s(slurmctld: Path, reader: Reader) -> Mapping[str, float]:
    """CPU seconds until now, of this process, of those that read for it, and of slurmctld."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    helper = reader.helper()
    return {
        "own": time.process_time(),
        "helpers": ended.ru_utime + ended.ru_stime + (_process_s(helper) if helper else 0.0),
        "slurmctld": _process_s(int(slurmctld.read_text())),
    }


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _worker() -> int | None:
    """The process that holds pyslurm for this one."""
    for task in Path("/proc/self/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            if _WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def _memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


async def _lasting(reader: Reader, size: Size) -> Mapping[str, Any]:
    """Memory of this process and of the one that it asks, after some looks."""
    found = {}
    until_s = time.monotonic() + size.lasting_s
    for number in range(1, size.lasting + 1):
        await reader.look()
        is_last = number == size.lasting or time.monotonic() > until_s
        if is_last or number in {size.lasting // 100, size.lasting // 10}:
            helper = reader.helper()
            found[str(number)] = {
                "own_mib": _memory_mib(os.getpid()),
                **({"helper_mib": _memory_mib(helper)} if helper else {}),
            }
        if is_last:
            break
    return found


async def _restarted(sandbox: Sandbox, reader: Reader, count: int) -> Mapping[str, Any]:
    """What the reader says while slurmctld is stopped, and until it reads again as before."""
    reader.logged.clear()
    answered_s: float | None = None
    before_s: float | None = None
    began_s = time.perf_counter()
    done = asyncio.create_task(asyncio.to_thread(_restart, sandbox))
    failures, fewest = [], count
    while True:
        asked_s = time.perf_counter()
        try:
            jobs, _ = await reader.look()
        except SlicewiseError as error:
            took_s = time.perf_counter() - asked_s
            failures.append({"code": error.refusal.code, "after_s": round(took_s, 2)})
            await asyncio.sleep(_PAUSE_S)
            continue
        fewest = min(fewest, len(jobs))
        if done.done() and asked_s > done.result():
            answered_s = answered_s or time.perf_counter()
            if not reader.logged or reader.logged[-1].startswith("slurm_by "):
                before_s = time.perf_counter()
                break
        if asked_s - began_s > _PATIENCE_S:
            break
        await asyncio.sleep(_PAUSE_S)
    up_s = await done
    return {
        "failed": failures,
        "fewest_jobs": fewest,
        "jobs": count,
        "answered_after_s": None if answered_s is None else round(answered_s - up_s, 2),
        "as_before_after_s": None if before_s is None else round(before_s - up_s, 2),
        "logged": list(reader.logged),
    }


def _restart(sandbox: Sandbox) -> float:
    """Stop slurmctld, start it again after some seconds; return when it was up."""
    sandbox.stop("slurmctld")
    time.sleep(_DOWN_S)
    sandbox.restore(lambda *_: None)
    return time.perf_counter()


async def _measure(sandbox: Sandbox, readers: Mapping[str, Reader], size: Size) -> dict[str, Any]:
    slurmctld = sandbox.layout.run / "slurmctld.pid"
    report: dict[str, Any] = {"looks": {}, "memory": {}, "restart": {}}
    there = 0
    for number, jobs in enumerate(size.jobs):
        array = await asyncio.to_thread(_fill, sandbox, jobs - there)
        there = jobs
        argv = ("scontrol", "update", f"JobId={array}_0", "Comment=changed")
        change = partial(sandbox.run, "root", argv)
        found = {
            name: await _timed(one, slurmctld, size.looks, change) for name, one in readers.items()
        }
        if (rest := readers.get("slurmrestd")) is not None:
            # Only this one is told that nothing has changed.
            found["slurmrestd at rest"] = await _timed(rest, slurmctld, size.looks)
        report["looks"][str(jobs)] = found
        if number == 0:
            report["memory"] = {name: await _lasting(one, size) for name, one in readers.items()}
    count = len((await readers["commands"].look())[0])
    for name, one in readers.items():
        report["restart"][name] = await _restarted(sandbox, one, count)
    return report


async def _until(done: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not await done():
        if time.monotonic() > deadline_s:
            raise RuntimeError("the jobs of the benchmark do not run")
        await asyncio.sleep(0.2)


async def _ready_and_measured(sandbox: Sandbox, size: Size) -> dict[str, Any]:
    with _readers(sandbox) as readers:

        async def both_run() -> bool:
            return len((await readers["commands"].look())[1]) == 2  # noqa: PLR2004 -- cluster()

        await _until(both_run)
        try:
            version = await readers["commands"].slurm.version()
            report = await _measure(sandbox, readers, size)
        finally:
            for one in readers.values():
                if isinstance(one.slurm, PyslurmSlurm):
                    await one.slurm.close()
    return {"slurm": ".".join(map(str, version)), **report}


def measure(size: Size) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with cluster() as sandbox, _environment(sandbox):
        report = asyncio.run(_ready_and_measured(sandbox, size))
    return {
        **report,
        "pyslurm": metadata.version("pyslurm") if find_spec("pyslurm") else None,
        "command": " ".join(("python -m studies.readers", *sys.argv[1:])),
        "machine": machine(),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def show(report: Mapping[str, Any]) -> None:
    """Print the report as tables."""
    table = Table(
        "jobs", "by", "wall ms", "least", "own CPU ms", "helpers", "slurmctld", "failed", box=None
    )
    for jobs, readers in report["looks"].items():
        for name, one in readers.items():
            table.add_row(jobs, name, *(f"{value:g}" for value in one.values()))
    out = Console()
    out.print(table)
    for part in ("memory", "restart"):
        out.print(f"{part}: {report[part]}", markup=False)


def main() -> None:
    """Write build/reports/readers.json."""
    run(
        "readers",
        __doc__,
        "few jobs and looks",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )


if __name__ == "__main__":
    main()
