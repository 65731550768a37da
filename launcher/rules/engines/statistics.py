"""What models have counted in one replica or in several, and how counts of several are one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

Counts = Mapping[tuple[str, ...], int]
"""Counts by what was counted; the engine says what the words of a key are."""

MOST = 2**64 - 1
"""The largest count that clients can read; what would be more stays there."""
MOST_KEYS = 5_000
"""Keys of a replica, and of a service, at most: its tenant controls what its replicas say, one
after another. A model has some 40; the first ones stay."""


class Kind(Protocol):
    """What becomes of the counts of one key in several replicas."""

    def is_of(self, key: tuple[str, ...], model: str) -> bool:
        """Whether it is a count of that model."""

    def is_latest(self, key: tuple[str, ...]) -> bool:
        """Whether the largest of them counts, as of times; others are added up."""

    def is_current(self, key: tuple[str, ...]) -> bool:
        """Whether it ends with its replica, as memory in use does."""


class Answered(NamedTuple):
    """How many inferences a model has answered and failed since it was loaded."""

    succeeded: int = 0
    failed: int = 0

    def only_fails_since(self, before: "Answered") -> bool:
        """Whether it has failed some since then, and answered none.

        Whoever sends what a model must refuse is refused; a model whose process has ended answers
        nobody. One that was loaded again since then counts from 0.
        """
        is_same = self.succeeded >= before.succeeded and self.failed >= before.failed
        start = before if is_same else Answered()
        return self.failed > start.failed and self.succeeded == start.succeeded


@dataclass(frozen=True)
class StatisticsAnswer:
    """The answer to a client that asks for statistics.

    Attributes:
        status: HTTP's, or gRPC's.
        body: what HTTP or the message of gRPC carries.
        said: why gRPC's status is not 0.
    """

    status: int
    body: bytes
    said: str = ""


def together(parts: Iterable[Counts], kind: Kind) -> Counts:
    """Add up the counts of replicas."""
    total: dict[tuple[str, ...], int] = {}
    for counts in parts:
        for key, count in counts.items():
            if key not in total and len(total) >= MOST_KEYS:
                continue
            before = total.get(key, 0)
            more = max(before, count) if kind.is_latest(key) else before + count
            total[key] = min(more, MOST)
    return total


def followed(before: Counts, now: Counts, kind: Kind) -> Counts:
    """Return what a replica has counted by now; no count becomes less.

    Where there are too many keys, those known before stay.
    """
    kept = {key: max(count, now.get(key, 0)) for key, count in lasting(before, kind).items()}
    new = ((key, count) for key, count in now.items() if key not in kept)
    return {**kept, **dict(islice(new, max(0, MOST_KEYS - len(kept))))}


def bounded(counts: Iterable[tuple[tuple[str, ...], int]]) -> Counts:
    """Return the first counts, as many as there may be."""
    return dict(islice(counts, MOST_KEYS))


def lasting(counts: Counts, kind: Kind) -> Counts:
    """Return what is still true of a replica that has ended."""
    return {key: count for key, count in counts.items() if not kind.is_current(key)}
