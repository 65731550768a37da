"""Runs in a job of ``slicewise profile``, beside a server: loads the model, sends, prints figures.

    python -m slicewise.launcher.profiling.job_main WORK SOCKET ID FILE ENGINE

WORK is JSON; the server's process id is written to FILE each time the server starts. The server
listens on SOCKET, in a directory that only this user may enter: a client that reaches it may load
any model, hence run code. ENGINE says what to send and reads the answers.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from aiohttp import ClientSession

from slicewise.launcher.profiling.server import (
    POLL_S,
    BrokenError,
    CannotError,
    JobServer,
    NoServerError,
    answered,
    now_us,
    open_session,
    within,
)
from slicewise.launcher.profiling.token_points import token_points
from slicewise.launcher.rules.engines.engine import (
    LoadedModel,
    MeasuredEngine,
    PromptedEngine,
    Request,
)
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.profiling.figures import (
    LOAD_DEADLINE_S,
    LOADS,
    WINDOWS,
    Begun,
    MeasuredWindow,
    Message,
    Point,
    ProfileTask,
    failed,
    is_steady,
    measured,
    message_text,
)
from slicewise.launcher.rules.profiling.token_figures import TokenTask

_ANSWER_S = 60.0
"""Seconds for one inference; a slice should serve none that takes longer."""


class _Model:
    """The model, served by a number of processes; loaded when it is needed and not there."""

    def __init__(
        self,
        engine: MeasuredEngine,
        server: JobServer,
        session: ClientSession,
        wanted: tuple[str, int | None, str | None],
    ) -> None:
        self.processes = wanted[1] or 1
        self._engine, self._server, self._session, self._wanted = engine, server, session, wanted
        self._loaded: LoadedModel | None = None
        self._refused = ""

    async def loaded(self) -> LoadedModel:
        """Return the loaded model; raises CannotError. A refused load is not tried again."""
        if self._refused:
            raise CannotError(self._refused)
        if self._loaded is None:
            try:
                self._loaded = await self._load()
            except CannotError as error:
                self._refused = str(error)
                raise
            self.processes = self._loaded.processes
        return self._loaded

    async def _load(self) -> LoadedModel:
        title = self._engine.title
        async with within(LOAD_DEADLINE_S, f"{title} or the model did not start", title):
            await self._server.wait_until_there(self._session)
            steps = self._engine.load(*self._wanted)
            before, request = None, next(steps)
            while True:
                if request == before:
                    await asyncio.sleep(POLL_S)
                answer = await self._server.answer(self._session, request)
                try:
                    before, request = request, steps.send(answer)
                except StopIteration as done:
                    loaded: LoadedModel = done.value
                    return loaded

    async def windows(
        self, requests: Sequence[Request], window_s: float
    ) -> Sequence[MeasuredWindow]:
        """Measure with one sender for each request; raises CannotError."""
        async with open_session(self._server.socket, self._engine) as session:
            return await _Load(session, self._engine.title).windows(requests, window_s)

    def start_anew(self) -> None:
        """Restart the server: what is wrong with it shall affect no further point."""
        self._loaded = None
        self._server.end()


class _Load:
    """A closed loop: one inference of each sender is in flight, followed by its next."""

    def __init__(self, session: ClientSession, title: str) -> None:
        self._session, self._title = session, title
        self._latencies_us: list[int] = []
        self._last_us = 0
        self._is_going = True
        self._answered = asyncio.Event()

    async def windows(
        self, requests: Sequence[Request], window_s: float
    ) -> Sequence[MeasuredWindow]:
        """Return the windows after one that warms up: until steady, ``WINDOWS`` at most."""
        measured_windows: list[MeasuredWindow] = []
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._send(request))
                await self._window(window_s)
                while len(measured_windows) < WINDOWS and not is_steady(measured_windows):
                    measured_windows.append(await self._window(window_s))
                # Each sender ends with its answer: the server has nothing left at the next point.
                self._is_going = False
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return measured_windows

    async def _window(self, seconds: float) -> MeasuredWindow:
        """Measure from one answer to the first after ``seconds``: so counts need no rounding."""
        start, began_us = len(self._latencies_us), self._last_us or now_us()
        await asyncio.sleep(seconds)
        self._answered.clear()
        await self._answered.wait()
        return MeasuredWindow(tuple(self._latencies_us[start:]), self._last_us - began_us)

    async def _send(self, request: Request) -> None:
        whole = replace(request, head=request.head + request.rest, rest=b"")
        while self._is_going:
            began_us = now_us()
            async with within(_ANSWER_S, "no answer", self._title):
                await answered(self._session, whole, self._title)
            self._last_us = now_us()
            self._latencies_us.append(self._last_us - began_us)
            self._answered.set()


async def _measure(
    work: ProfileTask, engine: MeasuredEngine, data: str | None, server: JobServer
) -> AsyncIterator[Message]:
    """Yield the messages of all points; after one that can't be served the next is tried."""
    number = 0
    async with open_session(server.socket, engine) as session:
        for processes in work.processes or (None,):
            model = _Model(engine, server, session, (work.model, processes, data))
            for batch in work.batches:
                number += 1
                yield Begun(number=number, batch=batch, processes=model.processes)
                yield await _point(model, batch, work.window_s)


async def _point(model: _Model, batch: int, window_s: float) -> Point:
    try:
        loaded = await model.loaded()
        measured_windows = []
        for each in LOADS:
            requests = _requests(loaded, batch, each * model.processes)
            measured_windows.append(await model.windows(requests, window_s))
    except CannotError as error:
        if isinstance(error, BrokenError):
            model.start_anew()
        return failed(batch, model.processes, str(error))
    return measured(batch, model.processes, *measured_windows)


def _requests(loaded: LoadedModel, batch: int, count: int) -> Sequence[Request]:
    try:
        return tuple(loaded.requests(batch, count))
    except ValueError as error:
        raise CannotError(str(error)) from None


async def _tell(messages: AsyncIterator[Message]) -> None:
    async for message in messages:
        sys.stdout.write(message_text(message))
        sys.stdout.flush()


def _data(work: ProfileTask | TokenTask) -> str | None:
    return Path(work.data).read_text(encoding="utf-8") if work.data else None


def main(work_json: str, socket: str, identity: str, file: str, engine: str) -> None:
    """Measure everything; raises SystemExit if there is no server to measure it with."""
    chosen_engine = ENGINES[engine]
    server = JobServer(chosen_engine, socket, identity, Path(file))
    work: ProfileTask | TokenTask
    if isinstance(chosen_engine, MeasuredEngine):
        work = ProfileTask.model_validate_json(work_json)
        telling = _measure(work, chosen_engine, _data(work), server)
    elif isinstance(chosen_engine, PromptedEngine):
        work = TokenTask.model_validate_json(work_json)
        telling = token_points(work, chosen_engine, _data(work), server)
    else:
        sys.exit(f"Models of {chosen_engine.title} can't be measured.")
    try:
        asyncio.run(_tell(telling))
    except NoServerError:
        sys.exit(f"{chosen_engine.title} did not start.")


if __name__ == "__main__":
    main(*sys.argv[1:])
