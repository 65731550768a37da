"""Tests the admission worker as a process of its own, and what may not stop it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from builders.admission import NO_TYPE, QUESTION, SUBMIT, admitting
from builders.snapshots import snapshot
from waiting import PATIENCE_S, until, until_done, until_true

from slicewise.slurm_plugin.admission_server import worker_process as admission_process
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess


@pytest.fixture
async def admission(tmp_path: Path) -> Any:
    async with admitting(tmp_path) as parts:
        yield parts


class Peer:
    """A connection, blocking, as slurmctld's is."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    async def read(self) -> dict[str, Any] | None:
        """None once the other end is gone."""
        try:
            line = await asyncio.to_thread(self._lines.readline)
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None

    async def ask(self, line: str | bytes = QUESTION) -> Any:
        await asyncio.to_thread(self.socket.sendall, _bytes(line) + b"\n")
        return await self.read()


def _bytes(line: str | bytes) -> bytes:
    return line.encode() if isinstance(line, str) else line


def worker_of(path: Path) -> int:
    """Its process id, as the kernel tells who listens."""
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(path))
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


async def test_it_decides_on_the_newest_snapshot_in_a_process_of_its_own(admission: Any) -> None:
    process, path, _ = admission
    assert (path.stat().st_mode & 0o777, worker_of(path) != os.getpid()) == (0o600, True)
    peer = Peer(path)
    assert (await peer.ask())["code"] == NO_TYPE
    process.publish(snapshot(nlp=1000), 2.0)
    await until_true(lambda: not process._due.is_set() and process._taken.is_set())
    assert (await peer.ask())["code"] == "SW-QUOTA-NONE"


async def test_a_killed_worker_is_replaced_and_knows_everything(admission: Any) -> None:
    process, path, _ = admission
    peer = Peer(path)
    os.kill(worker_of(path), signal.SIGKILL)
    assert await peer.read() is None
    # No client is kept waiting until there is a new one.
    await until_true(lambda: is_refused(path))
    await until_true(lambda: process.restarts["died"] == 1)
    await asyncio.wait_for(process.listening.wait(), PATIENCE_S)
    assert (await Peer(path).ask())["code"] == NO_TYPE


async def test_a_worker_that_hangs_before_it_has_read_all_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(pipe: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec("sleep", "600", pass_fds=(pipe,))

    monkeypatch.setattr(admission_process, "_start", start)
    monkeypatch.setattr(admission_process, "_PATIENCE_S", 0.05)
    process = AdmissionProcess(tmp_path / "a.sock", "enforce", frozenset())
    # Much more than the pipe and what waits before it can hold.
    process.publish(snapshot(**{f"t{number}": 1 for number in range(100_000)}), 1.0)
    life = asyncio.create_task(process.run())
    await until_true(lambda: process.restarts["late"] >= 1)
    life.cancel()
    with suppress(asyncio.CancelledError):
        await life


async def test_a_signal_meant_for_the_daemon_does_not_end_it(admission: Any) -> None:
    worker = worker_of(admission[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker, number)
    assert (await Peer(admission[1]).ask())["code"] == NO_TYPE


DAEMON = """
import asyncio, sys
from pathlib import Path
from slicewise.cluster.settings.log import LogSettings
from slicewise.slurm_plugin.common.log import configure_logging
from slicewise.slurm_plugin.admission_server import worker_process as admission_process
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from builders.snapshots import snapshot
from waiting import PATIENCE_S
configure_logging("daemon", LogSettings(level="WARNING"))
admission_process._PATIENCE_S = PATIENCE_S
async def main():
    process = AdmissionProcess(Path(sys.argv[1]), "enforce", frozenset({%d}))
    process.publish(snapshot(vision=2000), 1.0)
    await process.run()
asyncio.run(main())
"""


@pytest.fixture
def other_daemon(tmp_path: Path) -> Any:
    """A process with a worker, to be stopped and killed; it outlives no tests that are killed."""
    path = tmp_path / "a.sock"
    tests = Path(__file__).resolve().parents[1]
    program = (sys.executable, "-c", DAEMON % os.getuid(), str(path))
    argv = ("setpriv", "--pdeathsig", "KILL", *program)
    variables = {**os.environ, "PYTHONPATH": str(tests)}
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen(argv, env=variables, stderr=stderr) as daemon:
        try:
            until(path.exists)
            yield daemon, path, log
        finally:
            # Or the end of Popen's block would wait for it for ever.
            daemon.kill()


async def test_it_answers_on_while_the_daemon_hangs_and_forgets_what_it_can_not_tell(
    other_daemon: Any,
) -> None:
    daemon, path, log = other_daemon
    os.kill(daemon.pid, signal.SIGSTOP)
    peer = Peer(path)
    # Much more than the pipe and what waits before it can hold.
    for _ in range(40):
        await peer.ask(json.dumps(SUBMIT | {"account": "x" * 100_000}))
        await asyncio.sleep(0.01)
    assert (await peer.ask())["code"] == NO_TYPE
    os.kill(daemon.pid, signal.SIGCONT)

    async def told_after_another() -> str:
        """What it could not tell it counts with the next decision for which there is room."""
        assert (await peer.ask())["code"] == NO_TYPE
        return log.read_text()

    await until_done(told_after_another, lambda told: "decisions_not_logged" in told)


async def test_it_ends_with_the_daemon(other_daemon: Any) -> None:
    daemon, path, _ = other_daemon
    peer = Peer(path)
    daemon.kill()
    assert await peer.read() is None
    await until_true(lambda: is_refused(path))


def is_refused(path: Path) -> bool:
    try:
        Peer(path)
    except (ConnectionRefusedError, FileNotFoundError):  # From Python 3.13 on the file goes, too.
        return True
    return False


def test_it_is_light() -> None:
    """It starts again within a moment, and holds nothing that it does not need."""
    code = "import slicewise.slurm_plugin.admission_server.worker, sys; print(*sys.modules)"
    loaded = subprocess.run(
        (sys.executable, "-c", code), check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"sqlalchemy", "alembic", "psycopg", "typer", "rich", "aiohttp", "prometheus_client"}
    heavy |= {"structlog"}
    assert heavy & set(loaded) == set()


def test_messages_are_built_at_their_first_use_or_when_a_program_says_so() -> None:
    code = (
        "from slicewise.cluster.rpc.messages import SubmitAnswer, SubmitRequest\n"
        "from slicewise.cluster.rpc.messages import DesiredSlotsRequest\n"
        "from slicewise.cluster.rpc.message import Message, build\n"
        "def built(): return [one.__pydantic_complete__"
        " for one in (SubmitRequest, DesiredSlotsRequest)]\n"
        "print(*built())\n"
        "build(SubmitRequest, SubmitAnswer)\n"
        "print(*built())\n"
        "build(Message)\n"
        "print(*built())\n"
    )
    said = subprocess.run(
        (sys.executable, "-c", code), check=True, capture_output=True, text=True
    ).stdout
    assert said.splitlines() == ["False False", "True False", "True True"]
