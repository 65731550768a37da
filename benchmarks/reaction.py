"""How soon a tenant's need is served: by a loan, and by what a lender takes back.

A service of the borrower is told to have two replicas more than its quota covers. Once they serve,
the lender submits batch jobs that want its whole quota: the two replicas go, and the jobs start in
their place. Times are of the daemon's and launcher's logs, of files that replicas write at their
start, and of the jobs' own clocks. It is done in an empty queue with the sandbox's scheduler
settings, with those that Slurm has by default, and with many jobs that wait.
"""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from benchmarks.rpcs import ARRAY
from benchmarks.wake import DEFAULT_SCHEDULER, until
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.slurm_plugin.rules.services.eviction import REST_S

SEED = 20_261_129
"""Of the moment in the daemon's and slurmctld's intervals at which a need comes."""
AIM_S = 1.0
"""From the look that shows a need to the raised limit, and from the borrower's end to the lender's
start: at most."""
LENDER, LENDER_USER, LENDER_SLICES = "vision", "alice", 7
BORROWER, BORROWER_USER, BORROWER_SLICES = "nlp", "bob", 3
MORE = 2
"""Replicas beyond the borrower's quota. Both quotas are all instances that the sandbox has."""
OTHER, OTHER_USER, OTHER_PROFILE = "guest", "carol", "1g.18gb"
"""The tenant whose jobs wait meanwhile, and for what: nothing else here asks for it."""
PROFILE, NAME = "1g.10gb", "reacts"
POLL_S = 0.02
LOAN_STEPS = ("decided", "slots released", "limit raised", "script begins", "server listens")
RETURN_STEPS = ("borrower told", "servers end", "slices free", "limit raised", "jobs begin")
_LINE = re.compile(r"time=(\S+) .*?event=(\w+)(.*)")
FILE = """\
[service]
name = "{name}"
tenant = "{tenant}"
model_repository = "{models}"
model = "tokens"
profile = "{profile}"
min_replicas = {least}
max_replicas = {most}
memory_mib = 512
"""
JOBS = """\
for _ in $(seq {count}); do
  sbatch --parsable --gres=gpu:{profile}:1 --mem=10 --time=10 --output="$HOME/began-%j" <<'END'
#!/bin/bash
echo "$EPOCHREALTIME"
sleep 300
END
done
"""


@dataclass(frozen=True)
class Size:
    """How often each is measured, and how many jobs are many."""

    rounds: int
    jobs: int


FULL, QUICK = Size(6, 20_000), Size(2, 2_000)


