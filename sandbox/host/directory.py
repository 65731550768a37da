"""The sandbox's directory: chooses it, checks that it can be used, and locks it and its slot."""

import errno
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.sandbox.host import users
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.probes import port_is_free

DIRECTORY_VARIABLE = "SLICEWISE_SANDBOX_DIR"
MARKER = ".slicewise-sandbox"
SLOTS = 250
ROOM_MB = 500
"""Megabytes that a sandbox takes at most: less if Triton can be linked instead of copied."""
_SOCKET_PATH_BYTES = 107
_SAFE = re.compile(r"^/[A-Za-z0-9._/+@-]+$")
_OTHERS_SEARCH = 0o001
_NOT_STORED = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
)


def default_directory() -> Path:
    """$SLICEWISE_SANDBOX_DIR, else one in /tmp per user."""
    given = os.environ.get(DIRECTORY_VARIABLE)
    return Path(given) if given else Path(f"/tmp/slicewise-sandbox-{os.getuid()}")  # noqa: S108


def checked(directory: Path) -> Path:
    """Resolve the directory; InvalidInputError (SW-OUTPUT) if it can't be used."""
    path = Path(os.path.realpath(directory))
    with _refusing(path, lambda _error: True):
        _check(path)
    return path


def _check(path: Path) -> None:
    if not _SAFE.match(str(path)):
        raise _refused(f"{path} has characters that Slurm's configuration files can't quote.")
    longest = Layout(path, SLOTS).longest_socket
    if len(bytes(longest)) > _SOCKET_PATH_BYTES:
        raise _refused(f"{path} is too long: a unix socket's path is at most 107 bytes.")
    closed = closed_parent(path)
    if os.geteuid() == 0 and closed is not None:
        raise _refused(f"Other users can't go through {closed}, so jobs could not reach {path}.")
    if path.exists() and not is_ours(path):
        raise _refused(f"{path} exists and is not a sandbox of this user.")


@contextmanager
def _refusing(path: Path, meant: Callable[[OSError], bool]) -> Iterator[None]:
    """Turn an OSError that ``meant`` accepts into InvalidInputError (SW-OUTPUT)."""
    try:
        yield
    except OSError as error:
        if not meant(error):
            raise
        raise _refused(f"{path} can't be used: {_reason(error)}.") from None


def _reason(error: OSError) -> str:
    """The error in words; shutil.Error, of a tree of files, has a list of (from, to, reason)."""
    return str(error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror)


def storable(path: Path) -> AbstractContextManager[None]:
    """Raise InvalidInputError (SW-OUTPUT) if the file system is full or read-only."""
    return _refusing(
        path, lambda error: isinstance(error, shutil.Error) or error.errno in _NOT_STORED
    )


def require_room(path: Path) -> None:
    """Raise InvalidInputError (SW-OUTPUT) if its disk has no room for a sandbox."""
    free_mb = shutil.disk_usage(path).free // 1_000_000
    if free_mb < ROOM_MB:
        raise _refused(f"{path} has {free_mb} MB of room; a sandbox takes up to {ROOM_MB} MB.")


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(
        Code.OUTPUT,
        message,
        "Choose another with --dir, short, writable, reachable by everybody, "
        f"with {ROOM_MB} MB of room, such as /tmp/slicewise.",
    )


def closed_parent(path: Path) -> Path | None:
    """The first existing parent that other users can't search; None if they can search all."""
    parents = (parent for parent in reversed(path.parents) if parent.exists())
    return next((p for p in parents if not p.stat().st_mode & _OTHERS_SEARCH), None)


def is_ours(path: Path) -> bool:
    """Whether it is a directory of this user that is empty or has the sandbox's marker."""
    if not path.is_dir() or path.stat().st_uid != os.geteuid():
        return False
    return (path / MARKER).is_file() or not any(path.iterdir())


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Lock out other ``up`` and ``down``; SlicewiseError (SW-BUSY) if one is at work."""
    with _refusing(path, lambda _error: True):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.chmod(0o755)
        opened = (path / MARKER).open("w", encoding="utf-8")
    with opened as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlicewiseError(
                Code.BUSY,
                f"Another command is starting or stopping the sandbox in {path}.",
                "Wait for it to end.",
            ) from None
        yield


def empty(path: Path) -> None:
    """Remove everything in the directory but the marker."""
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARKER:
            entry.unlink()


@contextmanager
def chosen_slot(path: Path) -> Iterator[int]:
    """Yield a slot with unused addresses, ports and user ids; tried from the path's hash on.

    Until the body ends, no other sandbox can take the slot, although no server listens there yet.
    Raises SlicewiseError (SW-SANDBOX-STATE) if no slot is free.
    """
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    first = int.from_bytes(hashlib.sha256(bytes(path)).digest()[:4], "big")
    for slot in ((first + i) % SLOTS + 1 for i in range(SLOTS)):
        with held_slot(slot) as is_held:
            is_free = is_held and taken.isdisjoint(users.own_uids(slot))
            if is_free and _ports_are_free(Layout(path, slot)):
                yield slot
                return
    raise SlicewiseError(
        Code.SANDBOX_STATE,
        "No free ports and user ids for another sandbox.",
        "Stop one: slicewise sandbox down --dir DIRECTORY",
    )


@contextmanager
def held_slot(slot: int) -> Iterator[bool]:
    """Lock a slot while the body runs; yield False if another sandbox starts or stops in it."""
    with socket.socket(socket.AF_UNIX) as holder:
        try:
            # An abstract socket's name is freed when this process ends, however it ends.
            holder.bind(f"\0slicewise-sandbox-slot-{slot}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield False
            return
        yield True


def _ports_are_free(layout: Layout) -> bool:
    servers = (layout.port(name) for name in ("slurmctld", "slurmdbd", "gateway", "daemon"))
    nodes: Collection[str] = layout.node_addresses.values()
    return (
        all(port_is_free(layout.head_address, port) for port in servers)
        and all(port_is_free(address, layout.port("slurmd")) for address in nodes)
        and all(port_is_free(next(iter(nodes)), port) for port in layout.reserved_ports)
    )
