"""Runs in a job of ``slicewise profile``, beside a server: loads the model, sends, prints figures.

    python -m launcher.profiling.job_main WORK SOCKET ID FILE ENGINE

WORK is JSON; the server's process id is written to FILE each time the server starts. The server
listens on SOCKET, in a directory that only this user may enter: a client that reaches it may load
any model, hence run code. ENGINE says what to send and reads the answers; scripts of former
versions that still wait in Slurm's queue name none.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from launcher.engines.engine import LoadedModel, MeasuredEngine, Probe, Request
from launcher.engines.registry import ENGINES
from launcher.profiling.figures import (
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

_ANSWER_S = 60.0
"""Seconds for one inference; a slice should serve none that takes longer."""
_POLL_S = 0.1
_URL = "http://server"
"""The host's name does not matter: there is one server behind the socket."""
_OK, _FAILED = 200, 500
_NO_ANSWER = (ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError)


class _CannotError(Exception):
    """A point can't be measured; the message says why."""


class _NoServerError(Exception):
    """The server does not start, which says nothing of any point."""


class _BrokenError(_CannotError):
    """A point can't be measured, and the server is gone or may have become unusable."""


@dataclass(frozen=True)
class _Started:
    """The job's server as the batch script starts it, each time it has ended."""

    engine: MeasuredEngine
    socket: str
    identity: str
    file: Path


class _Server:
    """The job's server, whichever process is running now."""

    def __init__(self, started: _Started, session: ClientSession) -> None:
        self.engine, self.socket, self._session = started.engine, started.socket, session
        self._identity, self._file = started.identity, started.file

    def end(self) -> None:
        """Kill the server; the batch script starts another one."""
        with suppress(OSError, ValueError):
            pid = self._file.read_text(encoding="utf-8")
            self._file.write_text("", encoding="utf-8")
            os.kill(int(pid), signal.SIGKILL)

    async def load(self, model: str, processes: int | None, data: str | None) -> LoadedModel:
        """Load the model with ``processes`` (None: as configured); raises _CannotError."""
        title = self.engine.title
        async with _within(LOAD_DEADLINE_S, f"{title} or the model did not start", title):
            await self._wait_until_there()
            steps = self.engine.load(model, processes, data)
            before, request = None, next(steps)
            while True:
                if request == before:
                    await asyncio.sleep(_POLL_S)
                said = await self._answer(request)
                try:
                    before, request = request, steps.send(said)
                except StopIteration as done:
                    loaded: LoadedModel = done.value
                    return loaded

    async def _wait_until_there(self) -> None:
        asked = Request("GET", self.engine.identity_path)
        while self._file.exists():
            with suppress(_CannotError, *_NO_ANSWER):
                said = await self._answer(asked)
                if self.engine.identified(said, self._identity).probe is Probe.OURS:
                    return
            await asyncio.sleep(_POLL_S)
        raise _NoServerError

    async def _answer(self, request: Request) -> bytes:
        return await _answered(self._session, request, self.engine.title)


async def _answered(session: ClientSession, request: Request, title: str) -> bytes:
    """Return the answer; raises _CannotError for a refusal, _BrokenError for a failure."""
    async with session.request(
        request.method,
        f"{_URL}{request.path}",
        data=request.head + request.rest or None,
        headers=request.headers,
        allow_redirects=False,
    ) as answer:
        body = await answer.read()
    if answer.status == _OK:
        return body
    try:
        said = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        said = f"{title} answers {answer.status}"
    raise (_BrokenError if answer.status >= _FAILED else _CannotError)(said)