class Bench:
    """A sandbox with a borrower's service, and a lender."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._uid = sandbox.state.users[BORROWER_USER].uid
        self._phases = random.Random(SEED)  # noqa: S311 -- when a need comes, not a secret
        models = publish_models(sandbox.layout.models)
        file = self._home(BORROWER_USER) / f"{NAME}.toml"
        most = BORROWER_SLICES + MORE
        values = {"name": NAME, "tenant": BORROWER, "models": models, "profile": PROFILE}
        file.write_text(FILE.format(**values, least=BORROWER_SLICES, most=most))
        self._run(BORROWER_USER, "slicewise", "service", "apply", str(file))
        until(lambda: len(self._doors()) == BORROWER_SLICES)

    def measure(self, rounds: int) -> Mapping[str, Any]:
        """Measure both, in turn; the first pair finds cold files and does not count."""
        pairs = [(self._lend(), self._take_back()) for _ in range(rounds + 1)][1:]
        loans, returns = (list(one) for one in zip(*pairs, strict=True))
        free, jobs = RETURN_STEPS.index("slices free"), RETURN_STEPS.index("jobs begin")
        return {
            "loan_s": spread([one[-1] - one[0] for one in loans]),
            "raised_s": spread([one[3] - one[2] for one in loans]),
            "return_s": spread([one[-1] - one[0] for one in returns]),
            "own_start_s": spread([one[jobs + 1] - one[free + 1] for one in returns]),
            "loan_steps_s": steps_s(LOAN_STEPS, loans),
            "return_steps_s": steps_s(RETURN_STEPS, returns),
        }

    def schedule_by_default(self) -> None:
        """Let Slurm schedule as often as it does where a site says nothing of it."""
        self._sandbox.layout.site_conf.write_text(f"{DEFAULT_SCHEDULER}\n")
        self._run("root", "scontrol", "reconfigure")

    def fill(self, jobs: int) -> None:
        """Let that many jobs wait for a GPU that is not free, each with a record of its own."""
        self._sandbox.layout.site_conf.write_text(f"MaxJobCount={2 * jobs}\n")
        self._sandbox.stop("slurmctld")
        self._sandbox.restore(print)
        asks = ("--output=/dev/null", "--time=5", "--mem=1", f"--gres=gpu:{OTHER_PROFILE}:1")
        for _ in range(jobs // ARRAY):
            array = f"--array=0-{ARRAY - 1}"
            words = ("sbatch", "--parsable", *asks, array, "--wrap=sleep 3600")
            job = self._run(OTHER_USER, *words).strip()
            # A change of some of its tasks gives each a record of its own.
            some = f"JobId={job}_[1-{ARRAY - 2}]"
            self._sandbox.run("root", ("scontrol", "update", some, "Nice=1"), timeout_s=600)

    def _lend(self) -> Sequence[float]:
        """Unix seconds of the order, and of the ends of ``LOAN_STEPS``."""
        time.sleep(self._phases.random())
        marks = [len(self._log(name)) for name in ("daemon", "launcher")]
        began_s = time.time()
        self._scale(BORROWER_SLICES + MORE)
        until(lambda: len(self._ready()) == BORROWER_SLICES + MORE, POLL_S)
        new = sorted(self._ready(), key=_begun_s)[-MORE:]
        raised = ("limit_set", f"slicewise_{BORROWER}_borrowed set")
        # Slurm has the limit before a busy daemon logs that it was set.
        until(lambda: has_event(events(self._log("daemon")[marks[0] :]), *raised), POLL_S)
        daemon, launcher = (
            events(self._log(name)[mark:])
            for name, mark in zip(("daemon", "launcher"), marks, strict=True)
        )
        wanted = f"desired_replicas={BORROWER_SLICES + MORE} "
        return (
            began_s,
            first_s(launcher, "decided", wanted),
            last_s(daemon, "release", ""),
            last_s(daemon, *raised),
            max(map(_begun_s, new)),
            max(_listens_s(one) for one in new),
        )

    def _take_back(self) -> Sequence[float]:
        """Unix seconds of the first submission, and of the ends of ``RETURN_STEPS``."""
        time.sleep(1 + self._phases.random())
        mark = len(self._log("daemon"))
        began_s = time.time()
        script = JOBS.format(count=LENDER_SLICES, profile=PROFILE)
        jobs = self._run(LENDER_USER, "sh", input=script).split()
        until(lambda: len(self._doors()) == BORROWER_SLICES, POLL_S)
        ended_s = time.time()
        # What completes still has its slices.
        squeue = ("squeue", "--me", "--noheader", "--states=R,CG")
        until(lambda: self._run(BORROWER_USER, *squeue).count("\n") == BORROWER_SLICES, POLL_S)
        free_s = time.time()
        outputs = [self._home(LENDER_USER) / f"began-{job}" for job in jobs]
        until(lambda: all(one.exists() and one.stat().st_size for one in outputs), POLL_S)
        raised = ("limit_set", f"slicewise_{LENDER} set")
        until(lambda: has_event(events(self._log("daemon")[mark:]), *raised), POLL_S)
        daemon = events(self._log("daemon")[mark:])
        found = (
            began_s,
            last_s(daemon, "reclaimed", ""),
            ended_s,
            free_s,
            last_s(daemon, *raised),
            max(float(one.read_text()) for one in outputs),
        )
        self._end_need()
        return found

    def _end_need(self) -> None:
        """Have nobody want a slice of another, until none may be borrowed and slots rest no more.

        The borrower's need ends first: it would borrow again what the lender leaves.
        """
        mark = len(self._log("launcher"))
        self._scale(BORROWER_SLICES)
        until(lambda: f"desired_replicas={BORROWER_SLICES} " in self._log("launcher")[mark:])
        self._run(LENDER_USER, "scancel", "--me")
        time.sleep(REST_S)
        until(lambda: not self._jobs(LENDER_USER))
        limit = ("show", "qos", f"slicewise_{BORROWER}_borrowed", "format=grptres")
        until(lambda: self._run("root", "sacctmgr", "-nP", *limit).strip() == "billing=0", 1.0)

    def _jobs(self, user: str) -> str:
        return self._run(user, "squeue", "--me", "--noheader", "--states=PD,R,CG")

    def _scale(self, least: int) -> None:
        self._run(BORROWER_USER, "slicewise", "service", "scale", NAME, "--min", str(least))

    def _run(self, user: str, *words: str, input: str = "") -> str:  # noqa: A002 -- as run names it
        return self._sandbox.run(user, words, input=input).stdout

    def _home(self, user: str) -> Path:
        return self._sandbox.layout.home / self._sandbox.state.users[user].name

    def _log(self, name: str) -> str:
        return (self._sandbox.layout.log / f"{name}.log").read_text()

    def _doors(self) -> Sequence[Path]:
        """The private directories of the service's replicas: an argument of their doors."""
        return list(_private(self._uid))

    def _ready(self) -> Sequence[Path]:
        return [one for one in self._doors() if (one / "http").exists()]


