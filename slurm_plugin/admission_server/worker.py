"""The process that answers slicewise.lua.

``python -m slicewise.slurm_plugin.admission_server.worker FD``

slurmctld stands still while it waits for an answer, so this process does nothing else. It gets the
snapshot from the daemon through FD, and sends back in batches what it decided. It goes on answering
while the daemon hangs, and ends when the daemon ends.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from secrets import token_hex

import uvloop
from pydantic import BaseModel

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.rpc.message import build
from slicewise.cluster.rpc.messages import SubmitAnswer, SubmitRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.admission_server.pipe import (
    Changes,
    Decided,
    Decisions,
    Frames,
    GpuVerdict,
    Setup,
    Taken,
    framed,
)
from slicewise.slurm_plugin.common.log import configure_logging
from slicewise.slurm_plugin.common.sockets import (
    BACKLOG,
    bound,
    failure,
    failure_of,
    peer_uid,
    too_long,
)
from slicewise.slurm_plugin.rules.admission.request import named_types
from slicewise.slurm_plugin.rules.admission.rules import AdmissionDecision
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed

_CONNECTIONS = 64
_LINE_BYTES = 512 * 1024
"""64 KiB of directives at most, which JSON's escapes may lengthen, and the job's other texts."""
_READ_BYTES = 16 * 1024
_LINE_S = 1.0
"""Seconds that a line may take from its first byte to its end."""
_UNREAD_BYTES = 64 * 1024
"""Bytes of unread answers from which on a peer is dropped."""
_REPORT_S = 0.1
_REPORT_BYTES = 1024 * 1024
"""Bytes of reports unread by the daemon from which on further reports are dropped and counted."""
_NICE = -5
_ID_BYTES = 4
_WORD = 64
"""Characters of a user's word that are kept."""


def main() -> None:
    """Serve until the daemon closes its end of the pipe."""
    # This process ends with the daemon: systemd and a terminal send their signals to both.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with suppress(PermissionError):
        os.nice(_NICE)
    # Avoid a collector's pause in the middle of an answer: garbage is collected after each change.
    gc.disable()
    uvloop.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


