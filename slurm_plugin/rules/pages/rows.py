"""Cuts long lists into pages, and keeps of a list what has a text in its name."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")
ROWS = 100
"""Most rows of one table."""
ENTRIES = 20
"""Most entries of a journal on a page: each has a table of its steps."""


@dataclass(frozen=True)
class RowsPage(Generic[Row]):
    """A page of a list.

    Attributes:
        first: number of its first row, from 1.
        whole: number of rows of the whole list.
        before, after: numbers of the pages beside it; None where there is none.
    """

    rows: Sequence[Row]
    first: int
    whole: int
    before: int | None
    after: int | None

    @property
    def last(self) -> int:
        """Number of its last row."""
        return self.first + len(self.rows) - 1


def rows_page(rows: Sequence[Row], asked: str, size: int = ROWS) -> RowsPage[Row]:
    """The page with the number that was asked for, else the one nearest to it."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, whole_number(asked) or 1), pages)
    first = (number - 1) * size
    return RowsPage(
        rows=rows[first : first + size],
        first=first + 1,
        whole=len(rows),
        before=number - 1 if number > 1 else None,
        after=number + 1 if number < pages else None,
    )


@dataclass(frozen=True)
class EntriesPage(Generic[Row]):
    """The newest entries of a part of a journal.

    Attributes:
        older: the number before which the next page begins; None after the last one.
    """

    entries: Sequence[Row]
    older: int | None


def entries_page(
    entries: Sequence[Row], more: int | None, number: Callable[[Row], int]
) -> EntriesPage[Row]:
    """As many entries as a page has; ``more`` is where those begin that the daemon left out."""
    shown = entries[:ENTRIES]
    return EntriesPage(shown, number(shown[-1]) if len(shown) < len(entries) else more)


_DIGITS = 9


def whole_number(text: str) -> int | None:
    """A number that a query has; None for every other text."""
    is_one = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if is_one else None


def named(rows: Iterable[Row], text: str, *names: Callable[[Row], str]) -> Sequence[Row]:
    """The rows of which a name has the text, whatever its case; all of them for ""."""
    wanted = text.casefold().strip()
    return [row for row in rows if any(wanted in name(row).casefold() for name in names)]
