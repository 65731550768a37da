"""Replays a service's first hour with and without what was measured of its replicas elsewhere.

The load and the servers are those of ``llm.py``. A prior is what a service has learnt in such an
hour: of the same servers, or of some whose steps take half or twice as long, so that it is wrong.
Rows are means over seeds; a seed draws how long starts take, and when requests come.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.launcher.rules.autoscale.begin import learnt_curve
from slicewise.launcher.rules.autoscale.curve import Prior
from studies.autoscale.batching import Server
from studies.autoscale.llm import CASES, SEED, SERVER, TTFT_S, Talk, Talks, talks
from studies.command_line import side_by_side, traces_folder

SEEDS, CASE = 8, "azure"
TIMES = (1.0, 0.5, 2.0)
"""How long the steps of the servers took of which a prior is, beside these."""
FIRST_REPLICAS = (6, 1)
_BEGIN_S, _BIN_S, _LATE = 600, 10, 0.1

_Cell = tuple[Path, int, int, float | None, Prior | None]


def _load(folder: Path, seed: int) -> Talks:
    trace, change = CASES[CASE]
    return talks(trace, folder, seed, change)


def _learnt(cell: tuple[Path, int, float]) -> Prior:
    folder, seed, times = cell
    steps = (SERVER.step_s, SERVER.running_s, SERVER.held_s, SERVER.prompt_s)
    server = Server(*(times * each_s for each_s in steps))
    found = learnt_curve(Talk(_load(folder, seed), None, server).run().memory)
    if found is None:
        raise ValueError("a service has learnt nothing in an hour")
    return Prior(found, "learnt elsewhere")


def _row(cell: _Cell) -> Mapping[str, Any]:
    folder, seed, replicas, times, prior = cell
    load = _load(folder, seed)
    talk = Talk(load, None, prior=prior, first_replicas=replicas).run()
    hour = talk.figures()
    first_s = np.minimum(talk.requests.first_s, talk.workload.duration_s) - load.arrivals_s
    late, begin = first_s > TTFT_S, load.arrivals_s < _BEGIN_S
    bins = (load.arrivals_s[begin] // _BIN_S).astype(int)
    shares = np.bincount(bins, late[begin]) / np.maximum(1, np.bincount(bins))
    return {
        "replicas": replicas,
        "times": times,
        "slice_hours": hour["slice_hours"],
        "ttft_attainment": hour["ttft_attainment"],
        "tpot_attainment": hour["tpot_attainment"],
        "begin_ttft_attainment": float(1 - late[begin].mean()),
        "begin_late_s": int(_BIN_S * (shares > _LATE).sum()),
    }


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Replay all."""
    folder = traces_folder()
    learnt = side_by_side(_learnt, [(folder, SEED, times) for times in TIMES], "Learning priors")
    priors: list[tuple[float | None, Prior | None]] = [
        (None, None),
        *zip(TIMES, learnt, strict=True),
    ]
    seeds = range(SEED + 1, SEED + 1 + (1 if is_quick else SEEDS))
    cells = [
        (folder, seed, replicas, *prior)
        for replicas in FIRST_REPLICAS
        for prior in priors
        for seed in seeds
    ]
    rows = side_by_side(_row, cells, "Replaying first hours")
    groups = [rows[at : at + len(seeds)] for at in range(0, len(rows), len(seeds))]
    return {"rows": [_mean(group) for group in groups], "seeds": list(seeds), "machine": machine()}


def _mean(rows: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    named = ("replicas", "times")
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key not in named}
    longest_s = max(row["begin_late_s"] for row in rows)
    return {key: rows[0][key] for key in named} | means | {"longest_begin_late_s": longest_s}


def show(report: Mapping[str, Any]) -> None:
    """Print a line for each row."""
    for line in _lines(report):
        print(line)  # noqa: T201


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    for row in report["rows"]:
        of = "no prior" if row["times"] is None else f"prior of {row['times']:g} times the time"
        yield (
            f"{row['replicas']} replicas, {of}: {row['slice_hours']:.2f} slice-hours,"
            f" first tokens {row['ttft_attainment']:.1%} in time, tokens"
            f" {row['tpot_attainment']:.1%}; of the first 10 minutes"
            f" {row['begin_ttft_attainment']:.1%}, late for {row['begin_late_s']:.0f} s, at most"
            f" {row['longest_begin_late_s']} s"
        )


if __name__ == "__main__":
    reporting.run("autoscale_priors", __doc__, "one seed", measure, show)
