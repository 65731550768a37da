"""How questions of other hosts say who asks: as munge credentials, or by https with Slurm's tokens.

The network is not trusted. What asks munged, a file or the host's users works in two threads, so
that a flood of questions leaves munged and the daemon free for others.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from aiohttp import web

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal, SlicewiseError
from slicewise.cluster.rpc.messages import REQUEST_LIMIT
from slicewise.cluster.rpc.munge import Munge
from slicewise.cluster.rpc.munge_rpc import PREFIX, SEALED_PATH, seal, unseal
from slicewise.cluster.runtime.tls import CURVE
from slicewise.cluster.runtime.user_names import uid_of
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.api.http_server import SERVER, Question
from slicewise.slurm_plugin.api.routes import Asked, HttpReply
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.common.sockets import too_long

T = TypeVar("T")

_THREADS = 2
_THREAD_S = 10.0
_NO_CREDENTIAL = Refusal(
    Code.MUNGE, "This is not a MUNGE credential.", "Ask with the slicewise command."
)
_NO_TOKEN = Refusal(Code.TOKEN, "This has no token of Slurm's.", "Ask with the slicewise command.")
_BEARER = "Bearer "
_MOST_TOKEN = 4096
TOKEN_S = 86_400
"""A token that was made for longer asks nothing: who steals one has it for a day at most."""


@dataclass(frozen=True)
class Opened:
    """A question, who asks it, and what writes the reply to it."""

    asked: Asked
    write: Callable[[HttpReply], Awaitable[web.StreamResponse]]


class Identity(Protocol):
    """One way to know who asks.

    Attributes:
        none: the refusal of what says nothing of who asks.
    """

    none: Refusal

    def tls(self) -> ssl.SSLContext | None:
        """What is spoken; None is plain TCP. Raises SlicewiseError (SW-SETTINGS)."""

    async def opened(self, question: Question) -> Opened:
        """What is asked, and by whom.

        Raises SlicewiseError for what is refused, TimeoutError for what takes too long.
        """

    def stop(self) -> None:
        """End its threads."""


class _Threads:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "identity")

    async def call(self, call: Callable[[], T]) -> T:
        async with asyncio.timeout(_THREAD_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class ByMunge:
    """Each question and each answer is a munge credential, in plain TCP.

    A question must be short, arrive soon and look like a credential before munged is asked.
    """

    none = _NO_CREDENTIAL

    def __init__(self, munge: Munge) -> None:
        self._munge = munge
        self._threads = _Threads()

    def tls(self) -> None:
        """None: credentials are for their readers alone."""

    def stop(self) -> None:
        """End its threads."""
        self._threads.stop()

    async def opened(self, question: Question) -> Opened:
        """The question that a credential holds, and who asks it."""
        request, line = question.request, question.body
        is_credential = line.startswith(PREFIX) and line.endswith(b"\n") and b"\0" not in line
        if (request.method, request.raw_path) != ("POST", SEALED_PATH) or not is_credential:
            raise refused(_NO_CREDENTIAL)
        part = await self._threads.call(partial(unseal, self._munge, "question", line))
        place, _, body = part.data.partition(b"\n")
        if len(body) > REQUEST_LIMIT:
            raise refused(too_long(REQUEST_LIMIT))
        method, _, target = place.decode("utf-8", "replace").partition(" ")
        asked = Asked(method, target, body, part.uid)
        return Opened(asked, partial(self._write, question, part.nonce, part.uid))

    async def _write(
        self, question: Question, nonce: str, uid: int, reply: HttpReply
    ) -> web.StreamResponse:
        credentials = seal(self._munge, "answer", nonce, reply.body, uid)
        credential = await self._threads.call(partial(next, credentials, b""))
        question.connection.answers()
        response = web.StreamResponse(headers=reply.headers)
        response.force_close()
        response.headers["Server"] = SERVER
        try:
            await response.prepare(question.request)
            while credential:
                await response.write(credential)
                credential = await self._threads.call(partial(next, credentials, b""))
            await response.write_eof()
        except (ConnectionError, SlicewiseError):
            # The peer has gone, or munged: a part of an answer is none.
            question.connection.drop()
        return response


class ByToken:
    """Plain questions by https, each with a token of Slurm's.

    A token names its user whoever sends it, so it must never be where others can read it.
    """

    none = _NO_TOKEN

    def __init__(self, certificate: Path, tokens: SlurmTokens) -> None:
        self._certificate = certificate
        self._tokens = tokens
        self._threads = _Threads()

    def tls(self) -> ssl.SSLContext:
        """TLS 1.3 with the certificate as it is in the file now. Raises SlicewiseError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.set_ecdh_curve(CURVE)
        try:
            # No question for a password.
            context.load_cert_chain(self._certificate, password="")
        except OSError as error:
            is_read = isinstance(error, ssl.SSLError)
            why = "no PEM file with a certificate and its key" if is_read else error.strerror
            raise SlicewiseError(
                Code.SETTINGS,
                f"daemon.certificate: {self._certificate}: {why}.",
                "Name a file with both, the key without a password, that SlurmUser can read.",
            ) from None
        return context

    def stop(self) -> None:
        """End its threads."""
        self._threads.stop()

    async def opened(self, question: Question) -> Opened:
        """The request as it came, and whose token it has."""
        request = question.request
        words = request.headers.getall("Authorization", [])
        if len(words) != 1 or not words[0].startswith(_BEARER) or len(words[0]) > _MOST_TOKEN:
            raise refused(_NO_TOKEN)
        if len(question.body) > REQUEST_LIMIT:
            raise refused(too_long(REQUEST_LIMIT))
        async with asyncio.timeout(_THREAD_S):
            user = await self._tokens.user_of(words[0].removeprefix(_BEARER), TOKEN_S)
        uid = await self._threads.call(partial(_uid_of, user))
        asked = Asked(request.method, request.raw_path, question.body, uid)
        return Opened(asked, partial(_written, question))


async def _written(question: Question, reply: HttpReply) -> web.StreamResponse:
    """Write the reply until it is read: so long the user has a question more."""
    question.connection.answers()
    response = web.Response(
        status=reply.status,
        body=reply.body,
        headers={**reply.headers, "Server": SERVER},
        content_type="application/json",
    )
    response.force_close()
    try:
        await response.prepare(question.request)
        await response.write_eof()
    except ConnectionError:
        question.connection.drop()
    return response


def _uid_of(user: str) -> int:
    if (uid := uid_of(user)) is None:
        raise InvalidInputError(
            Code.TOKEN, "This token names a user whom the daemon's host does not have."
        )
    return uid


def identity_of(settings: DaemonSettings, munge: Munge, tokens: SlurmTokens) -> Identity:
    """How the site's questions of other hosts say who asks."""
    if settings.certificate is None:
        return ByMunge(munge)
    return ByToken(settings.certificate, tokens)


def refused(refusal: Refusal) -> InvalidInputError:
    """The error that a refusal is."""
    return InvalidInputError(refusal.code, refusal.message, refusal.hint)
