"""The server of a job of ``slicewise profile``, as the client in that job asks and ends it."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, UnixConnector

from slicewise.launcher.rules.engines.engine import Engine, Probe, Request

POLL_S = 0.1
_URL = "http://server"
"""The host's name does not matter: there is one server behind the socket."""
_OK, _FAILED = 200, 500
_NO_ANSWER = (ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError)


class CannotError(Exception):
    """A point can't be measured; the message says why."""


class NoServerError(Exception):
    """The server does not start, which says nothing of any point."""


class BrokenError(CannotError):
    """A point can't be measured, and the server is gone or may have become unusable."""


class JobServer:
    """The job's server, whichever process is running now.

    The batch script starts it again each time it has ended, as long as ``file`` exists, into which
    it writes the process id.
    """

    def __init__(self, engine: Engine, socket: str, identity: str, file: Path) -> None:
        self._engine, self.socket, self.file = engine, socket, file
        self._identity = identity

    def end(self) -> None:
        """Kill the server; the batch script starts another one."""
        with suppress(OSError, ValueError):
            pid = self.file.read_text(encoding="utf-8")
            self.file.write_text("", encoding="utf-8")
            os.kill(int(pid), signal.SIGKILL)

    async def wait_until_there(self, session: ClientSession, *, starts: int | None = None) -> None:
        """Wait until the server answers as ours.

        Raises NoServerError if the batch script has given up, BrokenError if ``starts`` processes
        have ended before they answered.
        """
        asked = Request("GET", self._engine.identity_path)
        pids: set[str] = set()
        while self.file.exists():
            with suppress(OSError):
                pids.update(self.file.read_text(encoding="utf-8").split())
            if starts is not None and len(pids) > starts:
                raise BrokenError(f"{self._engine.title} ended before it was ready")
            # Without one, what answers is a server that has just been killed.
            if pids and await self._is_ours(session, asked):
                return
            await asyncio.sleep(POLL_S)
        raise NoServerError

    async def _is_ours(self, session: ClientSession, asked: Request) -> bool:
        with suppress(CannotError, *_NO_ANSWER):
            body = await self.answer(session, asked)
            return self._engine.identified(body, self._identity).probe is Probe.OURS
        return False

    async def answer(self, session: ClientSession, request: Request) -> bytes:
        """Return the answer; raises CannotError for a refusal, BrokenError for a failure."""
        return await answered(session, request, self._engine.title)


async def answered(session: ClientSession, request: Request, title: str) -> bytes:
    """Return the answer; raises CannotError for a refusal, BrokenError for a failure."""
    async with requested(session, request) as answer:
        body = await answer.read()
    if answer.status == _OK:
        return body
    try:
        message = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        message = f"{title} answers {answer.status}"
    raise refusal(answer.status, message)


@asynccontextmanager
async def requested(session: ClientSession, request: Request) -> AsyncIterator[ClientResponse]:
    """Send a request."""
    async with session.request(
        request.method,
        f"{_URL}{request.path}",
        data=request.head + request.rest or None,
        headers=request.headers,
        allow_redirects=False,
    ) as answer:
        yield answer


def refusal(status: int, message: str) -> CannotError:
    """Return BrokenError if the server has failed, CannotError if it has refused the request."""
    return (BrokenError if status >= _FAILED else CannotError)(message)


@asynccontextmanager
async def within(seconds: float, what: str, title: str) -> AsyncIterator[None]:
    """Turn every failure of an exchange with the server into a BrokenError with its reason."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BrokenError(f"{what} within {seconds:g} s") from None
    except _NO_ANSWER as error:
        raise BrokenError(f"{title} has ended: {type(error).__name__}") from None


def open_session(socket: str, engine: Engine) -> ClientSession:
    """Open a client without a limit of connections: each sender has its own, and none waits."""
    connector = UnixConnector(socket, limit=0, force_close=not engine.keeps_connections)
    return ClientSession(connector=connector, timeout=ClientTimeout(total=None))


def now_us() -> int:
    """Return the time in microseconds of a clock that is never set."""
    return time.monotonic_ns() // 1000
