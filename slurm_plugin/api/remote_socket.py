"""Serves the user socket to other hosts: TCP, each question and answer a munge credential.

The network is not trusted. A question must be short, arrive soon and look like a credential before
munged is asked, in two threads of its own, so that a flood of questions leaves munged free for
Slurm. Silent connections make room for others (``common/connection_places.py``), and the launcher's
hosts have places of their own, so that no other host can lock the launcher out.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeVar

from cluster.language.errors import InvalidInputError, Refusal, SlicewiseError
from cluster.rpc.munge import Munge
from cluster.rpc.munge_rpc import PREFIX, Part, seal, unseal
from cluster.settings.file import DaemonSettings, host_and_port
from slurm_plugin.api.user_socket import MESSAGE_BYTES, roles
from slurm_plugin.common.connection_places import Bounds, Guest, origin_of, room_for
from slurm_plugin.common.line_server import BACKLOG, BUSY, Answer, Peer, answered, failure
from slurm_plugin.common.log import report_failure

T = TypeVar("T")

_CONNECTIONS, _CONNECTIONS_PER_PREFIX, _CONNECTIONS_PER_ADDRESS = 128, 64, 16
"""As many further connections are told why they are refused; others are closed."""
_CONNECTIONS_PER_UID = 8
"""Questions of one user that are answered at a time: half of what a host may have, so that one user
leaves room for others of that host. The launcher and operators have no such bound."""
_LAUNCHERS_HOSTS = 4
"""Launcher's hosts that are remembered: those of a pair, and those from which they moved."""
_GRACE_S = 0.5
_MUNGE_THREADS = 2
_LINE_BYTES = 2 * MESSAGE_BYTES
"""What a credential of the longest message needs, with room to spare."""
_QUESTION_S, _MUNGE_S, _SEND_S, _LINGER_S = 2.0, 10.0, 15.0, 0.5
_REPORT_EVERY_S = 10.0


class RemoteSocket:
    """Answers one question per connection, as the user socket does; ``listen`` says where."""

    def __init__(self, settings: DaemonSettings, answer: Answer) -> None:
        self._settings = settings
        self._answer = answer
        self._munge = Munge(settings.munge_socket)
        self._threads = ThreadPoolExecutor(_MUNGE_THREADS, "munge")
        self._roles = roles(settings)
        self._guests = _Guests()
        self._turned_away = 0
        self._by_uid: Counter[int] = Counter()
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._report_due_s = 0.0

    async def start(self) -> None:
        """Listen, if ``listen`` is set; SlicewiseError (SW-DAEMON-LISTEN) if that is impossible."""
        if not self._settings.listen:
            return
        try:
            self._server = await asyncio.start_server(
                self._accept,
                *host_and_port(self._settings.listen),
                limit=_LINE_BYTES,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise SlicewiseError(
                "SW-DAEMON-LISTEN",
                f"daemon.listen: {self._settings.listen}: {error.strerror}.",
                "Name an address of this host and a port that is free.",
            ) from None

    async def stop(self) -> None:
        """Stop listening and end every conversation."""
        if self._server is not None:
            self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])
        conversation = asyncio.create_task(self._serve(reader, writer, address))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)
        conversation.add_done_callback(self._guests.leave)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        try:
            # A peer that has gone or does not read gets no answer.
            with suppress(TimeoutError, ConnectionError):
                if self._guests.enter(_this_task(), address):
                    await self._converse(reader, writer, address)
                else:
                    await self._turn_away(reader, writer, BUSY)
                async with asyncio.timeout(_SEND_S):
                    writer.close()
                    await writer.wait_closed()
        finally:
            # Answers that a peer has not read in time are dropped.
            writer.transport.abort()

    async def _turn_away(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusal: Refusal
    ) -> None:
        if self._turned_away >= _CONNECTIONS:
            return
        self._turned_away += 1
        try:
            await _refuse(reader, writer, refusal)
        finally:
            self._turned_away -= 1

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        try:
            question = await self._question(reader)
            with self._counted(question.uid):
                await self._reply(question, writer)
        except SlicewiseError as error:
            self._report(error, address)
            # A connection that has spoken is never cut off for others, so a refused one must not
            # keep a place.
            self._guests.leave(_this_task())
            await self._turn_away(reader, writer, error.refusal)

    @contextmanager
    def _counted(self, uid: int) -> Iterator[None]:
        """Count a user's question; SlicewiseError (SW-BUSY) if the user has too many."""
        if uid == self._roles.launcher:
            self._guests.launcher_asks(_this_task())
        elif self._by_uid[uid] >= _CONNECTIONS_PER_UID and uid not in self._roles.trusted:
            raise SlicewiseError(BUSY.code, BUSY.message, BUSY.hint)
        self._by_uid[uid] += 1
        try:
            yield
        finally:
            self._by_uid -= Counter([uid])

    async def _question(self, reader: asyncio.StreamReader) -> Part:
        try:
            async with asyncio.timeout(_QUESTION_S):
                line = await reader.readline()
        except ValueError:
            line = b""
        self._guests.spoke(_this_task())
        if not (line.startswith(PREFIX) and line.endswith(b"\n")) or b"\0" in line:
            raise InvalidInputError(
                "SW-MUNGE", "This is not a MUNGE credential.", "Ask with the slicewise command."
            )
        question = await self._in_thread(partial(unseal, self._munge, "question", line))
        if len(question.data) > MESSAGE_BYTES:
            raise InvalidInputError(
                "SW-WIRE", f"A message may have {MESSAGE_BYTES} bytes at most here."
            )
        return question

    async def _reply(self, question: Part, writer: asyncio.StreamWriter) -> None:
        answer = await answered(self._answer, question.data, Peer(0, question.uid))
        message = answer.model_dump_json(exclude_none=True).encode()
        credentials = seal(self._munge, "answer", question.nonce, message, question.uid)
        async with asyncio.timeout(_SEND_S):
            while credential := await self._in_thread(partial(next, credentials, b"")):
                writer.write(credential)
                await writer.drain()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        async with asyncio.timeout(_MUNGE_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _report(self, error: SlicewiseError, address: str) -> None:
        """Log a refused credential, at most every ``_REPORT_EVERY_S`` seconds.

        Otherwise anything that can connect could fill the log.
        """
        if time.monotonic() >= self._report_due_s:
            self._report_due_s = time.monotonic() + _REPORT_EVERY_S
            report_failure("credential_refused", error, address=address)


class _Guests:
    """The open connections, by the task that serves each."""

    def __init__(self) -> None:
        self._guests: dict[asyncio.Task[None], Guest] = {}
        self._launchers: OrderedDict[str, None] = OrderedDict()
        self._numbers = count()

    def enter(self, task: asyncio.Task[None], address: str) -> bool:
        """Whether there is room for a connection; a silent one may be cut off to make room."""
        origin = origin_of(address)
        is_launchers = origin.host in self._launchers
        new = Guest(next(self._numbers), origin, time.monotonic(), is_launchers=is_launchers)
        room = room_for(new, self._guests.values(), _bounds())
        for one in [one for one, guest in self._guests.items() if guest == room.cut]:
            self.leave(one)
            one.cancel()
        if room.fits:
            self._guests[task] = new
        return room.fits

    def leave(self, task: asyncio.Task[None]) -> None:
        """Free the connection's place."""
        self._guests.pop(task, None)

    def spoke(self, task: asyncio.Task[None]) -> None:
        """Note that the connection's question has arrived."""
        if task in self._guests:
            self._guests[task] = replace(self._guests[task], is_silent=False)

    def launcher_asks(self, task: asyncio.Task[None]) -> None:
        """Keep places for the connection's host from now on: the launcher asks from it."""
        if task not in self._guests:
            return
        guest = self._guests[task]
        self._launchers[guest.origin.host] = None
        self._launchers.move_to_end(guest.origin.host)
        while len(self._launchers) > _LAUNCHERS_HOSTS:
            self._launchers.popitem(last=False)
        self._guests[task] = replace(guest, is_launchers=True)


def _bounds() -> Bounds:
    return Bounds(_CONNECTIONS, _CONNECTIONS_PER_ADDRESS, _CONNECTIONS_PER_PREFIX, _GRACE_S)


def _this_task() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- each conversation is one
    return task


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusal: Refusal
) -> None:
    """Send a refusal unencrypted, since there is no user to seal it for."""
    writer.write(failure(refusal).model_dump_json().encode() + b"\n")
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            # Closing with unread bytes would reset the connection, and the answer would be lost.
            while await reader.read(_LINE_BYTES):
                pass