async def _serve(daemon: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    await loop.create_unix_connection(lambda: Worker(ended), sock=daemon)
    await ended


class Worker(asyncio.Protocol):
    """The worker's end of the pipe: takes snapshots, reports decisions."""

    def __init__(self, ended: "asyncio.Future[None]") -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._setup: Setup | None = None
        self._snapshot: Snapshot | None = None
        self._desk: AdmissionDesk | None = None
        self._decided: list[Decided] = []
        self._dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection to the daemon."""
        self._daemon: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def connection_lost(self, _: Exception | None) -> None:
        """End this process, since the daemon has ended."""
        if not self._ended.done():
            self._ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take the daemon's messages."""
        for message in self._frames.feed(data):
            match message:
                case Setup():
                    self._setup = message
                    configure_logging("admission", message.log)
                case Changes():
                    self._take(message)

    def report(self, decided: Decided) -> None:
        """Report a decision to the daemon in a moment: slurmctld does not wait for that."""
        if not self._decided:
            self._loop.call_later(_REPORT_S, self._flush)
        self._decided.append(decided)

    def _flush(self) -> None:
        decided, self._decided = self._decided, []
        if self._daemon.get_write_buffer_size() > _REPORT_BYTES:
            self._dropped += len(decided)
            return
        self._daemon.write(framed(Decisions(tuple(decided), self._dropped)))
        self._dropped = 0

    def _take(self, changes: Changes) -> None:
        self._snapshot = changes.applied(self._snapshot)
        desk = self._desk or self._open_desk()
        desk.admission.publish(self._snapshot, changes.looked_s)
        self._daemon.write(framed(Taken()))
        # The collector does not look at frozen objects again, so the next collection is short.
        gc.collect()
        gc.freeze()

    def _open_desk(self) -> "AdmissionDesk":
        """Open the socket, so that slurmctld can ask; not before there is a snapshot."""
        if self._setup is None:
            raise RuntimeError("changes before the setup")
        build(SubmitRequest, SubmitAnswer)
        self._desk = desk = AdmissionDesk(Admission(self._setup.mode), self._setup.uids, self)
        listener = bound(self._setup.path, 0o600)
        # Listen now, not in the task below: the daemon is told next that the socket is there.
        listener.listen(BACKLOG)
        self._listening = self._loop.create_task(
            self._loop.create_unix_server(
                lambda: _Conversation(desk), sock=listener, backlog=BACKLOG
            )
        )
        return desk


class AdmissionDesk:
    """Answers lines; keeps the open connections in order of their last question."""

    def __init__(self, admission: Admission, uids: frozenset[int], worker: Worker) -> None:
        self.admission = admission
        self._uids = uids
        self._worker = worker
        self._open: dict[_Conversation, None] = {}
        # Not a random id for each question: slurmctld stands still while one is made.
        self._life, self._asked = token_hex(_ID_BYTES), 0

    def enter(self, conversation: "_Conversation", uid: int) -> Refusal | None:
        """Register a connection; return a Refusal if this uid may not ask here, else None.

        If there are too many, the connection that has been idle for longest is closed.
        """
        if uid not in self._uids:
            return Refusal(Code.FORBIDDEN, f"Uid {uid} may not ask here; only slurmctld may.")
        if len(self._open) >= _CONNECTIONS:
            next(iter(self._open)).drop()
        self._open[conversation] = None
        return None

    def leave(self, conversation: "_Conversation") -> None:
        """Forget a closed connection."""
        self._open.pop(conversation, None)

    def answer(self, line: bytes, conversation: "_Conversation") -> None:
        """Answer a line, then report the decision to the daemon."""
        began_s = time.perf_counter()
        self._asked += 1
        request_id = f"{self._life}-{self._asked}"
        self._open[conversation] = self._open.pop(conversation)
        request: SubmitRequest | None = None
        decision: AdmissionDecision | None = None
        answer: BaseModel
        try:
            # Text from a batch script may be in any encoding.
            request = SubmitRequest.model_validate_json(line.decode("utf-8", "replace"))
            answer, decision = self.admission.decided(request)
        except Exception as error:  # noqa: BLE001 -- one bad request must not end the process
            answer = failure_of(error, conversation.uid, request_id)
        conversation.write(encoded(answer))
        took_s = time.perf_counter() - began_s
        verdict = _verdict(request, decision) if request and decision else None
        decided = _decided(request, answer, took_s)
        self._worker.report(decided._replace(verdict=verdict, request_id=request_id))


class _Conversation(asyncio.BufferedProtocol):
    """One connection, which slicewise.lua keeps from one submission to the next."""

    def __init__(self, desk: AdmissionDesk) -> None:
        self._desk = desk
        # This buffer is reused, so that a question allocates no memory for it.
        self._buffer = bytearray(_READ_BYTES)
        self._rest = b""
        self._late: asyncio.TimerHandle | None = None
        self.uid = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer: asyncio.Transport = transport  # type: ignore[assignment]
        self._peer.set_write_buffer_limits(high=_UNREAD_BYTES)
        self.uid = peer_uid(transport)
        self._refusal = self._desk.enter(self, self.uid)
        if self._refusal is not None:
            self._set_deadline()

    def connection_lost(self, _: Exception | None) -> None:
        self._clear_deadline()
        self._desk.leave(self)

    def pause_writing(self) -> None:
        self.drop()

    def write(self, answer: bytes) -> None:
        """Send an answer, immediately if the peer reads."""
        self._peer.write(answer)

    def drop(self) -> None:
        """Close the connection without an answer."""
        self._desk.leave(self)
        self._peer.abort()

    def get_buffer(self, _: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        if self._refusal is not None:
            self._end(self._refusal)
            return
        *lines, self._rest = (self._rest + self._buffer[:count]).split(b"\n")
        for line in lines:
            if self._peer.is_closing():
                return
            if len(line) > _LINE_BYTES:
                break
            self._desk.answer(line, self)
        else:
            if len(self._rest) <= _LINE_BYTES:
                self._wait_for_the_rest(anew=bool(lines))
                return
        self._end(too_long(_LINE_BYTES))

    def _wait_for_the_rest(self, *, anew: bool) -> None:
        if self._late is not None and (anew or not self._rest):
            self._clear_deadline()
        if self._late is None and self._rest:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._late = asyncio.get_running_loop().call_later(_LINE_S, self.drop)

    def _clear_deadline(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self, refusal: Refusal) -> None:
        self._peer.write(encoded(failure(refusal)))
        self._peer.close()


def encoded(answer: BaseModel) -> bytes:
    """The answer as one line of JSON."""
    return answer.model_dump_json(exclude_none=True).encode() + b"\n"


def _decided(request: SubmitRequest | None, answer: BaseModel, took_s: float) -> Decided:
    made = answer if isinstance(answer, SubmitAnswer) else None
    return Decided(
        action=made.action if made else "failed",
        code=str(getattr(answer, "code", "")),
        message=str(getattr(answer, "message", "")),
        tag=(made.tag or "") if made else "",
        uid=request.uid if request else -1,
        account=(request.account or request.default_account) if request else "",
        module=request.module if request else "",
        module_mode=request.mode if request else "",
        at_s=wall_s(),
        took_s=took_s,
    )


def _verdict(request: SubmitRequest, decision: AdmissionDecision) -> GpuVerdict | None:
    """Return what the daemon keeps of a decision; None for one that is not about GPUs."""
    answer, tag = decision.answer, decision.tag
    if tag is None and not answer.code:
        return None
    named = request.account or request.default_account
    types = sorted(decision.instances) if tag else named_types(request)
    qos = (answer.qos or "") if tag else ""
    return GpuVerdict(
        tenant=(tag.tenant if tag else account_name(named))[:_WORD],
        code=answer.code,
        gpu_type="+".join(types)[:_WORD],
        is_borrowed=is_borrowed(qos),
        is_qos_moved=bool(tag and request.qos) and request.qos.lower() != qos,
        is_type_chosen=decision.is_type_chosen,
        cost_millislices=decision.cost_millislices,
    )


if __name__ == "__main__":
    main()
