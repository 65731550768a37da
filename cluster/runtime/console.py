"""Prints for the commands: tables that fit the terminal, JSON, and refusals."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.palette import style_of
from slicewise.cluster.language.printable import printable

_PIPE_WIDTH = 10_000
"""Width where there is no terminal: nothing is left out, shortened or folded."""
_FOLD_WIDTH = 30
"""Width that free text gets at least before other columns are left out for it."""
_GAP, _EDGE = 2, 1
"""Width that each column needs beside its cells, and a table beside its columns (``FittingTable``).
"""


class _PlainTextConsole(Console):
    """A console on which no text is obeyed: names, reasons and logs are other users' words."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield what rich yields, its texts made printable; rich's own controls stay."""
        for segment in super().render(renderable, options):
            is_safe = segment.control is not None or segment.text.isprintable()
            yield segment if is_safe else segment._replace(text=printable(segment.text))


class PipeConsole(_PlainTextConsole):
    """The console where there is no terminal: a row is one line, for ``grep`` and ``awk``."""

    def __init__(self) -> None:
        super().__init__(width=_PIPE_WIDTH)


def console() -> Console:
    """A console with colours and the terminal's width on a terminal; else a ``PipeConsole``."""
    return terminal_console() if sys.stdout.isatty() else PipeConsole()


def terminal_console(*, stderr: bool = False) -> Console:
    """A console of rich's, which uses no colours and no other styles where NO_COLOR is set.

    By itself rich leaves out colours only, and keeps bold and dim.
    """
    if is_plain():
        return _PlainTextConsole(stderr=stderr, color_system=None)
    return _PlainTextConsole(stderr=stderr)


def is_plain() -> bool:
    """Whether the user wants neither colours nor other styles (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def print_json(value: object) -> None:
    """Print one JSON document on stdout."""
    print_document(value, indent=2)


def print_json_line(value: object) -> None:
    """Print one JSON document on one line of stdout, for a reader that waits for it (NDJSON)."""
    print_document(value, indent=None)
    sys.stdout.flush()


document_format: ContextVar[str] = ContextVar("document_format", default="json")
"""In which format documents are printed: ``json`` or ``yaml``."""


def print_document(value: object, indent: int | None) -> None:
    """Print one document on stdout: JSON, on one line where ``indent`` is None, or YAML.

    Where ``indent`` is None, a line ``---`` begins each document of YAML.
    """
    text = json.dumps(plain(value), indent=indent)
    if document_format.get() == "yaml":
        import yaml  # noqa: PLC0415 -- takes as long to import as the rest of a command

        sys.stdout.write(
            yaml.safe_dump(
                json.loads(text),
                sort_keys=False,
                allow_unicode=True,
                explicit_start=indent is None,
            )
        )
        return
    sys.stdout.write(text + "\n")


def plain(value: Any) -> Any:
    """The value as JSON has it: of dataclasses and messages each field and computed field."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    document: Any = type(value)
    return _adapter(document).dump_python(value, mode="json", by_alias=True, warnings=False)


@cache
def _adapter(document: Any) -> Any:
    # Imported here: tables need no pydantic.
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(document)


def print_refusal(refusal: Refusal) -> None:
    """Print what happened, what to do and the code, on stderr."""
    out = terminal_console(stderr=True)
    # As Text, so that text of others (a log's "[Note]", a user's path) is not read as markup.
    out.print(Text(refusal.message, style="red"), soft_wrap=True)
    if refusal.hint:
        out.print(Text(refusal.hint), soft_wrap=True)
    out.print(Text(refusal.code, style="dim"))


