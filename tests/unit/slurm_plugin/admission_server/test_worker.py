"""Tests the admission worker beside the daemon's side of it: whom it answers, and bad questions.

Both run in one event loop; that the worker is a process of its own, tests/process shows.
"""

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders.admission import NO_TYPE, QUESTION, SUBMIT, VISION, admitting
from builders.snapshots import snapshot
from fault_world.virtual_time import WorldClock
from log_lines import lines
from stand_ins.network import BoundSocket, MemoryLoop, PairEnd

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.admission_server import worker
from slicewise.slurm_plugin.admission_server import worker_process as admission_process
from slicewise.slurm_plugin.admission_server.pipe import Decided, GpuVerdict
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.rules.admission.snapshot import GpuType

pytestmark = pytest.mark.usefixtures("clock")


class WorkerProcess:
    """The worker as the daemon sees its process."""

    def __init__(self, pipe: PairEnd, start_s: float = 0.0) -> None:
        self.returncode: int | None = None
        self._pipe = pipe
        self._life = asyncio.create_task(self._serve(start_s))

    async def _serve(self, start_s: float) -> None:
        await asyncio.sleep(start_s)
        await worker._serve(self._pipe)  # type: ignore[arg-type]

    def kill(self) -> None:
        self.returncode = -9
        self._pipe.transport.abort()
        self._life.cancel()
        # As the kernel does.
        asyncio.get_running_loop()._listeners.clear()  # type: ignore[attr-defined]

    async def wait(self) -> int:
        with suppress(asyncio.CancelledError):
            await self._life
        return self.returncode or 0


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(pipe: PairEnd) -> WorkerProcess:
        return WorkerProcess(pipe)

    def socketpair() -> tuple[PairEnd, PairEnd]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MemoryLoop)
        return loop.socketpair()

    monkeypatch.setattr(admission_process, "_start", start)
    monkeypatch.setattr(admission_process.socket, "socketpair", socketpair)
    monkeypatch.setattr(worker, "bound", BoundSocket)
    monkeypatch.setattr(worker, "configure_logging", lambda *_: None)
    # They would look at, and exempt, what all tests before have made.
    monkeypatch.setattr(worker.gc, "collect", lambda: 0)
    monkeypatch.setattr(worker.gc, "freeze", lambda: None)


@pytest.fixture
async def admission(tmp_path: Path) -> Any:
    async with admitting(tmp_path) as parts:
        yield parts


class Peer:
    """A connection as slurmctld's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> dict[str, Any] | None:
        """None once the other end is gone."""
        line = await self.reader.readline()
        return json.loads(line) if line else None

    async def ask(self, line: str | bytes = QUESTION) -> Any:
        self.writer.write((line.encode() if isinstance(line, str) else line) + b"\n")
        return await self.read()


async def connected(path: Path) -> Peer:
    return Peer(*await asyncio.open_unix_connection(str(path)))


async def told_of(told: list[Decided], count: int) -> None:
    """Wait for the worker's report."""
    async with asyncio.timeout(60):
        while len(told) < count:  # noqa: ASYNC110 -- what is waited for sets no event
            await asyncio.sleep(0.05)


async def taken(process: AdmissionProcess) -> None:
    """Wait until the worker decides on what was published."""
    await asyncio.sleep(0.05)
    await process._taken.wait()


async def test_it_decides_on_the_newest_snapshot(admission: Any) -> None:
    process, path, _ = admission
    assert path.stat().st_mode & 0o777 == 0o600
    peer = await connected(path)
    assert (await peer.ask())["code"] == NO_TYPE
    process.publish(snapshot(nlp=1000), 2.0)
    await taken(process)
    assert (await peer.ask())["code"] == "SW-QUOTA-NONE"


async def test_each_decision_is_told_with_who_asked(admission: Any) -> None:
    process, path, told = admission
    await (await connected(path)).ask()
    await (await connected(path)).ask("rubbish")
    await told_of(told, 2)
    assert [(one.action, one.code, one.uid) for one in told] == [
        ("refuse", NO_TYPE, 7),
        ("failed", "SW-WIRE", -1),
    ]
    assert (told[0].account, told[0].module, told[0].module_mode) == ("vision", "0.1", "enforce")
    assert process.decisions == {("refuse", NO_TYPE): 1, ("failed", "SW-WIRE"): 1}


async def test_the_line_of_a_submission_says_which_question_and_which_tenant(
    admission: Any,
) -> None:
    _, path, told = admission
    with lines() as caught:
        peer = await connected(path)
        await peer.ask()
        await peer.ask("rubbish")
        await told_of(told, 2)
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
    await taken(process)
    peer = await connected(path)
    await peer.ask(json.dumps(SUBMIT | {"gres": "gpu:1g.10gb:2", "qos": "Long"}))
    await peer.ask(json.dumps(SUBMIT | {"gres": "gpu:3g.40gb:1", "account": "Guest"}))
    await peer.ask(json.dumps(SUBMIT))
    await told_of(told, 3)
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
    peer = await connected(admission[1])
    for line in MALFORMED:
        assert (await peer.ask(line))["code"] == "SW-WIRE"
    assert (await peer.ask())["code"] == NO_TYPE


