"""Serves several models of a pool by servers that have one each: starts, ends and finds them.

    python3 models.py PRIVATE REPOSITORY MODEL SERVICE BESIDE COMMAND...

Starts COMMAND for MODEL, and for others as it is told; of each it writes the name in the place of
``{model}``, the path of its first .gguf file whose name BESIDE does not match in the place of
``{file}``, and that of a socket in PRIVATE in the place of ``{socket}``. It listens on PRIVATE's
http.sock as soon as the first of them does, and ends when that one ends.

A request goes to the server of the service that the gateway's header names, whatever its body says.
The launcher's requests have no such header. They go to the first server, but for these:

    GET  /slicewise/models         {"models": {MODEL: "ready", "loading", "resting" or "leaving"}}
    POST /slicewise/models/load    {"model": MODEL, "service": SERVICE}, answered once it is loaded
                                   or refused: while it rests, too
    POST /slicewise/models/unload  {"model": MODEL}, answered at once; its requests are finished

Each connection has one request: bytes are passed on as they are, and connections end with it.

This file travels inside the batch script and runs on the node, with nothing but Python 3.8 and its
standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HEADER = b"x-slicewise-service"
PATH = "/slicewise/models"
_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SUFFIX = ".gguf"
_HEAD_BYTES = 1 << 17
_MOST_BODY_BYTES = 4096
_CHUNK_BYTES = 1 << 16
_BACKLOG = 512
_POLL_S = 0.05
_ANSWERS_S = 5.0
_TRIES = 40
_LONGEST_PAUSE_S = 300.0
"""Seconds at most from the end of a server that ends again and again to its next start."""
_SETTLED_S = 600.0
"""Seconds after which an end counts as the first one again."""
_LEAVES_S = 600.0
"""Seconds that requests of a model may take which is to be unloaded."""
_SAID_BYTES = 4096
_SAID = 300
"""Characters of a failed server's words."""
_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
_FAILED = re.compile("error|fail|exception|abort|out of memory", re.IGNORECASE)


class FailedError(Exception):
    """Why a model could not be loaded."""


