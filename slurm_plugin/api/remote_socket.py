"""Serves HTTP to other hosts: TCP, each question and answer a munge credential.

The network is not trusted. A question must be short, arrive soon and look like a credential before
munged is asked, in two threads of its own, so that a flood of questions leaves munged free for
Slurm. Silent connections make room for others (``common/connection_places.py``), and the launcher's
hosts have places of their own, so that no other host can lock the launcher out.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from aiohttp import web

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import (
    InvalidInputError,
    Refusal,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.rpc.messages import REQUEST_LIMIT
from slicewise.cluster.rpc.munge import Munge
from slicewise.cluster.rpc.munge_rpc import PREFIX, SEALED_PATH, MessagePart, seal, unseal
from slicewise.cluster.settings.file import DaemonSettings, host_and_port
from slicewise.slurm_plugin.api.desk import Roles
from slicewise.slurm_plugin.api.http_server import (
    SERVER,
    Connection,
    HttpLimits,
    HttpServer,
    Question,
)
from slicewise.slurm_plugin.api.places import Guests
from slicewise.slurm_plugin.api.routes import Asked, Routes, status_of
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.common.sockets import BUSY, too_long
from slicewise.slurm_plugin.rules.common.connection_places import ConnectionLimits

T = TypeVar("T")

BOUNDS = ConnectionLimits(connections=128, per_host=16, per_prefix=64, grace_s=0.5)
LIMITS = HttpLimits(question_s=2.0, answer_s=15.0, body_bytes=2 * REQUEST_LIMIT, refused=128)
"""A credential of the longest message needs less than twice its bytes."""
_CONNECTIONS_PER_UID = 8
"""Questions of one user that are answered at a time: half of what a host may have, so that one user
leaves room for others of that host. The launcher and operators have no such bound."""
_MUNGE_THREADS = 2
_MUNGE_S = 10.0
_REPORT_EVERY_S = 10.0
_NO_CREDENTIAL = Refusal(
    Code.MUNGE, "This is not a MUNGE credential.", "Ask with the slicewise command."
)


class RemoteSocket:
    """Answers what the user socket answers; ``listen`` says where."""

    def __init__(
        self,
        settings: DaemonSettings,
        routes: Routes,
        who: Roles,
        *,
        bounds: ConnectionLimits = BOUNDS,
        limits: HttpLimits = LIMITS,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._roles = who
        self._munge = Munge(settings.munge_socket)
        self._threads = ThreadPoolExecutor(_MUNGE_THREADS, "munge")
        self._guests = Guests(bounds)
        self._server = HttpServer(self._guests, self._reply, limits, self._no_question)
        self._by_uid: Counter[int] = Counter()
        self._report_due_s = 0.0

    async def start(self) -> None:
        """Listen, if ``listen`` is set; SlicewiseError (SW-SETTINGS) if that is impossible."""
        if not self._settings.listen:
            return
        try:
            await self._server.start_tcp(*host_and_port(self._settings.listen))
        except OSError as error:
            raise SlicewiseError(
                Code.SETTINGS,
                f"daemon.listen: {self._settings.listen}: {error.strerror}.",
                "Name an address of this host and a port that is free.",
            ) from None

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        await self._server.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _reply(self, question: Question) -> web.StreamResponse:
        connection = question.connection
        try:
            part = await self._opened(question)
            with self._counted(part.uid, connection):
                return await self._answered(part, question)
        except SlicewiseError as error:
            # It gives up its place: what has spoken is not dropped to make room for others.
            self._report(error, connection.address)
            return connection.refuse(error.refusal, status_of(error))
        except TimeoutError:
            connection.drop()
            return web.Response()

    @contextmanager
    def _counted(self, uid: int, connection: Connection) -> Iterator[None]:
        """Count a user's question; UnreachableError (SW-BUSY) if the user has too many."""
        if uid == self._roles.launcher:
            self._guests.launcher_asks(connection)
        elif self._by_uid[uid] >= _CONNECTIONS_PER_UID and uid not in self._roles.trusted:
            raise UnreachableError(BUSY.code, BUSY.message, BUSY.hint)
        self._by_uid[uid] += 1
        try:
            yield
        finally:
            self._by_uid -= Counter([uid])

    async def _opened(self, question: Question) -> MessagePart:
        """The question that a credential holds, and who asks it."""
        request, line = question.request, question.body
        is_credential = line.startswith(PREFIX) and line.endswith(b"\n") and b"\0" not in line
        if (request.method, request.raw_path) != ("POST", SEALED_PATH) or not is_credential:
            raise _error(_NO_CREDENTIAL)
        part = await self._in_thread(partial(unseal, self._munge, "question", line))
        if len(part.data.partition(b"\n")[2]) > REQUEST_LIMIT:
            raise _error(too_long(REQUEST_LIMIT))
        return part

    async def _answered(self, part: MessagePart, question: Question) -> web.StreamResponse:
        place, _, body = part.data.partition(b"\n")
        method, _, target = place.decode("utf-8", "replace").partition(" ")
        reply = await self._routes.reply(Asked(method, target, body, part.uid))
        credentials = seal(self._munge, "answer", part.nonce, reply.body, part.uid)
        credential = await self._in_thread(partial(next, credentials, b""))
        question.connection.answers()
        response = web.StreamResponse(headers=reply.headers)
        response.force_close()
        response.headers["Server"] = SERVER
        try:
            await response.prepare(question.request)
            while credential:
                await response.write(credential)
                credential = await self._in_thread(partial(next, credentials, b""))
            await response.write_eof()
        except (ConnectionError, SlicewiseError):
            # The peer has gone, or munged: a part of an answer is none.
            question.connection.drop()
        return response

    async def _in_thread(self, call: Callable[[], T]) -> T:
        async with asyncio.timeout(_MUNGE_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _no_question(self, connection: Connection) -> Refusal:
        self._report(_error(_NO_CREDENTIAL), connection.address)
        return _NO_CREDENTIAL

    def _report(self, error: SlicewiseError, address: str) -> None:
        """Log a refused credential, at most every ``_REPORT_EVERY_S`` seconds.

        Otherwise anything that can connect could fill the log.
        """
        if time.monotonic() >= self._report_due_s:
            self._report_due_s = time.monotonic() + _REPORT_EVERY_S
            report_failure("credential_refused", error, address=address)


def _error(refusal: Refusal) -> InvalidInputError:
    return InvalidInputError(refusal.code, refusal.message, refusal.hint)
