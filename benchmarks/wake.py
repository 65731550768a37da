"""Compares waking a service from zero with a bare sbatch job that starts the same Triton.

Both are timed until the first answer, in turn. The first comparison uses a model that loads
immediately, which shows what waking costs in seconds. The second uses a model that takes
``LOAD_S`` to load; its ratio is the report's figure. Both are made with the sandbox's scheduler
settings, and again with those that Slurm has by default. The report also says where the time goes:
the median of each step, from files that the replica writes and the launcher's log. Last come the
same two models in a pool: the one replica that runs is another service's and has never had them,
and gives up another model for each.
"""

import json
import os
import random
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

SEED = 20_261_122
AIM = 1.15
"""Highest acceptable ratio of the median wake to the median bare start."""
LOAD_S = 5.0
"""Seconds that the slow model takes to load; real models: median 22.7 s (Alibaba's GenTD26)."""
POLL_S = 0.02
DEADLINE_S = 180.0
TENANT, USER, PROFILE = "nlp", "bob", "1g.18gb"
BARE_PORTS = (31_001, 31_002, 31_003)
FULL_ROUNDS, QUICK_ROUNDS = 10, 3
DEFAULT_SCHEDULER = (
    "SchedulerParameters=batch_sched_delay=3,sched_interval=60,sched_min_interval=2,bf_interval=30"
)
"""Slurm's own defaults, which the sandbox's slurm.conf replaces by shorter times."""
WAKE_STEPS = ("released", "script begins", "server starts", "server listens", "answered")
BARE_STEPS = ("script begins", "answered")
_DECIDED = re.compile(r"time=(\S+) .* event=decided service=(\S+) .*desired_replicas=1 ")

QUESTION = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [1], "datatype": "INT32", "data": [1]}
            for name in ("CONTEXT_TOKENS", "GENERATED_TOKENS")
        ]
    }
).encode()
FILE = """\
[service]
name = "{name}"
tenant = "{tenant}"
model_repository = "{models}"
model = "tokens"
profile = "{profile}"
max_replicas = 1
keep_alive_s = 1
memory_mib = 512
"""
LOADING = f"""
import time as _time

_initialize = TritonPythonModel.initialize


def _load(self, args):
    _time.sleep({LOAD_S})
    _initialize(self, args)


TritonPythonModel.initialize = _load
"""
BARE = """\
#!/bin/bash
#SBATCH --job-name=bare
#SBATCH --account={tenant}
#SBATCH --gres=gpu:{profile}:1
#SBATCH --cpus-per-task=1
#SBATCH --mem=512M
#SBATCH --time=10
#SBATCH --output=bare-%j.log
echo "$EPOCHREALTIME"
exec {triton} --model-repository={models} \\
    --http-address=127.0.0.1 --http-port={ports[0]} \\
    --grpc-address=127.0.0.1 --grpc-port={ports[1]} \\
    --metrics-address=127.0.0.1 --metrics-port={ports[2]}
"""


@dataclass(frozen=True)
class Site:
    """A service at zero, and the script of a bare job with the same Triton.

    Attributes:
        url: the service's URL at the gateway.
        script: the batch script of the bare job.
    """

    sandbox: Sandbox
    name: str
    url: str
    script: str

    def rests(self) -> bool:
        """Whether the daemon shows the service with held slots, and no job of the user runs."""
        words = ("slicewise", "service", "status", self.name, "--json")
        said = self.sandbox.run(USER, words, check=False)
        if said.returncode or self.jobs():
            return False
        return bool(json.loads(said.stdout)["slots"]["held"])

    def jobs(self) -> str:
        """Lines of squeue for the user's jobs in states R, CG and CF; "" if there are none."""
        return self.sandbox.run(USER, ("squeue", "--me", "-h", "-t", "R,CG,CF")).stdout


