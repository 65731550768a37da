"""Runs in a job of ``slicewise profile``, beside Triton: loads the model, sends, prints figures.

    python -m launcher.profiling.job_main WORK SOCKET ID FILE

WORK is JSON; Triton's process id is written to FILE each time Triton starts. Triton listens on
SOCKET, in a directory that only this user may enter: a client that reaches it may load any model,
hence run code.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from launcher.engines.smallest_request import (
    Inference,
    ModelConfig,
    ModelMetadata,
    smallest_inference,
)
from launcher.profiling.figures import (
    LOAD_DEADLINE_S,
    LOADS,
    WINDOWS,
    Begun,
    Message,
    Point,
    Window,
    Work,
    configured,
    failed,
    is_steady,
    measured,
    message_text,
    processes_of,
    takes_batch,
)
from launcher.profiling.sample_request import Sample, parse_sample

_ANSWER_S = 60.0
"""Seconds for one inference; a slice should serve none that takes longer."""
_POLL_S = 0.1
_URL = "http://triton/v2"
"""The host's name does not matter: there is one server behind the socket."""
_OK, _FAILED = 200, 500
_NO_ANSWER = (ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError)


class _CannotError(Exception):
    """A point can't be measured; the message says why."""


class _NoTritonError(Exception):
    """Triton does not start, which says nothing of any point."""


class _BrokenError(_CannotError):
    """A point can't be measured, and Triton is gone or may have become unusable."""


@dataclass(frozen=True)
class _Loaded:
    """A model in Triton."""

    metadata: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class _Server:
    """The job's Triton, whichever process is running now."""

    socket: str
    session: ClientSession
    identity: str
    file: Path

    def end(self) -> None:
        """Kill Triton; the batch script starts another one."""
        with suppress(OSError, ValueError):
            pid = self.file.read_text(encoding="utf-8")
            self.file.write_text("", encoding="utf-8")
            os.kill(int(pid), signal.SIGKILL)

    async def load(self, model: str, processes: int | None) -> _Loaded:
        """Load the model with ``processes`` (None: as configured); raises _CannotError."""
        async with _within(LOAD_DEADLINE_S, "Triton or the model did not start"):
            await self._wait_until_there()
            await self._control(model, "load", {})
            asked = configured(await self._get(f"{_model_url(model)}/config"), processes)
            # A model that is loaded again would be there twice for a while, where only one may fit.
            await self._control(model, "unload", {})
            await self._wait_until_unloaded(model)
            await self._control(model, "load", {"config": json.dumps(asked)})
            url = _model_url(model)
            return _Loaded(await self._get(url), await self._get(f"{url}/config"))

    async def _wait_until_there(self) -> None:
        while self.file.exists():
            try:
                if (await self._get(_URL))["name"] == self.identity:
                    return
            except (_CannotError, *_NO_ANSWER):
                await asyncio.sleep(_POLL_S)
        raise _NoTritonError

    async def _wait_until_unloaded(self, model: str) -> None:
        while True:
            listed = await self._post(f"{_URL}/repository/index", {})
            if all(one.get("reason") == "unloaded" for one in listed if one["name"] == model):
                return
            await asyncio.sleep(_POLL_S)

    async def _control(self, model: str, what: str, parameters: Mapping[str, str]) -> None:
        url = f"{_URL}/repository/models/{model}/{what}"
        await self._post(url, {"parameters": parameters})

    async def _get(self, url: str) -> Any:
        async with self.session.get(url, allow_redirects=False) as answer:
            return _json(answer.status, await answer.read())

    async def _post(self, url: str, body: object) -> Any:
        async with self.session.post(url, json=body, allow_redirects=False) as answer:
            return _json(answer.status, await answer.read())


def _model_url(model: str) -> str:
    return f"{_URL}/models/{model}"


def _json(status: int, body: bytes) -> Any:
    _require_ok(status, body)
    return json.loads(body) if body else None


