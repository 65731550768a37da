"""Requests for MIG instances, derived from a pod list in openb's format (Alibaba's GPU trace 2023).

A pod that asks for one GPU or a part of one becomes a request for the smallest plain profile with
at least that share of the compute slices. Pods for several GPUs, and for none, are left out. A
request holds its instance as long as its pod was there, at most a week: no partition allows more.
"""

import csv
import lzma
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile, board, cost_millislices

_WEEK_S = 7 * 86_400
_GPU_MILLI = 1000
_COLUMNS = {"num_gpu", "gpu_milli", "creation_time", "deletion_time"}


class PodListError(Exception):
    """A pod list is not there, or not in openb's format."""


@dataclass(frozen=True)
class Request:
    """A request for one instance, from ``at_s`` on for ``held_s`` seconds."""

    at_s: float
    profile: str
    held_s: float


def plain_board() -> Board:
    """An A100 without the profiles that add media engines: no request here asks for those."""
    found = board("A100-80GB")
    return replace(found, profiles={n: p for n, p in found.profiles.items() if "+" not in n})


BOARD = plain_board()
SLICES = {name: int(cost_millislices(BOARD, name, Fraction(1))) / 1000 for name in BOARD.profiles}
"""The cost of an instance of each profile, in slices."""


def read(path: Path) -> Sequence[Request]:
    """Read a pod list: one request a pod, all from second 0 on.

    Raises:
        PodListError: there is no such file, or it is no pod list.
    """
    if not path.exists():
        raise PodListError(f"The pod list {path} is not there. Say where one lies: --pods FILE.")
    packed = path.suffix == ".xz"
    with lzma.open(path, "rt") if packed else path.open(encoding="utf-8") as text:
        rows = csv.DictReader(text)
        if not set(rows.fieldnames or ()) >= _COLUMNS:
            raise PodListError(f"{path} lacks columns of openb's pod lists: {sorted(_COLUMNS)}.")
        found = [_request(row) for row in rows if row["num_gpu"] == "1"]
    return [one for one in found if one.held_s > 0]


def _request(row: Mapping[str, str]) -> Request:
    held_s = float(row["deletion_time"]) - float(row["creation_time"])
    return Request(0.0, _profile(int(row["gpu_milli"])), min(held_s, _WEEK_S))


def _profile(gpu_milli: int) -> str:
    enough = (p for p in BOARD.profiles.values() if _has(p, gpu_milli))
    return min(enough, key=lambda p: (p.compute_slices, p.memory_slices)).name


def _has(profile: MigProfile, gpu_milli: int) -> bool:
    return profile.compute_slices * _GPU_MILLI >= gpu_milli * BOARD.compute_slices


def mix(pods: Sequence[Request]) -> Mapping[str, float]:
    """The number of requests for each profile."""
    return Counter(pod.profile for pod in pods)


def drawn(
    pods: Sequence[Request], count: int, gpus: int, load: float, chance: random.Random
) -> Sequence[Request]:
    """Draw ``count`` pods with repetition, and let them come as a Poisson stream.

    ``load``: slices asked for at a time ÷ slices that the GPUs have.
    """
    return _spread([chance.choice(pods) for _ in range(count)], gpus, load, chance)


def in_order(
    pods: Sequence[Request], count: int, gpus: int, load: float, chance: random.Random
) -> Sequence[Request]:
    """As ``drawn``, but in the list's order from a random pod on: demand drifts as it did there."""
    first = chance.randrange(len(pods))
    chosen = [pods[(first + number) % len(pods)] for number in range(count)]
    return _spread(chosen, gpus, load, chance)


def _spread(
    chosen: Sequence[Request], gpus: int, load: float, chance: random.Random
) -> Sequence[Request]:
    slice_s = sum(SLICES[pod.profile] * pod.held_s for pod in chosen)
    span_s = slice_s / (BOARD.compute_slices * gpus * load)
    times = sorted(chance.uniform(0, span_s) for _ in chosen)
    return [replace(pod, at_s=at_s) for at_s, pod in zip(times, chosen, strict=True)]
