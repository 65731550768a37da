"""Faults of network and disk, made at the kernel: for one process, for one directory.

They want root with CAP_SYS_PTRACE and CAP_SYS_ADMIN, as in a container that is privileged. Without
them a test fails, so that none is left out silently.
"""

import ctypes
import errno
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

_PIDFD_GETFD = 438
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_LIBC = ctypes.CDLL(None, use_errno=True)
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""One instruction of a classic BPF program: return 0 bytes of the packet."""


@contextmanager
def deaf(pid: int) -> Iterator[None]:
    """No packet reaches the process at the TCP ports on which it listens, nor by a connection that
    it has there; what it sends goes out: a partition in one direction.

    The kernel drops the packets at the process's sockets, connections that are new meanwhile
    included, so neither addresses nor routes of the machine are touched.
    """
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(_DROP_ALL))
    assert _filter(pid, _SO_ATTACH_FILTER, program)
    try:
        yield
    finally:
        _filter(pid, _SO_DETACH_FILTER, struct.pack("i", 0))


def _filter(pid: int, option: int, value: bytes) -> int:
    """Set it at each of the process's TCP sockets; return how many it has."""
    try:
        sockets = list(_tcp_sockets(pid))
    except PermissionError:
        _fail("pidfd_getfd: this user may not reach into sockets of jobs (CAP_SYS_PTRACE)")
    for one in sockets:
        with one, suppress(FileNotFoundError):  # detached already
            one.setsockopt(socket.SOL_SOCKET, option, value)
    return len(sockets)


def _tcp_sockets(pid: int) -> Iterator[socket.socket]:
    """Copies of another process's sockets."""
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            # It may have been closed meanwhile.
            with suppress(FileNotFoundError):
                if str(entry.readlink()).startswith("socket:"):
                    copy = socket.socket(fileno=_copied(process, int(entry.name)))
                    if (copy.family, copy.type) == (socket.AF_INET, socket.SOCK_STREAM):
                        yield copy
                    else:
                        copy.close()
    finally:
        os.close(process)


def _copied(process: int, descriptor: int) -> int:
    copy = int(_LIBC.syscall(_PIDFD_GETFD, process, descriptor, 0))
    if copy < 0:
        number = ctypes.get_errno()
        raise (FileNotFoundError if number == errno.EBADF else OSError)(number, "pidfd_getfd")
    return copy


class SmallDisk:
    """A file system of a few MiB in a directory's place, with a copy of what is there."""

    def __init__(self, directory: Path, mib: int) -> None:
        self._directory = directory
        self._filler = directory / "filler"
        copy = directory.with_name(f"{directory.name}.copy")
        _as_root("cp", "-a", str(directory), str(copy))
        done = _as_root("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(directory))
        if done.returncode:
            shutil.rmtree(copy)
            _fail(f"{done.stderr.strip()} (CAP_SYS_ADMIN)")
        assert _as_root("cp", "-a", f"{copy}/.", str(directory)).returncode == 0
        _as_root("chown", f"--reference={copy}", str(directory))
        _as_root("chmod", f"--reference={copy}", str(directory))
        shutil.rmtree(copy)

    def fill(self) -> None:
        """Leave not a byte."""
        with suppress(OSError), self._filler.open("ab", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Leave what there was before ``fill``."""
        self._filler.unlink(missing_ok=True)

    def end(self) -> None:
        """Copy what is there back to the directory below."""
        self.free()
        above = self._directory.with_name(f"{self._directory.name}.above")
        _as_root("cp", "-a", str(self._directory), str(above))
        _as_root("umount", "--lazy", str(self._directory))
        _as_root("cp", "-a", f"{above}/.", str(self._directory))
        shutil.rmtree(above)


def _fail(why: str) -> NoReturn:
    pytest.fail(f"{why}: run the tests as root, in a privileged container or outside of one.")


def _as_root(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, capture_output=True, text=True, check=False)
