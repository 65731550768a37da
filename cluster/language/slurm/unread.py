"""Reports what Slurm says and Slicewise can't read, and confines it to its own record.

An unreadable value is left out of its record, or the record out of its list; all other records
count as ever.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from slicewise.cluster.language.errors import SlicewiseError

S = TypeVar("S")
T = TypeVar("T")

_LONGEST = 80
RECORDS = (
    *(
        "account",
        "association",
        "excluded nodes",
        "job",
        "node",
        "partition",
        "pending tasks",
        "place",
    ),
    *("plan", "priority", "QOS", "request", "reservation", "reserved job", "run", "step"),
)
"""Kinds of records that are read."""
UNREADABLE = (SlicewiseError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Exceptions that reading a value can raise, whatever the value is."""


@dataclass(frozen=True)
class Unread:
    """A value that could not be read, as quoted text of at most 80 characters.

    Attributes:
        record: kind of the record, such as ``job``.
        name: which record, such as ``814``.
        field: Slurm's name of the field; "" if the whole record could not be read.
    """

    record: str
    name: str
    field: str
    text: str


ReportsUnread = Callable[[Unread], None]
"""Takes what could not be read."""


def ignored(unread: Unread) -> None:
    """Report nothing: for values that are reported elsewhere."""


def refused(unread: Unread) -> None:
    """Raise ValueError: another reader may be able to read the value, or can do without it."""
    raise ValueError(f"{unread.record} {unread.name}: {unread.field} is {unread.text!r}")


class LogsEvent(Protocol):
    """Logs an event and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Take an event and fields as ``slicewise.cluster.runtime.log.emit`` does."""
        ...


class Fields:
    """Reads the fields of one record, one by one.

    Attributes:
        unread: attributes of the result that could not be read.
    """

    def __init__(
        self, record: str, name: str, of: Callable[[str], object], told: ReportsUnread
    ) -> None:
        """``of`` returns a field's value by Slurm's name."""
        self._record, self._name, self._of, self._told = record, name, of, told
        self.unread: frozenset[str] = frozenset()

    def read(self, target: str, field: str, read: Callable[[str], T], otherwise: T) -> T:
        """Read Slurm's field as attribute ``target`` of the result; else ``otherwise``."""
        value: object = "(missing)"
        try:
            value = self._of(field)
            return read(value)  # type: ignore[arg-type]
        except UNREADABLE:
            self.unread |= {target}
            self._told(Unread(self._record, quoted(self._name), field, quoted(value)))
            return otherwise


def each(
    record: str,
    rows: Iterable[S],
    read: Callable[[S], T],
    told: ReportsUnread,
    name: Callable[[S], object],
) -> Iterator[T]:
    """What ``read`` makes of each row; a row that it can't read is left out and reported."""
    for row in rows:
        try:
            t = read(row)
        except UNREADABLE:
            told(Unread(record, _name(row, name), "", quoted(row)))
        else:
            yield t


def _name(row: S, name: Callable[[S], object]) -> str:
    try:
        return quoted(name(row))
    except UNREADABLE:
        return "?"


def quoted(value: object) -> str:
    """At most 80 characters of the value, without control characters and all in ASCII."""
    text = value if isinstance(value, str) else repr(value)
    return ascii(text[:_LONGEST])[1:-1][:_LONGEST]
