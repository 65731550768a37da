"""Tests the admission worker: which users it answers, bad questions, and what may not stop it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_lines import lines
from snapshots import snapshot

from cluster.language.units import Millislices
from slurm_plugin.admission.snapshot import GpuType
from slurm_plugin.admission_server import process as admission_process
from slurm_plugin.admission_server.pipe import Decided, GpuVerdict
from slurm_plugin.admission_server.process import AdmissionProcess
from slurm_plugin.common.sockets import own_directory

SUBMIT = {"v": 1, "op": "submit", "uid": 7, "account": "vision", "partition": "gpu"}
QUESTION = json.dumps(SUBMIT | {"gres": "gpu:1g.10gb:1", "module": "0.1", "mode": "enforce"})
NO_TYPE = "SW-PROFILE-UNKNOWN"


@asynccontextmanager
async def admitting(
    tmp_path: Path, uids: frozenset[int] = frozenset({os.getuid()})
) -> AsyncIterator[tuple[AdmissionProcess, Path, list[Decided]]]:
    path = tmp_path / "admission" / "a.sock"
    own_directory(path.parent, 0o700)
    told: list[Decided] = []
    process = AdmissionProcess(path, "enforce", uids, told.append)
    process.publish(snapshot(vision=2000), 1.0)
    life = asyncio.create_task(process.run())
    try:
        await asyncio.wait_for(process.listening.wait(), 60)
        yield process, path, told
    finally:
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life
    assert not path.exists()


@pytest.fixture
async def admission(tmp_path: Path) -> Any:
    async with admitting(tmp_path) as parts:
        yield parts


class Peer:
    """A connection, blocking, as slurmctld's is."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
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


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- what is waited for sets no event
            await asyncio.sleep(0.01)


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
    await until(lambda: not process._due.is_set() and process._taken.is_set())
    assert (await peer.ask())["code"] == "SW-QUOTA-NONE"


async def test_each_decision_is_told_with_who_asked(admission: Any) -> None:
    process, path, told = admission
    await Peer(path).ask()
    await Peer(path).ask("rubbish")
    await until(lambda: len(told) == 2)
    assert [(one.action, one.code, one.uid) for one in told] == [
        ("refuse", NO_TYPE, 7),
        ("failed", "SW-WIRE", -1),
    ]
    assert (told[0].account, told[0].module, told[0].module_mode) == ("vision", "0.1", "enforce")
    assert 0 < told[0].took_s < 1
    assert process.decisions == {("refuse", NO_TYPE): 1, ("failed", "SW-WIRE"): 1}


async def test_the_line_of_a_submission_says_which_question_and_which_tenant(
    admission: Any,
) -> None:
    _, path, told = admission
    with lines() as caught:
        peer = Peer(path)
        await peer.ask()
        await peer.ask("rubbish")
        await until(lambda: len(told) == 2)
    refused, failed = caught.events()
    assert (refused["event"], refused["code"], refused["tenant"]) == (
        *("submit_refuse", NO_TYPE, "vision"),
    )
    assert (failed["event"], failed["code"]) == ("submit_failed", "SW-WIRE")
    life, _, number = refused["request_id"].partition("-")
    assert (len(life), number, failed["request_id"]) == (8, "1", f"{life}-2")


async def test_of_each_submission_for_gpus_the_verdict_is_told(admission: Any) -> None:
    process, path, told = admission
    known = GpuType("1g.10gb", Millislices(1000), 10_000, 7, 7, frozenset({"gpu"}))
    process.publish(replace(snapshot(vision=2000), gpu_types={"1g.10gb": known}), 2.0)
    await until(lambda: not process._due.is_set() and process._taken.is_set())
    peer = Peer(path)
    await peer.ask(json.dumps(SUBMIT | {"gres": "gpu:1g.10gb:2", "qos": "Long"}))
    await peer.ask(json.dumps(SUBMIT | {"gres": "gpu:3g.40gb:1", "account": "Guest"}))
    await peer.ask(json.dumps(SUBMIT))
    await until(lambda: len(told) == 3)
    assert [one.verdict for one in told] == [
        GpuVerdict("vision", "", "1g.10gb", False, True, False, 2000),
        GpuVerdict("guest", "SW-QUOTA-NONE", "3g.40gb", False, False, False, 0),
        None,
    ]


MALFORMED = [
    b"",
    b"rubbish",
    b"[]",
    b"null",
    b'{"v":3,"op":"submit","uid":7}',
    b'{"v":1,"op":"view"}',
    b'{"v":1,"op":"submit","uid":7,"extra":1}',
    b'{"v":1,"op":"submit","uid":"\\u0000"}',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b"1e999999",
]


async def test_malformed_lines_get_an_answer_and_end_nothing(admission: Any) -> None:
    peer = Peer(admission[1])
    for line in MALFORMED:
        assert (await peer.ask(line))["code"] == "SW-WIRE"
    assert (await peer.ask())["code"] == NO_TYPE


async def test_several_lines_at_once_get_an_answer_each(admission: Any) -> None:
    peer = Peer(admission[1])
    first = await peer.ask(f"{QUESTION}\nrubbish\n{QUESTION}")
    answers = [first, await peer.read(), await peer.read()]
    assert [answer["code"] for answer in answers] == [NO_TYPE, "SW-WIRE", NO_TYPE]


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_a_line_that_is_too_long_ends_the_connection(admission: Any, end: bytes) -> None:
    peer = Peer(admission[1])
    await asyncio.to_thread(peer.socket.sendall, b"x" * (512 * 1024 + 1) + end)
    assert "524288 bytes" in (await peer.read() or {})["message"]
    assert await peer.read() is None


