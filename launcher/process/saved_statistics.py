"""What is known of services' statistics, as text: what is saved of it, and how much at most."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from slicewise.launcher.rules.engines.statistics import Counts

Run = tuple[int, int, int]
"""A run of a replica: its array job id, slot index, and when it began."""

_MOST_SAVED_BYTES = 1024 * 1024
"""Bytes that are saved of a service at most."""
_MOST_SAVED_IN_ALL_BYTES = 16 * 1024 * 1024
_BESIDE_BYTES = 4
"""Bytes that JSON has beside each word of a key, and beside its count."""


@dataclass(frozen=True)
class SavedService:
    """What is known of a service, as it is saved: counts are pairs of a key and a number."""

    ended: list[tuple[tuple[str, ...], int]]
    runs: list[tuple[Run, list[tuple[tuple[str, ...], int]]]]


@dataclass(frozen=True)
class SavedStatistics:
    """What is to be saved.

    Attributes:
        left_out: services of which not all is saved: there is too much of it.
    """

    text: str
    left_out: tuple[str, ...]


_SAVED = TypeAdapter(dict[str, SavedService])
_SAVED_ONE = TypeAdapter(SavedService)


def read(saved: str) -> dict[str, SavedService] | None:
    """Read what was saved, by service; None if it can't be read."""
    try:
        return _SAVED.validate_json(saved)
    except ValidationError:
        return None


def one_text(saved: SavedService) -> str:
    """Return what was read of a service as text again."""
    return _SAVED_ONE.dump_json(saved).decode()


def service_text(ended: Counts, runs: Mapping[Run, Counts]) -> tuple[str, bool]:
    """Write what is known of a service, and say whether that is all: a tenant chooses how much."""
    left = _MOST_SAVED_BYTES - _bytes_of(ended)
    kept = SavedService(list(ended.items()) if left >= 0 else [], [])
    for run, counts in runs.items():
        size = _bytes_of(counts)
        if size <= left:
            left -= size
            kept.runs.append((run, list(counts.items())))
    is_all = len(kept.runs) == len(runs) and len(kept.ended) == len(ended)
    return one_text(kept), is_all


def all_text(texts: Iterable[Mapping[str, str]], left_out: Iterable[str]) -> SavedStatistics:
    """Join the texts of services, a mapping for each tenant; ``left_out`` are not whole.

    If all is too much, the tenants with least come first.
    """
    parts: list[str] = []
    lacking, left = set(left_out), _MOST_SAVED_IN_ALL_BYTES
    for of_tenant in sorted(texts, key=lambda counts: sum(map(len, counts.values()))):
        for key, text in of_tenant.items():
            if len(text) <= left:
                left -= len(text)
                parts.append(f"{json.dumps(key)}:{text}")
            else:
                lacking.add(key)
    return SavedStatistics("{" + ",".join(parts) + "}", tuple(sorted(lacking)))


def _bytes_of(counts: Counts) -> int:
    """Return about how many bytes counts take in JSON."""
    return sum(
        sum(len(word.encode()) + _BESIDE_BYTES for word in key) + len(str(count)) + _BESIDE_BYTES
        for key, count in counts.items()
    )