async def test_several_lines_at_once_get_an_answer_each(admission: Any) -> None:
    peer = await connected(admission[1])
    first = await peer.ask(f"{QUESTION}\nrubbish\n{QUESTION}")
    answers = [first, await peer.read(), await peer.read()]
    assert [answer["code"] for answer in answers] == [NO_TYPE, "SW-WIRE", NO_TYPE]


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_a_line_that_is_too_long_ends_the_connection(admission: Any, end: bytes) -> None:
    peer = await connected(admission[1])
    peer.writer.write(b"x" * (512 * 1024 + 1) + end)
    assert "524288 bytes" in (await peer.read() or {})["message"]
    assert await peer.read() is None


async def test_an_unfinished_line_ends_the_connection_and_an_idle_one_stays(admission: Any) -> None:
    idle, slow = await connected(admission[1]), await connected(admission[1])
    slow.writer.write(QUESTION[:20].encode())
    assert await slow.read() is None
    assert (await idle.ask())["code"] == NO_TYPE


async def test_a_line_in_pieces_is_one_line(admission: Any) -> None:
    peer = await connected(admission[1])
    for piece in (QUESTION[:20], QUESTION[20:40]):
        peer.writer.write(piece.encode())
        await asyncio.sleep(0.4)
    assert (await peer.ask(QUESTION[40:]))["code"] == NO_TYPE
    await asyncio.sleep(1.2)
    assert (await peer.ask())["code"] == NO_TYPE


async def test_who_does_not_read_is_dropped(admission: Any) -> None:
    peer = await connected(admission[1])
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(60):
        while not peer.writer.is_closing():
            peer.writer.write(b"rubbish\n" * 1000)
            await asyncio.sleep(0.01)
    assert (await (await connected(admission[1])).ask())["code"] == NO_TYPE


async def test_of_too_many_connections_the_one_idle_for_longest_gives_way(admission: Any) -> None:
    first, second, *_ = peers = [await connected(admission[1]) for _ in range(64)]
    assert [(await peer.ask())["code"] for peer in (*peers, first)] == [NO_TYPE] * 65
    newcomer = await connected(admission[1])
    assert (await newcomer.ask())["code"] == NO_TYPE
    assert await second.read() is None
    assert (await first.ask())["code"] == NO_TYPE


async def test_nobody_else_is_answered(tmp_path: Path) -> None:
    async with admitting(tmp_path, frozenset({os.getuid() + 1})) as (_, path, _):
        peer = await connected(path)
        assert (await peer.ask())["code"] == "SW-FORBIDDEN"
        assert await peer.read() is None
        assert await (await connected(path)).read() is None


async def test_on_a_host_without_a_processor_for_it_each_start_has_more_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed before it can be there would be started for ever."""
    starts: list[WorkerProcess] = []

    async def start(pipe: PairEnd) -> WorkerProcess:
        starts.append(WorkerProcess(pipe, start_s=30.0))
        return starts[-1]

    monkeypatch.setattr(admission_process, "_start", start)
    process = AdmissionProcess(tmp_path / "a.sock", "enforce", frozenset({os.getuid()}))
    process.publish(VISION, 1.0)
    with lines() as caught:
        life = asyncio.create_task(process.run())
        async with asyncio.timeout(3600):
            await process.listening.wait()
        assert process.restarts == {"died": 0, "hung": 0, "late": 2}
        assert (await (await connected(tmp_path / "a.sock")).ask())["code"] == NO_TYPE
        (said,) = caught.events("admission_late")
        assert "[SW-ADMISSION-LATE]" in said["error"]

        # Once it has answered for a while, a late start is news again.
        await asyncio.sleep(100)
        starts[-1]._pipe.transport.pause_reading()
        process.publish(snapshot(nlp=1000), 2.0)
        await asyncio.sleep(50)
        assert not process.listening.is_set()
        async with asyncio.timeout(3600):
            await process.listening.wait()
        assert process.restarts == {"died": 0, "hung": 1, "late": 3}
        assert len(caught.events("admission_late")) == 2
    life.cancel()
    with suppress(asyncio.CancelledError):
        await life


async def test_patience_with_a_worker_that_never_starts_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: WorldClock
) -> None:
    begun_s: list[float] = []

    async def start(pipe: PairEnd) -> WorkerProcess:
        begun_s.append(clock.passed_s)
        return WorkerProcess(pipe, start_s=1e9)

    monkeypatch.setattr(admission_process, "_start", start)
    process = AdmissionProcess(tmp_path / "a.sock", "enforce", frozenset())
    process.publish(VISION, 1.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.run(), 3600)
    between_s = [round(later - earlier) for earlier, later in pairwise(begun_s)]
    assert between_s == sorted(between_s)
    assert (between_s[:3], between_s[-1]) == ([10, 20, 40], 125)
