"""Compares waking a service whose weights lie on the node with waking it from a shared file system.

The weights lie on a disk of their own that gives ``SHARED_MB_S``, as a file system that many nodes
share. The service is woken from zero without the node's cache, with an empty one, with a copy on
the node's disk, and with a copy in its memory, in turn, beside a bare sbatch of the same Triton.
Each wake's phases are those that ``slicewise service trace`` shows. Last, a running replica of a
pool loads the same weights: from the shared file system, and from what the node has read before.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import REPORTS, run
from benchmarks.wake import (
    SEED,
    TENANT,
    USER,
    Site,
    bare_s,
    changed_model,
    pool_wakes_s,
    sandbox_up,
    site_of,
    until,
    wake_s,
)
from slicewise.cluster.language.starts import StartPhase
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

AIM = 0.5
"""Highest acceptable ratio of the median wake with a copy on the node to one without the cache."""
WEIGHTS_BYTES, SHARED_MB_S = 1_000_000_000, 250
"""The weights' size, and what their disk gives to all readers together. That is assumed, not
measured anywhere: what a copy saves grows as it falls."""
FULL_ROUNDS, QUICK_ROUNDS = 5, 2
PHASES: tuple[StartPhase, ...] = get_args(StartPhase)
KINDS = ("no cache", "empty cache", "on disk", "in memory")
POOLED = ("in a pool", "in a pool, read before")
CLASS_OF = dict(zip(KINDS, ("remote", "copied", "node", "node"), strict=True))
_LEAST_S = 0.05
"""A phase that never takes so long is not shown."""
_THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device")
_WEIGHED = """
import os as _os

_initialize = TritonPythonModel.initialize


def _read(self, args):
    name = _os.path.join(args["model_repository"], args["model_version"], "weights")
    with open(name, "rb", buffering=0) as weights:
        while weights.read(1 << 23):
            pass
    _initialize(self, args)


