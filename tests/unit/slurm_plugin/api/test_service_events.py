"""Tests to which users the events of services are shown."""

from typing import Any

import pytest
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.rpc.read_messages import ServiceEventsRequest
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads

pytestmark = pytest.mark.usefixtures("clock")

ALICE = Principal(61001, "alice", frozenset({"vision"}))
BOB = Principal(61002, "bob", frozenset({"nlp"}))
ROOT = Principal(0, "root", None)


async def test_what_looks_have_found_is_shown_to_the_tenants_users_and_operators():
    slurm, ledger = ScriptedSlurm(job(0)), ScriptedLedger()
    state: Any = sync_of(slurm, "observe")
    reads = Reads(settings("observe"), slurm, ledger, state)
    await state.turn()
    slurm.shown = (job(0, JobState.RUNNING),)
    await state.turn()
    handle = reads.handlers()[ServiceEventsRequest]

    async def shown_to(user: Principal, tenant: str | None = None) -> list[str]:
        answer: Any = await handle(ServiceEventsRequest.of(name="bert", tenant=tenant), user)
        return [event.what for one in answer.services for event in one.events]

    assert await shown_to(ALICE) == await shown_to(ROOT) == ["started"]
    assert await shown_to(ALICE, "vision") == ["started"]
    assert await shown_to(BOB) == []
    with pytest.raises(InvalidInputError):
        await shown_to(BOB, "vision")
