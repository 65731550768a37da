"""The socket on which slicewise.lua asks: for root and SlurmUser only."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path

from pydantic import BaseModel

from cluster.errors import InvalidInputError
from cluster.wire import SubmitAnswer, SubmitRequest
from slurm_plugin.admit import Admission
from slurm_plugin.line_server import Limits, LineServer, Peer, own_directory
from slurm_plugin.observe import report

_LIMITS = Limits(
    connections=256,
    connections_per_uid=256,
    idle_s=1.0,
    # 64 KiB of directives at most, which JSON's escapes may lengthen, and the job's texts.
    line_bytes=512 * 1024,
)
_PATIENCE_S = 1.0
_SWITCH_S = 0.0005
"""How long another thread may go on computing while an answer is due; Python's default is 5 ms."""


class AdmissionSocket:
    """Answers in a thread and an event loop of its own.

    slurmctld stands still while it waits, so reading Slurm's long replies, which the daemon's main
    loop does meanwhile, must not delay an answer.
    """

    def __init__(self, path: Path, admission: Admission, uids: frozenset[int]) -> None:
        self._path = path
        self._admission = admission
        self._uids = uids
        self._loop = asyncio.new_event_loop()
        self._server = LineServer(path, 0o600, self._answer, _LIMITS)
        self._thread = threading.Thread(target=self._run, name="admission", daemon=True)

    def start(self) -> None:
        """Listen; returns once slurmctld can ask. May raise SlicewiseError (SW-RUN-DIR)."""
        own_directory(self._path.parent, 0o700)
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        self._wait(self._server.start())

    def stop(self) -> None:
        """End the thread and remove the socket."""
        self._wait(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_PATIENCE_S)
        self._loop.close()

    def _wait(self, step: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(timeout=_PATIENCE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _answer(self, line: str, peer: Peer) -> BaseModel:
        if peer.uid not in self._uids:
            raise InvalidInputError(
                "SW-ADMISSION-PEER", f"Uid {peer.uid} may not ask here; slurmctld may."
            )
        request = SubmitRequest.model_validate_json(line)
        answer = self._admission.submit(request)
        # After the answer is on its way: slurmctld does not wait for a log.
        self._loop.call_soon(_report, request, answer)
        return answer


def _report(request: SubmitRequest, answer: SubmitAnswer) -> None:
    fields: dict[str, object] = {
        "uid": request.uid,
        "account": request.account or request.default_account,
    }
    fields |= {"tag": answer.tag} if answer.tag else {}
    fields |= {"code": answer.code, "message": answer.message} if answer.code else {}
    if answer.action == "pass" and (answer.tag or answer.code):
        fields["would"] = "admit" if answer.tag else "refuse"
    report(f"submit_{answer.action}", **fields)
