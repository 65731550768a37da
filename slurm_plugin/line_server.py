"""A unix socket that answers lines of JSON: limits, deadlines, peer credentials."""

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cluster.errors import Refusal, SlicewiseError
from cluster.wire import LINE_LIMIT, FailureAnswer
from slurm_plugin.observe import report_failure

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int


@dataclass(frozen=True)
class Limits:
    """Attributes:
    connections, connections_per_uid: open at once; further ones are told SW-BUSY.
    idle_s: how long a peer may take for its next line, or for taking an answer.
    """

    connections: int
    connections_per_uid: int
    idle_s: float


Answer = Callable[[str, Peer], Awaitable[BaseModel]]
"""Answers a line; may raise SlicewiseError, and ValidationError for what is no message."""


class LineServer:
    """Serves one socket; each line gets one line back."""

    def __init__(self, path: Path, mode: int, answer: Answer, limits: Limits) -> None:
        self._path = path
        self._mode = mode
        self._answer = answer
        self._limits = limits
        self._open: Counter[int] = Counter()
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. A socket file that a killed daemon left behind is replaced."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Nobody can connect before the mode is right: listening comes last.
        listener.bind(str(self._path))
        self._path.chmod(self._mode)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=listener, limit=LINE_LIMIT, backlog=512
        )

    async def stop(self) -> None:
        """Remove the socket and end every conversation."""
        if self._server is not None:
            self._server.close()
        with suppress(FileNotFoundError):
            self._path.unlink()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.create_task(self._serve(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        self._open[peer.uid] += 1
        try:
            if self._is_full(peer.uid):
                await self._send(writer, _failure(_BUSY))
            else:
                await self._converse(reader, writer, peer)
        except (TimeoutError, ConnectionError):
            pass  # The peer went away or sleeps; there is nobody to tell.
        finally:
            self._open[peer.uid] -= 1
            writer.close()

    def _is_full(self, uid: int) -> bool:
        everybody = self._open.total() > self._limits.connections
        return everybody or self._open[uid] > self._limits.connections_per_uid

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    line = await reader.readline()
            except ValueError:
                await self._send(writer, _failure(_TOO_LONG))
                return
            if not line:
                return
            await self._send(writer, await self._answer_line(line, peer))

    async def _answer_line(self, line: bytes, peer: Peer) -> BaseModel:
        try:
            # Text from a batch script may be in any encoding.
            return await self._answer(line.decode("utf-8", "replace"), peer)
        except ValidationError as error:
            return _failure(Refusal("SW-WIRE", f"No such message: {_problem(error)}."))
        except SlicewiseError as error:
            return _failure(error.refusal)
        except Exception as error:  # noqa: BLE001 -- one bad request must not end the daemon
            report_failure("request_failed", error, kind=type(error).__name__, uid=peer.uid)
            return _failure(Refusal("SW-INTERNAL", "The daemon failed; its log says how."))

    async def _send(self, writer: asyncio.StreamWriter, answer: BaseModel) -> None:
        writer.write(answer.model_dump_json(exclude_none=True).encode() + b"\n")
        async with asyncio.timeout(self._limits.idle_s):
            await writer.drain()


_BUSY = Refusal("SW-BUSY", "Too many connections to the daemon.", "Try again.")
_TOO_LONG = Refusal("SW-WIRE", f"A message may have {LINE_LIMIT} bytes at most.")


def _failure(refusal: Refusal) -> FailureAnswer:
    return FailureAnswer(code=refusal.code, message=refusal.message, hint=refusal.hint)


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'line'}: {first['msg']}"


def _peer(writer: asyncio.StreamWriter) -> Peer:
    connection: socket.socket = writer.get_extra_info("socket")
    size = _CREDENTIALS.size
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return Peer(pid, uid)


def own_directory(path: Path, mode: int) -> None:
    """Make a directory for sockets; SlicewiseError (SW-RUN-DIR) if it isn't ours."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    except OSError as error:
        raise SlicewiseError(
            "SW-RUN-DIR",
            f"daemon.run_dir: {path}: {error.strerror}.",
            f"It must belong to the user with uid {os.geteuid()}, who runs the daemon.",
        ) from None
