"""Serves a unix socket that answers lines of JSON: limits, deadlines, peer credentials."""

import asyncio
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cluster.language.errors import Refusal, SlicewiseError
from cluster.rpc.messages import FailureAnswer
from slurm_plugin.common.connection_places import Idle, idle_to_cut
from slurm_plugin.common.log import report_failure

BACKLOG = 512
"""Connections that may wait to be accepted."""

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """The process at the other end, as the kernel reports it."""

    pid: int
    uid: int


@dataclass(frozen=True)
class Limits:
    """Limits of a socket.

    Attributes:
        connections, connections_per_uid: connections open at a time. A further one gets SW-BUSY,
            unless an idle connection of a user with more of them makes room.
        idle_s: seconds that a peer may take for its next line, or for reading an answer.
        line_bytes: most bytes of a request; a longer one is refused unread.
        reserved: number of the connections that only the uids in ``reserved_for`` may use.
    """

    connections: int
    connections_per_uid: int
    idle_s: float
    line_bytes: int
    reserved: int = 0
    reserved_for: frozenset[int] = frozenset()


Answer = Callable[[str, Peer], Awaitable[BaseModel]]
"""Answers a line. May raise SlicewiseError, and ValidationError if the line is no valid message."""


class LineServer:
    """Serves one socket; each line gets one line as answer."""

    def __init__(self, path: Path, mode: int, answer: Answer, limits: Limits) -> None:
        self._path = path
        self._mode = mode
        self._answer = answer
        self._limits = limits
        self._open: Counter[int] = Counter()
        self._idle: dict[Idle, asyncio.Task[None]] = {}
        self._numbers = count()
        self._gate = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, replacing a socket file that a killed daemon left behind."""
        self._server = await asyncio.start_unix_server(
            self._accept,
            sock=bound(self._path, self._mode),
            limit=self._limits.line_bytes,
            backlog=BACKLOG,
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
        peer = peer_of(writer)
        try:
            if self._is_full(peer.uid) and not self._made_room(peer.uid):
                await self._send(writer, failure(BUSY))
            else:
                await self._admitted(reader, writer, peer)
        except (TimeoutError, ConnectionError):
            pass  # The peer has gone or does not read: no answer would reach it.
        finally:
            # Answers that a peer has not read in time are dropped, and so is its connection.
            writer.transport.abort()

    def _is_full(self, uid: int) -> bool:
        limits = self._limits
        if self._open[uid] >= limits.connections_per_uid:
            return True
        if uid in limits.reserved_for:
            return self._open.total() >= limits.connections
        others = self._open.total() - sum(self._open[one] for one in limits.reserved_for)
        return others >= limits.connections - limits.reserved

    def _made_room(self, uid: int) -> bool:
        """Close an idle connection to make room, so that few users can't keep all others out."""
        limits = self._limits
        if self._open[uid] >= limits.connections_per_uid:
            return False
        others = [one for one in self._idle if one.uid not in limits.reserved_for]
        cut = idle_to_cut(uid, others, self._open)
        if cut is None:
            return False
        self._idle.pop(cut).cancel()
        return True

    @contextmanager
    def _idling(self, uid: int) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- each conversation is one
        idle = Idle(next(self._numbers), uid, time.monotonic())
        self._idle[idle] = task
        try:
            yield
        finally:
            self._idle.pop(idle, None)

    async def _admitted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        self._open[peer.uid] += 1
        try:
            await self._converse(reader, writer, peer)
            with self._idling(peer.uid):
                async with asyncio.timeout(self._limits.idle_s):
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._open[peer.uid] -= 1

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        while True:
            try:
                with self._idling(peer.uid):
                    async with asyncio.timeout(self._limits.idle_s):
                        line = await reader.readline()
            except ValueError:
                with self._idling(peer.uid):
                    await self._send(writer, failure(too_long(self._limits.line_bytes)))
                return
            if not line:
                return
            if peer.uid not in self._limits.reserved_for:
                await self._turn()
            answer = await answered(self._answer, line, peer)
            with self._idling(peer.uid):
                await self._send(writer, answer)

    async def _turn(self) -> None:
        """Let one question go on in each turn of the event loop, however many are asked.

        Everything else that the program does gets its turns in between.
        """
        async with self._gate:
            await asyncio.sleep(0)

    async def _send(self, writer: asyncio.StreamWriter, answer: BaseModel) -> None:
        writer.write(answer.model_dump_json(exclude_none=True).encode() + b"\n")
        async with asyncio.timeout(self._limits.idle_s):
            await writer.drain()


async def answered(answer: Answer, line: bytes, peer: Peer) -> BaseModel:
    """The answer to a line; a FailureAnswer if anything goes wrong."""
    try:
        # Text from a batch script may be in any encoding.
        return await answer(line.decode("utf-8", "replace"), peer)
    except Exception as error:  # noqa: BLE001 -- one bad request must not end the daemon
        return failure_of(error, peer.uid)


BUSY = Refusal("SW-BUSY", "Too many connections to the daemon.", "Try again.")


def too_long(line_bytes: int) -> Refusal:
    """The refusal of a longer line."""
    return Refusal("SW-WIRE", f"A message may have {line_bytes} bytes at most here.")


def failure(refusal: Refusal) -> FailureAnswer:
    """A refusal as an answer."""
    return FailureAnswer(code=refusal.code, message=refusal.message, hint=refusal.hint)


def failure_of(error: Exception, uid: int) -> FailureAnswer:
    """The answer for an error. An unexpected error is logged, and its text is not sent."""
    if isinstance(error, ValidationError):
        return failure(Refusal("SW-WIRE", f"No such message: {_problem(error)}."))
    if isinstance(error, SlicewiseError):
        return failure(error.refusal)
    report_failure("request_failed", error, kind=type(error).__name__, uid=uid)
    return failure(Refusal("SW-INTERNAL", "The daemon failed; its log says how."))


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'line'}: {first['msg']}"


def peer_of(transport: asyncio.StreamWriter | asyncio.BaseTransport) -> Peer:
    """The peer of a connection."""
    connection: socket.socket = transport.get_extra_info("socket")
    size = _CREDENTIALS.size
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return Peer(pid, uid)


def bound(path: Path, mode: int) -> socket.socket:
    """A bound socket at ``path``, replacing a file that may be there.

    The caller must call listen() itself: until then no client can connect, so none can before the
    file's mode is right.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(mode)
    return listener


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
