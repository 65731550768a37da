"""Reads files of histories and traces line by line, within bounds, compressed or not."""

import codecs
import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory

T = TypeVar("T")

MOST_BYTES = 1 << 32
"""Of a file, uncompressed: some twenty million jobs."""
MOST_JOBS = 10_000_000
LONGEST_LINE = 1 << 20
"""Bytes; a longer line can't be read, and costs no more memory than this. A request may name each
block of a prompt of a million tokens."""
_LONGEST_WORDS = 120
_OPENERS: Mapping[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""By how a file begins; its name may say nothing."""
_OTHERS: Mapping[bytes, str] = {b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_LONGEST_MARK = 6
_BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
UNREADABLE = (SlicewiseError, ValueError, LookupError, TypeError, OverflowError, RecursionError)
"""Exceptions that a line can raise, whatever it holds."""

TWICE = "they are in the file once more"

Line = tuple[int, str]
"""Its number, from 1 on, and its text without the line break."""


@dataclass
class UnreadLines:
    """Keeps what of one file could not be read, was left out, or had to be assumed.

    Attributes:
        file: the file's name, for messages.
        count: lines that could not be read.
        first: where the first one stands and why it can't be read; "" if all could be read.
        left_out: lines that were read and are no job, by why.
        assumed: what had to be assumed since the file does not say it, as sentences.
    """

    file: str
    count: int = 0
    first: str = field(default="")
    left_out: Counter[str] = field(default_factory=Counter)
    assumed: dict[str, None] = field(default_factory=dict)

    def add(self, number: int, why: object) -> None:
        """Count line ``number``."""
        self.count += 1
        if not self.first:
            self.first = f"{self.file}, line {number}: {_words(why)}"

    def leave_out(self, why: str, lines: int = 1) -> None:
        """Count lines that are left out; ``why`` ends a sentence."""
        if lines:
            self.left_out[why] += lines

    def assume(self, sentence: str) -> None:
        """Keep what had to be assumed, once."""
        self.assumed[sentence] = None

    def history(
        self,
        jobs: tuple[HistoryJob, ...],
        *,
        open_ended: int = 0,
        whole_from_s: float | None = None,
    ) -> JobHistory:
        """The jobs that were read, with all that is kept here."""
        return JobHistory(
            jobs=jobs,
            unread=self.count,
            first_unread=self.first,
            open_ended=open_ended,
            left_out=dict(self.left_out),
            assumed=tuple(self.assumed),
            whole_from_s=whole_from_s,
        )

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
    message = why.refusal.message if isinstance(why, SlicewiseError) else str(why)
    return ascii(message[:_LONGEST_WORDS])[1:-1].replace("\\'", "'").rstrip(".")


def once(jobs: Iterable[HistoryJob], unread: UnreadLines) -> tuple[HistoryJob, ...]:
    """Jobs in order without those that equal the one before: a file that overlaps has them twice.

    For formats in which no two jobs have one number.
    """
    found: list[HistoryJob] = []
    for job in jobs:
        if found and found[-1] == job:
            unread.leave_out(TWICE)
        else:
            found.append(job)
    return tuple(found)


def read_each(
    lines: Iterable[Line], read: Callable[[Line], T | None], unread: UnreadLines
) -> Iterator[T]:
    """What ``read`` makes of each line; None is nothing. A line that raises is counted.

    Raises InvalidInputError (SW-INPUT-FILE) for more than ``MOST_JOBS``.
    """
    left = MOST_JOBS
    for line in lines:
        try:
            t = read(line)
        except UNREADABLE as error:
            unread.add(line[0], error)
        else:
            if t is None:
                continue
            if not left:
                raise unread.error(line[0], f"more than {MOST_JOBS} jobs or runs")
            left -= 1
            yield t


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for its bytes, uncompressed if it is of gzip or xz.

    Raises:
        InvalidInputError: it is not there, is packed in another way or can't be read, now or
            within the block (SW-INPUT-FILE).
    """
    try:
        with path.open("rb") as raw:
            begin = raw.peek(_LONGEST_MARK)
            for mark, packed in _OTHERS.items():
                if begin.startswith(mark):
                    raise unusable(f"{path} is packed by {packed}; gzip and xz can be read.")
            openers = (opener for mark, opener in _OPENERS.items() if begin.startswith(mark))
            opener = next(openers, None)
            if opener is None:
                yield cast("BinaryIO", raw)
            else:
                with opener(cast("BinaryIO", raw)) as file:
                    yield file
    except _BROKEN as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise unusable(f"{path} can't be read: {why}.") from None


def lines_of(file: BinaryIO, unread: UnreadLines) -> Iterator[Line]:
    """Lines that are not empty; bytes that are no UTF-8 are replaced, longer lines counted.

    Raises InvalidInputError (SW-INPUT-FILE) after ``MOST_BYTES``, and for UTF-16.
    """
    number, left = 0, MOST_BYTES
    while part := file.readline(LONGEST_LINE + 1):
        number += 1
        left -= len(part)
        if number == 1:
            if part.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise unread.error(number, "it is UTF-16 text; write it as UTF-8")
            part = part.removeprefix(codecs.BOM_UTF8)
        if len(part) > LONGEST_LINE and not part.endswith(b"\n"):
            unread.add(number, f"longer than {LONGEST_LINE} bytes")
            while part and not part.endswith(b"\n") and left >= 0:
                part = file.readline(LONGEST_LINE)
                left -= len(part)
        elif text := part.decode(errors="replace").rstrip("\r\n"):
            yield number, text
        if left < 0:
            raise unread.error(number, f"more than {MOST_BYTES} bytes, uncompressed")
