"""Tests the daemon's start on a scripted Slurm: what it waits for, and what not."""

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins.http_peer import connected
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings
from waiting import PATIENCE_S, until_done, until_true

from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.interface import Association
from slicewise.cluster.runtime.systemd import tell_systemd
from slicewise.cluster.slurm.unread_log import UnreadLog
from slicewise.slurm_plugin.admission_server import worker_process as admission_process
from slicewise.slurm_plugin.daemon.main import serve
from slicewise.slurm_plugin.daemon.metrics import Metrics
from slicewise.slurm_plugin.rules.services.pace import PACE
from slicewise.slurm_plugin.state.cluster_state import ClusterState

REFUSED = OutsideError("SW-SLURM-FAILED", "sacctmgr: no")
SUBMIT = (
    b'{"v":1,"op":"submit","uid":7,"account":"vision","partition":"gpu","gres":"gpu:1g.10gb:1"}\n'
)


class Slurm(ScriptedSlurm):
    """Has one account; refuses to change it as long as ``refusal`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: SlicewiseError | None = None
        self.tried = 0

    async def associations(self) -> tuple[Association, ...]:
        self._see()
        return (Association("cluster", "vision", "", "root", frozenset(), "", {}),)

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        self.tried += 1
        if self.refusal is not None:
            raise self.refusal
        return await super().sacctmgr(changes)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no worker for one that hangs while a busy machine starts it."""
    monkeypatch.setattr(admission_process, "_PATIENCE_S", PATIENCE_S)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    slurm: Slurm,
    ledger: ScriptedLedger,
    *,
    pair: bool = False,
    rest_s: float = 0.02,
) -> AsyncIterator[Path]:
    whole = settings()
    own = whole.daemon.model_copy(update={"run_dir": tmp_path, "pair": pair})
    whole = whole.model_copy(update={"daemon": own})
    pace = replace(PACE, moving_s=0.02, rest_s=rest_s)
    work = asyncio.create_task(serve(whole, slurm, ledger, UnreadLog(), pace))  # type: ignore[arg-type]
    await until_true(lambda: work.done() or own.user_socket.exists())
    try:
        if not work.done():
            yield own.admission_socket
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        await asyncio.wait_for(work, PATIENCE_S)


