"""The sandbox's directory: which one, whether it may be ours, who is at work in it."""

import fcntl
import hashlib
import os
import pwd
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import InvalidInputError, SlicewiseError
from sandbox import users
from sandbox.layout import Layout
from sandbox.probes import port_is_free

DIRECTORY_VARIABLE = "SLICEWISE_SANDBOX_DIR"
MARKER = ".slicewise-sandbox"
SLOTS = 250
_SOCKET_PATH_BYTES = 107
_SAFE = re.compile(r"^/[A-Za-z0-9._/+@-]+$")
_OTHERS_SEARCH = 0o001


def default_directory() -> Path:
    """$SLICEWISE_SANDBOX_DIR, else one in /tmp per user."""
    given = os.environ.get(DIRECTORY_VARIABLE)
    return Path(given) if given else Path(f"/tmp/slicewise-sandbox-{os.getuid()}")  # noqa: S108


def checked(directory: Path) -> Path:
    """The directory, resolved; InvalidInputError (SW-SANDBOX-DIRECTORY) if it can't be used."""
    path = Path(os.path.realpath(directory))
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
    return path


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(
        "SW-SANDBOX-DIRECTORY",
        message,
        "Choose another with --dir, short and reachable by everybody, such as /tmp/slicewise.",
    )


def closed_parent(path: Path) -> Path | None:
    """The first existing parent directory that other users can't search; None if they can all."""
    parents = (parent for parent in reversed(path.parents) if parent.exists())
    return next((p for p in parents if not p.stat().st_mode & _OTHERS_SEARCH), None)


def is_ours(path: Path) -> bool:
    """Whether it is a directory of this user's with the sandbox's marker, or an empty one."""
    if not path.is_dir() or path.stat().st_uid != os.geteuid():
        return False
    return (path / MARKER).is_file() or not any(path.iterdir())


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep other ``up`` and ``down`` out; SlicewiseError (SW-SANDBOX-BUSY) if one is there."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.chmod(0o755)
    with (path / MARKER).open("w", encoding="utf-8") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlicewiseError(
                "SW-SANDBOX-BUSY",
                f"Another command is starting or stopping the sandbox in {path}.",
                "Wait for it to end.",
            ) from None
        yield


def empty(path: Path) -> None:
    """Remove everything in it but the marker."""
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARKER:
            entry.unlink()


def choose_slot(path: Path) -> int:
    """A slot whose addresses, ports and user ids nobody uses; tried from the path's hash on."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    first = int.from_bytes(hashlib.sha256(bytes(path)).digest()[:4], "big")
    for slot in ((first + i) % SLOTS + 1 for i in range(SLOTS)):
        if taken.isdisjoint(users.own_uids(slot)) and _ports_are_free(Layout(path, slot)):
            return slot
    raise SlicewiseError(
        "SW-SANDBOX-PORTS",
        "No free ports and user ids for another sandbox.",
        "Stop one: slicewise sandbox down --dir DIRECTORY",
    )


def _ports_are_free(layout: Layout) -> bool:
    servers = (layout.port(name) for name in ("slurmctld", "slurmdbd", "gateway"))
    nodes: Collection[str] = layout.node_addresses.values()
    return (
        all(port_is_free(layout.head_address, port) for port in servers)
        and all(port_is_free(address, layout.port("slurmd")) for address in nodes)
        and all(port_is_free(next(iter(nodes)), port) for port in layout.reserved_ports)
    )
