"""Lets one demo run in a directory at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError

_LONGEST_PID = 10


@contextmanager
def only_demo(directory: Path) -> Iterator[None]:
    """Keep other demos out of this directory while the body runs, whichever way it ends.

    The lock is a file beside the directory, as the cluster's end empties the directory. Raises
    SlicewiseError: SW-BUSY names the process that runs a demo there, SW-OUTPUT if the file can't be
    opened.
    """
    path = f"{os.path.realpath(directory)}.lock"
    try:
        # Anybody can write into /tmp: no link of theirs is followed.
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SlicewiseError(
            Code.OUTPUT, f"{path} can't be opened: {error.strerror}.", "Choose another --dir."
        ) from None
    with os.fdopen(opened, "r+", encoding="ascii", errors="replace") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = lock.read(_LONGEST_PID).strip()
            raise SlicewiseError(
                Code.BUSY,
                f"A demo runs in {directory} already{f' (process {pid})' if pid else ''}.",
                "Wait for it to end or end it with Ctrl-C, or choose another --dir.",
            ) from None
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield
