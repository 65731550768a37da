"""Decides in which order tests run, which in one worker, and which while no other test runs.

Tests that mostly wait come first: those on the sandbox, then those that start processes. Tests that
measure seconds lie in folders named ``alone``. They come last, all in one worker, and each of them
waits until the other workers have ended their tests.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

_ALONE = "alone"
_WITH_PROCESSES = "process"


class Schedule(LoadScopeScheduling):
    """A worker takes a whole module at a time: its tests share what they prepare."""

    def _split_scope(self, nodeid: str) -> str:
        return _ALONE if _is_alone(nodeid) else nodeid.partition("::")[0]


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The longest waits first, as they leave others the processors; last what runs alone."""

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        folders = _folders(item.nodeid)
        return _ALONE in folders, not _on_sandbox(item), _WITH_PROCESSES not in folders

    return sorted(items, key=place)


def needs_no_sandbox(following: pytest.Item | None, items: Sequence[pytest.Item]) -> bool:
    """Whether what this worker runs next, of all items in order, and later needs none any more."""
    return following is not None and not _on_sandbox(following) and not _on_sandbox(items[-1])


@contextmanager
def turn(item: pytest.Item, lock_file: Path) -> Iterator[None]:
    """Let a test run beside others or, if it must be alone, wait until no other runs."""
    with lock_file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if _is_alone(item.nodeid) else fcntl.LOCK_SH)
        yield


def _is_alone(nodeid: str) -> bool:
    return _ALONE in _folders(nodeid)


def _folders(nodeid: str) -> tuple[str, ...]:
    return PurePosixPath(nodeid.partition("::")[0]).parts


def _on_sandbox(item: pytest.Item) -> bool:
    return item.get_closest_marker("integration") is not None
