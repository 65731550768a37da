"""Reads files of histories and traces line by line, within bounds, compressed or not."""

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from cluster.language.codes import Code
from cluster.language.errors import InvalidInputError, SlicewiseError

T = TypeVar("T")

MOST_BYTES = 1 << 32
"""Of a file, uncompressed: some twenty million jobs."""
MOST_JOBS = 10_000_000
LONGEST_LINE = 1 << 16
"""Bytes; a longer line can't be read, and costs no more memory than this."""
_LONGEST_WORDS = 120
_OPENERS: Mapping[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".xz": lzma.open}
_BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
UNREADABLE = (SlicewiseError, ValueError, LookupError, TypeError, OverflowError, RecursionError)
"""Exceptions that a line can raise, whatever it holds."""

Line = tuple[int, str]
"""Its number, from 1 on, and its text without the line break."""


@dataclass
class UnreadLines:
    """Counts the lines of one file that could not be read, and keeps the first of them.

    Attributes:
        file: the file's name, for messages.
        first: where the first one stands and why it can't be read; "" if all could be read.
    """

    file: str
    count: int = 0
    first: str = field(default="")

    def add(self, number: int, why: object) -> None:
        """Count line ``number``."""
        self.count += 1
        if not self.first:
            self.first = f"{self.file}, line {number}: {_words(why)}"

    def error(self, number: int, why: object) -> InvalidInputError:
        """The error for a file that can't be used because of this line."""
        return unusable(f"{self.file}, line {number}: {_words(why)}.")

    def nothing(self, number: int, why: str) -> InvalidInputError:
        """The error for a file of which nothing could be read: the first line's, or else this."""
        return unusable(f"{self.first}.") if self.first else self.error(number, why)


def unusable(message: str) -> InvalidInputError:
    """The error for a file that is no history that could be read."""
    return InvalidInputError(
        Code.INPUT_FILE,
        message,
        "docs/reference/history-files.md has the formats and how such files are made.",
    )


def _words(why: object) -> str:
    if isinstance(why, KeyError):
        return f"no column {why}"
    said = why.refusal.message if isinstance(why, SlicewiseError) else str(why)
    return ascii(said[:_LONGEST_WORDS])[1:-1].replace("\\'", "'").rstrip(".")


def read_each(
    lines: Iterable[Line], read: Callable[[Line], T | None], unread: UnreadLines
) -> Iterator[T]:
    """What ``read`` makes of each line; None is nothing. A line that raises is counted.

    Raises InvalidInputError (SW-INPUT-FILE) for more than ``MOST_JOBS``.
    """
    left = MOST_JOBS
    for line in lines:
        try:
            found = read(line)
        except UNREADABLE as error:
            unread.add(line[0], error)
        else:
            if found is None:
                continue
            if not left:
                raise unread.error(line[0], f"more than {MOST_JOBS} jobs or runs")
            left -= 1
            yield found


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for its bytes, uncompressed where its name ends with .gz or .xz.

    Raises:
        InvalidInputError: it is not there or can't be read, now or within the block
            (SW-INPUT-FILE).
    """
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield file
    except _BROKEN as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise unusable(f"{path} can't be read: {why}.") from None


def lines_of(file: BinaryIO, unread: UnreadLines) -> Iterator[Line]:
    """Lines that are not empty; bytes that are no UTF-8 are replaced, longer lines counted.

    Raises InvalidInputError (SW-INPUT-FILE) after ``MOST_BYTES``.
    """
    number, left = 0, MOST_BYTES
    while part := file.readline(LONGEST_LINE + 1):
        number += 1
        left -= len(part)
        if len(part) > LONGEST_LINE and not part.endswith(b"\n"):
            unread.add(number, f"longer than {LONGEST_LINE} bytes")
            while part and not part.endswith(b"\n") and left >= 0:
                part = file.readline(LONGEST_LINE)
                left -= len(part)
        elif text := part.decode(errors="replace").rstrip("\r\n"):
            yield number, text
        if left < 0:
            raise unread.error(number, f"more than {MOST_BYTES} bytes, uncompressed")
