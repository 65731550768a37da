"""Shows the cluster on one screen; its parts are also what ``slicewise top`` shows.

Names come from users and from Slurm: whatever they hold is shown as text, never obeyed by the
terminal and never read as markup.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.gpus.mig_names import short_name
from slicewise.cluster.language.palette import FIGURES, STATES, style_of
from slicewise.cluster.language.periods import age_text
from slicewise.cluster.language.printable import printable
from slicewise.cluster.language.units import counted, slices_text, slices_words
from slicewise.cluster.rpc.overview_messages import (
    AttentionItem,
    GpuNow,
    InstanceNow,
    LoanNow,
    MonthNow,
    NodeCondition,
    OtherTenants,
    OverviewAnswer,
    ServiceCondition,
    ServiceNow,
    SlicesByState,
    TenantNow,
    TenantThisMonth,
    WaitingNow,
)
from slicewise.cluster.runtime.console import (
    Column,
    FittingTable,
    PipeConsole,
    column,
    fitted,
    toned,
)
from slicewise.slurm_plugin.rules.accounting.invoice import money_places, money_text
from slicewise.slurm_plugin.rules.pages.invoice import most_spent
from slicewise.slurm_plugin.rules.pages.words import kwh_text, measured_text

Row = TypeVar("Row")

NOTHING = Text("–", style="dim")
_MARKS = {"used": "█#", "lent": "▓%", "idle": "░.", "draining": "▒~", "down": "×x"}
"""How the states of slices are drawn, and where there is only ASCII."""
_FREE = STATES["idle"].style
_SLICES_A_LINE = 8
"""Memory slices that are drawn on a line where it is not known how they lie on GPUs."""
_LEAST_SLICE, _MOST_SLICE = 3, 12
"""Width of a memory slice in characters."""
_HOUR_S = 3600
_GPU_LEGEND = "[held] <held on loan> (free) · not cut"
_GPU_CELLS = 22
"""Width that the table of GPUs takes beside the names of nodes and the drawn slices."""
_LINES_BESIDE, _HEAD = 7, 2
"""Lines that title, bar, legend and the shell's next prompt take; and each part's head and end."""
_LOW = 36
"""Height of a terminal up to which there is no empty line between parts."""
_LEAST_ROWS, _MOST = 1, 1_000_000
_LEAST_POWER = 15
"""Width that a figure of watts takes: ``   999.99 kW of``."""
_LEAST_TEXT, _GAP = 10, 2
"""Least width of free text, and the gap between columns."""


@dataclass(frozen=True)
class Field(Generic[Row]):
    """A column of a table of such rows.

    Attributes:
        order: what rows are sorted by.
        folds, right, rank: see ``Column``.
    """

    heading: str
    cell: Callable[[Row], object]
    order: Callable[[Row], Any]
    right: bool = False
    folds: bool = False
    rank: int = 0

    def column(self, rows: Iterable[Row]) -> Column:
        """Build the column of these rows."""
        return column(
            self.heading,
            map(self.cell, rows),
            right=self.right,
            folds=self.folds,
            rank=self.rank,
        )


def words(text: str) -> str:
    """The text on one line, with nothing that a terminal would obey."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def _some(amount_millislices: int) -> object:
    return slices_text(amount_millislices) if amount_millislices else NOTHING


def _or_nothing(value: object) -> object:
    return NOTHING if value is None or value == "" else value


# Tenants


def _in_use(tenant: TenantNow) -> Text:
    is_above = tenant.limit_millislices is not None and (
        tenant.in_use_millislices > tenant.limit_millislices
    )
    return Text(slices_text(tenant.in_use_millislices), style="red" if is_above else "")


def _waiting(tenant: TenantNow) -> object:
    if not tenant.waiting_jobs:
        return NOTHING
    return Text(f"{tenant.waiting_jobs:,}", style="yellow")