@contextmanager
def sandbox_up() -> Iterator[Sandbox]:
    """Bring up a sandbox in which the tenant has quota for two slices, and take it down."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-wake-")), progress=print)
    try:
        sandbox.run("root", ("slicewise", "tenant-quota", "set", TENANT, "--nominal", "2"))
        yield sandbox
    finally:
        sandbox.down()


def site_of(sandbox: Sandbox, name: str, models: Path, settings: Path | None = None) -> Site:
    """Apply a service of the repository, with other ``settings`` than the sandbox's if given."""
    values = {"name": name, "tenant": TENANT, "profile": PROFILE, "models": models}
    file = sandbox.layout.home / sandbox.state.users[USER].name / f"{name}.toml"
    file.write_text(FILE.format_map(values))
    config = f"SLICEWISE_CONFIG={settings or sandbox.layout.settings_file}"
    words = ("env", config, "slicewise", "service", "apply", str(file), "--json")
    applied = sandbox.run(USER, words)
    script = BARE.format(**values, triton=sandbox.layout.bin / "tritonserver", ports=BARE_PORTS)
    return Site(sandbox, name, json.loads(applied.stdout)["url"], script)


POOLED = FILE.replace('"tokens"', '"{name}"\npool = "wakes"\nmodel_mib = {model_mib}')
HOST_MIB, GUEST_MIB = 64, 9000
"""Memory of models, of which a replica has 14,745 MiB: for the host and one other. If there were
room, it would be filled with models that nobody has asked."""


def pool_wakes_s(
    sandbox: Sandbox,
    repositories: Mapping[str, Path],
    rounds: int,
    prepare: Callable[[int], None] = lambda _number: None,
) -> list[float]:
    """Seconds of the first requests to models that a running replica of their pool has to load.

    ``repositories`` have the model of the service that runs, by "host", and that of the others, in
    the same file system: what is there twice is linked. ``prepare`` is called before each request
    with its number. One more that is asked first does not count: the replica may have it.
    """
    kind = repositories["guest"].name
    pool = repositories["guest"].with_name(f"{kind}-pool")
    home = sandbox.layout.home / sandbox.state.users[USER].name
    host, first, *guests = names = [f"{kind}-{number}" for number in range(rounds + 2)]
    urls: dict[str, str] = {}
    for name in names:
        source = repositories["host" if name == host else "guest"] / "tokens"
        shutil.copytree(source, pool / name, copy_function=os.link)
        configuration = pool / name / "config.pbtxt"
        text = configuration.read_text().replace('name: "tokens"', f'name: "{name}"')
        configuration.unlink()
        configuration.write_text(text)
    sandbox.run("root", ("slicewise", "tenant-quota", "set", TENANT, "--nominal", "1"))
    for name in names:
        file = home / f"{name}.toml"
        values = {"name": name, "tenant": TENANT, "profile": PROFILE, "models": pool}
        text = POOLED.format_map(values | {"model_mib": HOST_MIB if name == host else GUEST_MIB})
        file.write_text(text.replace("keep_alive_s = 1\n", "keep_alive_s = 600\n"))
        applied = sandbox.run(USER, ("slicewise", "service", "apply", str(file), "--json"))
        urls[name] = json.loads(applied.stdout)["url"]
    for name in (host, first):
        infer(urls[name], name)
    phases, took_s = random.Random(SEED), []  # noqa: S311 -- as above
    for number, name in enumerate(guests):
        prepare(number)
        until(partial(_is_nowhere, sandbox, name))
        time.sleep(1 + phases.random())
        began_s = time.time()
        infer(urls[name], name)
        took_s.append(time.time() - began_s)
    for name in names:
        sandbox.run(USER, ("slicewise", "service", "delete", name, "--now"))
    sandbox.run("root", ("slicewise", "tenant-quota", "set", TENANT, "--nominal", "2"))
    return took_s


