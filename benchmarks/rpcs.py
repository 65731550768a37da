"""Counts what Slicewise asks slurmctld, by kind of RPC, and how busy that keeps it.

Each scene is watched for a while with ``sdiag``: no service; eight replicas that serve; a burst of
batch jobs; a wake from zero; and, without a service, many pending jobs. The daemon has the default
settings. The same file runs on earlier revisions, so that figures can stand beside theirs.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from benchmarks.wake import infer, until
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

SEED = 0
"""The report names a seed, but no random numbers are drawn."""
AIM_PER_MIN, AIM_BUSY = 20, 0.05
"""Most requests a minute at rest, with replicas or without, and most of slurmctld's thread time."""
REPLICAS, BURST, BURST_EVERY_S = 8, 20, 3.0
ARRAY = 1000
"""Tasks of an array: Slurm's MaxArraySize is 1001 unless set."""
TENANT, USER, PROFILE = "vision", "alice", "1g.10gb"
OTHER_TENANT, OTHER_USER, OTHER_PROFILE = "nlp", "bob", "1g.18gb"
SETTLED_S = 15.0
"""Time after which a scene is watched: what led to it no longer counts as movement."""
_OWN = "REQUEST_STATS_INFO"
"""What sdiag itself asks."""
_ROW = re.compile(
    r"^\s+(\w+)\s+\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE
)
_PART = re.compile(r"statistics by message type(.*?)statistics by user", re.DOTALL)
_FILE = """\
[service]
name = "{name}"
tenant = "{tenant}"
model_repository = "{models}"
model = "tokens"
profile = "{profile}"
min_replicas = {least}
max_replicas = {most}
keep_alive_s = 1
memory_mib = 512
"""


@dataclass(frozen=True)
class Size:
    """For how many seconds a scene is watched, and how many jobs are many."""

    watched_s: float
    jobs: int


FULL = Size(watched_s=60.0, jobs=50_000)
QUICK = Size(watched_s=20.0, jobs=5_000)


@dataclass(frozen=True)
class Totals:
    """What sdiag and /proc have counted until ``at_s``.

    Attributes:
        rpcs: number and microseconds of requests, by kind.
        slurmctld_s, daemon_s: CPU seconds; those of the daemon with the commands that it ran.
    """

    at_s: float
    rpcs: Mapping[str, tuple[int, int]]
    slurmctld_s: float
    daemon_s: float


def rpcs_of(text: str) -> Mapping[str, tuple[int, int]]:
    """Read sdiag's table: number and total microseconds, by kind of request."""
    part = _PART.search(text)
    rows = _ROW.findall(part[1]) if part else []
    return {kind: (int(count), int(total_us)) for kind, count, total_us in rows}


def between(before: Totals, after: Totals) -> dict[str, Any]:
    """What was asked meanwhile, per minute and by kind, and how busy that kept slurmctld."""
    seconds = after.at_s - before.at_s
    rows = {
        kind: (count - before.rpcs.get(kind, (0, 0))[0], us - before.rpcs.get(kind, (0, 0))[1])
        for kind, (count, us) in after.rpcs.items()
        if kind != _OWN
    }
    asked = {kind: row for kind, row in sorted(rows.items(), key=lambda one: -one[1][0]) if row[0]}
    return {
        "seconds": round(seconds, 1),
        "requests": sum(count for count, _ in asked.values()),
        "per_min": round(60 * sum(count for count, _ in asked.values()) / seconds, 1),
        "by_kind_per_min": {kind: round(60 * n / seconds, 1) for kind, (n, _) in asked.items()},
        "mean_ms": {kind: round(us / n / 1000, 2) for kind, (n, us) in asked.items()},
        "busy": round(sum(us for _, us in asked.values()) / 1e6 / seconds, 5),
        "slurmctld_cpu": round((after.slurmctld_s - before.slurmctld_s) / seconds, 4),
        "daemon_cpu": round((after.daemon_s - before.daemon_s) / seconds, 4),
    }