def _left(tenant: TenantNow) -> object:
    if tenant.left_millislice_s is None:
        return NOTHING
    hours = tenant.left_millislice_s / 1000 / _HOUR_S
    return Text(f"{hours:,.1f}", style="red" if hours <= 0 else "")


def _limit(tenant: TenantNow) -> object:
    known = tenant.limit_millislices
    return NOTHING if known is None else slices_text(known)


def _left_order(tenant: TenantNow) -> float:
    return float("inf") if tenant.left_millislice_s is None else tenant.left_millislice_s


TENANT_FIELDS: tuple[Field[TenantNow], ...] = (
    Field(
        "tenant",
        lambda tenant_now: "  " * tenant_now.depth + words(tenant_now.name),
        lambda tenant_now: tenant_now.name,
    ),
    Field(
        FIGURES["nominal"].word,
        lambda tenant_now: slices_text(tenant_now.nominal_millislices),
        lambda tenant_now: -tenant_now.nominal_millislices,
        right=True,
    ),
    Field(
        FIGURES["borrowed"].word,
        lambda tenant_now: _some(tenant_now.borrowed_millislices),
        lambda tenant_now: -tenant_now.borrowed_millislices,
        right=True,
    ),
    Field(
        FIGURES["lent"].word,
        lambda tenant_now: _some(tenant_now.lent_millislices),
        lambda tenant_now: -tenant_now.lent_millislices,
        right=True,
    ),
    Field(
        FIGURES["limit"].word,
        _limit,
        lambda tenant_now: -(tenant_now.limit_millislices or 0),
        right=True,
        rank=2,
    ),
    Field(
        FIGURES["in_use"].word,
        _in_use,
        lambda tenant_now: -tenant_now.in_use_millislices,
        right=True,
    ),
    Field("jobs waiting", _waiting, lambda tenant_now: -tenant_now.waiting_jobs, right=True),
    Field(
        "slices waiting",
        lambda tenant_now: _some(tenant_now.waiting_millislices),
        lambda tenant_now: -tenant_now.waiting_millislices,
        right=True,
        rank=1,
    ),
    Field(FIGURES["budget_left"].word, _left, _left_order, right=True),
)


def other_services_text(count: int) -> str:
    """``3 services of other tenants``, and nothing if there are none."""
    return f"{count:,} service{'s' * (count != 1)} of other tenants" if count else ""


def others_text(others: OtherTenants) -> str:
    """``3 other tenants: nominal 12 slices, 8 in use; 4 jobs wait for 6 slices``."""
    count = counted(others.tenants, "other tenant")
    text = (
        f"{count}: nominal {slices_words(others.nominal_millislices)},"
        f" {slices_text(others.in_use_millislices)} in use"
    )
    if not others.waiting_jobs:
        return text
    jobs = "1 job waits" if others.waiting_jobs == 1 else f"{others.waiting_jobs:,} jobs wait"
    return f"{text}; {jobs} for {slices_words(others.waiting_millislices)}"


# Services


def _replicas(service: ServiceNow) -> str:
    starting = f" +{service.starting}" if service.starting else ""
    return f"{service.ready}{starting}"


def _desired(service: ServiceNow) -> object:
    known = "?" if service.desired_replicas is None else f"{service.desired_replicas}"
    return Text.assemble(known, (f" of {service.max_replicas}", "dim"))


def _backlog(service: ServiceNow) -> object:
    if service.backlog is None:
        return NOTHING
    return Text(f"{service.backlog:,}", style="yellow" if service.backlog else "")


