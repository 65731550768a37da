"""Tests what users read through the daemon: their own tenants, and nothing of others."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from builders.ended_runs import ended
from builders.tenants import policy_of, tenant
from pydantic import BaseModel
from stand_ins.scripted import (
    ScriptedLedger,
    ScriptedSlurm,
    job,
    settings,
    sync_of,
)

from cluster.language.errors import SlicewiseError, UnreachableError
from cluster.language.jobs import JobState, NodeView
from cluster.rpc.message import Request
from cluster.rpc.read_messages import (
    StatementRequest,
)
from slurm_plugin.api import reads as reads_module
from slurm_plugin.api.access import Principal
from slurm_plugin.api.reads import Reads

ALICE = Principal(61001, "alice", frozenset({"vision", "guest"}))
ROOT = Principal(0, "root", None)
POLICY = policy_of(
    tenant("lab", 6000), tenant("vision", 2000, "lab"), tenant("nlp", 3000, "lab"), tenant("bio", 7)
)


@pytest.fixture
async def reads() -> Reads:
    ledger = ScriptedLedger(shown=POLICY)
    ledger.charges.post([ended("vision", 1, 10), ended("nlp", 2, 777), ended("vision", 3, 30)])
    running = job(0, JobState.RUNNING, nodes=("n1",))
    slurm = ScriptedSlurm(
        running, replace(running, job_id=7, account="nlp", user="bob", qos="slicewise_nlp")
    )
    gpus = {"1g.10gb": 14}
    slurm.known_nodes = (
        NodeView("n1", "n1", frozenset({"MIXED"}), gpus, {"1g.10gb": 2}, frozenset({"gpu"})),
    )
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return Reads(settings(), slurm, ledger, cluster_state)


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