def _is_nowhere(sandbox: Sandbox, name: str) -> bool:
    """Whether no replica of its pool has the service's model, or loads it."""
    words = ("slicewise", "service", "status", name, "--json")
    models = json.loads(sandbox.run(USER, words).stdout)["pool"]
    return all(
        model["state"] == "absent" for model in models if model["service"] == f"{TENANT}/{name}"
    )


def changed_model(models: Path, copy: Path, lines: str) -> Path:
    """Copy the repository, with a model of one instance that ends with these lines."""
    shutil.copytree(models, copy)
    with (copy / "tokens" / "1" / "model.py").open("a") as program:
        program.write(lines)
    configuration = copy / "tokens" / "config.pbtxt"
    configuration.write_text(configuration.read_text().replace("count: 2", "count: 1"))
    return copy


def measure(rounds: int) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with sandbox_up() as sandbox:
        models = publish_models(sandbox.layout.models)
        loading = changed_model(models, models.with_name("loading"), LOADING)
        sites = (site_of(sandbox, "at-once", models), site_of(sandbox, "loading", loading))
        at_once, with_load = (_compare(site, rounds) for site in sites)
        pooled = [
            pool_wakes_s(sandbox, {"host": models, "guest": guest}, rounds)
            for guest in (models, loading)
        ]
        sandbox.layout.site_conf.write_text(f"{DEFAULT_SCHEDULER}\n")
        sandbox.run("root", ("scontrol", "reconfigure"))
        slow_at_once, slow_loading = (_compare(site, rounds) for site in sites)
    return {
        "wake_vs_bare": with_load["wake_vs_bare"],
        "wake_vs_bare_without_load": at_once["wake_vs_bare"],
        "load_s": LOAD_S,
        "with_load": with_load,
        "without_load": at_once,
        "pool": {
            key: {
                "wake_vs_bare": median(wakes_s) / found["bare_median_s"],
                "wake_median_s": median(wakes_s),
                "wake_s": wakes_s,
            }
            for key, wakes_s, found in zip(
                ("without_load", "with_load"), pooled, (at_once, with_load), strict=True
            )
        },
        "default_scheduler": {"with_load": slow_loading, "without_load": slow_at_once},
        "scheduler": DEFAULT_SCHEDULER,
        "rounds": rounds,
        "aim": AIM,
        "seed": SEED,
        "machine": machine(),
    }


def _compare(site: Site, rounds: int) -> Mapping[str, Any]:
    phases = random.Random(SEED)  # noqa: S311 -- when a wake meets the loops, not a secret
    # The first wake and the first bare start find cold files, so that pair does not count.
    pairs = [
        (wake_s(site, phases.random()), bare_s(site, phases.random())) for _ in range(rounds + 1)
    ][1:]
    wakes, bares = (list(one) for one in zip(*pairs, strict=True))
    wakes_s, bares_s = ([steps[-1] - steps[0] for steps in one] for one in (wakes, bares))
    return {
        "wake_vs_bare": median(wakes_s) / median(bares_s),
        "wake_median_s": median(wakes_s),
        "bare_median_s": median(bares_s),
        "wake_steps_ms": dict(zip(WAKE_STEPS, step_medians_ms(wakes), strict=True)),
        "bare_steps_ms": dict(zip(BARE_STEPS, step_medians_ms(bares), strict=True)),
        "wake_s": wakes_s,
        "bare_s": bares_s,
    }