SERVICE_FIELDS: tuple[Field[ServiceNow], ...] = (
    Field(
        "service",
        lambda service: words(f"{service.tenant}/{service.name}"),
        lambda service: (service.tenant, service.name),
    ),
    Field(
        "state",
        lambda service: toned(service.condition),
        lambda service: get_args(ServiceCondition).index(service.condition),
    ),
    Field("replicas", _replicas, lambda service: -service.ready, right=True),
    Field(
        FIGURES["desired"].word,
        _desired,
        lambda service: -(service.desired_replicas or 0),
        right=True,
    ),
    Field(FIGURES["backlog"].word, _backlog, lambda service: -(service.backlog or 0), right=True),
    Field(
        "p95 ms",
        lambda service: _or_nothing(None if service.p95_ms is None else f"{service.p95_ms:,.0f}"),
        lambda service: -(service.p95_ms or 0.0),
        right=True,
    ),
    Field(
        FIGURES["in_flight"].word,
        lambda service: _or_nothing(service.in_flight),
        lambda service: -(service.in_flight or 0),
        right=True,
        rank=3,
    ),
    Field(
        "req/s",
        lambda service: _or_nothing(
            None if service.rate_per_s is None else f"{service.rate_per_s:,.1f}"
        ),
        lambda service: -(service.rate_per_s or 0.0),
        right=True,
        rank=2,
    ),
    Field(
        "why",
        lambda service: words(service.note or service.why),
        lambda service: service.note or service.why,
        folds=True,
    ),
)


# Jobs that wait


def _gpus(waiting_now: WaitingNow) -> str:
    each = " + ".join(
        words(kind) if count == 1 else f"{count} × {words(kind)}"
        for kind, count in sorted(waiting_now.gpus.items())
    )
    return f"{waiting_now.tasks:,} × ({each})" if waiting_now.tasks > 1 else each


def waiting_fields(now_s: float) -> tuple[Field[WaitingNow], ...]:
    """The columns of the table of jobs that wait, at this time in Unix seconds."""

    def waits(waiting_now: WaitingNow) -> object:
        return NOTHING if waiting_now.since_s is None else age_text(now_s - waiting_now.since_s)

    return (
        Field("job", lambda job: words(job.job), lambda job: (len(job.job), job.job)),
        Field("tenant", lambda job: words(job.tenant), lambda job: job.tenant),
        Field("user", lambda job: words(job.user), lambda job: job.user, rank=2),
        Field("GPUs", _gpus, lambda job: sorted(job.gpus), rank=1),
        Field(
            "slices",
            lambda job: slices_text(job.cost_millislices),
            lambda job: -job.cost_millislices,
            right=True,
        ),
        Field("waits", waits, lambda job: job.since_s or now_s, right=True),
        Field("reason", lambda job: words(job.reason), lambda job: job.reason, folds=True),
    )


# Loans


def loan_fields(now_s: float) -> tuple[Field[LoanNow], ...]:
    """The columns of the table of loans, at this time in Unix seconds."""

    def state(loan: LoanNow) -> Text:
        if loan.back_s is None:
            return Text(FIGURES["lent"].word, style=STATES["lent"].style)
        within = age_text(loan.back_s - now_s)
        return Text(f"recalled, back within {within}", style=style_of("recalled"))

    def waits(loan: LoanNow) -> object:
        return _some(loan.lender_waits_millislices)

    def replicas(loan: LoanNow) -> object:
        counts = (
            ("wait", loan.released),
            ("start", loan.starting),
            ("run", loan.running),
            ("end", loan.ending),
        )
        return ", ".join(f"{count} {word}" for word, count in counts if count) or NOTHING

    return (
        Field(
            "lender",
            lambda loan_now: words(loan_now.lender or "others"),
            lambda loan_now: loan_now.lender,
        ),
        Field(
            "borrower",
            lambda loan_now: words(loan_now.borrower or "others"),
            lambda loan_now: loan_now.borrower,
        ),
        Field(
            "slices",
            lambda loan_now: slices_text(loan_now.amount_millislices),
            lambda loan_now: -loan_now.amount_millislices,
            right=True,
        ),
        Field("state", state, lambda loan_now: loan_now.back_s or float("inf")),
        Field(
            "lender waits for",
            waits,
            lambda loan_now: -loan_now.lender_waits_millislices,
            right=True,
        ),
        Field(
            "borrower's replicas on loan",
            replicas,
            lambda loan_now: (
                -loan_now.released,
                -loan_now.starting,
                -loan_now.running,
                -loan_now.ending,
            ),
            folds=True,
        ),
    )


