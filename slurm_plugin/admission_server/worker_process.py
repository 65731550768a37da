"""The daemon's side of admission: keeps the worker process alive, sends it snapshots, and logs what
it decided.
"""

import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.settings.log import LogSettings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.admission_server.pipe import (
    HEAD,
    Changes,
    Decided,
    Decisions,
    Setup,
    Taken,
    framed,
    unframed,
)
from slicewise.slurm_plugin.common.log import report, warn
from slicewise.slurm_plugin.rules.admission.rules import Mode
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot

_BY_DEFAULT = LogSettings()
_PATIENCE_S = 5.0
"""The worker may take twice as many seconds for a change; then it is killed. Each one that was
killed gives the next one double.
"""
_PATIENCE_FACTOR_MAX = 12
_RESTART_S = 0.1
_RESTART_MAX_S = 5.0
_LIVED_S = 60.0
"""After a worker that answered for so many seconds pause and patience are the first ones again."""

Cause = Literal["died", "hung", "late"]
"""Why a worker is replaced: it ended by itself, or was killed since it did not take a change in
time; ``late`` if that was its first, before which it answers nobody.
"""
_LATE = Refusal(
    Code.ADMISSION_LATE,
    f"The admission worker was not there in {2 * _PATIENCE_S:g} s, and was killed. The next ones "
    f"have longer, up to {2 * _PATIENCE_S * _PATIENCE_FACTOR_MAX:g} s.",
    "See what takes this host's processors.",
)


class AdmissionProcess:
    """Answers slicewise.lua in a child process, which shares no lock with the daemon's loops.

    Attributes:
        preview: decides in this process what the answer would be.
        listening: set while slicewise.lua can ask.
        restarts: number of workers that were replaced, by cause.
        dropped: number of decisions missing in the log, because the daemon was too slow to read
            them.
        decisions: number of decisions, by action and code.
        newest: the last decision; None if there was none.
    """

    def __init__(
        self,
        path: Path,
        mode: Mode,
        uids: frozenset[int],
        on_decided: Callable[[Decided], None] = lambda _: None,
        log: LogSettings = _BY_DEFAULT,
    ) -> None:
        self._setup = Setup(path, mode, uids, log)
        self.preview = Admission(mode)
        self._on_decided = on_decided
        self._newest: tuple[Snapshot, float] | None = None
        self._due = asyncio.Event()
        self._taken = asyncio.Event()
        self.listening = asyncio.Event()
        self._listening_since_s = 0.0
        self.restarts: Counter[Cause] = Counter(dict.fromkeys(get_args(Cause), 0))
        self.dropped = 0
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.newest: Decided | None = None

    def publish(self, snapshot: Snapshot, looked_s: float) -> None:
        """Let the worker decide on this snapshot; ``looked_s`` is as in ``Admission.publish``."""
        self.preview.publish(snapshot, looked_s)
        self._newest = snapshot, looked_s
        self._due.set()

    async def run(self) -> None:
        """Keep a worker alive until cancelled; the socket's directory must exist."""
        pause_s, patience_factor, is_late_told = _RESTART_S, 1, False
        try:
            while True:
                cause = await self._live(patience_factor * _PATIENCE_S)
                if self._has_lived():
                    pause_s, patience_factor, is_late_told = _RESTART_S, 1, False
                self.listening.clear()
                self.restarts[cause] += 1
                if cause == "late" and not is_late_told:
                    is_late_told = True
                    warn("admission_late", error=_LATE.text())
                if cause != "died":
                    patience_factor = min(2 * patience_factor, _PATIENCE_FACTOR_MAX)
                warn(
                    "admission_restarted",
                    cause=cause,
                    restarts=self.restarts.total(),
                    retry_s=pause_s,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RESTART_MAX_S)
        finally:
            with suppress(FileNotFoundError):
                self._setup.path.unlink()

    def _has_lived(self) -> bool:
        answered_s = time.monotonic() - self._listening_since_s
        return self.listening.is_set() and answered_s > _LIVED_S

    async def _live(self, patience_s: float) -> Cause:
        """Start one worker, serve it until it ends or takes a change too late, then clean up."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await _start(theirs.fileno())
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        feeding = asyncio.create_task(self._feed(writer, patience_s))
        hearing = asyncio.create_task(self._hear(reader))
        try:
            await asyncio.wait({feeding, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                return "died"
            return "hung" if self.listening.is_set() else "late"
        finally:
            feeding.cancel()
            hearing.cancel()
            writer.close()
            if process.returncode is None:
                process.kill()
            await asyncio.gather(feeding, hearing, process.wait(), return_exceptions=True)

    async def _feed(self, writer: asyncio.StreamWriter, patience_s: float) -> None:
        """Send snapshots, one change at a time, until one is not taken in time.

        Snapshots that come meanwhile are sent as one change.
        """
        sent: Snapshot | None = None
        self._due.set()
        writer.write(framed(self._setup))
        while True:
            await self._due.wait()
            self._due.clear()
            if self._newest is None:
                continue
            snapshot, looked_s = self._newest
            self._taken.clear()
            # Don't wait until the pipe takes it: a worker that hangs would block this loop.
            writer.write(framed(Changes.between(sent, snapshot, looked_s)))
            sent = snapshot
            if not await self._is_taken(patience_s):
                return
            if not self.listening.is_set():
                self._listening_since_s = time.monotonic()
                self.listening.set()

    async def _is_taken(self, patience_s: float) -> bool:
        # Twice: after a pause of this process the time may be over before the answer was read.
        for _ in range(2):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._taken.wait()
                    return True
        return False

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Read the worker's messages until it ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
                match unframed(await reader.readexactly(length)):
                    case Taken():
                        self._taken.set()
                    case Decisions() as batch:
                        self._count(batch)

    def _count(self, batch: Decisions) -> None:
        if batch.dropped:
            self.dropped += batch.dropped
            warn("decisions_not_logged", decisions=batch.dropped)
        for decided in batch.decided:
            self.decisions[decided.action, decided.code] += 1
            self.newest = decided
            _log(decided)
            self._on_decided(decided)


async def _start(pipe: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "slicewise.slurm_plugin.admission_server.worker", str(pipe)),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(pipe,),
    )


def _log(decided: Decided) -> None:
    told: dict[str, object] = {"uid": decided.uid, "account": decided.account}
    told |= {"tag": decided.tag} if decided.tag else {}
    told |= {"code": decided.code, "message": decided.message} if decided.code else {}
    if decided.action == "pass" and (decided.tag or decided.code):
        told["would"] = "admit" if decided.tag else "refuse"
    told["request_id"] = decided.request_id
    told |= {"tenant": decided.verdict.tenant} if decided.verdict else {}
    report(f"submit_{decided.action}", **told)
