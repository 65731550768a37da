"""``slicewise top``: how the cluster stands, live, and why a job waits.

It is drawn with rich, which all commands use, and reads keys itself (docs/decisions/0041).
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.control import Control
from rich.segment import Segments

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal, SlicewiseError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyRequest
from slicewise.cluster.runtime.console import terminal_console
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.commands.keyboard import Keyboard
from slicewise.slurm_plugin.cli.views.top import Frame, table_of
from slicewise.slurm_plugin.cli.views.top_state import TopState, pressed, within

_WHY_S = 5.0
"""Seconds after which an open explanation is asked for again: it reads the ledger."""
_TICK_S = 0.5
"""Seconds between two looks at the terminal's size and the clock."""

top_app = typer.Typer()


@top_app.command(epilog="Examples: slicewise top | slicewise top --interval 10")
def top(
    interval_s: Annotated[
        float, typer.Option("--interval", min=1, max=3600, help="Seconds between two looks.")
    ] = 2.0,
) -> None:
    """Show the cluster live on the whole terminal: what needs attention, tenants, services, GPUs.

    1 to 6 or Tab change the view, arrows select, Enter says why a job waits or how a service or a
    tenant stands, s sorts by the next column, r turns the order round, / shows only rows with a
    text, Esc shows all again, q ends it. Users see what slicewise overview shows them. Each look is
    one question to the daemon, which answers from memory.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInputError(
            Code.USAGE, "top needs a terminal.", "For a pipe or a script: slicewise overview"
        )
    client = DaemonClient(load_settings().daemon)
    # The first look is made before the terminal changes: its failure is told as by other commands.
    first = client.call(OverviewRequest())
    out = terminal_console()
    with _whole_terminal(out):
        _Top(client, out, first, interval_s).run()


class _Question:
    """A question to the daemon, asked in a thread so that keys work while it is answered.

    ``answered`` is the last request that was answered or refused, and by what; None before that.
    """

    def __init__(self, client: DaemonClient, wake: int) -> None:
        self._client, self._wake = client, wake
        self.is_asking = False
        self.asked_s = time.monotonic()
        self.answered: tuple[Any, Any] | None = None

    def ask(self, request: Any) -> None:
        """Ask unless the last question is still open."""
        if self.is_asking:
            return
        self.is_asking, self.asked_s = True, time.monotonic()
        Thread(target=self._call, args=(request,), daemon=True).start()

    def _call(self, request: Any) -> None:
        try:
            self.answered = request, self._client.call(request)
        except SlicewiseError as error:
            self.answered = request, error.refusal
        finally:
            self.is_asking = False
            with suppress(OSError):  # The program has ended.
                os.write(self._wake, b".")


class _Top:
    """The screen: what is shown, and what changes it."""

    def __init__(
        self, client: DaemonClient, out: Console, first: OverviewAnswer, interval_s: float
    ) -> None:
        self._out, self._interval_s = out, interval_s
        self._woken, wake = os.pipe()
        self._look, self._why = _Question(client, wake), _Question(client, wake)
        self._answer = first
        self._failure: Refusal | None = None
        # What needs attention comes first, if anything does.
        self._state = TopState("attention") if first.attention else TopState()
        self._keyboard = Keyboard()

    def run(self) -> None:
        """Show it until the user ends it."""
        drawn: object = None
        while not self._state.has_ended:
            self._ask()
            self._take_answers()
            self._state = within(self._state, self._table.keys)
            shown = (self._answer, self._failure, self._explanation, self._state, self._second)
            if shown != drawn:
                self._draw()
                drawn = shown
            self._read()

    @property
    def _table(self) -> Any:
        return table_of(self._answer, self._state, wall_s())

    @property
    def _second(self) -> tuple[int, int, int]:
        """What changes by itself: the age of what is shown, and the terminal's size."""
        return int(wall_s()), *self._out.size

    @property
    def _explanation(self) -> WhyAnswer | Refusal | None:
        about, outcome = self._why.answered or (None, None)
        return outcome if about == self._why_request else None

    @property
    def _why_request(self) -> WhyRequest | None:
        try:
            return WhyRequest.of(about=self._state.about) if self._state.about else None
        except InvalidInputError:
            return None

    def _take_answers(self) -> None:
        match self._look.answered:
            case (_, OverviewAnswer() as answer):
                self._answer, self._failure = answer, None
            case (_, Refusal() as refusal):
                self._failure = refusal

    def _ask(self) -> None:
        now_s = time.monotonic()
        if now_s - self._look.asked_s >= self._interval_s:
            self._look.ask(OverviewRequest())
        if (request := self._why_request) is not None:
            is_new = self._why.answered is None or self._why.answered[0] != request
            if is_new or now_s - self._why.asked_s >= _WHY_S:
                self._why.ask(request)

    def _draw(self) -> None:
        frame = Frame(self._answer, self._state, wall_s(), self._failure, self._explanation)
        size = self._out.size
        options = self._out.options.update(width=size.width, height=size.height)
        lines = self._out.render_lines(frame, options, pad=True)[: size.height]
        # Sent together, each line to its place: the picture neither flickers nor scrolls.
        with self._out:
            for nth, line in enumerate(lines):
                self._out.control(Control.move_to(0, nth))
                self._out.print(Segments(line), end="")

    def _read(self) -> None:
        ready, _, _ = select.select([sys.stdin, self._woken], [], [], _TICK_S)
        if self._woken in ready:
            os.read(self._woken, 1024)
        if sys.stdin in ready:
            sent = _typed()
            for key in self._keyboard.keys(sent) if sent else ("interrupt",):
                self._state = pressed(self._state, key, self._table.keys)
        elif (last := self._keyboard.rest()) is not None:
            self._state = pressed(self._state, last, self._table.keys)


def _typed() -> bytes:
    """What was typed; nothing if the terminal has gone."""
    try:
        return os.read(sys.stdin.fileno(), 1024)
    except OSError:
        return b""


@contextmanager
def _whole_terminal(out: Console) -> Iterator[None]:
    """Take the terminal's other screen and its keys one by one; give both back in any case."""
    before = termios.tcgetattr(sys.stdin)
    ends = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(sys.stdin)
        changed = termios.tcgetattr(sys.stdin)
        # Ctrl-C and Ctrl-Z come as keys: a stopped program would leave its picture to the shell.
        changed[3] &= ~termios.ISIG
        termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
        with out.screen(hide_cursor=True):
            yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for number, handler in ends.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