# What needs attention


ATTENTION_FIELDS: tuple[Field[AttentionItem], ...] = (
    Field(
        "severity",
        lambda item: toned(item.severity.value),
        lambda item: list(Severity).index(item.severity),
    ),
    Field("about", lambda item: words(item.about), lambda item: item.about, rank=1),
    Field("what", lambda item: words(item.what), lambda item: item.what, folds=True),
    Field("code", lambda item: item.code, lambda item: item.code, rank=2),
)


def attention_lines(items: Iterable[AttentionItem], width: int) -> Iterator[Text]:
    """Yield two lines for each: what is wrong, and the command that mends it."""
    for item in items:
        head = Text.assemble(
            (f" {item.severity.value:8}", style_of(item.severity.value)), words(item.what)
        )
        code = Text(f"  {item.code}", style="dim")
        if head.cell_len + code.cell_len <= width:
            head.append_text(code)
        yield head
        yield Text.assemble(" " * 9, ("→ ", "green"), (words(item.command), "bold"))


# GPUs


@dataclass(frozen=True)
class GpuRow:
    """A line on which a GPU, or a part of a node's instances, is drawn.

    Attributes:
        gpu: index of the GPU; "" where it is not known.
        memory_slices: length of the line.
        instances: each with the memory slice on which it starts on this line, from left to right.
    """

    node: str
    gpu: str
    condition: NodeCondition
    memory_slices: int
    instances: tuple[tuple[int, InstanceNow], ...]


def gpu_rows(gpus: Iterable[GpuNow]) -> tuple[GpuRow, ...]:
    """Return a line for each GPU; of nodes that were not surveyed, lines as long as a GPU."""
    return tuple(row for gpu in gpus for row in _rows_of(gpu))


def _rows_of(gpu: GpuNow) -> Iterator[GpuRow]:
    if gpu.gpu is not None:
        placed = sorted(((instance.start or 0, instance) for instance in gpu.instances), key=_start)
        yield GpuRow(gpu.node, str(gpu.gpu), gpu.condition, gpu.memory_slices, tuple(placed))
        return
    line: list[tuple[int, InstanceNow]] = []
    at = 0
    for instance in gpu.instances:
        if line and at + instance.size > _SLICES_A_LINE:
            yield GpuRow(gpu.node, "", gpu.condition, at, tuple(line))
            line, at = [], 0
        line.append((at, instance))
        at += instance.size
    if line:
        yield GpuRow(gpu.node, "", gpu.condition, at, tuple(line))


def _start(placed: tuple[int, InstanceNow]) -> int:
    return placed[0]


