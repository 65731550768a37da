"""Waits for services: ``slicewise service wait``, ``apply --wait`` and ``apply --start``."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.printable import printable
from slicewise.cluster.language.service import whole_number
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.order_messages import OrderRequest, ServiceOrder
from slicewise.cluster.runtime.console import print_json, terminal_console
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.services.lookup import Name, find
from slicewise.launcher.services.overview import ServiceObservation, observe
from slicewise.launcher.services.waiting import (
    WaitGoal,
    Waiting,
    after_look,
    is_reached,
    last_log_line,
    must_forgive,
    progress,
    wake_hint,
)

_POLL_S = 0.5
_GIVES_BACK_S = 15.0
"""Seconds within which a replica without requests has given its slice back."""
_RESTORES_S = 30.0
"""Seconds for which the bounds of before are ordered again while the daemon does not answer."""
_ENDED = Code.SERVICE_UNKNOWN
_TERMINATED = 128 + signal.SIGTERM

wait_app = typer.Typer()


@dataclass(frozen=True)
class GoneService:
    """A service that was waited for until it was gone."""

    service: str
    state: Literal["gone"] = "gone"


Timeout = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to wait at most.", show_default=True)
]
Show = Callable[[ServiceObservation | None], None]


@wait_app.command(
    "wait",
    epilog="Examples: slicewise service wait bert --for ready"
    " | slicewise service wait bert --for asleep --timeout 60",
)
def wait_service(
    name: Name,
    goal: Annotated[WaitGoal, typer.Option("--for", help="What to wait for.")] = WaitGoal.READY,
    timeout_s: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Wait until a service is ready, asleep, failing or gone.

    Ready: a replica serves, as many as min_replicas do, and a roll-over or restart is finished. A
    service that sleeps becomes ready only if requests or service scale wake it: the command says so
    at once, and waits for that. Progress is shown on stderr. Exit
    code 7 if it is not so in time, 1 if its starts fail while it should get ready.
    """
    settings = load_settings()
    try:
        newest = asyncio.run(find(settings, name))[0]
    except InvalidInputError as error:
        if goal is not WaitGoal.GONE or error.refusal.code != _ENDED:
            raise
        service, gone = name, None
    else:
        service = f"{newest.tenant}/{newest.name}"
        waiting = Waiting(service, goal, newest.array_job_id)
        gone = asyncio.run(wait_for(settings, waiting, timeout_s))
    if as_json:
        print_json(GoneService(service) if gone is None else gone)
    elif gone is None:
        typer.echo(f"{service} is gone")
    else:
        typer.echo(f"{service} is {gone.state}")


async def wait_for(
    settings: Settings, waiting: Waiting, timeout_s: float
) -> ServiceObservation | None:
    """Wait until the service is as it should be, and show progress on stderr.

    Raises UnreachableError (SW-TIMEOUT) if it is not so in time, and what ``is_reached`` and,
    at the end of that time, what ``observe`` raises.
    """
    with _shown(waiting) as show:
        return await _reached(settings, waiting, timeout_s, show)


async def _reached(
    settings: Settings, waiting: Waiting, timeout_s: float, show: Show
) -> ServiceObservation | None:
    clock = asyncio.get_running_loop()
    until_s = clock.time() + timeout_s
    while True:
        try:
            services = await observe(settings)
        except UnreachableError:
            if clock.time() >= until_s:
                raise
        else:
            seen = next(
                (service for service in services if service.service == waiting.service), None
            )
            if seen is not None and must_forgive(waiting, seen):
                restart = OrderRequest(array_job_id=seen.array_job_id, what="restart")
                await DaemonClient(settings.daemon).ask(restart)
                waiting = replace(waiting, forgiven=seen.failures)
            if is_reached(waiting, seen):
                return seen
            waiting = after_look(waiting, seen)
            show(seen)
            if clock.time() >= until_s:
                raise _too_late(waiting, seen, timeout_s)
        await asyncio.sleep(_POLL_S)


def _too_late(
    waiting: Waiting, seen: ServiceObservation | None, timeout_s: float
) -> UnreachableError:
    name = waiting.service.partition("/")[2]
    return UnreachableError(
        Code.TIMEOUT,
        f"{waiting.service} is not {waiting.goal} after {timeout_s:g} s; it is {progress(seen)}.",
        f"Wake it: send a request, or slicewise service scale {name} --min 1"
        if wake_hint(waiting, seen)
        else f"See: slicewise service status {name}",
    )


@contextmanager
def _shown(waiting: Waiting) -> Iterator[Show]:
    """Show each look on stderr: one line that changes on a terminal, else a line per change."""

    def said(seen: ServiceObservation | None) -> str:
        hint = wake_hint(waiting, seen)
        return f"{waiting.service}: {progress(seen)}{hint and f': {hint}'}"

    if not sys.stderr.isatty():
        yield _Lines(said)
        return
    # Imported where there is a terminal: a script has no use for it.
    from rich.text import Text  # noqa: PLC0415

    with terminal_console(stderr=True).status(Text(waiting.service)) as status:

        def show(seen: ServiceObservation | None) -> None:
            text = Text(said(seen))
            if line := last_log_line(seen):
                text.append(f"\n  {line}", style="dim")
            status.update(text)

        yield show