class Bench:
    """A sandbox, and what is counted of it."""

    def __init__(self, sandbox: Sandbox, watched_s: float) -> None:
        self._sandbox = sandbox
        self._watched_s = watched_s

    def totals(self) -> Totals:
        """What was counted until now."""
        shown = self._sandbox.run("root", ("sdiag",)).stdout
        return Totals(time.monotonic(), rpcs_of(shown), self._cpu_s("slurmctld"), self._cpu_s())

    def _cpu_s(self, name: str = "daemon") -> float:
        pid = self._sandbox.state.processes[name].pid
        fields = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / 100

    def watch(self, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Watch for as long as a scene lasts, after it has settled."""
        time.sleep(SETTLED_S)
        before = self.totals()
        meanwhile()
        time.sleep(max(before.at_s + self._watched_s - time.monotonic(), 0.0))
        return between(before, self.totals())

    def apply(self, service: Mapping[str, Any], user: str) -> str:
        """Apply a service and return its URL."""
        models = publish_models(self._sandbox.layout.models)
        home = self._sandbox.layout.home / self._sandbox.state.users[user].name
        file = home / f"{service['name']}.toml"
        file.write_text(_FILE.format(models=models, **service))
        done = self._sandbox.run(user, ("slicewise", "service", "apply", str(file), "--json"))
        return str(json.loads(done.stdout)["url"])

    def until_ready(self, name: str, replicas: int) -> None:
        """Wait until so many replicas of the service get requests."""
        words = ("slicewise", "service", "status", name, "--json")
        until(lambda: self._ready(words) == replicas)

    def _ready(self, words: tuple[str, ...]) -> int:
        return len(json.loads(self._sandbox.run("root", words).stdout)["slots"]["ready"])

    def burst(self) -> None:
        """Submit batch jobs, one after the other."""
        size = min(BURST, int(self._watched_s / BURST_EVERY_S))
        sbatch = ("sbatch", "--output=/dev/null", "--time=5", f"--gres=gpu:{OTHER_PROFILE}:1")
        for _ in range(size):
            began_s = time.monotonic()
            self._sandbox.run(OTHER_USER, (*sbatch, f"--account={OTHER_TENANT}", "--wrap=true"))
            time.sleep(max(began_s + BURST_EVERY_S - time.monotonic(), 0.0))

    def fill(self, jobs: int) -> float:
        """Let that many jobs wait, each with a record of its own; return the seconds of a look."""
        self._sandbox.layout.site_conf.write_text(f"MaxJobCount={2 * jobs}\n")
        self._sandbox.stop("slurmctld")
        self._sandbox.restore(print)
        self._sandbox.run("root", ("slicewise", "admission", "off"))
        sbatch = ("sbatch", "--hold", "--parsable", "--output=/dev/null", "--time=5", "--mem=1")
        for _ in range(jobs // ARRAY):
            words = (*sbatch, f"--account={OTHER_TENANT}", f"--array=0-{ARRAY - 1}", "--wrap=true")
            array = self._sandbox.run(OTHER_USER, words).stdout.strip()
            # A change of some of its tasks gives each a record of its own.
            some = f"JobId={array}_[0-{ARRAY - 2}]"
            self._sandbox.run("root", ("scontrol", "update", some, "Nice=1"), timeout_s=600)
        began_s = time.monotonic()
        self._sandbox.run("root", ("squeue", "--noheader", "--all"), timeout_s=600)
        return time.monotonic() - began_s


def measure(size: Size) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with _sandbox() as sandbox:
        bench = Bench(sandbox, size.watched_s)
        scenes = {"idle": bench.watch()}
        steady = {"tenant": TENANT, "profile": PROFILE, "least": REPLICAS, "most": REPLICAS}
        bench.apply({"name": "steady", **steady}, USER)
        bench.until_ready("steady", REPLICAS)
        scenes["replicas"] = bench.watch()
        scenes["burst"] = bench.watch(bench.burst)
        asleep = {"tenant": OTHER_TENANT, "profile": OTHER_PROFILE, "least": 0, "most": 1}
        url = bench.apply({"name": "asleep", **asleep}, OTHER_USER)
        scenes["wake"] = bench.watch(lambda: infer(url))
        for user, name in ((USER, "steady"), (OTHER_USER, "asleep")):
            sandbox.run(user, ("slicewise", "service", "delete", name, "--now"))
        squeue_s = bench.fill(size.jobs)
        scenes["many_jobs"] = bench.watch()
    return {
        "idle_per_min": scenes["idle"]["per_min"],
        "replicas_per_min": scenes["replicas"]["per_min"],
        "busy": max(one["busy"] for one in scenes.values()),
        "scenes": scenes,
        "replicas": REPLICAS,
        "jobs": size.jobs,
        "squeue_of_many_s": round(squeue_s, 2),
        "aim_per_min": AIM_PER_MIN,
        "aim_busy": AIM_BUSY,
        "seed": SEED,
        "machine": machine(),
    }


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    """A sandbox with two tenants."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-rpcs-")), progress=print)
    try:
        for tenant in (TENANT, OTHER_TENANT):
            quota = ("slicewise", "tenant-quota", "set", tenant, "--nominal", str(REPLICAS))
            sandbox.run("root", (*quota, "--overcommit"))
        yield sandbox
    finally:
        sandbox.down()


def show(report: Mapping[str, Any]) -> None:
    """Print a row for each scene, and the kinds of its requests."""
    table = Table("scene", "requests/min", "slurmctld busy", "its CPU", "daemon's CPU", "by kind")
    for name, one in report["scenes"].items():
        # What has no aim is shown all the same.
        missed = name in {"idle", "replicas"} and one["per_min"] > report["aim_per_min"]
        is_busy = one["busy"] > report["aim_busy"]
        kinds = (
            f"{kind.removeprefix('REQUEST_')} {n:g}" for kind, n in one["by_kind_per_min"].items()
        )
        table.add_row(
            name,
            f"{one['per_min']:g}{': missed' if missed else ''}",
            f"{100 * one['busy']:.2f} %{': missed' if is_busy else ''}",
            f"{100 * one['slurmctld_cpu']:.1f} %",
            f"{100 * one['daemon_cpu']:.1f} %",
            ", ".join(kinds),
        )
    table.box = None
    Console(width=160).print(table)


if __name__ == "__main__":
    run(
        "rpcs",
        __doc__,
        "20 s a scene, 5,000 jobs",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )
