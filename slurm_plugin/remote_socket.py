"""The user socket for other hosts: TCP, each question and answer a munge credential.

The network is nobody's friend: whatever comes in is short, soon there, and looks like a credential
before munged is asked, in two threads of its own; a flood here does not take munged from Slurm.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from cluster.errors import InvalidInputError, Refusal, SlicewiseError
from cluster.munge import Munge
from cluster.sealed import PREFIX, Part, seal, unseal
from cluster.settings import DaemonSettings, host_and_port
from slurm_plugin.line_server import BUSY, Answer, Peer, answered, failure
from slurm_plugin.observe import report_failure
from slurm_plugin.user_socket import MESSAGE_BYTES

T = TypeVar("T")

_CONNECTIONS, _CONNECTIONS_PER_ADDRESS = 128, 16
"""Of more, as many again are told SW-BUSY; others are cut off."""
_MUNGE_THREADS = 2
_LINE_BYTES = 2 * MESSAGE_BYTES
"""What a credential of the longest message needs, with room to spare."""
_QUESTION_S, _MUNGE_S, _SEND_S, _LINGER_S = 5.0, 10.0, 15.0, 0.5
_REPORT_EVERY_S = 10.0


class RemoteSocket:
    """Answers one question per connection, as the user socket does; ``listen`` says where."""

    def __init__(self, settings: DaemonSettings, answer: Answer) -> None:
        self._settings = settings
        self._answer = answer
        self._munge = Munge(settings.munge_socket)
        self._threads = ThreadPoolExecutor(_MUNGE_THREADS, "munge")
        self._open: Counter[str] = Counter()
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._report_due_s = 0.0

    async def start(self) -> None:
        """Listen, if anywhere; SlicewiseError (SW-DAEMON-LISTEN) if that can't be."""
        if not self._settings.listen:
            return
        try:
            self._server = await asyncio.start_server(
                self._accept, *host_and_port(self._settings.listen), limit=_LINE_BYTES
            )
        except OSError as error:
            raise SlicewiseError(
                "SW-DAEMON-LISTEN",
                f"daemon.listen: {self._settings.listen}: {error.strerror}.",
                "Name an address of this host and a port that is free.",
            ) from None

    async def stop(self) -> None:
        """Listen no more and end every conversation."""
        if self._server is not None:
            self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.create_task(self._serve(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])
        self._open[address] += 1
        try:
            # Who went away or sleeps is told nothing.
            with suppress(TimeoutError, ConnectionError):
                await self._converse(reader, writer, address)
                async with asyncio.timeout(_SEND_S):
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._open -= Counter([address])
            # What a peer has not taken in time is not kept for it.
            writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        if self._open.total() > 2 * _CONNECTIONS:
            return
        if self._open[address] > _CONNECTIONS_PER_ADDRESS or self._open.total() > _CONNECTIONS:
            await _refuse(reader, writer, BUSY)
            return
        try:
            await self._reply(await self._question(reader), writer)
        except SlicewiseError as error:
            self._report(error, address)
            await _refuse(reader, writer, error.refusal)

    async def _question(self, reader: asyncio.StreamReader) -> Part:
        try:
            async with asyncio.timeout(_QUESTION_S):
                line = await reader.readline()
        except ValueError:
            line = b""
        if not (line.startswith(PREFIX) and line.endswith(b"\n")) or b"\0" in line:
            raise InvalidInputError(
                "SW-MUNGE", "That is no credential.", "Ask with the slicewise command."
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
        """Now and then: whoever can connect must not be able to fill the log."""
        if time.monotonic() >= self._report_due_s:
            self._report_due_s = time.monotonic() + _REPORT_EVERY_S
            report_failure("credential_refused", error, address=address)


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusal: Refusal
) -> None:
    """In the clear: for whom should it be sealed?"""
    writer.write(failure(refusal).model_dump_json().encode() + b"\n")
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            # Closed on unread bytes, the connection would be reset, and the answer lost with it.
            while await reader.read(_LINE_BYTES):
                pass