def slice_width(rows: Iterable[GpuRow], width: int) -> int:
    """Characters for a memory slice, so that the longest line fits into ``width``."""
    longest = max((row.memory_slices for row in rows), default=1)
    return max(_LEAST_SLICE, min(_MOST_SLICE, width // max(1, longest)))


def gpu_bar(row: GpuRow, slice_width: int) -> Text:
    """Draw ``[bert     ]<chat   >(1g.10gb) ·  · ``.

    ``[...]`` is held, ``<...>`` held on borrowed quota, ``(...)`` free, dots are not cut.
    """
    text, at = Text(no_wrap=True), 0
    for start, instance in row.instances:
        text.append(_uncut(start - at, slice_width), style="dim")
        text.append_text(_block(instance, instance.size * slice_width, is_up=row.condition == "up"))
        at = start + instance.size
    return text.append(_uncut(row.memory_slices - at, slice_width), style="dim")


def _uncut(slices: int, slice_width: int) -> str:
    return f"{'·':^{slice_width}}" * slices


def _block(instance: InstanceNow, width: int, *, is_up: bool) -> Text:
    room = width - 2
    if not instance.is_held:
        label, (left, right) = short_name(instance.gres_type), "()"
        style = _FREE if is_up else "dim"
        label = label if len(label) <= room else label.partition(".")[0]
    else:
        label = instance.service.partition("/")[2] or instance.job or "held"
        state, (left, right) = ("lent", "<>") if instance.is_borrowed else ("used", "[]")
        style = f"bold {STATES[state].style}"
    text = Text(words(label))
    text.truncate(room, pad=True)
    return Text.assemble((left, style), (text.plain, style), (right, style))


# The screen


def title(answer: OverviewAnswer, now_s: float) -> Text:
    """``lab   mode enforce   seen 2 s ago``."""
    age = age_text(now_s - answer.observed_s)
    bounds = "" if answer.mode == "enforce" else ": quotas bound services alone"
    return Text.assemble(
        (words(answer.cluster), "bold"),
        f"   mode {answer.mode}{bounds}   ",
        f"seen {age} ago" if answer.complete else (f"Slurm not seen whole since {age}", "bold red"),
    )


def power_text(answer: OverviewAnswer, room: int) -> Text:
    """``   3.21 kW of 16 boards on 2 of 3 nodes``, cut off after the figure where it must be;
    nothing where no meter tells, or without room for the figure.
    """
    if answer.power is None or room < _LEAST_POWER:
        return Text()
    text = Text(f"   {answer.power.words}")
    text.truncate(room, overflow="ellipsis")
    return text


@dataclass(frozen=True)
class ClusterBar:
    """The slices by state: a bar as wide as the terminal, and its legend."""

    slices: SlicesByState

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich; without a terminal only the legend."""
        whole = self.slices.capacity_millislices
        amounts = [getattr(self.slices, f"{name}_millislices") for name in STATES]
        marks = [_MARKS[name][options.ascii_only] for name in STATES]
        looks = tuple(STATES.values())
        if not isinstance(out, PipeConsole):
            bar = Text(no_wrap=True)
            widths = shares(amounts, options.max_width)
            for look, mark, width in zip(looks, marks, widths, strict=True):
                bar.append(mark * width, style=look.style)
            yield bar
        legend = Text(f"{slices_words(whole)}:")
        for look, mark, amount in zip(looks, marks, amounts, strict=True):
            legend.append(f"  {mark} ", style=look.style)
            legend.append(f"{slices_text(amount)} {look.word}")
        yield legend


def shares(amounts: Sequence[int], width: int) -> list[int]:
    """Divide a width in proportion to the amounts; what is not 0 gets a character at least."""
    whole = sum(amounts)
    if not whole:
        return [0] * len(amounts)
    found = [max(1, amount * width // whole) if amount else 0 for amount in amounts]
    found[max(range(len(amounts)), key=amounts.__getitem__)] += width - sum(found)
    return [max(0, length) for length in found]


@dataclass(frozen=True)
class Screen:
    """All parts of an overview below each other, as long as the terminal is high."""

    answer: OverviewAnswer
    now_s: float

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich; without a terminal with all rows."""
        answer, width = self.answer, options.max_width
        is_pipe = isinstance(out, PipeConsole)
        head = title(answer, self.now_s)
        yield head.append_text(power_text(answer, width - head.cell_len))
        yield ClusterBar(answer.slices)
        height = _MOST if is_pipe else out.height
        is_low = height <= _LOW
        # There is no room for it by tenant.
        sums = month_text(answer.month, self.now_s) if answer.month is not None and is_low else ""
        yield Text(sums, style="dim", no_wrap=True, overflow="ellipsis")
        gap = [] if is_low else [Text()]
        told = list(_attention(answer.attention, width, (height - _LINES_BESIDE) // 3))
        yield from told
        parts = _parts(answer, self.now_s, width, is_low=is_low)
        taken = _LINES_BESIDE + sum(_height(text, width) for text in told)
        taken += (len(gap) + _HEAD) * len(parts) + sum(bool(part.rest) for part in parts)
        rooms = rooms_of([part.length for part in parts], height - taken)
        for part, room in zip(parts, rooms, strict=True):
            yield from gap
            columns = part.columns(room)
            # Without rows its line alone says what there is.
            if is_pipe and part.length:
                yield FittingTable(columns)
            elif part.length:
                yield from table_lines(columns, width)
            yield from _more(part.length - room, part.whole)
            if part.rest:
                yield Text(f" {part.rest}", style="dim")


def _attention(items: Sequence[AttentionItem], width: int, most: int) -> Iterator[Text]:
    """Yield the lines of the worst of them, of which there is room for ``most``; one at least."""
    if not items:
        yield Text(" Nothing needs attention.", style="green")
    taken = 0
    for nth, item in enumerate(items):
        lines = tuple(attention_lines((item,), width))
        taken += sum(_height(line, width) for line in lines)
        if nth and taken > most:
            yield from _more(len(items) - nth)
            return
        yield from lines


def _height(line: Text, width: int) -> int:
    return max(1, -(-line.cell_len // width))


@dataclass(frozen=True)
class _Part:
    """A part of the screen: its rows, how many there are, and a line about all that is not shown.

    ``columns`` makes its columns of so many of its first rows; ``whole`` is the command that has
    all.
    """

    length: int
    columns: Callable[[int], tuple[Column, ...]]
    rest: str = ""
    whole: str = "slicewise top"


def _parts(answer: OverviewAnswer, now_s: float, width: int, *, is_low: bool) -> list[_Part]:
    services = sorted(answer.services, key=_trouble)
    found = [
        _part(
            answer.tenants,
            TENANT_FIELDS,
            others_text(answer.others) if answer.others is not None else "",
        ),
        _part(services, SERVICE_FIELDS, other_services_text(answer.other_services)),
        _gpu_part(gpu_rows(answer.gpus), width),
        _part(answer.waiting, waiting_fields(now_s)),
    ]
    if answer.month is not None and not is_low:
        found.append(_month_part(answer.month, now_s))
    return [part for part in found if part.length or part.rest]


def _part(rows: Sequence[Row], fields: Sequence[Field[Row]], rest: str = "") -> _Part:
    def columns(room: int) -> tuple[Column, ...]:
        return tuple(field.column(rows[:room]) for field in fields) if rows else ()

    return _Part(len(rows), columns, rest)


def _gpu_part(rows: Sequence[GpuRow], width: int) -> _Part:
    return _Part(len(rows), lambda room: gpu_columns(rows[:room], width))


def _month_part(month: MonthNow, now_s: float) -> _Part:
    tenants = most_spent(month.tenants)
    return _Part(
        len(tenants),
        lambda room: month_columns(month, tenants[:room]),
        month_text(month, now_s),
        "slicewise overview --json",
    )


def month_text(month: MonthNow, now_s: float) -> str:
    """``2026-11: 1,234.50 EUR, 56.789 kWh, as of 4 min ago by days of Europe/Berlin``."""
    energies = [each.energy_mj for each in month.tenants if each.energy_mj is not None]
    sums = []
    if month.currency:
        cost = sum(each.millionths or 0 for each in month.tenants)
        sums.append(f"{money_text(cost)} {words(month.currency)}")
    if energies:
        sums.append(f"{kwh_text(sum(energies))} kWh")
    age = age_text(now_s - month.seen_s)
    return f"{month.month}: {', '.join(sums)}, as of {age} ago by days of {words(month.zone)}"


def month_columns(month: MonthNow, tenants: Sequence[TenantThisMonth]) -> tuple[Column, ...]:
    """Money, where there is a tariff, and joules of these tenants, as the page has them."""
    places = money_places(each.millionths for each in tenants)
    costs = (
        NOTHING if each.millionths is None else money_text(each.millionths, places)
        for each in tenants
    )
    measured = (measured_text(each.measured_mj, each.energy_mj) or NOTHING for each in tenants)
    return (
        column(f"{month.month} of", (words(each.tenant) or "nobody" for each in tenants)),
        *((column(words(month.currency), costs, right=True),) if month.currency else ()),
        column("kWh", (kwh_text(each.energy_mj) for each in tenants), right=True),
        column("measured", measured, right=True, rank=1),
    )


def gpu_columns(rows: Sequence[GpuRow], width: int) -> tuple[Column, ...]:
    """The columns of the table of GPUs, drawn as wide as the terminal has room for."""
    nodes = max((len(row.node) for row in rows), default=0)
    wide = slice_width(rows, width - nodes - _GPU_CELLS)
    return (
        column("GPUs of", (words(row.node) for row in rows)),
        column("GPU", (row.gpu for row in rows), right=True),
        column("node", (_node_condition(row) for row in rows)),
        column(_GPU_LEGEND, (gpu_bar(row, wide) for row in rows)),
    )


def rooms_of(lengths: Sequence[int], lines: int) -> list[int]:
    """Divide lines among parts: none gets more than it has rows, and each a few at least.

    Where a part does not show all of its rows, one of its lines says how many more there are.
    """
    rooms, left = [min(length, _LEAST_ROWS) for length in lengths], list(range(len(lengths)))
    while left and (spare := lines - sum(rooms)) > 0:
        each = max(1, spare // len(left))
        for nth in left:
            more = min(each, lengths[nth] - rooms[nth], max(0, lines - sum(rooms)))
            rooms[nth] += more
        left = [nth for nth in left if rooms[nth] < lengths[nth]]
    return rooms


def table_lines(
    columns: Sequence[Column], width: int, rows: range | None = None, selected: int = -1
) -> Iterator[Text]:
    """Yield a heading and a line for each row, which are cut off where the terminal ends.

    Only ``rows`` are shown if they are named; all count for the widths, so that columns stay where
    they are while a user scrolls. Free text, of columns that fold elsewhere, is cut first. The row
    ``selected`` stands out.
    """
    shown = fitted(columns, width)
    natural = [max(cell.cell_len for cell in (Text(c.heading), *c.cells)) for c in shown]
    fixed = sum(n for column, n in zip(shown, natural, strict=True) if not column.folds)
    room = max(_LEAST_TEXT, width - 1 - fixed - _GAP * len(shown))
    widths = [min(n, room) if column.folds else n for column, n in zip(shown, natural, strict=True)]
    heads = [Text(column.heading) for column in shown]
    count = len(shown[0].cells) if shown else 0
    for nth in (-1, *(range(count) if rows is None else rows)):
        cells = heads if nth < 0 else [column.cells[nth] for column in shown]
        line = Text(" ", no_wrap=True, overflow="crop", end="\n")
        for each, cell, wide in zip(shown, cells, widths, strict=True):
            line.append_text(_padded(cell, wide, right=each.right)).append(" " * _GAP)
        line.right_crop(_GAP)
        is_selected = 0 <= selected == nth
        line.truncate(width, pad=is_selected)
        line.stylize("bold" if nth < 0 else "reverse" if is_selected else "")
        yield line


def _padded(cell: Text, width: int, *, right: bool) -> Text:
    text = cell.copy()
    text.truncate(width, overflow="ellipsis")
    gap = " " * (width - text.cell_len)
    return Text(gap).append_text(text) if right else text.append(gap)


def _trouble(service: ServiceNow) -> tuple[bool, int, str, str]:
    return service.condition != "failing", -(service.backlog or 0), service.tenant, service.name


def _more(count: int, command: str = "slicewise top") -> Iterator[Text]:
    if count > 0:
        yield Text(f" and {count:,} more: {command}", style="dim")


def _node_condition(row: GpuRow) -> Text:
    return toned(row.condition)