def print_refusal_json(refusal: Refusal, exit_code: int) -> None:
    """Print the same on stderr as JSON, in one line, for scripts that asked for ``--json``."""
    words = {"code": refusal.code, "message": refusal.message, "hint": refusal.hint}
    sys.stderr.write(json.dumps({**words, "exit_code": exit_code}) + "\n")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        cells: the cells, row by row.
        brief: shorter cells for narrow terminals; () if they can't be shortened.
        right: whether the cells are aligned to the right, as numbers are.
        folds: whether the cells are free text, which may continue over several lines.
        rank: narrow terminals leave columns out, those with the highest rank first; 0 always stays.
    """

    heading: str
    cells: tuple[Text, ...]
    brief: tuple[Text, ...] = ()
    right: bool = False
    folds: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        """Width that the column needs on the terminal."""
        natural = max(cell.cell_len for cell in (Text(self.heading), *self.cells))
        return min(natural, _FOLD_WIDTH) if self.folds else natural


def column(
    heading: str,
    cells: Iterable[object],
    *,
    brief: Iterable[object] = (),
    right: bool = False,
    folds: bool = False,
    rank: int = 0,
) -> Column:
    """Build a column of any values; what is not Text is shown as it is, never read as markup."""
    return Column(heading, _texts(cells), _texts(brief), right, folds, rank)


TO_THE_MINUTE = "%Y-%m-%d %H:%M"


def time_text(at_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Write Unix seconds as local time, to the second unless ``form`` says otherwise."""
    return time.strftime(form, time.localtime(at_s))


def toned(condition: str) -> Text:
    """A word of the palette's CONDITIONS in its colour."""
    return Text(condition, style=style_of(condition))


def _texts(cells: Iterable[object]) -> tuple[Text, ...]:
    return tuple(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in cells)


def table_width(columns: Sequence[Column]) -> int:
    """Width that a table of these columns needs."""
    return _EDGE + sum(column.width + _GAP for column in columns)


def fitted(columns: Sequence[Column], width: int) -> tuple[Column, ...]:
    """The columns for a terminal of this width: shortened if needed, then left out by rank."""
    shown = tuple(columns)
    if table_width(shown) > width:
        shown = tuple(replace(column, cells=column.brief or column.cells) for column in shown)
    while table_width(shown) > width and (rank := max(column.rank for column in shown)):
        shown = tuple(column for column in shown if column.rank < rank)
    return shown


@dataclass(frozen=True)
class FittingTable:
    """A table that shows what the terminal has room for; no cell is ever cut off.

    Attributes:
        empty: what is shown in its place if it has no rows: headings alone say nothing.
    """

    columns: tuple[Column, ...]
    empty: str = "None."

    def or_say(self, empty: str) -> "FittingTable":
        """Return the table with a text of its own for the case that it has no rows."""
        return replace(self, empty=empty)

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for the width that rich gives."""
        if not any(column.cells for column in self.columns):
            yield Text(self.empty)
            return
        if isinstance(out, PipeConsole):
            yield from _lines(
                _padded((Text(column.heading), *column.cells), right=column.right)
                for column in self.columns
            )
            return
        shown = fitted(self.columns, options.max_width)
        fits = table_width(shown) <= options.max_width
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in shown:
            table.add_column(
                Text(column.heading),
                justify="right" if column.right else "left",
                overflow="fold",
                # Where even the columns of rank 0 do not fit, all cells fold rather than being cut.
                no_wrap=fits and not column.folds,
            )
        for cells in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*cells)
        yield table


@dataclass(frozen=True)
class Facts:
    """Headings, each with its text; on a terminal, a text that is too long folds."""

    rows: tuple[tuple[str, Text], ...]

    def __rich_console__(self, out: Console, _options: ConsoleOptions) -> RenderResult:
        """Render the rows for rich."""
        if isinstance(out, PipeConsole):
            headings, texts = zip(*self.rows, strict=True)
            yield from _lines((_padded(_texts(headings)), _padded(texts)))
            return
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for heading, text in self.rows:
            table.add_row(Text(heading), text)
        yield table


def _lines(columns: Iterable[Sequence[str]]) -> Iterable[Text]:
    """One line a row, with two spaces between columns and no trailing blanks."""
    for row in zip(*columns, strict=True):
        yield Text("  ".join(row).rstrip())


def _padded(cells: Sequence[Text], *, right: bool = False) -> Sequence[str]:
    width = max((cell.cell_len for cell in cells), default=0)
    gaps = (" " * (width - cell.cell_len) for cell in cells)
    texts = (cell.plain.replace("\n", " ") for cell in cells)
    return [
        f"{gap}{text}" if right else f"{text}{gap}" for gap, text in zip(gaps, texts, strict=True)
    ]
