"""Tests to which users a pool's models are shown."""

from types import SimpleNamespace
from typing import Any

import pytest
from builders.service_views import a_running_slot, a_service
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.read_messages import PoolModelsRequest
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads

ALICE = Principal(61001, "alice", frozenset({"vision"}))
BOB = Principal(61002, "bob", frozenset({"nlp"}))


def service(tenant: str, name: str, array: int) -> Any:
    directives = {"pool": "small", "model": name}
    slots = (a_running_slot(0),)
    return a_service(
        tenant=tenant, name=name, array_job_id=array, directives=directives, slots=slots
    )


async def test_a_pool_is_shown_to_the_tenant_s_users_and_to_operators():
    views = tuple(
        service(tenant, name, array)
        for array, (tenant, name) in enumerate(
            (tenant, name) for tenant in ("vision", "nlp") for name in ("bert", "ner")
        )
    )
    state: Any = SimpleNamespace(
        view=SimpleNamespace(services=views), service_reports=SimpleNamespace(of=lambda _: ())
    )
    reads = Reads(settings("observe"), ScriptedSlurm(), ScriptedLedger(), state)
    handle = reads.handlers()[PoolModelsRequest]
    request = PoolModelsRequest.of(name="bert", tenant="vision")
    for user in (ALICE, Principal(0, "root", None)):
        answer: Any = await handle(request, user)
        assert [model.service for model in answer.models] == ["bert", "ner"]
    with pytest.raises(InvalidInputError):
        await handle(request, BOB)
