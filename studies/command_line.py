"""What the studies' commands share: the traces' folders, options, work side by side, the report."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks.reporting import REPORTS

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def traces_folder() -> Path:
    """The folder of requests and of pods: SLICEWISE_TRACES, or ``traces``."""
    return Path(os.environ.get("SLICEWISE_TRACES", "traces"))


def cluster_traces_folder() -> Path:
    """The folder of clusters' jobs: SLICEWISE_CLUSTER_TRACES, or ``cluster-traces``."""
    return Path(os.environ.get("SLICEWISE_CLUSTER_TRACES", "cluster-traces"))


def parser(name: str, about: str | None, seed: int) -> argparse.ArgumentParser:
    """Options of a study of traces: their folder, the seed, the report's path."""
    found = argparse.ArgumentParser(description=about)
    found.add_argument("--traces", type=Path, default=traces_folder(), help="where they lie")
    found.add_argument("--seed", type=int, default=seed)
    found.add_argument("--report", type=Path, default=REPORTS / f"{name}.json")
    return found


def save(report: Mapping[str, Any], path: Path) -> None:
    """Write the report, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def side_by_side(
    work: Callable[[_Item], _Result], items: Sequence[_Item], words: str
) -> list[_Result]:
    """Apply ``work`` to each item in turn, one process for each processor; in the items' order."""
    progress = Console(stderr=True)
    with get_context("fork").Pool(os.cpu_count()) as pool:
        results = pool.imap(work, items)
        if progress.is_terminal:
            return [*track(results, words, len(items), console=progress)]
        found = []
        for result in results:
            found.append(result)
            progress.print(f"{words}: {len(found)} of {len(items)}")
        return found