TritonPythonModel.initialize = _read
"""


@contextmanager
def _shared_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk at the folder that gives ``SHARED_MB_S``; needs root, and blkio of cgroup v1."""
    image = folder.with_suffix(".img")
    with image.open("wb") as disk:
        disk.truncate(WEIGHTS_BYTES + (256 << 20))
    _output("mkfs.ext4", "-q", str(image))
    loop = _output("losetup", "--direct-io=on", "--find", "--show", str(image))
    device = (Path("/sys/block") / Path(loop).name / "dev").read_text().strip()
    folder.mkdir()
    try:
        _output("mount", loop, str(folder))
        try:
            _THROTTLE.write_text(f"{device} {SHARED_MB_S * 1_000_000}\n")
            yield folder
        finally:
            _THROTTLE.write_text(f"{device} 0\n")
            _output("umount", "--lazy", str(folder))
    finally:
        _output("losetup", "--detach", loop)
        image.unlink()


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _weighed(models: Path, disk: Path) -> Path:
    """Copy the repository to the disk, with a model that reads ``WEIGHTS_BYTES`` to load."""
    repository = changed_model(models, disk / "models", _WEIGHED)
    block = os.urandom(1 << 23)
    with (repository / "tokens" / "1" / "weights").open("wb") as weights:
        for _ in range(WEIGHTS_BYTES // len(block)):
            weights.write(block)
    return repository


def _forget(folder: Path) -> None:
    """Drop the page cache of all files in the folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cached_settings(sandbox: Sandbox, cache: Path) -> Path:
    """Write the site's settings with a node's cache; services that are applied by them use it."""
    cache.mkdir()
    cache.chmod(0o1777)
    site = sandbox.layout.settings_file.read_text()
    settings = sandbox.layout.home / "cached.toml"
    kept = f'[launcher]\nnode_cache = "{cache}"\nnode_cache_gib = 2\n'
    settings.write_text(site.replace("[launcher]\n", kept))
    settings.chmod(0o644)
    return settings


def measure(rounds: int) -> Mapping[str, Any]:
    """Measure, and return the whole report."""
    with sandbox_up() as sandbox:
        models = publish_models(sandbox.layout.models)
        with _shared_disk(models.with_name("shared")) as disk:
            repository, cache = _weighed(models, disk), models.with_name("node-cache")
            settings = _cached_settings(sandbox, cache)
            without = site_of(sandbox, "without", repository)
            cached = site_of(sandbox, "cached", repository, settings)
            found = _rounds(without, cached, disk, cache, rounds)
            for site in (without, cached):
                sandbox.run(USER, ("slicewise", "service", "delete", site.name, "--now"))
            until(lambda: not without.jobs())
            pooled = _pooled(sandbox, repository, disk, rounds)
            until(lambda: not without.jobs())
    return {**found, "pool": {kind: _pool_report(pooled[kind], found) for kind in POOLED}}


def _pooled(
    sandbox: Sandbox, repository: Path, disk: Path, rounds: int
) -> Mapping[str, Sequence[float]]:
    """How long models take that a replica of their pool loads; the first round does not count."""

    def prepare(number: int) -> None:
        if not number % len(POOLED):
            _forget(disk)

    repositories = {"host": repository, "guest": repository}
    took_s = pool_wakes_s(sandbox, repositories, len(POOLED) * (rounds + 1), prepare)
    counted_s = took_s[len(POOLED) :]
    return {kind: counted_s[first :: len(POOLED)] for first, kind in enumerate(POOLED)}


def _pool_report(took_s: Sequence[float], found: Mapping[str, Any]) -> Mapping[str, Any]:
    median_s = median(took_s)
    return {
        "wake_median_s": median_s,
        "vs_no_cache": median_s / found["wake_median_s"]["no cache"],
        "vs_bare": median_s / found["bare_median_s"],
        "wake_s": took_s,
    }


def _rounds(without: Site, cached: Site, disk: Path, cache: Path, rounds: int) -> Mapping[str, Any]:
    phases = random.Random(SEED)  # noqa: S311 -- when a wake meets the loops, not a secret

    def empty() -> None:
        for copies in cache.iterdir():
            shutil.rmtree(copies)

    before: Mapping[str, tuple[Site, Callable[[], None]]] = {
        "no cache": (without, lambda: None),
        "empty cache": (cached, empty),
        "on disk": (cached, lambda: _forget(cache)),
        "in memory": (cached, lambda: None),
    }
    starts: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    bares_s: list[float] = []
    # The first round finds cold files of Triton's own, so it does not count.
    for number in range(rounds + 1):
        for kind, (site, prepare) in before.items():
            until(site.rests)
            prepare()
            _forget(disk)
            start = _woken(site, phases.random(), CLASS_OF[kind])
            starts[kind] += [start] if number else []
        until(lambda: not without.jobs())
        _forget(disk)
        began_s, *_, answered_s = bare_s(without, phases.random())
        bares_s += [answered_s - began_s] if number else []
    return _report(starts, bares_s, rounds)


def _woken(site: Site, phase_s: float, start_class: str) -> Mapping[str, Any]:
    """How long a wake took, and its phases; a ValueError if it was of another class."""
    known = len(_starts(site))
    began_s, *_, answered_s = wake_s(site, phase_s)
    until(lambda: len(_starts(site)) > known)
    start = _starts(site)[-1]
    if start["start_class"] != start_class:
        raise ValueError(f"{site.name}: {start['start_class']}, not {start_class}")
    seconds = {phase["phase"]: phase["seconds"] for phase in start["phases"]}
    return {"wake_s": answered_s - began_s, "phases_s": seconds}


def _starts(site: Site) -> Sequence[Mapping[str, Any]]:
    """The starts that became ready, the last one at the end."""
    words = ("slicewise", "service", "trace", f"{TENANT}/{site.name}", "--json")
    shown = json.loads(site.sandbox.run(USER, words).stdout)
    return [start for start in shown["starts"] if start["state"] == "ready"]


def _report(
    starts: Mapping[str, Sequence[Mapping[str, Any]]], bares_s: Sequence[float], rounds: int
) -> Mapping[str, Any]:
    median_s = {kind: median(start["wake_s"] for start in woken) for kind, woken in starts.items()}
    remote_s, bare_median_s = median_s["no cache"], median(bares_s)
    return {
        "on_disk_vs_no_cache": median_s["on disk"] / remote_s,
        "in_memory_vs_no_cache": median_s["in memory"] / remote_s,
        "vs_bare": {kind: seconds / bare_median_s for kind, seconds in median_s.items()},
        "vs_no_cache": {kind: seconds / remote_s for kind, seconds in median_s.items()},
        "wake_median_s": median_s,
        "bare_median_s": bare_median_s,
        "phases_median_s": {kind: _phases_s(woken) for kind, woken in starts.items()},
        "starts": starts,
        "bare_s": bares_s,
        "weights_bytes": WEIGHTS_BYTES,
        "shared_mb_s": SHARED_MB_S,
        "rounds": rounds,
        "aim": AIM,
        "seed": SEED,
        "machine": machine(),
    }


def _phases_s(starts: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """The median of each phase; one that a start does not have took no time in it."""
    seconds = [start["phases_s"] for start in starts]
    return {phase: median(each.get(phase, 0.0) for each in seconds) for phase in PHASES}


def show(report: Mapping[str, Any]) -> None:
    """Print the ratios and where the time goes, and draw the phases: build/reports/weights.png."""
    table = Table("weights", "wake s", "of no cache", "aim", "of bare sbatch", box=None)
    phases = [phase for phase in PHASES if any(_shown(report, phase))]
    steps = Table("weights", *phases, box=None, title="seconds of each phase (medians)")
    for kind in KINDS:
        ratio = report["vs_no_cache"][kind]
        aim = f"{AIM:g}{': missed' if ratio > AIM else ''}" if CLASS_OF[kind] == "node" else ""
        cells = (report["wake_median_s"][kind], ratio, report["vs_bare"][kind])
        wake, of_remote, of_bare = (f"{cell:.2f}" for cell in cells)
        table.add_row(kind, wake, of_remote, aim, of_bare)
        took_s = report["phases_median_s"][kind]
        steps.add_row(kind, *(f"{took_s[phase]:.2f}" for phase in phases))
    for kind, found in report["pool"].items():
        figures = (found["wake_median_s"], found["vs_no_cache"], found["vs_bare"])
        wake, of_remote, of_bare = (f"{figure:.2f}" for figure in figures)
        table.add_row(kind, wake, of_remote, "", of_bare)
    table.add_row("bare sbatch", f"{report['bare_median_s']:.2f}", "", "", "")
    for shown in (table, steps):
        Console(width=120).print(shown)
    _draw(report, phases, REPORTS / "weights.png")


def _shown(report: Mapping[str, Any], phase: str) -> Iterator[bool]:
    return (report["phases_median_s"][kind][phase] >= _LEAST_S for kind in KINDS)


def _draw(report: Mapping[str, Any], phases: Sequence[str], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 -- takes a second, and only here

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    left_s = dict.fromkeys(KINDS, 0.0)
    for phase in phases:
        took_s = [report["phases_median_s"][kind][phase] for kind in KINDS]
        axes.barh(KINDS, took_s, left=list(left_s.values()), label=phase)
        left_s = {kind: left_s[kind] + s for kind, s in zip(KINDS, took_s, strict=True)}
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the first request to its answer (medians of phases)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    run(
        "weights",
        __doc__,
        "two rounds",
        lambda quick: measure(QUICK_ROUNDS if quick else FULL_ROUNDS),
        show,
    )
