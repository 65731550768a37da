"""Replays five public clusters under rules of priority, trained ones too: slowdowns and waits."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from multiprocessing import get_context
from time import process_time
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.simulation.rules.cluster import Scheduling
from studies.autoscale.workload import Floats
from studies.command_line import cluster_traces_folder, side_by_side
from studies.headline.loads import HELIOS, PHILLY, Load
from studies.priorities import linear, plot, ppo, rules
from studies.priorities.figures import Result, beside_best, chosen, figures_of, means
from studies.priorities.loads import GPU_LOADS, LOADS, Split, Window, busy_windows, read_split
from studies.priorities.processor_logs import LOGS
from studies.priorities.queues import Policy, Queue
from studies.priorities.site import replay

SEEDS = (20_261_127, 20_261_128, 20_261_129)
QUICK_DAYS = 3.0
_WINDOW_HOURS, _WINDOWS = 24.0, 10
_DAY_S = 86_400
FAIR_SHARE, SLICEWISE = "fair_share", "slicewise"


def _equal(queue: Queue) -> Floats:
    """The same for all."""
    return np.zeros(queue.gpus.size)


RULES: Mapping[str, Policy] = {
    "fifo": rules.fifo,
    "saf": rules.saf,
    "saf_bounded": rules.saf_bounded,
    "f1": rules.f1,
    "wfp3": rules.wfp3,
    FAIR_SHARE: _equal,
    SLICEWISE: rules.slicewise,
    "slicewise_24h": rules.slicewise_24h,
    "slicewise_72h": rules.slicewise_72h,
    "slicewise_sizeless": rules.slicewise_sizeless,
}
TRAINED: Mapping[str, Callable[[Sequence[Window], int], Policy]] = {
    "linear": linear.fitted,
    "ppo": ppo.fitted,
}
POLICIES = (*RULES, *TRAINED)
"""The simplest first: by what they must know of a job, then of its tenant, then by training."""
BLUNT = ("fifo", "saf", FAIR_SHARE, SLICEWISE, "slicewise_sizeless")
"""Tried with blunt time limits, too."""
FAR = ("fifo", "saf", FAIR_SHARE, SLICEWISE)
"""Tried with a backfill that plans as far ahead as jobs may run, too."""
_FAR_S = 30 * _DAY_S
"""The longest bf_window that Slurm takes."""
Variant = Literal["", "blunt", "far"]


@dataclass(frozen=True)
class Trial:
    """One policy on one load with one seed.

    Attributes:
        variant: "blunt": limits are in whole days; "far": backfill plans ``_FAR_S`` ahead.
    """

    load: str
    seed: int
    policy: str
    variant: Variant = ""


_SPLITS: dict[tuple[str, int], Split] = {}
"""Loads by name and seed; child processes inherit them when they are forked."""


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Train and replay all policies on all loads and seeds, one process per processor."""
    folder = cluster_traces_folder()
    for file in (HELIOS, PHILLY, *(log.file for log in LOGS.values())):
        if not (folder / file).exists():
            sys.exit(
                f"The trace {folder / file} is not there. Say where the traces lie: "
                "SLICEWISE_CLUSTER_TRACES; studies/headline/README.md and "
                "studies/priorities/README.md name their sources."
            )
    seeds = SEEDS[:1] if is_quick else SEEDS
    wanted = [(load, seed) for load in LOADS for seed in seeds]
    asked = [(load, folder, seed, QUICK_DAYS if is_quick else None) for load, seed in wanted]
    with get_context("fork").Pool(os.cpu_count()) as pool:
        _SPLITS.update(zip(wanted, pool.starmap(read_split, asked), strict=True))
    gpus = [key for key in wanted if key[0] in GPU_LOADS]
    tasks = [Trial(*key, policy) for policy in reversed(TRAINED) for key in gpus]
    tasks += [Trial(*key, policy) for policy in RULES for key in wanted]
    tasks += [Trial(load, seeds[0], policy, "blunt") for load in GPU_LOADS for policy in BLUNT]
    tasks += [Trial(*key, policy, "far") for policy in FAR for key in gpus]
    done = dict(side_by_side(_replayed, tasks, "Replaying"))
    report = report_of(done)
    plot.save(report, reporting.REPORTS / "priorities.png")
    return report


