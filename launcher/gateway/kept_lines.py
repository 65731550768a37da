"""Reads the lines that HAProxy keeps of requests that have ended, in a file in memory.

HAProxy's ring ends with HAProxy, and nobody reads it while the launcher is away: what the file has
outlives both.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MOST_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of the file, after which HAProxy keeps no more: of 1,000 requests a second four minutes. It
lies in memory where ``/run`` does."""
_AT_ONCE_BYTES = 256 * 1024
"""Bytes that are read at once: a turn waits for as long as their lines take, some 20 ms."""
_LET_GO_BYTES = 1024 * 1024
"""Bytes after which the file is moved away, to be removed once it is written down."""
_WRITTEN_S = 5.0
"""Seconds after which no thread of HAProxy writes into a file that was moved: each opens it anew in
each second."""


class _File:
    """One file, read from its beginning on."""

    def __init__(self, path: Path) -> None:
        # Whatever has its name: of a pipe the launcher would wait for a writer.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        self.begun_s = time.monotonic()
        self.read_bytes = 0
        self._rest = b""

    def news(self) -> bytes:
        """Return what comes next, of which nothing counts as read yet."""
        return os.pread(self._descriptor, _AT_ONCE_BYTES, self.read_bytes)

    def took(self, news: bytes) -> list[str]:
        """Return the whole lines that end in it."""
        self.read_bytes += len(news)
        *lines, self._rest = (self._rest + news).split(b"\n")
        # Blank ones are between lines, so that what is left of a torn one spoils no other.
        return [line.decode("utf-8", "replace") for line in lines if line]

    def is_at(self, path: Path) -> bool:
        """Whether it is still there: others may have moved or removed it."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._descriptor), path.lstat())
        return False

    def close(self) -> None:
        os.close(self._descriptor)


class KeptLines:
    """The file into which HAProxy writes, and the one that was moved away before.

    Methods raise OSError.

    Attributes:
        is_behind: whether there was more to read than was read at once.
    """

    def __init__(self, path: Path) -> None:
        """Create its directory: what requests used is for HAProxy and launcher alone."""
        path.parent.mkdir(exist_ok=True)
        with suppress(PermissionError):
            # Where the group of the sockets' directory is HAProxy's, so is this one's.
            path.parent.chmod(0o770)
        self._path, self._moved_path = path, path.with_suffix(".moved")
        self._newest: _File | None = None
        self._moved = _opened(self._moved_path)
        self._whole_s: float | None = None
        self.is_behind = False

    def news(self) -> Sequence[str]:
        """Return the lines that have come since the last call, those of a thread in their order."""
        self._newest = self._newest or _opened(self._path)
        # In this order: what a thread wrote into the moved file came before what the new one has.
        newest = self._newest.news() if self._newest is not None else b""
        if self._newest is not None and not newest and not self._newest.is_at(self._path):
            self._newest.close()
            self._newest = None
        moved = self._moved.news() if self._moved is not None else b""
        self.is_behind = len(moved) == _AT_ONCE_BYTES
        lines = self._moved.took(moved) if self._moved is not None else []
        if self.is_behind:
            return lines
        self._note_whole(moved)
        self.is_behind = len(newest) == _AT_ONCE_BYTES
        return [*lines, *(self._newest.took(newest) if self._newest is not None else ())]

    def _note_whole(self, moved: bytes) -> None:
        if self._moved is not None and self._whole_s is None and not moved:
            now_s = time.monotonic()
            self._whole_s = now_s if now_s - self._moved.begun_s > _WRITTEN_S else None

    def let_go(self, before_s: float) -> None:
        """Remove what is written down: all that was read before, by the monotonic clock."""
        if self._moved is not None:
            if self._whole_s is not None and self._whole_s < before_s:
                self._moved_path.unlink(missing_ok=True)
                self._moved.close()
                self._moved = self._whole_s = None
        elif (
            self._newest is not None
            and self._newest.read_bytes > _LET_GO_BYTES
            and self._newest.is_at(self._path)
        ):
            self._path.rename(self._moved_path)
            self._moved, self._newest = self._newest, None
            self._moved.begun_s = time.monotonic()

    def close(self) -> None:
        """Stop reading; what was not let go is read by whoever comes next."""
        for file in (self._newest, self._moved):
            if file is not None:
                file.close()
        self._newest = self._moved = None


def _opened(path: Path) -> _File | None:
    with suppress(FileNotFoundError):
        return _File(path)
    return None