def _require_ok(status: int, body: bytes) -> None:
    """Raises _CannotError for a refusal, _BrokenError for a failure."""
    if status == _OK:
        return
    try:
        said = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        said = f"Triton answers {status}"
    raise (_BrokenError if status >= _FAILED else _CannotError)(said)


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    """Turn every failure of an exchange with Triton into a _BrokenError with its reason."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise _BrokenError(f"{what} within {seconds:g} s") from None
    except _NO_ANSWER as error:
        raise _BrokenError(f"Triton has ended: {type(error).__name__}") from None


class _Model:
    """The model, served by a number of processes; loaded when it is needed and not there."""

    def __init__(self, server: _Server, name: str, processes: int | None) -> None:
        self.name, self.processes = name, processes or 1
        self._server, self._wanted = server, processes
        self._loaded: _Loaded | None = None
        self._refused = ""

    async def loaded(self) -> _Loaded:
        """Return the loaded model; raises _CannotError. A refused load is not tried again."""
        if self._refused:
            raise _CannotError(self._refused)
        if self._loaded is None:
            try:
                self._loaded = await self._server.load(self.name, self._wanted)
            except _CannotError as error:
                self._refused = str(error)
                raise
            self.processes = processes_of(self._loaded.config)
        return self._loaded

    async def windows(self, requests: Sequence[Inference], window_s: float) -> Sequence[Window]:
        """Measure with one sender for each request; raises _CannotError."""
        async with _session(self._server.socket) as session:
            url = f"{_model_url(self.name)}/infer"
            return await _Load(session, url).windows(requests, window_s)

    def start_anew(self) -> None:
        """Restart Triton: what is wrong with it shall affect no further point."""
        self._loaded = None
        self._server.end()


def _session(socket: str) -> ClientSession:
    # Connections have no limit: each sender has its own, and nothing waits in the client.
    connector = UnixConnector(socket, limit=0)
    return ClientSession(connector=connector, timeout=ClientTimeout(total=None))


class _Load:
    """A closed loop: one inference of each sender is in flight, followed by its next."""

    def __init__(self, session: ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._latencies_us: list[int] = []
        self._last_us = 0
        self._is_going = True
        self._answered = asyncio.Event()

    async def windows(self, requests: Sequence[Inference], window_s: float) -> Sequence[Window]:
        """Return the windows after one that warms up: until steady, ``WINDOWS`` at most."""
        found: list[Window] = []
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._send(request))
                await self._window(window_s)
                while len(found) < WINDOWS and not is_steady(found):
                    found.append(await self._window(window_s))
                # Each sender ends with its answer, so nothing is left in Triton for the next point.
                self._is_going = False
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return found

    async def _window(self, seconds: float) -> Window:
        """Measure from one answer to the first after ``seconds``: so counts need no rounding."""
        start, began_us = len(self._latencies_us), self._last_us or _now_us()
        await asyncio.sleep(seconds)
        self._answered.clear()
        await self._answered.wait()
        return Window(tuple(self._latencies_us[start:]), self._last_us - began_us)

    async def _send(self, request: Inference) -> None:
        head = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(request.head)),
        }
        body = request.head + request.tensors
        while self._is_going:
            began_us = _now_us()
            async with (
                _within(_ANSWER_S, "no answer"),
                self._session.post(self._url, data=body, headers=head) as answer,
            ):
                text = await answer.read()
            _require_ok(answer.status, text)
            self._last_us = _now_us()
            self._latencies_us.append(self._last_us - began_us)
            self._answered.set()


def _now_us() -> int:
    return time.monotonic_ns() // 1000


async def _measure(work: Work, sample: Sample | None, server: _Server) -> AsyncIterator[Message]:
    """Yield the messages of all points; after one that can't be served the next is tried."""
    number = 0
    for processes in work.processes or (None,):
        model = _Model(server, work.model, processes)
        for batch in work.batches:
            number += 1
            yield Begun(number=number, batch=batch, processes=model.processes)
            yield await _point(model, sample, batch, work.window_s)


async def _point(model: _Model, sample: Sample | None, batch: int, window_s: float) -> Point:
    try:
        loaded = await model.loaded()
        found = []
        for each in LOADS:
            requests = tuple(_requests(loaded, sample, batch, each * model.processes))
            found.append(await model.windows(requests, window_s))
    except _CannotError as error:
        if isinstance(error, _BrokenError):
            model.start_anew()
        return failed(batch, model.processes, str(error))
    return measured(batch, model.processes, *found)


def _requests(
    loaded: _Loaded, sample: Sample | None, batch: int, count: int
) -> Iterator[Inference]:
    """Yield ``count`` requests, each a sequence of its own where the model takes sequences."""
    if why := takes_batch(loaded.config, batch):
        raise _CannotError(why)
    for number in range(1, 1 + count):
        try:
            config = ModelConfig.model_validate(loaded.config)
            if sample is not None:
                yield sample.inference(config, batch, number)
                continue
            metadata = ModelMetadata.model_validate(loaded.metadata)
            request = smallest_inference(metadata, config, number, batch)
        except ValueError as error:
            raise _CannotError(str(error)) from None
        if request is None:
            raise _CannotError("it only answers by streaming")
        yield request


async def _run(work: Work, sample: Sample | None, socket: str, identity: str, file: Path) -> None:
    async with _session(socket) as session:
        server = _Server(socket, session, identity, file)
        async for message in _measure(work, sample, server):
            sys.stdout.write(message_text(message))
            sys.stdout.flush()


def main(work_json: str, socket: str, identity: str, file: str) -> None:
    """Measure everything; raises SystemExit if there is no Triton to measure it with."""
    work = Work.model_validate_json(work_json)
    sample = parse_sample(Path(work.data).read_text(encoding="utf-8")) if work.data else None
    try:
        asyncio.run(_run(work, sample, socket, identity, Path(file)))
    except _NoTritonError:
        sys.exit("Triton did not start.")


if __name__ == "__main__":
    main(*sys.argv[1:])