def report_of(done: Mapping[Trial, Result]) -> Mapping[str, Any]:
    """Sum up what was replayed."""
    order = sorted(done, key=lambda one: (one.load, POLICIES.index(one.policy), one.seed))
    results = [done[task] for task in order if not task.variant]
    shown = means(results)
    beside = {key: beside_best(shown, key) for key in ("slowdown", "wait_s")}
    return {
        "results": results,
        "means": shown,
        "blunt": means([done[task] for task in order if task.variant == "blunt"]),
        "far": means([done[task] for task in order if task.variant == "far"]),
        "beside_best": beside,
        "chosen": {key: chosen(ratios, POLICIES) for key, ratios in beside.items()},
        "pools": {one["load"]: one["pool_gpus"] for one in reversed(results)},
        "seeds": sorted({task.seed for task in done}),
        "command": " ".join(("python -m studies.priorities", *sys.argv[1:])),
        "machine": machine(),
    }


def _replayed(task: Trial) -> tuple[Trial, Result]:
    split, begun_s = _SPLITS[task.load, task.seed], process_time()
    policy = RULES.get(task.policy)
    if policy is None:
        windows = busy_windows(split.trained, _WINDOW_HOURS, _WINDOWS)
        policy = TRAINED[task.policy](windows, task.seed)
    trained_s = process_time() - begun_s if task.policy in TRAINED else 0.0
    load = with_whole_days(split.counted) if task.variant == "blunt" else split.counted
    window_s = _FAR_S if task.variant == "far" else Scheduling.backfill_window_s
    record = replay(load, policy, by_shares=task.policy == FAIR_SHARE, window_s=window_s)
    return task, {
        "load": task.load,
        "seed": task.seed,
        "policy": task.policy,
        "pool_gpus": sum(load.gpus.values()),
        "trained_s": round(trained_s, 1),
        "weights": policy.weights if isinstance(policy, linear.LinearPolicy) else None,
        "figures": asdict(figures_of(record, split.count_from_s)),
    }


def with_whole_days(load: Load) -> Load:
    """The same load with blunt time limits: each job asks for the next whole number of days."""
    jobs = (replace(job, time_limit_s=_DAY_S * ceil(job.run_s / _DAY_S)) for job in load.jobs)
    return replace(load, jobs=tuple(jobs))


_KINDS = {
    "means": "",
    "blunt": ", limits in whole days",
    "far": ", backfill plans as far ahead as jobs may run",
}
_HOURS = ("wait", "p99", "worst tenant", "longest", "8 GPUs and more", "their longest")
_KEYS = ("wait_s", "p99_s", "worst_s", "longest_s", "large_s", "large_longest_s")


def show(report: Mapping[str, Any]) -> None:
    """Print the policies side by side for each load, and which one follows."""
    console = Console()
    for kind, words in _KINDS.items():
        for load, policies in report[kind].items():
            title = f"{load}, {report['pools'][load]} GPUs{words}"
            table = Table(title=title, box=None, header_style="bold", title_justify="left")
            for column in ("policy", "slowdown", "seeds", *_HOURS, "Jain", "training, min"):
                table.add_column(column, justify="left" if column == "policy" else "right")
            for name, figures in policies.items():
                table.add_row(name, *_cells(report, kind, load, name, figures))
            console.print(table)
    for key, name in report["chosen"].items():
        ratio = report["beside_best"][key][SLICEWISE]
        console.print(
            f"By {key} the simplest within 2 % of the best is {name}; Slicewise's formula has "
            f"{ratio:.2f} times the least"
        )


def _cells(
    report: Mapping[str, Any], kind: str, load: str, name: str, figures: Mapping[str, float]
) -> Sequence[str]:
    mine = [one for one in report["results"] if (one["load"], one["policy"]) == (load, name)]
    slowdowns = [one["figures"]["slowdown"] for one in mine]
    trained = f"{sum(one['trained_s'] for one in mine) / len(mine) / 60:.1f}"
    is_mean = kind == "means"
    return (
        f"{figures['slowdown']:.2f}",
        f"{min(slowdowns):.2f} to {max(slowdowns):.2f}" if is_mean else "",
        *(f"{figures[key] / 3600:.2f} h" for key in _KEYS),
        f"{figures['jain']:.3f}",
        trained if is_mean else "",
    )


if __name__ == "__main__":
    reporting.run("priorities", __doc__, "three days of each load, one seed", measure, show)
