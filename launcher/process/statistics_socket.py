"""Answers clients that ask for a service's statistics or a tenant's models, for HAProxy.

The socket stands in the gateway's directory. HAProxy proves by the gateway's key that it is who
asks, so that no other user of the host reads a tenant's counts. It has checked the client's API key
and says which service is meant, or, where models are asked for, what that key opens.
"""

import asyncio
import json
import ssl
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.limit_messages import SubjectLimits
from slicewise.launcher.gateway.files import STATISTICS, replace_file
from slicewise.launcher.gateway.identity import own_context
from slicewise.launcher.process.openai_models import MODELS_PATH, OpenAIModels
from slicewise.launcher.process.statistics import ServiceStatistics
from slicewise.launcher.rules.engines.statistics import StatisticsAnswer
from slicewise.launcher.rules.gateway.subjects import subjects_of
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.state import State

_QUESTION_S, _ANSWER_S = 5.0, 30.0
_HEAD_BYTES = 32 * 1024
_BODY_BYTES = 16 * 1024
"""Bytes of a call's message at most: the names of a model and of its version."""
_SAVED = "statistics.json"
"""Name, in the gateway's directory, of the file with what replicas have counted: the launcher that
leads next goes on with it."""
_UNAVAILABLE = 14
_UNKNOWN = (
    f"{Code.GATEWAY_STATISTICS}: no replica of '{{}}' has said yet what its models have counted. "
    "Questions of statistics wake none: send an inference first."
)


class StatisticsSocket:
    """Listens while this launcher leads: of two on one host, the one that leads has the socket."""

    def __init__(self, directory: Path, statistics: ServiceStatistics) -> None:
        self._directory = directory
        self._statistics = statistics
        self._models = OpenAIModels()
        self._server: asyncio.Server | None = None
        self._saved = ""
        self._rounds: set[asyncio.Task[None]] = set()
        self.not_saved = ""
        """Services of which not all is saved, in words."""

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over what a turn found."""
        self._statistics.turned(plan, state)
        self._models.turned(plan, state)

    def told(self, models: Mapping[str, str], limits: Iterable[SubjectLimits]) -> None:
        """Take over what models mean, as ``slicewise.cluster.language.model_names`` says, and the
        limits of those who ask for them.
        """
        self._models.told(models, limits)

    async def step(self, *, leads: bool) -> None:
        """Listen if this launcher leads, and only then; save what replicas have counted.

        Raises OSError if it may not write in the gateway's directory.
        """
        if not leads:
            self.close()
            return
        if self._server is None:
            with suppress(FileNotFoundError):
                self._statistics.restore((self._directory / _SAVED).read_text(encoding="utf-8"))
            path = self._directory / STATISTICS
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(
                self._serve,
                str(path),
                ssl=own_context(self._directory),
                limit=_HEAD_BYTES,
                ssl_handshake_timeout=_QUESTION_S,
            )
            # HAProxy has a user of its own; who may ask is decided by the key.
            path.chmod(0o666)
        # A round waits for the slowest replicas. The next one looks at the other services.
        around = asyncio.create_task(self._statistics.look_on())
        self._rounds.add(around)
        around.add_done_callback(self._rounds.discard)
        await self._save()

    async def _save(self) -> None:
        saved = await self._statistics.saved()
        self.not_saved = ", ".join(saved.left_out)
        if saved.text != self._saved and self._server is not None:
            await asyncio.to_thread(replace_file, self._directory / _SAVED, saved.text)
            self._saved = saved.text

    def close(self) -> None:
        """Listen no more. The file stays: by now it may be that of the launcher that leads."""
        for around in self._rounds:
            around.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with suppress(
                OSError, TimeoutError, ValueError, IncompleteReadError, LimitOverrunError
            ):
                async with asyncio.timeout(_QUESTION_S):
                    question = await _question(reader)
                async with asyncio.timeout(_ANSWER_S):
                    writer.write(await self._answer(question))
                    await writer.drain()
        finally:
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer(self, question: "_Question") -> bytes:
        key = question.headers.get("x-slicewise-service", "")
        if question.path.startswith(MODELS_PATH):
            subjects = _subjects(question.headers)
            return _by_http(self._models.answer(key, question.path, subjects))
        is_grpc = question.headers.get("content-type", "").startswith("application/grpc")
        frame = question.body if is_grpc else None
        answer = await self._statistics.answer(key, question.path, frame)
        message = _UNKNOWN.format(key)
        if is_grpc:
            return _by_grpc(answer or StatisticsAnswer(_UNAVAILABLE, b"", message))
        return _by_http(answer or StatisticsAnswer(503, json.dumps({"error": message}).encode()))


@dataclass(frozen=True)
class _Question:
    path: str
    headers: Mapping[str, str]
    body: bytes


def _subjects(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Whose limits a question meets, as the gateway says it."""
    names = (headers.get(f"x-slicewise-{part}", NOBODY) for part in ("payer", "person", "key"))
    return subjects_of(*names)


async def _question(reader: StreamReader) -> _Question:
    """Read a request of HAProxy's; raises ValueError, IncompleteReadError, LimitOverrunError."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    _, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    path = target.partition("?")[0]
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _Question(path, headers, await _chunks(reader))
    length = int(headers.get("content-length", "0"))
    body = await reader.readexactly(min(length, _BODY_BYTES))
    return _Question(path, headers, body)


async def _chunks(reader: StreamReader) -> bytes:
    body = b""
    while length := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        if len(body) + length > _BODY_BYTES:
            raise ValueError("too long")
        body += await reader.readexactly(length)
        await reader.readexactly(2)
    return body


_PLAIN = " !'(),-./:"
"""Signs beside letters and digits that stand for themselves in gRPC's message."""
_HEAD = "HTTP/1.1 {}\r\ncontent-type: {}\r\nconnection: close\r\n{}\r\n\r\n"


def _by_http(answer: StatisticsAnswer) -> bytes:
    length = f"content-length: {len(answer.body)}"
    return _HEAD.format(f"{answer.status} -", "application/json", length).encode() + answer.body


def _by_grpc(answer: StatisticsAnswer) -> bytes:
    """Return an answer in chunks with a trailer, from which HAProxy makes one of HTTP/2."""
    head = _HEAD.format("200 OK", "application/grpc", "transfer-encoding: chunked").encode()
    chunk = b"%x\r\n%b\r\n" % (len(answer.body), answer.body) if answer.body else b""
    trailer = f"grpc-status: {answer.status}\r\n"
    if answer.said:
        trailer += f"grpc-message: {quote(answer.said, safe=_PLAIN)}\r\n"
    return head + chunk + b"0\r\n" + trailer.encode() + b"\r\n"