@asynccontextmanager
async def _within(seconds: float, what: str, title: str) -> AsyncIterator[None]:
    """Turn every failure of an exchange with the server into a _BrokenError with its reason."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise _BrokenError(f"{what} within {seconds:g} s") from None
    except _NO_ANSWER as error:
        raise _BrokenError(f"{title} has ended: {type(error).__name__}") from None


class _Model:
    """The model, served by a number of processes; loaded when it is needed and not there."""

    def __init__(self, server: _Server, name: str, processes: int | None, data: str | None) -> None:
        self.processes = processes or 1
        self._server, self._wanted = server, (name, processes, data)
        self._loaded: LoadedModel | None = None
        self._refused = ""

    async def loaded(self) -> LoadedModel:
        """Return the loaded model; raises _CannotError. A refused load is not tried again."""
        if self._refused:
            raise _CannotError(self._refused)
        if self._loaded is None:
            try:
                self._loaded = await self._server.load(*self._wanted)
            except _CannotError as error:
                self._refused = str(error)
                raise
            self.processes = self._loaded.processes
        return self._loaded

    async def windows(
        self, requests: Sequence[Request], window_s: float
    ) -> Sequence[MeasuredWindow]:
        """Measure with one sender for each request; raises _CannotError."""
        async with _session(self._server.socket) as session:
            return await _Load(session, self._server.engine.title).windows(requests, window_s)

    def start_anew(self) -> None:
        """Restart the server: what is wrong with it shall affect no further point."""
        self._loaded = None
        self._server.end()


def _session(socket: str) -> ClientSession:
    # Connections have no limit: each sender has its own, and nothing waits in the client.
    connector = UnixConnector(socket, limit=0)
    return ClientSession(connector=connector, timeout=ClientTimeout(total=None))


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
        found: list[MeasuredWindow] = []
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._send(request))
                await self._window(window_s)
                while len(found) < WINDOWS and not is_steady(found):
                    found.append(await self._window(window_s))
                # Each sender ends with its answer: the server has nothing left at the next point.
                self._is_going = False
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return found

    async def _window(self, seconds: float) -> MeasuredWindow:
        """Measure from one answer to the first after ``seconds``: so counts need no rounding."""
        start, began_us = len(self._latencies_us), self._last_us or _now_us()
        await asyncio.sleep(seconds)
        self._answered.clear()
        await self._answered.wait()
        return MeasuredWindow(tuple(self._latencies_us[start:]), self._last_us - began_us)

    async def _send(self, request: Request) -> None:
        whole = replace(request, head=request.head + request.rest, rest=b"")
        while self._is_going:
            began_us = _now_us()
            async with _within(_ANSWER_S, "no answer", self._title):
                await _answered(self._session, whole, self._title)
            self._last_us = _now_us()
            self._latencies_us.append(self._last_us - began_us)
            self._answered.set()


def _now_us() -> int:
    return time.monotonic_ns() // 1000


async def _measure(work: ProfileTask, data: str | None, server: _Server) -> AsyncIterator[Message]:
    """Yield the messages of all points; after one that can't be served the next is tried."""
    number = 0
    for processes in work.processes or (None,):
        model = _Model(server, work.model, processes, data)
        for batch in work.batches:
            number += 1
            yield Begun(number=number, batch=batch, processes=model.processes)
            yield await _point(model, batch, work.window_s)


async def _point(model: _Model, batch: int, window_s: float) -> Point:
    try:
        loaded = await model.loaded()
        found = []
        for each in LOADS:
            requests = _requests(loaded, batch, each * model.processes)
            found.append(await model.windows(requests, window_s))
    except _CannotError as error:
        if isinstance(error, _BrokenError):
            model.start_anew()
        return failed(batch, model.processes, str(error))
    return measured(batch, model.processes, *found)


def _requests(loaded: LoadedModel, batch: int, count: int) -> Sequence[Request]:
    try:
        return tuple(loaded.requests(batch, count))
    except ValueError as error:
        raise _CannotError(str(error)) from None


async def _run(work: ProfileTask, data: str | None, started: _Started) -> None:
    async with _session(started.socket) as session:
        async for message in _measure(work, data, _Server(started, session)):
            sys.stdout.write(message_text(message))
            sys.stdout.flush()


def main(work_json: str, socket: str, identity: str, file: str, engine: str = "triton") -> None:
    """Measure everything; raises SystemExit if there is no server to measure it with."""
    work, found = ProfileTask.model_validate_json(work_json), ENGINES[engine]
    if not isinstance(found, MeasuredEngine):
        sys.exit(f"Models of {found.title} can't be measured.")
    data = Path(work.data).read_text(encoding="utf-8") if work.data else None
    try:
        asyncio.run(_run(work, data, _Started(found, socket, identity, Path(file))))
    except _NoServerError:
        sys.exit(f"{found.title} did not start.")


if __name__ == "__main__":
    main(*sys.argv[1:])