class _Lines:
    """Prints what has changed, line by line."""

    def __init__(self, words: Callable[[ServiceObservation | None], str]) -> None:
        self._words = words
        self._told = ""

    def __call__(self, seen: ServiceObservation | None) -> None:
        words = self._words(seen)
        if words != self._told:
            typer.echo(printable(words), err=True)
            self._told = words


@dataclass(frozen=True)
class Started:
    """What ``apply --start`` has found: the fields of ``started`` in its JSON.

    Attributes:
        replica: array job and slot.
        ready_after_s: seconds from the command's order until it was ready.
        on_slice_s: seconds of these since Slurm had given it a slice; None is not known.
        inferred: whether its model has answered an inference.
        given_back: whether the service sleeps again; False if it was awake, or requests keep it.
    """

    replica: str
    node: str
    ready_after_s: float
    on_slice_s: int | None
    inferred: bool
    given_back: bool = False

    def text(self, service: str) -> str:
        """Return the same for people."""
        answered = "and has answered an inference" if self.inferred else "as its server says"
        left = "Its slice is given back." if self.given_back else "It keeps its slice for now."
        return (
            f"{service}: replica {self.replica} on {self.node} was ready after "
            f"{self.ready_after_s} s ({self.on_slice_s} s on its slice) {answered}. {left}"
        )


def start_once(settings: Settings, waiting: Waiting, timeout_s: float) -> Started:
    """Start one replica of a service that has none, wait until it is ready, and give it back.

    One whose starts have failed is started now, too: what failed before is forgotten.
    Raises what ``wait_for`` and ``_restore`` raise. The service's bounds are as before then, too,
    also where the command is interrupted or terminated.
    """
    newest = asyncio.run(find(settings, waiting.service))[0]
    waiting = replace(waiting, is_woken=True, forgiven=None)
    if _least(newest):
        return asyncio.run(_started(settings, waiting, timeout_s, newest))
    most = newest.order.max_replicas
    with ExitStack() as at_the_end:
        at_the_end.callback(lambda: asyncio.run(_restore(settings, waiting.service, newest.order)))
        try:
            asyncio.run(_scale(settings, newest, 1, len(newest.slots) if most is None else most))
        except InvalidInputError:
            at_the_end.pop_all()  # The daemon has refused: the bounds are as before.
            raise
        try:
            started = asyncio.run(_started(settings, waiting, timeout_s, newest))
        except asyncio.CancelledError:
            raise typer.Exit(_TERMINATED) from None
    return replace(started, given_back=asyncio.run(_is_given_back(settings, waiting)))


async def _started(
    settings: Settings, waiting: Waiting, timeout_s: float, newest: ServiceView
) -> Started:
    """Wait for the replica; SIGTERM cancels the wait, as SIGINT does."""
    clock, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        clock.add_signal_handler(signal.SIGTERM, task.cancel)
    begun_s = clock.time()
    seen = await wait_for(settings, waiting, timeout_s)
    return _started_replica(newest, seen, clock.time() - begun_s)


def _least(view: ServiceView) -> int:
    ordered = view.order.min_replicas
    return whole_number(view.directives, "min_replicas", 0) if ordered is None else ordered


async def _scale(
    settings: Settings, view: ServiceView, least: int | None, most: int | None
) -> None:
    order = OrderRequest(
        array_job_id=view.array_job_id, what="scale", min_replicas=least, max_replicas=most
    )
    await DaemonClient(settings.daemon).ask(order)


async def _restore(settings: Settings, service: str, before: ServiceOrder) -> None:
    """Order the bounds that held before, of whichever generation is the newest now.

    Tries again for a while, since the daemon may be restarting or wait for its database. Raises
    UnreachableError, with the command that does it, if the bounds may still be those of the start.
    """
    clock = asyncio.get_running_loop()
    until_s = clock.time() + _RESTORES_S
    while True:
        try:
            newest = (await find(settings, service))[0]
            await _scale(settings, newest, before.min_replicas, before.max_replicas)
        except (InvalidInputError, UnreachableError) as error:
            if error.refusal.code == _ENDED:
                return  # A service that has ended has no bounds any more.
            if clock.time() >= until_s:
                raise _unrestored(service, error) from error
        else:
            return
        await asyncio.sleep(_POLL_S)


def _unrestored(service: str, error: SlicewiseError) -> UnreachableError:
    return UnreachableError(
        error.refusal.code,
        f"{error.refusal.message} {service} may still be told to keep a replica.",
        f"Return to its own bounds: slicewise service scale {service} --reset",
    )


def _started_replica(view: ServiceView, seen: ServiceObservation | None, took_s: float) -> Started:
    ready = seen.in_state("ready", seen.array_job_id) if seen is not None else ()
    replica = min(ready, key=lambda replica: replica.age_s or 0)
    return Started(
        replica=f"{replica.array_job_id}_{replica.slot}",
        node=replica.node,
        ready_after_s=round(took_s, 1),
        on_slice_s=replica.age_s,
        inferred=view.directives.get("readiness") != "model",
    )


async def _is_given_back(settings: Settings, waiting: Waiting) -> bool:
    """Return whether the service sleeps again soon; requests of clients keep it awake.

    Nothing is shown: on its way down a service may look as if it woke.
    """
    asleep = replace(waiting, goal=WaitGoal.ASLEEP)
    try:
        await _reached(settings, asleep, _GIVES_BACK_S, lambda _: None)
    except UnreachableError:
        return False
    return True