async def test_an_unfinished_line_ends_the_connection_and_an_idle_one_stays(admission: Any) -> None:
    idle, slow = Peer(admission[1]), Peer(admission[1])
    slow.socket.sendall(QUESTION[:20].encode())
    assert await slow.read() is None
    assert (await idle.ask())["code"] == NO_TYPE


async def test_a_line_in_pieces_is_one_line(admission: Any) -> None:
    peer = Peer(admission[1])
    for piece in (QUESTION[:20], QUESTION[20:40]):
        peer.socket.sendall(piece.encode())
        await asyncio.sleep(0.05)
    assert (await peer.ask(QUESTION[40:]))["code"] == NO_TYPE
    await asyncio.sleep(1.2)
    assert (await peer.ask())["code"] == NO_TYPE


async def test_who_does_not_read_is_dropped(admission: Any) -> None:
    peer = Peer(admission[1])

    def ask_on() -> None:
        while True:
            peer.socket.sendall(b"rubbish\n" * 1000)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await asyncio.to_thread(ask_on)
    assert (await Peer(admission[1]).ask())["code"] == NO_TYPE


async def test_of_too_many_connections_the_one_idle_for_longest_gives_way(admission: Any) -> None:
    first, second, *_ = peers = [Peer(admission[1]) for _ in range(64)]
    assert [(await peer.ask())["code"] for peer in (*peers, first)] == [NO_TYPE] * 65
    newcomer = Peer(admission[1])
    assert (await newcomer.ask())["code"] == NO_TYPE
    assert await second.read() is None
    assert (await first.ask())["code"] == NO_TYPE


async def test_nobody_else_is_answered(tmp_path: Path) -> None:
    async with admitting(tmp_path, frozenset({os.getuid() + 1})) as (_, path, _):
        peer = Peer(path)
        assert (await peer.ask())["code"] == "SW-FORBIDDEN"
        assert await peer.read() is None
        assert await Peer(path).read() is None


async def test_a_killed_worker_is_replaced_and_knows_everything(admission: Any) -> None:
    process, path, _ = admission
    peer = Peer(path)
    os.kill(worker_of(path), signal.SIGKILL)
    assert await peer.read() is None
    # No client is kept waiting until there is a new one.
    await until(lambda: is_refused(path))
    await until(lambda: process.restarts == 1)
    await asyncio.wait_for(process.listening.wait(), 60)
    assert (await Peer(path).ask())["code"] == NO_TYPE


async def test_a_worker_that_hangs_before_it_has_read_all_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec("sleep", "60")

    monkeypatch.setattr(admission_process, "_start", start)
    monkeypatch.setattr(admission_process, "_PATIENCE_S", 0.05)
    process = AdmissionProcess(tmp_path / "a.sock", "enforce", frozenset())
    # Much more than the pipe and what waits before it can hold.
    process.publish(snapshot(**{f"t{number}": 1 for number in range(100_000)}), 1.0)
    life = asyncio.create_task(process.run())
    await until(lambda: process.restarts >= 1)
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
from cluster.settings.log import LogSettings
from slurm_plugin.common.log import configure_logging
from slurm_plugin.admission_server.process import AdmissionProcess
from snapshots import snapshot
configure_logging("daemon", LogSettings(level="WARNING"))
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
    tests = Path(__file__).resolve().parents[3]
    program = (sys.executable, "-c", DAEMON % os.getuid(), str(path))
    argv = ("setpriv", "--pdeathsig", "KILL", *program)
    variables = {**os.environ, "PYTHONPATH": str(tests)}
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen(argv, env=variables, stderr=stderr) as daemon:
        try:
            deadline = time.monotonic() + 60
            while not path.exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
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
    await asyncio.sleep(0.2)
    assert (await peer.ask())["code"] == NO_TYPE
    os.kill(daemon.pid, signal.SIGCONT)
    await until(lambda: "decisions_not_logged" in log.read_text())
    assert (await peer.ask())["code"] == NO_TYPE


async def test_it_ends_with_the_daemon(other_daemon: Any) -> None:
    daemon, path, _ = other_daemon
    peer = Peer(path)
    daemon.kill()
    assert await peer.read() is None
    await until(lambda: is_refused(path))


def is_refused(path: Path) -> bool:
    try:
        Peer(path)
    except (ConnectionRefusedError, FileNotFoundError):  # From Python 3.13 on the file goes, too.
        return True
    return False


def test_it_is_light() -> None:
    """It starts again within a moment, and holds nothing that it does not need."""
    code = "import slurm_plugin.admission_server.worker, sys; print(*sys.modules)"
    loaded = subprocess.run(
        (sys.executable, "-c", code), check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"sqlalchemy", "alembic", "psycopg", "typer", "rich", "aiohttp", "prometheus_client"}
    heavy |= {"structlog"}
    assert heavy & set(loaded) == set()


def test_messages_are_built_at_their_first_use_or_when_a_program_says_so() -> None:
    code = (
        "from cluster.rpc.messages import SubmitAnswer, SubmitRequest, DesiredSlotsRequest\n"
        "from cluster.rpc.message import Message, build\n"
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
