"""What people see while the demo runs: a live view on a terminal, plain lines elsewhere."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slicewise.cluster.language.units import slices_text
from slicewise.sandbox.demo.record import Sample

PLAIN_INTERVAL_S = 5.0
"""Seconds between two plain lines where the output is not a terminal."""
_BARS = "▁▂▃▄▅▆▇█"
_SPARKLINE_SAMPLES = 60


@dataclass(frozen=True)
class Scene:
    """Everything that one picture shows.

    Attributes:
        phase: what happens now, in words.
        news: what happens beside the load; "" for nothing.
        left_s: seconds until the phase ends; None if that is not known.
        samples: the newest sample of each service.
        arrivals_per_s: arrivals of all services together, oldest first.
    """

    phase: str
    elapsed_s: float
    left_s: float | None
    samples: tuple[Sample, ...]
    arrivals_per_s: tuple[float, ...]
    answered: int
    failed: int
    news: str = ""


def sparkline(values: Sequence[float]) -> str:
    """The values as one line of bars, the largest at full height; zero is the lowest bar."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    last = len(_BARS) - 1
    return "".join(_BARS[round(max(value, 0.0) / top * last)] for value in values)


def picture(scene: Scene) -> RenderableType:
    """The live view."""
    left = "" if scene.left_s is None else f"   about {max(scene.left_s, 0):.0f} s left"
    phase = Text.assemble((scene.phase, "bold"), (f"   {scene.elapsed_s:.0f} s", "dim"), left)
    recent = scene.arrivals_per_s[-_SPARKLINE_SAMPLES:]
    now = f" {recent[-1]:.0f}/s" if recent else ""
    arrivals = Text.assemble("arrivals ", (sparkline(recent), "cyan"), now)
    counts = Text(f"answered {scene.answered}   failed {scene.failed}")
    if scene.failed:
        counts.stylize("bold red")
    beside = Text("beside it ", no_wrap=True, overflow="ellipsis")
    beside.append(scene.news or "-", style="yellow")
    parts = (phase, _services(scene.samples), arrivals, beside, counts)
    return Panel(Group(*parts), title="slicewise demo")


def _services(samples: Iterable[Sample]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("service", style="bold", no_wrap=True)
    for title in ("ready", "loan", "start", "drain", "backlog", "p50 ms", "p95 ms"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("slices of quota", no_wrap=True)
    for sample in samples:
        state = sample.state
        table.add_row(
            state.service,
            f"[green]{state.replicas.ready}[/green]",
            f"[yellow]{state.replicas.borrowed}[/yellow]",
            str(state.replicas.starting),
            str(state.replicas.draining),
            str(state.backlog),
            milliseconds(sample.p50_ms),
            milliseconds(sample.p95_ms),
            _quota(state.used_millislices, state.nominal_millislices),
        )
    return table


def _quota(used: int, nominal: int) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(nominal, 1), completed=used, width=8)
    line.add_row(bar, f"{slices_text(used)} of {slices_text(nominal)}")
    return line


def milliseconds(value: float | None) -> str:
    """Write milliseconds, rounded; a dash for None."""
    return "-" if value is None else f"{value:.0f}"


def plain_line(scene: Scene) -> str:
    """The scene in one line of text."""
    services = "; ".join(
        f"{sample.state.service}: {sample.state.replicas.ready} ready, "
        f"{sample.state.replicas.borrowed} on borrowed quota, "
        f"{sample.state.replicas.starting} starting, backlog {sample.state.backlog}, "
        f"p95 {milliseconds(sample.p95_ms)} ms, "
        f"{slices_text(sample.state.used_millislices)} of "
        f"{slices_text(sample.state.nominal_millislices)} slices"
        for sample in scene.samples
    )
    phase = "; ".join(filter(None, (scene.phase, scene.news)))
    return f"{scene.elapsed_s:4.0f} s  {phase} | {services} | failed {scene.failed}"


class Display:
    """Shows scenes until it is closed; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._last_line_s = -PLAIN_INTERVAL_S
        self._last_phase = ("", "")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, scene: Scene) -> None:
        """On a terminal redraw; elsewhere print a line at a new phase and every few seconds."""
        if self._live:
            self._live.update(picture(scene), refresh=True)
            return
        due = scene.elapsed_s - self._last_line_s >= PLAIN_INTERVAL_S
        phase = (scene.phase, scene.news)
        if due or phase != self._last_phase:
            self._console.print(plain_line(scene), highlight=False, soft_wrap=True)
            self._last_line_s, self._last_phase = scene.elapsed_s, phase