def _private(uid: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text(errors="replace").split("\0")
            if process.stat().st_uid == uid and words[1].endswith("/door.py"):
                yield Path(words[1]).parent.parent
        except (OSError, IndexError):
            continue


def _begun_s(private: Path) -> float:
    return (private / "readonly" / "gateway.crt").stat().st_mtime


def _listens_s(private: Path) -> float:
    return (private / "http").stat().st_mtime


Event = tuple[float, str, str]
"""Unix seconds, name and the rest of a log line."""


def events(log: str) -> Sequence[Event]:
    """Read log lines."""
    found = map(_LINE.match, log.splitlines())
    return [(datetime.fromisoformat(one[1]).timestamp(), one[2], one[3]) for one in found if one]


def has_event(found: Sequence[Event], name: str, words: str) -> bool:
    """Whether an event of that name with these words was logged."""
    return any(event == name and words in rest for _, event, rest in found)


def first_s(found: Sequence[Event], name: str, words: str) -> float:
    """When the first event of that name with these words was logged."""
    return next(at_s for at_s, event, rest in found if event == name and words in rest)


def last_s(found: Sequence[Event], name: str, words: str) -> float:
    """When the last event of that name with these words was logged."""
    return first_s(found[::-1], name, words)


def spread(seconds: Sequence[float]) -> Mapping[str, float]:
    """Median, and the nearest rank to 95 %."""
    ranked = sorted(seconds)
    p95 = ranked[-(-len(ranked) * 95 // 100) - 1]
    return {"p50": round(median(ranked), 3), "p95": round(p95, 3)}


def steps_s(names: Sequence[str], rounds: Sequence[Sequence[float]]) -> Mapping[str, Any]:
    """How long each step took; a step may begin before the one before it has ended."""
    took_s = ([end - begin for begin, end in pairwise(one)] for one in rounds)
    return dict(zip(names, map(spread, zip(*took_s, strict=True)), strict=True))


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-reaction-")), progress=print)
    try:
        for tenant, slices in ((LENDER, LENDER_SLICES), (BORROWER, BORROWER_SLICES)):
            limits = ("--lending-limit", str(slices), "--borrowing-limit", str(slices))
            quota = ("slicewise", "tenant-quota", "set", tenant, "--nominal", str(slices))
            sandbox.run("root", (*quota, *limits))
        sandbox.run("root", ("slicewise", "tenant-quota", "set", OTHER, "--nominal", "2"))
        yield sandbox
    finally:
        sandbox.down()


def measure(size: Size) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with _sandbox() as sandbox:
        bench = Bench(sandbox)
        idle = bench.measure(size.rounds)
        bench.schedule_by_default()
        default = bench.measure(size.rounds)
        bench.fill(size.jobs)
        many = bench.measure(size.rounds)
    return {
        **{name: idle[name] for name in ("loan_s", "return_s", "own_start_s", "raised_s")},
        "idle": idle,
        "default_scheduler": default,
        "many_jobs": many,
        "jobs": size.jobs,
        "rounds": size.rounds,
        "scheduler": DEFAULT_SCHEDULER,
        "aim_s": AIM_S,
        "seed": SEED,
        "machine": machine(),
    }


def show(report: Mapping[str, Any]) -> None:
    """Print a row for each figure, and one for each step."""
    many = f"{report['jobs']:,} jobs wait"
    scenes = {"idle": "empty queue", "default_scheduler": "Slurm's defaults", "many_jobs": many}
    table = Table("seconds, p50 and p95", *scenes.values(), "aim", box=None)
    rows: Sequence[tuple[str, Callable[[Any], Any]]] = (
        ("from a need to a replica on loan", lambda one: one["loan_s"]),
        *_step_rows("loan_steps_s", LOAN_STEPS),
        ("from a lender's job to its start", lambda one: one["return_s"]),
        *_step_rows("return_steps_s", RETURN_STEPS),
        ("from when the slices are free to that", lambda one: one["own_start_s"]),
    )
    for words, of in rows:
        found = [of(report[scene]) for scene in scenes]
        has_aim = words.startswith("from when")
        missed = has_aim and found[0]["p95"] > report["aim_s"]
        aim = f"{report['aim_s']:g}{': missed' if missed else ''}" if has_aim else ""
        table.add_row(words, *(f"{one['p50']:.2f}  {one['p95']:.2f}" for one in found), aim)
    Console(width=120).print(table)


def _step_rows(
    part: str, names: Sequence[str]
) -> Sequence[tuple[str, Callable[[Any], Mapping[str, float]]]]:
    return [(f"  {name}", lambda one, name=name: one[part][name]) for name in names]  # type: ignore[misc]


if __name__ == "__main__":
    run(
        "reaction",
        __doc__,
        "two rounds, 2,000 jobs",
        lambda quick: measure(QUICK if quick else FULL),
        show,
    )
