"""Draws ``slicewise top``: the cluster's bar, one of the tables, or an explanation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.palette import style_of
from slicewise.cluster.rpc.overview_messages import (
    AttentionItem,
    LoanNow,
    OverviewAnswer,
    ServiceNow,
    TenantNow,
    WaitingNow,
)
from slicewise.cluster.rpc.read_messages import WhyAnswer
from slicewise.cluster.runtime.console import Column
from slicewise.slurm_plugin.cli.views import why as present_why
from slicewise.slurm_plugin.cli.views.overview import (
    ATTENTION_FIELDS,
    SERVICE_FIELDS,
    TENANT_FIELDS,
    ClusterBar,
    Field,
    GpuRow,
    attention_lines,
    gpu_columns,
    gpu_rows,
    loan_fields,
    other_services_text,
    others_text,
    power_text,
    table_lines,
    title,
    waiting_fields,
    words,
)
from slicewise.slurm_plugin.cli.views.top_state import VIEWS, Rows, TopState, View

_KEYS = "1-6 Tab view · ↑↓ select · Enter why · s sort · r reverse · / filter · q quit"
_GPU_KEYS = "1-6 Tab view · ↑↓←→ select · Enter why · / filter · q quit"
_WHY_KEYS = "↑↓ scroll · Esc back"
"""Codes of what is about nodes, of which there is no ``why``."""
_HEADER = 4
"""Lines above the table: title, bar, legend, views."""


@dataclass(frozen=True)
class Table:
    """The rows of a view, filtered and sorted.

    Attributes:
        rows: messages, or ``GpuRow``.
        rest: a line about what is not among them; "" if nothing is.
    """

    view: View
    fields: tuple[Field[Any], ...]
    rows: tuple[Any, ...]
    rest: str = ""

    @property
    def keys(self) -> Rows:
        """What keys may be about."""
        return Rows(tuple(map(_about, self.rows)), len(self.fields))


def table_of(answer: OverviewAnswer, state: TopState, now_s: float) -> Table:
    """Return the table that the state asks for."""
    everything = _table(answer, state.view, now_s)
    rows = [row for row in everything.rows if _matches(row, everything.fields, state.filter)]
    if state.sort is not None:
        if state.view == "tenants":
            # The order is no longer that of the tree.
            rows = [row.model_copy(update={"depth": 0}) for row in rows]
        rows.sort(key=everything.fields[state.sort].order)
    if state.is_reversed:
        rows.reverse()
    return replace(everything, rows=tuple(rows))


def _table(answer: OverviewAnswer, view: View, now_s: float) -> Table:
    match view:
        case "tenants":
            rest = others_text(answer.others) if answer.others is not None else ""
            return Table(view, TENANT_FIELDS, answer.tenants, rest)
        case "services":
            rest = other_services_text(answer.other_services)
            return Table(view, SERVICE_FIELDS, answer.services, rest)
        case "GPUs":
            return Table(view, (), gpu_rows(answer.gpus))
        case "waiting":
            return Table(view, waiting_fields(now_s), answer.waiting)
        case "loans":
            return Table(view, loan_fields(now_s), answer.loans)
        case "attention":
            return Table(view, ATTENTION_FIELDS, answer.attention)


def _about(row: Any) -> tuple[str, ...]:
    """What ``why`` can be asked about of a row."""
    match row:
        case GpuRow():
            return tuple(instance.job for _, instance in row.instances)
        case WaitingNow():
            return (row.job,)
        case ServiceNow():
            return (f"{row.tenant}/{row.name}",)
        case TenantNow(name=tenant) | LoanNow(borrower=tenant):
            return (tenant,)
        case AttentionItem() if row.code != Code.NODE_DOWN:
            return (row.about,)
        case _:
            return ("",)


def _matches(row: Any, fields: Iterable[Field[Any]], wanted: str) -> bool:
    if not wanted:
        return True
    texts = (
        (row.node, *(f"{i.job} {i.tenant} {i.service} {i.gres_type}" for _, i in row.instances))
        if isinstance(row, GpuRow)
        else (str(field.cell(row)) for field in fields)
    )
    return any(wanted.casefold() in text.casefold() for text in texts)


@dataclass(frozen=True)
class Frame:
    """One picture of ``slicewise top``, exactly as high as the terminal.

    Attributes:
        failure: why the last look failed, while the one before is shown; None if it did not.
        why: the answer, or the refusal, to what ``state.about`` asks; None while there is none.
    """

    answer: OverviewAnswer
    state: TopState
    now_s: float
    failure: Refusal | None = None
    why: WhyAnswer | Refusal | None = None

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich."""
        width, height = options.max_width, options.height or out.height
        yield from self._header(out, options)
        room = max(1, height - _HEADER - 1)
        body = list(self._explanation(out, width) if self.state.about else self._table(width, room))
        if self.state.about:
            # Not further than to where the end is on the screen.
            first = min(self.state.scroll, max(0, len(body) - room))
            body = body[first:]
        yield from (body + [Text()] * room)[:room]
        yield _cut(self._footer(), width, end="")

    def _header(self, out: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        head = title(self.answer, self.now_s)
        if self.failure is not None:
            head.append(f"   {self.failure.code}: {words(self.failure.message)}", style="bold red")
        else:
            head.append_text(power_text(self.answer, width - head.cell_len))
        yield _cut(head, width)
        for line in ClusterBar(self.answer.slices).__rich_console__(out, options):
            assert isinstance(line, Text)  # noqa: S101 -- a bar and a legend
            yield _cut(line, width)
        yield _cut(self._views(), width)

    def _views(self) -> Text:
        answer, line = self.answer, Text(" ")
        rows: dict[View, Sequence[object]] = {
            "attention": answer.attention,
            "tenants": answer.tenants,
            "services": answer.services,
            "GPUs": gpu_rows(answer.gpus),
            "waiting": answer.waiting,
            "loans": answer.loans,
        }
        worst = min(
            (item.severity for item in answer.attention), key=list(Severity).index, default=None
        )
        for nth, view in enumerate(VIEWS, start=1):
            style = "reverse" if view == self.state.view else ""
            if view == "attention" and worst is not None:
                style = f"{style} {style_of(worst.value)}"
            line.append(f" {nth} {view} {len(rows[view]):,} ", style=style.strip()).append(" ")
        return line

    def _table(self, width: int, room: int) -> Iterator[Text]:
        state = self.state
        table = table_of(self.answer, state, self.now_s)
        below = list(self._below(table, width))
        shown = _window(state.row, len(table.rows), max(1, room - 1 - len(below)))
        if not table.rows:
            yield Text(f" Nothing{' has this text' if state.filter else ''}.", style="dim")
        elif state.view == "GPUs":
            columns = _with_selection(gpu_columns(table.rows, width), state, table.rows)
            yield from table_lines(columns, width, shown)
        else:
            fields = tuple(_marked(f, n == state.sort) for n, f in enumerate(table.fields))
            columns = tuple(field.column(table.rows) for field in fields)
            yield from table_lines(columns, width, shown, state.row)
        yield from below

    def _below(self, table: Table, width: int) -> Iterator[Text]:
        """Yield lines below the rows: what is to be said of the selected one, what is not shown."""
        chosen = table.rows[self.state.row : self.state.row + 1]
        told: Iterable[Text] = ()
        if table.view == "attention":
            told = attention_lines(chosen, width)
        elif table.view == "services":
            told = (Text(f" {words(finding.note or finding.why)}") for finding in chosen)
        for nth, line in enumerate(told):
            if nth == 0:
                yield Text()
            yield from line.wrap(Console(width=width), width)
        if table.rest:
            yield _cut(Text(f" {table.rest}", style="dim"), width)

    def _explanation(self, out: Console, width: int) -> Iterator[Text]:
        why = self.why
        if why is None:
            yield Text(f" Asking why {words(self.state.about)} ...", style="dim")
        elif isinstance(why, Refusal):
            yield Text(f" {words(why.message)}", style="red")
            yield Text(f" {words(why.hint)}")
            yield Text(f" {why.code}", style="dim")
        else:
            options = out.options.update(width=width, height=None)
            for segments in out.render_lines(present_why.screen(why), options, pad=False):
                parts = ((segment.text.rstrip("\n"), segment.style or "") for segment in segments)
                yield Text.assemble(*((words(text), style) for text, style in parts))

    def _footer(self) -> Text:
        state = self.state
        if state.is_typing:
            return Text.assemble((" / ", "bold"), words(state.filter), ("█", "blink"))
        if state.about:
            return Text(f" {_WHY_KEYS}", style="dim")
        keys = _GPU_KEYS if state.view == "GPUs" else _KEYS
        if state.filter:
            keys = f"only {words(state.filter)!r}, Esc all · {keys}"
        return Text(f" {keys}", style="dim")


def _cut(line: Text, width: int, end: str = "\n") -> Text:
    cut = line.copy()
    cut.truncate(width, overflow="ellipsis")
    cut.no_wrap, cut.end = True, end
    return cut


def _window(selected: int, count: int, room: int) -> range:
    """The rows to show, so that the selected one is among them."""
    first = max(0, min(selected - room // 2, count - room))
    return range(first, min(count, first + room))


def _marked(field: Field[Any], is_sorted: bool) -> Field[Any]:
    return replace(field, heading=f"{field.heading}*") if is_sorted else field


def _with_selection(
    columns: tuple[Column, ...], state: TopState, rows: Sequence[GpuRow]
) -> tuple[Column, ...]:
    """Mark the selected GPU, and the instance on it."""
    row = state.row
    if row >= len(rows):
        return columns
    node, *middle, bars = columns
    name, bar = node.cells[row].copy(), bars.cells[row].copy()
    name.stylize("reverse")
    gpu = rows[row]
    if state.seat < len(gpu.instances):
        start, instance = gpu.instances[state.seat]
        wide = bar.cell_len // max(1, gpu.memory_slices)
        bar.stylize("reverse", start * wide, (start + instance.size) * wide)
    return (_with_cell(node, row, name), *middle, _with_cell(bars, row, bar))


def _with_cell(column: Column, row: int, cell: Text) -> Column:
    return replace(column, cells=(*column.cells[:row], cell, *column.cells[row + 1 :]))
