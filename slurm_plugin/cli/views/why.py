"""The screen of ``slicewise why``."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.units import slices_text
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyRow, WhyTable
from slicewise.cluster.runtime.console import TO_THE_MINUTE, Column, FittingTable, column, time_text
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.cli.views.texts import NOTHING


def screen(answer: WhyAnswer) -> RenderableType:
    """Headline, sentences, tables, when it starts, what to do."""
    return Group(
        Text(answer.headline, style="bold"),
        *map(Text, answer.sentences),
        *_tables(answer.tables),
        *_start(answer),
        *(Text.assemble(("→ ", "green"), hint) for hint in answer.hints),
    )


def _start(answer: WhyAnswer) -> Iterable[Text]:
    if answer.start:
        when = "" if answer.start_s is None else f"{_time(answer.start_s)}, "
        yield Text.assemble(("Starts: ", "bold"), when, answer.start, ".")


def _time(second: int) -> str:
    """Write a time by the local clock; with the day if that is not today."""
    day = time_text(second, "%Y-%m-%d")
    is_today = day == time_text(int(wall_s()), "%Y-%m-%d")
    return time_text(second, "%H:%M:%S" if is_today else TO_THE_MINUTE)


def _tables(tables: Sequence[WhyTable]) -> Iterable[RenderableType]:
    for table in tables:
        yield FittingTable(tuple(_columns(table)))


def _columns(table: WhyTable) -> Iterable[Column]:
    """The columns in which at least one row has a value."""
    rows = table.rows
    yield column(table.heading, (row.what for row in rows), folds=True)
    if any(row.gpus for row in rows):
        yield column("GPUs", (row.gpus or NOTHING for row in rows), rank=1)
    if any(row.amount_millislices is not None for row in rows):
        yield column("slices", map(_amount, rows), right=True)
    if any(row.ends_s is not None for row in rows):
        yield column("ends at", map(_end, rows))
    if any(row.note for row in rows):
        yield column("", (row.note for row in rows), folds=True, rank=2)


def _amount(row: WhyRow) -> object:
    return NOTHING if row.amount_millislices is None else slices_text(row.amount_millislices)


def _end(row: WhyRow) -> object:
    return NOTHING if row.ends_s is None else _time(row.ends_s)