async def ask(path: Path, line: bytes = SUBMIT) -> Mapping[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(line)
    answer = dict(json.loads(await reader.readline()))
    writer.close()
    return answer


@pytest.mark.parametrize("refusal", [REFUSED, UnreachableError("SW-SLURM-DOWN", "no slurmdbd")])
async def test_admission_opens_though_limits_can_not_be_compiled(
    tmp_path: Path, refusal: SlicewiseError, caplog: pytest.LogCaptureFixture
) -> None:
    slurm, ledger = Slurm(), ScriptedLedger()
    slurm.refusal = refusal
    async with serving(tmp_path, slurm, ledger) as path:
        # The quota is known: what is wrong is that no node has such GPUs.
        assert (await ask(path))["code"] == "SW-PROFILE-UNKNOWN"
        assert (ledger.marked, slurm.tried >= 1) == ([], True)
        assert "start_limits_failed" in caplog.text
        before = slurm.tried
        await until_true(lambda: slurm.tried > before)


async def test_each_loop_is_counted_from_0_before_its_first_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: set[str] = set()
    turned: dict[str, bool] = {}
    failing: set[str] = set()

    def note(_: object, loop: str, _took_s: float, *, failed: bool) -> None:
        turned.setdefault(loop, loop in begun)
        failing.update({loop} if failed else ())

    monkeypatch.setattr(Metrics, "begins", lambda _, loop: begun.add(loop))
    monkeypatch.setattr(Metrics, "turned", note)
    async with serving(tmp_path, Slurm(), ScriptedLedger()):
        await until_true(lambda: len(turned) == 17)
    assert begun == turned.keys()
    assert all(turned.values())
    assert failing == set()


async def test_limits_that_failed_at_the_start_are_compiled_later(tmp_path: Path) -> None:
    slurm, ledger = Slurm(), ScriptedLedger()
    slurm.refusal = REFUSED
    async with serving(tmp_path, slurm, ledger):
        slurm.refusal = None
        # The scripted Slurm goes on showing no limits.
        await until_true(lambda: "sacctmgr" in {name for name, _ in slurm.actions})


@pytest.mark.parametrize("kind", [UnreachableError, OutsideError])
async def test_the_start_waits_for_what_fails_outside(
    tmp_path: Path, kind: type[SlicewiseError]
) -> None:
    slurm, ledger = Slurm(), ScriptedLedger()
    ledger.failures["require_current"] = [kind("SW-X", "not yet")] * 2
    slurm.failure = kind("SW-SLURM-X", "not yet")
    asyncio.get_running_loop().call_later(0.2, setattr, slurm, "failure", None)
    async with serving(tmp_path, slurm, ledger) as path:
        assert (ledger.failures["require_current"], slurm.failure) == ([], None)
        assert (await ask(path))["code"] == "SW-PROFILE-UNKNOWN"


async def test_without_the_ledger_too_it_waits(tmp_path: Path) -> None:
    slurm, ledger = Slurm(), ScriptedLedger()
    slurm.refusal = REFUSED
    down = UnreachableError("SW-DATABASE-DOWN", "down")
    ledger.failures["policy"] = [down] * 3
    async with serving(tmp_path, slurm, ledger) as path:
        assert ledger.failures["policy"] == []
        assert (await ask(path))["code"] == "SW-PROFILE-UNKNOWN"


class TakenLock:
    """Another daemon's, for as many questions as it is told."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def hold(self) -> bool:
        self.left -= 1
        return self.left < 0

    def holder(self) -> str:
        return "ctl2"


async def test_while_another_daemon_has_the_lock_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, lock = ScriptedLedger(), TakenLock(2)
    monkeypatch.setattr(ledger, "leader", lambda host: lock)
    async with serving(tmp_path, Slurm(), ledger) as path:
        assert lock.left < 0
        assert (await ask(path))["code"] == "SW-PROFILE-UNKNOWN"
    assert "start_leader_waits" in caplog.text
    assert "ctl2" in caplog.text


async def test_of_a_pair_only_the_daemon_that_leads_records_generations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, ledger, lock = Slurm(), ScriptedLedger(), TakenLock(10**9)
    slurm.shown = (job(0),)
    monkeypatch.setattr(ledger, "leader", lambda host: lock)
    turns: list[int] = []
    orders_are_new = ledger.newest_id
    monkeypatch.setattr(ledger, "newest_id", lambda: turns.append(orders_are_new()) or turns[-1])
    async with serving(tmp_path, slurm, ledger, pair=True):
        # Another loop, as quick as that of the generations, takes some turns.
        await until_true(lambda: len(turns) > 3)
        assert ledger.recorded == ()
        lock.left = 0
        await until_true(lambda: ledger.recorded)
    assert [one.array_job_id for one in ledger.recorded] == [814]


async def test_systemd_hears_that_it_is_ready_and_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def hear() -> bool:
            with suppress(BlockingIOError):
                told.append(systemd.recv(4096).decode())
            return {one[:8] for one in told} >= {"READY=1", "WATCHDOG"}

        async with serving(tmp_path / "run", Slurm(), ScriptedLedger()):
            await until_true(hear)
    alive = r"WATCHDOG=1\nSTATUS=leads, mode enforce, last look at Slurm \d\d:\d\d:\d\d"
    assert [one for one in told if one != "READY=1" and not re.fullmatch(alive, one)] == []


@pytest.mark.parametrize("address", ["/nowhere/notify", "", "@slicewise-nobody"])
def test_a_systemd_that_does_not_hear_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    tell_systemd("WATCHDOG=1")


async def test_it_says_how_it_is(tmp_path: Path) -> None:
    began_s = int(time.time())
    async with serving(tmp_path, Slurm(), ScriptedLedger()) as path:
        await ask(path)

        async def status() -> Mapping[str, Any]:
            sent = b"GET /v1/status HTTP/1.1\r\nHost: h\r\n\r\n"
            return (await (await connected(tmp_path / "user.sock")).asks(sent)).said

        said = await until_done(status, lambda said: bool(said["decisions"]))
    assert (said["is_leader"], said["complete"], said["mode"]) == (True, True, "enforce")
    assert (said["decisions"], said["host"]) == ({"refuse": 1}, socket.gethostname())
    assert said["module_asked_s"] >= began_s


async def test_an_old_database_ends_the_start(tmp_path: Path) -> None:
    ledger = ScriptedLedger()
    ledger.failures["require_current"] = [InvalidInputError("SW-DATABASE-OLD", "old")]
    with pytest.raises(InvalidInputError, match="SW-DATABASE-OLD"):
        async with serving(tmp_path, Slurm(), ledger):
            pass


async def test_at_rest_a_submission_makes_looks_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would rest until the end of this test."""
    looks, look = [], ClusterState.turn

    async def counted(self: ClusterState) -> None:
        looks.append(self)
        await look(self)

    monkeypatch.setattr(ClusterState, "turn", counted)
    monkeypatch.setattr("slicewise.slurm_plugin.rules.services.pace.LONGEST_S", 1e6)
    slurm = Slurm()
    free = {"1g.10gb": 7}
    slurm.known_nodes = (NodeView("gpu01", "", frozenset({"IDLE"}), free, {}, frozenset({"gpu"})),)
    async with serving(tmp_path, slurm, ScriptedLedger(), rest_s=1e6) as path:
        await until_true(lambda: len(looks) >= 2)
        before = len(looks)
        assert (await ask(path))["action"] == "admit"
        await until_true(lambda: len(looks) >= before + 2)
