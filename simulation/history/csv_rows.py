"""Reads rows of CSV by their columns' names, each with the line where it stands."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import TypeVar

from slicewise.simulation.history.lines import Line, UnreadLines, read_each

T = TypeVar("T")

Row = Mapping[str, str]

MOST_S = 1 << 35
"""A moment or a duration: some thousand years, after which calendars end soon."""
_MOST = 1_000_000
_SEPARATORS = ",;\t|"
IN_UTC = "Times without a UTC offset are taken for UTC."
"""What is assumed of a history whose times have none."""
NO_TIME = frozenset({"", "None", "nan", "NaN", "NULL", "Unknown"})


def read_rows(
    lines: Iterable[Line],
    needed: Iterable[str],
    read: Callable[[int, Row], T | None],
    unread: UnreadLines,
) -> Iterator[T]:
    """What ``read`` makes of each row and its line's number; the first line has the names.

    None is nothing. A value with a line break in it is none of these formats'. Raises
    InvalidInputError (SW-INPUT-FILE) if a needed column is missing.
    """
    rest = iter(lines)
    number, text = next(rest, (1, ""))
    separator = _separator(text)
    columns = columns_of(text)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise unread.error(number, f"no column {', '.join(missing)}")

    def read_line(line: Line) -> T | None:
        cells = cells_of(line[1], separator)
        if len(cells) != len(columns):
            raise ValueError(f"{len(cells)} columns in place of {len(columns)}")
        return read(line[0], dict(zip(columns, cells, strict=True)))

    return read_each(rest, read_line, unread)


def columns_of(first: str) -> list[str]:
    """Names of columns in a CSV file's first line; none where it is not CSV."""
    try:
        return [name.strip() for name in cells_of(first, _separator(first))]
    except ValueError:
        return []


def _separator(first: str) -> str:
    """That of the characters that part columns which is there most often, a comma if none is."""
    return max(_SEPARATORS, key=first.count)


def cells_of(text: str, separator: str) -> list[str]:
    """The values of one line. Raises ValueError where it is not CSV: with a carriage return."""
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error as error:
        raise ValueError(str(error)) from None


def seconds(text: str) -> float:
    """Read a number of seconds, 0 or more."""
    seconds = float(text)
    if not (isfinite(seconds) and 0 <= seconds < MOST_S):
        raise ValueError(f"no number of seconds: {text}")
    return seconds


def count(text: str, most: int = _MOST) -> int:
    """Read a whole number up to ``most``, which may be written as 8.0."""
    number = float(text)
    if not (isfinite(number) and 0 <= number <= most and number == int(number)):
        raise ValueError(f"no count: {text}")
    return int(number)


def moment_s(text: str, unread: UnreadLines) -> float | None:
    """Unix seconds of ``2017-10-09 07:01:55``; None for no time.

    Without an offset (``+02:00``) it is taken for UTC, and that is noted.
    """
    if text in NO_TIME:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        unread.assume(IN_UTC)
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