class ModelServer:
    """The server of one model.

    Attributes:
        state: loading, ready, leaving, or resting: it has ended, and starts again after a pause;
            failed: it could not be started.
        clients: connections that it has.
    """

    def __init__(self, model: str, service: str, socket: str) -> None:
        self.model = model
        self.service = service
        self.socket = socket
        self.state = "loading"
        self.clients = 0
        self._process: asyncio.subprocess.Process | None = None
        self._tried = asyncio.Event()
        self._said = b""

    async def start(self, command: Sequence[str], *, is_first: bool) -> None:
        """Start it; its words go where this program's go. Raises FailedError."""
        starting = asyncio.create_subprocess_exec(
            *command,
            stdout=None if is_first else asyncio.subprocess.PIPE,
            stderr=None if is_first else asyncio.subprocess.STDOUT,
            # What it starts ends with it.
            start_new_session=True,
            # It keeps the limit that the user's job has.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, _FILES),
        )
        try:
            self._process = await starting
        except OSError as error:
            self.state = "failed"
            raise FailedError(f"{command[0]}: {error.strerror}") from None
        finally:
            self._tried.set()
        if self._process.stdout is not None:
            self._listening = asyncio.create_task(self._listen(self._process.stdout))

    @property
    def code(self) -> int | None:
        """How it has ended, as a shell says it: 137 after a KILL; None if it has not."""
        code = None if self._process is None else self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    async def until_ended(self) -> None:
        """Wait until it has ended, if it could be started."""
        if self._process is not None:
            await self._process.wait()

    async def _listen(self, words: asyncio.StreamReader) -> None:
        while True:
            part = await words.read(_CHUNK_BYTES)
            if not part:
                return
            sys.stdout.buffer.write(part)
            sys.stdout.flush()
            self._said = (self._said + part)[-_SAID_BYTES:]

    async def until_ready(self) -> None:
        """Wait until it answers that it is fit; raises FailedError if it ends before."""
        while self.code is None:
            if self.state == "failed":
                raise FailedError("its server could not be started")
            if await self._is_fit():
                if self.state == "loading":
                    self.state = "ready"
                return
            await asyncio.sleep(_POLL_S)
        raise FailedError(f"its server {await self.last_words()}")

    async def last_words(self) -> str:
        """Return how it has ended, and what it has said then."""
        await asyncio.wait({self._listening}, timeout=_ANSWERS_S)
        lines = [line for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if _FAILED.search(line)] or lines[-1:]
        words = " ".join(telling[:2])[:_SAID]
        return f"ended with {self.code}" + (f": {words}" if words else "")

    async def _is_fit(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        asking = asyncio.create_task(_health(reader, writer))
        await asyncio.wait({asking}, timeout=_ANSWERS_S)
        asking.cancel()
        writer.close()
        return asking.done() and not asking.cancelled() and asking.result()

    async def end(self) -> None:
        """End it once its clients have left."""
        waits_s = 0.0
        while self.clients and waits_s < _LEAVES_S and self.code is None:
            await asyncio.sleep(_POLL_S)
            waits_s += _POLL_S
        # It may still be starting.
        await self._tried.wait()
        self.kill()
        await self.until_ended()

    def forget(self) -> None:
        """Remove its socket."""
        with suppress(OSError):
            Path(self.socket).unlink()

    def kill(self) -> None:
        """End it and all that it has started."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


async def _health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the server says that it is fit."""
    with suppress(OSError, ValueError):
        writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    return False


class Ends(NamedTuple):
    """How often a model's server has ended by itself, each time not long after the time before.

    Attributes:
        at_s: when it has ended last, in seconds of a clock that nothing sets.
        words: how.
    """

    times: int = 0
    at_s: float = 0.0
    words: str = ""

    def one_more(self, words: str) -> Ends:
        """Return them after one more, now."""
        now_s = time.monotonic()
        is_next = now_s - self.at_s < _SETTLED_S + self.pause_s
        return Ends((self.times if is_next else 0) + 1, now_s, words)

    @property
    def pause_s(self) -> float:
        """Seconds for which it rests before it starts again: none after the first time."""
        # So many times make the longest pause; the power of a thousand is no float.
        times = min(self.times, 60)
        return min(2.0 ** (times - 2), _LONGEST_PAUSE_S) if times > 1 else 0.0

    @property
    def rests_s(self) -> float:
        """Seconds for which it still rests."""
        return max(0.0, self.at_s + self.pause_s - time.monotonic())

    @property
    def why(self) -> str:
        """Why it rests."""
        return (
            f"its server ends again and again ({self.times} times) and is started again after"
            f" {self.pause_s:g} s; the last time it {self.words}"
        )


class ModelServers:
    """The servers, by model; the first one has all that is for none of the others."""

    def __init__(self, words: Sequence[str]) -> None:
        private, repository, self._first, self._service, beside, *self._command = words
        self._private, self._repository = Path(private), Path(repository)
        self._beside = re.compile(beside, re.IGNORECASE)
        self._servers: dict[str, ModelServer] = {}
        self._ends: dict[str, Ends] = {}
        self._started = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> int:
        """Serve until the first model's server ends, or this program is to; its exit code."""
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        first = await self._start(self._first, self._service)
        watching = asyncio.create_task(self._watch(first))
        end = asyncio.create_task(ended.wait())
        waiting = asyncio.create_task(_until_there(first.socket))
        await asyncio.wait({waiting, watching, end}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        first.state = "ready"
        server = await asyncio.start_unix_server(
            self._answer, self._private / "http.sock", limit=_HEAD_BYTES, backlog=_BACKLOG
        )
        async with server:
            await asyncio.wait({watching, end}, return_when=asyncio.FIRST_COMPLETED)
        for model_server in self._servers.values():
            model_server.kill()
        return first.code or 0

    async def _start(self, model: str, service: str) -> ModelServer:
        """Start a model's server; raises FailedError."""
        self._started += 1
        # The path of a socket may have 107 bytes.
        socket = str(self._private / f"model{self._started}.sock")
        values = {"{model}": model, "{file}": self._file(model), "{socket}": socket}
        command = [values.get(word, word) for word in self._command]
        server = self._servers[model] = ModelServer(model, service, socket)
        try:
            await server.start(command, is_first=model == self._first)
        except FailedError:
            del self._servers[model]
            raise
        return server

    def _file(self, model: str) -> str:
        folder = self._repository / model
        try:
            files = sorted(folder.glob(f"*{_SUFFIX}"))
        except OSError as error:
            raise FailedError(f"{folder}: {error.strerror}") from None
        for file in files:
            if not self._beside.search(file.name):
                return str(file)
        raise FailedError(f"{folder} has no {_SUFFIX} file")

    async def _watch(self, server: ModelServer) -> None:
        """Wait until a server has ended; one that was ready, and not told to end, begins again.

        Its service's requests wait for that. One that has ended not long before, too, rests first,
        the longer the more often: a start takes what other models' requests need. A server that
        ends before it is ready again is given up.
        """
        await server.until_ended()
        server.forget()
        if self._servers.get(server.model) is not server:
            return
        if server.state == "ready" and server.model != self._first:
            await self._rest(server)
            if self._servers.get(server.model) is not server:
                return
        del self._servers[server.model]
        if server.state == "resting":
            with suppress(FailedError):
                await self._load(server.model, server.service)

    async def _rest(self, server: ModelServer) -> None:
        """Let a server that has ended wait until it may start again."""
        server.state, model = "resting", server.model
        ends = self._ends.get(model, Ends()).one_more(f"ended with {server.code}")
        self._ends[model] = ends
        if ends.pause_s:
            self._ends[model] = ends = ends._replace(words=await server.last_words())
            sys.stdout.write(f"E models.py: {model}: {ends.why}\n")
            sys.stdout.flush()
            await asyncio.sleep(ends.rests_s + _POLL_S)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            service = service_of(head)
            path = head.split(b" ", 2)[1].decode("latin-1")
            if service is None and path.startswith(PATH):
                status, answer = await self._told(path[len(PATH) :], head, reader)
                writer.write(http_answer(status, answer))
                await writer.drain()
            else:
                await self._lead(service, head, reader, writer)
        except FailedError as error:
            writer.write(http_answer(503, {"error": {"message": str(error)}}))
        except (OSError, ValueError, TypeError, LookupError, EOFError, asyncio.LimitOverrunError):
            # It was no request, or one side has gone.
            pass
        finally:
            writer.close()

    async def _lead(
        self,
        service: str | None,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Connect a client with a service's server; raises FailedError if there is none."""
        for _ in range(_TRIES):
            server = self._server_of(service)
            if server.state == "loading":
                await server.until_ready()
            try:
                connection = await asyncio.open_unix_connection(server.socket)
            except OSError:
                # It rests, or has just ended, and nobody has noticed yet.
                await asyncio.sleep(_POLL_S)
                continue
            await lead(server, connection, head, (reader, writer))
            return
        ends = self._ends.get(server.model)
        raise FailedError(ends.why if ends and ends.rests_s else "its server does not answer")

    def _server_of(self, service: str | None) -> ModelServer:
        """Return a service's server; raises FailedError if it has none here."""
        for server in self._servers.values():
            is_its = server.service == service if service else server.model == self._first
            if is_its and server.state != "leaving":
                return server
        raise FailedError(f"no model of {service or 'the replica'} is loaded here")

    async def _told(
        self, order: str, head: bytes, reader: asyncio.StreamReader
    ) -> tuple[int, Mapping[str, object]]:
        if order == "":
            return 200, {"models": {name: server.state for name, server in self._servers.items()}}
        told = json.loads(await reader.readexactly(length_of(head)))
        model, service = told["model"], told.get("service", "")
        if not _NAME.fullmatch(model) or order not in ("/load", "/unload"):
            return 400, {"error": {"message": "no such model or order"}}
        if order == "/unload":
            server = self._servers.get(model)
            if server is not None and model != self._first and server.state != "leaving":
                server.state = "leaving"
                self._begin(server.end())
            return 200, {}
        # Whoever orders a load knows what there is memory for: what rests is loaded by orders then.
        self._servers = {
            name: server for name, server in self._servers.items() if server.state != "resting"
        }
        try:
            await self._load(model, service)
        except FailedError as error:
            return 500, {"error": {"message": str(error)}}
        return 200, {}

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        """Do that beside; a task that nobody holds may be lost."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, model: str, service: str) -> None:
        """Load a model; raises FailedError."""
        server = self._servers.get(model)
        if server is not None and server.state == "leaving":
            raise FailedError("it is being unloaded")
        if (ends := self._ends.get(model)) is not None and ends.rests_s:
            raise FailedError(ends.why)
        if server is None or server.code is not None:
            server = await self._start(model, service)
            self._begin(self._watch(server))
        server.service = service or server.service
        await server.until_ready()


async def _until_there(socket: str) -> None:
    while True:
        with suppress(OSError):
            os.stat(socket)  # noqa: PTH116
            return
        await asyncio.sleep(_POLL_S)


async def lead(server: ModelServer, connection: Streams, head: bytes, client: Streams) -> None:
    """Connect a client with a server, until either of them has gone."""
    (back, forth), (reader, writer) = connection, client
    server.clients += 1
    try:
        forth.write(head)
        passing = [
            asyncio.create_task(pass_on(reader, forth)),
            asyncio.create_task(pass_on(back, writer)),
        ]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
    finally:
        server.clients -= 1
        forth.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on bytes until one side has gone."""
    with suppress(OSError):
        while True:
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                return
            writer.write(data)
            await writer.drain()


def service_of(head: bytes) -> str | None:
    """Return the service that the gateway's header names, without its tenant; None without one."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == HEADER:
            return value.strip().decode("latin-1").rpartition("/")[2]
    return None


def length_of(head: bytes) -> int:
    """Return how many bytes a request's body has; raises ValueError for too many."""
    match = re.search(rb"\r\ncontent-length: *([0-9]{1,9})\r\n", head, re.IGNORECASE)
    length = int(match[1]) if match else 0
    if length > _MOST_BODY_BYTES:
        raise ValueError(length)
    return length


def http_answer(status: int, answer: Mapping[str, object]) -> bytes:
    """Return a whole answer in JSON."""
    body = json.dumps(answer).encode()
    lines = (
        f"HTTP/1.1 {status} -",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def main(words: Sequence[str]) -> None:
    """Serve; end as the first model's server ends."""
    # Each client needs two files.
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES[1], _FILES[1]))
    try:
        code = asyncio.run(ModelServers(words).serve())
    except FailedError as error:
        sys.exit(f"E models.py: {error}")
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