def step_medians_ms(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each step in ms; a round has the beginning and the end of each step."""
    steps = ([1000 * (end - begin) for begin, end in pairwise(one)] for one in rounds)
    return [round(median(step), 1) for step in zip(*steps, strict=True)]


def wake_s(site: Site, phase_s: float) -> Sequence[float]:
    """Unix seconds of a request to a service at zero, and of the ends of ``WAKE_STEPS``."""
    until(site.rests)
    time.sleep(1 + phase_s)
    began_s = time.time()
    infer(site.url)
    answered_s = time.time()
    log = (site.sandbox.layout.log / "launcher.log").read_text()
    readonly = _readonly(site.sandbox.state.users[USER].uid)
    files = (readonly / "gateway.crt", *(readonly.parent / name for name in ("server", "http")))
    script_s, server_s, listens_s = (file.stat().st_mtime for file in files)
    released_s = decided_s(log, f"{TENANT}/{site.name}")
    return began_s, released_s, script_s, server_s, listens_s, answered_s


def decided_s(log: str, service: str) -> float:
    """Return when the launcher last logged that a replica is wanted: the slot was released then."""
    last = [at for at, name in _DECIDED.findall(log) if name == service][-1]
    return datetime.fromisoformat(last).timestamp()


def _readonly(uid: int) -> Path:
    """Return the folder that has the door of the user's replica."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            if process.stat().st_uid == uid and words[1].endswith("/door.py"):
                return Path(words[1]).parent
        except (OSError, IndexError):
            continue
    raise FileNotFoundError("a replica's door")


def bare_s(site: Site, phase_s: float) -> Sequence[float]:
    """Unix seconds of sbatch and of the ends of ``BARE_STEPS``; Triton is asked every 20 ms."""
    until(lambda: not site.jobs())
    time.sleep(1 + phase_s)
    began_s = time.time()
    job = site.sandbox.run(USER, ("sbatch", "--parsable"), input=site.script).stdout.strip()
    until(lambda: _answers(f"http://127.0.0.1:{BARE_PORTS[0]}"), POLL_S)
    answered_s = time.time()
    site.sandbox.run(USER, ("scancel", job))
    home = site.sandbox.layout.home / site.sandbox.state.users[USER].name
    script_s = float((home / f"bare-{job}.log").read_text().split()[0])
    return began_s, script_s, answered_s


def infer(url: str, model: str = "tokens") -> None:
    """Ask a service of such a model for the shortest answer."""
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", QUESTION)  # noqa: S310
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310
        json.load(answer)


def _answers(url: str) -> bool:
    try:
        infer(url)
    except OSError:
        return False
    return True


def until(condition: Callable[[], object], poll_s: float = 0.2) -> None:
    """Wait until it holds. Raises TimeoutError after ``DEADLINE_S``."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {DEADLINE_S:g} s")
        time.sleep(poll_s)


def show(report: Mapping[str, Any]) -> None:
    """Print the report as two tables: the ratios, and where the time goes."""
    table = Table("scheduler", "model", "wake s", "bare s", "ratio", "aim", box=None)
    steps = Table("scheduler", "model", *WAKE_STEPS, *(f"bare: {one}" for one in BARE_STEPS))
    for scheduler, of in (("sandbox's", report), ("default", report["default_scheduler"])):
        for words, key in (("at once", "without_load"), (f"in {LOAD_S:g} s", "with_load")):
            found = of[key]
            missed = ": missed" if found["wake_vs_bare"] > AIM else ""
            figures = (found[one] for one in ("wake_median_s", "bare_median_s", "wake_vs_bare"))
            table.add_row(scheduler, words, *(f"{one:.3f}" for one in figures), f"{AIM:g}{missed}")
            took = (*found["wake_steps_ms"].values(), *found["bare_steps_ms"].values())
            steps.add_row(scheduler, words, *(f"{one:.0f}" for one in took))
    for words, key in (("at once", "without_load"), (f"in {LOAD_S:g} s", "with_load")):
        found, bare_s = report["pool"][key], report[key]["bare_median_s"]
        pooled = (found["wake_median_s"], bare_s, found["wake_vs_bare"])
        table.add_row("in a pool", words, *(f"{figure:.3f}" for figure in pooled), "")
    steps.box, steps.title = None, "ms"
    for one in (table, steps):
        Console(width=120).print(one)


if __name__ == "__main__":
    run(
        "wake",
        __doc__,
        "three rounds",
        lambda quick: measure(QUICK_ROUNDS if quick else FULL_ROUNDS),
        show,
    )
