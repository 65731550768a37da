"""Tests what users read through the daemon: their own tenants, and nothing of others."""

import json
import threading
from typing import Any

import pytest
from pydantic import BaseModel
from stand_ins.ledger_reads import seen_reads

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.read_messages import (
    StatementRequest,
)
from slicewise.slurm_plugin.api import reads as reads_module
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads

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
