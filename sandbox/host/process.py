"""Processes, known by pid and start time, so that a signal never reaches another process."""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicewise.sandbox.host.users import User

MARK = "SLICEWISE_SANDBOX"
"""The variable with the sandbox's directory, in the environment of everything that it starts."""

POLL_S = 0.05
_KILLED_WITHIN_S = 5.0
_PROC = Path("/proc")
_HAS_ENDED = frozenset({errno.ESRCH, errno.ENOENT, errno.EINVAL})
"""Errors of pidfd_open for a process that has ended. Its id may be a thread's since: ENOENT, EINVAL
before Linux 6.9."""


@dataclass(frozen=True)
class Process:
    """A program that the sandbox started.

    Attributes:
        name: the program's name, unique in the sandbox.
        user: login name that it runs as.
        pid: its process id.
        start_ticks: field 22 of /proc/PID/stat; with the pid it names a process uniquely.
        since: start, seconds since 1970.
    """

    name: str
    user: str
    pid: int
    start_ticks: int
    since: float


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says of a process that has not ended."""

    parent: int
    start_ticks: int


def parse_stat(text: str) -> Stat | None:
    """Read /proc/PID/stat; None for a process that has ended and only waits to be reaped."""
    fields = text.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        return None
    return Stat(parent=int(fields[1]), start_ticks=int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """The process's state; None if no process has that id."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(process: Process) -> bool:
    """Whether the process runs; another process that got its pid does not count."""
    _reap(process.pid)
    stat = read_stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal exactly that process; nothing happens if it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno not in _HAS_ENDED:
            raise
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def end(processes: Collection[Process], *, patience_s: float) -> None:
    """Send SIGTERM to all, wait for all together, then send SIGKILL to those that are left."""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _KILLED_WITHIN_S)):
        for process in processes:
            send_signal(process, number)
        wait_until(lambda: not any(is_alive(process) for process in processes), wait_s)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds; return False if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def members(
    parents: Mapping[int, int], marked: Iterable[int], spared: Collection[int]
) -> frozenset[int]:
    """The marked processes and their descendants, without the spared ones."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    pids: set[int] = set()
    frontier = [pid for pid in marked if pid not in spared]
    while frontier:
        pid = frontier.pop()
        if pid not in pids:
            pids.add(pid)
            frontier.extend(child for child in children.get(pid, ()) if child not in spared)
    return frozenset(pids)


def leftovers(directory: Path, uids: Collection[int]) -> tuple[Process, ...]:
    """Every process of the sandbox, recorded or not.

    A process belongs to it if its environment names the directory, if it runs under a user id that
    is the sandbox's own, or if it descends from such a process. This process and its ancestors (a
    ``slicewise sandbox shell``) are never among them.
    """
    stats = {pid: stat for pid in _pids() if (stat := read_stat(pid)) is not None}
    parents = {pid: stat.parent for pid, stat in stats.items()}
    marked = [pid for pid in stats if _is_marked(pid, directory, uids)]
    return tuple(
        Process(f"pid {pid}", "", pid, stats[pid].start_ticks, 0.0)
        for pid in sorted(members(parents, marked, _ancestors(parents)))
    )


def _pids() -> Iterable[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _is_marked(pid: int, directory: Path, uids: Collection[int]) -> bool:
    place = _PROC / str(pid)
    try:
        if place.stat().st_uid in uids:
            return True
        variables = (place / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={directory}".encode() in variables


def _ancestors(parents: Mapping[int, int]) -> frozenset[int]:
    pid, pids = os.getpid(), set[int]()
    while pid and pid not in pids:
        pids.add(pid)
        pid = parents.get(pid, 0)
    return frozenset(pids)


def describe(name: str, user: User, pid: int) -> Process:
    """The record of a program that was just started."""
    stat = read_stat(pid)
    return Process(name, user.name, pid, stat.start_ticks if stat else 0, time.time())
