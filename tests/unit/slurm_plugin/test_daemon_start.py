"""The daemon's start on a scripted Slurm: what it waits for, and what it does not wait for."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedLedger, ScriptedSlurm, settings

from cluster.errors import InvalidInputError, OutsideError, SlicewiseError, UnreachableError
from cluster.slurm.interface import Association
from slurm_plugin.daemon import serve

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

    async def sacctmgr(self, changes: Sequence[Sequence[str]]) -> None:
        self.tried += 1
        if self.refusal is not None:
            raise self.refusal
        await super().sacctmgr(changes)


@asynccontextmanager
async def serving(tmp_path: Path, slurm: Slurm, ledger: ScriptedLedger) -> AsyncIterator[Path]:
    whole = settings()
    quick = whole.daemon.model_copy(update={"run_dir": tmp_path, "sync_interval_s": 0.02})
    whole = whole.model_copy(update={"daemon": quick})
    work = asyncio.create_task(serve(whole, slurm, ledger))  # type: ignore[arg-type]
    await until(lambda: work.done() or quick.user_socket.exists())
    try:
        if not work.done():
            yield quick.admission_socket
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        await asyncio.wait_for(work, 5)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 -- what is waited for sets no event
            await asyncio.sleep(0.01)


async def ask(path: Path) -> Mapping[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(SUBMIT)
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
        await until(lambda: slurm.tried > before)


async def test_limits_that_failed_at_the_start_are_compiled_later(tmp_path: Path) -> None:
    slurm, ledger = Slurm(), ScriptedLedger()
    slurm.refusal = REFUSED
    async with serving(tmp_path, slurm, ledger):
        slurm.refusal = None
        # The scripted Slurm goes on showing no limits.
        await until(lambda: "sacctmgr" in {name for name, _ in slurm.actions})


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


async def test_an_old_database_ends_the_start(tmp_path: Path) -> None:
    ledger = ScriptedLedger()
    ledger.failures["require_current"] = [InvalidInputError("SW-DATABASE-OLD", "old")]
    with pytest.raises(InvalidInputError, match="SW-DATABASE-OLD"):
        async with serving(tmp_path, Slurm(), ledger):
            pass
