"""Tests what users read through the daemon: their own tenants, and nothing of others."""

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic import BaseModel
from stand_ins.ledger_reads import seen_reads

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.rpc.message import Request
from slicewise.slurm_plugin.api import reads as reads_module
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.common.ledger_requests import StatementRequest

ALICE = Principal(61001, "alice", frozenset({"vision", "guest"}))
ROOT = Principal(0, "root", None)


@pytest.fixture
async def reads() -> Reads:
    return await seen_reads()


async def ask(reads: Reads, request: Request, principal: Principal = ALICE) -> dict[str, Any]:
    answer: BaseModel = await reads.handlers()[type(request)](request, principal)
    return dict(json.loads(answer.model_dump_json()))


async def refusal(reads: Reads, request: Request, principal: Principal = ALICE) -> SlicewiseError:
    with pytest.raises(SlicewiseError) as raised:
        await reads.handlers()[type(request)](request, principal)
    return raised.value


async def test_a_change_that_no_thread_has_begun_at_the_deadline_is_never_made(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    """It was made after its command had failed, however much later."""
    monkeypatch.setattr(reads_module, "_DEADLINE_S", 0.05)
    stuck, changes = threading.Event(), list[int]()
    begun = [asyncio.create_task(reads.from_ledger(0, lambda: stuck.wait(5))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(UnreachableError) as given_up:
        await reads.from_ledger(0, lambda: changes.append(1))
    hints = {error.refusal.hint for error in await asyncio.gather(*begun, return_exceptions=True)}  # type: ignore[union-attr]
    assert hints == {reads_module._LOOK_FIRST}
    assert given_up.value.refusal.hint == "Try again later."
    stuck.set()
    monkeypatch.setattr(reads_module, "_DEADLINE_S", 60.0)
    for _ in range(8):
        await reads.from_ledger(0, lambda: None)
    assert changes == []


async def test_slow_reads_of_users_keep_no_operator_waiting(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    """Neither those that threads have begun, nor those that wait for one."""
    monkeypatch.setattr(reads_module, "_DEADLINE_S", 60.0)
    stuck = threading.Event()
    users = [
        asyncio.create_task(reads.from_ledger(61001 + n // 2, stuck.wait))
        for n in range(reads_module._WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(UnreachableError, match="SW-BUSY"):
        await reads.from_ledger(62000, lambda: None)
    try:
        assert (await ask(reads, StatementRequest(), ROOT))["rows"]
    finally:
        stuck.set()
        await asyncio.gather(*users)


async def test_a_hanging_database_holds_up_its_askers_only(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    """One user's questions leave room for others; each is told at the deadline."""
    monkeypatch.setattr(reads_module, "_DEADLINE_S", 0.05)
    monkeypatch.setattr(reads_module, "_WAITING_PER_UID", 1)
    stuck = threading.Event()
    with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN"):
        await reads.from_ledger(61001, stuck.wait)
    # What follows is answered, however busy the machine is.
    monkeypatch.setattr(reads_module, "_DEADLINE_S", 60.0)
    assert (await refusal(reads, StatementRequest())).refusal.code == "SW-BUSY"
    assert (await ask(reads, StatementRequest(), ROOT))["rows"]
    stuck.set()
    while reads._waiting[61001]:
        await reads.from_ledger(0, lambda: None)
    assert (await ask(reads, StatementRequest()))["rows"]
