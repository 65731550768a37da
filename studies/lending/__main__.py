"""Asks how well idle quota is lent: needless evictions, what starts on it, waits beside alone."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from studies import command_line
from studies.autoscale.traces import TraceError, opened
from studies.command_line import save, side_by_side
from studies.lending import anomaly, evictions, queues, whole
from studies.lending.tenants import FILES
from studies.lending.wants import Terms

_WORLDS, _QUEUES = 300, 500
_WORLDS_WORDS = {"shared": "shared", "with_backlog": "backlog"}


def main() -> None:
    """Write build/reports/lending.json, and show its tables."""
    options = _options()
    console = Console()
    for file in FILES.values():
        try:
            with opened(options.traces / file):
                pass
        except TraceError as error:
            sys.exit(str(error))
    report = _report(options)
    save(report, options.report)
    show(report, console)
    console.print(str(options.report))


def _options() -> argparse.Namespace:
    parser = command_line.parser("lending", __doc__, 1)
    parser.add_argument("--worlds", type=int, default=_WORLDS, help="of each mix")
    parser.add_argument("--queues", type=int, default=_QUEUES, help="worlds of each profile")
    return parser.parse_args()


def _report(options: argparse.Namespace) -> Mapping[str, Any]:
    """Compute everything."""
    worlds = _evictions(options)
    lent = whole.report(_whole_jobs(options))
    replays = _replays(options)
    found = evictions.report(worlds)
    return {
        "evicted_over_needed": {
            name: one["mean"] for name, one in found["replicas"]["policies"].items()
        },
        "anomaly_max_s": max(
            world["anomaly_max_s"] for one in replays.values() for world in one["worlds"].values()
        ),
        "whole_jobs": {
            **{kind: one["whole_jobs"]["share"] for kind, one in lent.items()},
            "none_started": max(one["whole_jobs"]["none_started"] for one in lent.values()),
        },
        "lent": lent,
        "queues": queues.report(side_by_side(queues.started, _seeds(options), "Beside own jobs")),
        "evictions": found,
        "replays": replays,
        "seed": options.seed,
        "command": " ".join(("python -m studies.lending", *sys.argv[1:])),
        "machine": machine(),
    }


def _evictions(options: argparse.Namespace) -> Mapping[str, Sequence[evictions.Found]]:
    seeds = range(options.seed * options.worlds, (options.seed + 1) * options.worlds)
    return {
        mix: side_by_side(partial(evictions.found, mix=mix), seeds, f"Worlds: {mix}")
        for mix in evictions.MIXES
    }


def _whole_jobs(options: argparse.Namespace) -> Mapping[str, Sequence[whole.Started]]:
    return {
        kind: side_by_side(partial(whole.started, kind=kind), _seeds(options), f"Queues: {kind}")
        for kind in whole.KINDS
    }


def _seeds(options: argparse.Namespace) -> range:
    return range(options.seed * options.queues, (options.seed + 1) * options.queues)


def _replays(options: argparse.Namespace) -> Mapping[str, Mapping[str, Any]]:
    replay = partial(anomaly.replayed, traces=options.traces, seed=options.seed, terms=Terms())
    found = side_by_side(replay, anomaly.CELLS, "Replaying")
    return {
        f"{cell.trace}, {cell.nominal}": one for cell, one in zip(anomaly.CELLS, found, strict=True)
    }


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the report as tables."""
    for mix, found in report["evictions"].items():
        console.print(_eviction_table(mix, found))
    console.print(_chooser_table(report["evictions"]))
    console.print(_lent_table(report["lent"]))
    console.print(f"Beside own jobs: {report['queues']}")
    console.print(_replay_table(report["replays"]))


def _eviction_table(mix: str, found: Mapping[str, Any]) -> Table:
    columns = ("mean", "p95", "max", "unserved_share")
    title = f"Evicted ÷ needed: {mix}"
    table = Table("policy", *columns, title=title, box=None, header_style="bold")
    for name, one in found["policies"].items():
        table.add_row(name, *(f"{one[column]:.3f}" for column in columns))
    return table


def _chooser_table(mixes: Mapping[str, Any]) -> Table:
    """All evictions, those that Slurm chooses too, by the order in which Slurm takes candidates."""
    columns = ("ratio", "by Slicewise", "by Slurm", "unserved")
    title = "All evictions ÷ needed"
    table = Table("mix", "Slurm's order", *columns, title=title, box=None, header_style="bold")
    for mix, found in mixes.items():
        for order, one in found["all_evictions"].items():
            chosen = (f"{one['by_slicewise']:,}", f"{one['by_slurm']:,}")
            ratio, unserved = f"{one['ratio']:.3f}", f"{one['unserved_share']:.1%}"
            table.add_row(mix, order, ratio, *chosen, unserved)
    return table


def _lent_table(lent: Mapping[str, Any]) -> Table:
    """Shares of the millislices that could start on idle quota, and of worlds where any could."""
    columns = ("share that starts", "worst world", "worlds where nothing does")
    table = Table("profile", "lending", *columns, title="Whole jobs", box=None, header_style="bold")
    for kind, ways in lent.items():
        for way, words in (("whole_jobs", "whole jobs"), ("fluid", "fluid")):
            one = ways[way]
            figures = (one["share"], one["worst"], one["none_started"])
            table.add_row(kind, words, *(f"{figure:.1%}" for figure in figures))
    return table


def _replay_table(replays: Mapping[str, Any]) -> Table:
    """``alone``, ``in use``: share of slice-seconds; ``cut off``: preempted while draining."""
    columns = ("GPUs", "alone", "in use", "anomaly s", "asked", "cut off", "unasked")
    table = Table("replay", *columns, title="Shared or alone", box=None, header_style="bold")
    for name, one in replays.items():
        for world, found in one["worlds"].items():
            table.add_row(
                f"{name}, {_WORLDS_WORDS[world]}",
                str(one["gpus"]),
                f"{one['alone']['utilisation']:.1%}",
                f"{found['utilisation']:.1%}",
                f"{found['anomaly_max_s']:.0f}",
                f"{found['asked']:,}",
                f"{found['cut_off']:,}",
                f"{found['preempted_replicas'] + found['preempted_jobs']:,}",
            )
    return table


if __name__ == "__main__":
    main()
