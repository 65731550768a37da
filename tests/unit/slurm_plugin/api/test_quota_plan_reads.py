"""Tests what operators are told of a file of quotas before it is applied."""

import json
from dataclasses import replace

import pytest
from builders.nodes import a_node
from builders.tenants import policy_of, tenant
from builders.why_world import job, running
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.interface import Association
from slicewise.slurm_plugin.api import quota_plan_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.routes import Asked, Routes
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanAnswer, QuotaPlanRequest
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.explain.change_report import ChangeReport

pytestmark = pytest.mark.usefixtures("clock")

ROOT = Principal(0, "root", None)
NODE = a_node("n1", "MIXED", gpus={"1g.10gb": 14}, gpus_allotted={"1g.10gb": 2})


class WithAccounts(ScriptedSlurm):
    async def associations(self) -> tuple[Association, ...]:
        places = {"lab": "root", "vision": "lab", "nlp": "lab", "new": "nlp"}
        rows = [
            Association("c", name, "", above, frozenset(), "", {}) for name, above in places.items()
        ]
        return (*rows, replace(rows[0], user="alice", parent=""))


@pytest.fixture
async def reads() -> Reads:
    policy = policy_of(tenant("lab", 8000), tenant("vision", 2000, "lab"), tenant("nlp", 3000, ""))
    slurm = WithAccounts(running(1), running(2), job(8, "Resources"))
    slurm.known_nodes = (NODE,)
    state = sync_of(slurm)
    state.set_policy(policy, {})
    await state.turn()
    return Reads(settings(), slurm, ScriptedLedger(shown=policy), state)


async def planned(reads: Reads, text: str) -> ChangeReport:
    answer = await reads.handlers()[QuotaPlanRequest](QuotaPlanRequest(text=text), ROOT)
    assert isinstance(answer, QuotaPlanAnswer)
    return answer.change


async def refused(reads: Reads, text: str) -> str:
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE") as error:
        await planned(reads, text)
    return error.value.refusal.message


async def test_a_plan_says_what_would_change_and_whom_it_harms(reads: Reads):
    answer = await planned(reads, "[tenants.vision]\nnominal = 1\n")
    assert answer.changes == ("vision: nominal 1 slice (was 2 slices)",)
    lab, vision = answer.tenants
    assert (lab.tenant, lab.depth, vision.depth, answer.unchanged) == ("lab", 0, 1, 1)
    assert lab.before is not None
    assert lab.after is not None
    assert (lab.before.guaranteed_millislices, lab.after.guaranteed_millislices) == (6000, 7000)
    assert vision.before is not None
    assert vision.after is not None
    assert (vision.before.limit_millislices, vision.after.limit_millislices) == (2000, 1000)
    (harm,) = answer.harms
    assert (harm.kind, harm.tenant, harm.amount_millislices) == ("over-guaranteed", "vision", 1000)
    assert (answer.needs_overcommit, answer.left_out) == (False, 0)


async def test_it_writes_nothing(reads: Reads):
    before = dict(reads._ledger.shown)  # type: ignore[attr-defined]
    await planned(reads, "[tenants.new]\nnominal = 1\nbudget = { period = 'day', amount = 5 }\n")
    entries: list[BudgetEntry] = reads._ledger.entered  # type: ignore[attr-defined]
    assert (reads._ledger.shown, entries) == (before, [])  # type: ignore[attr-defined]


async def test_a_new_tenant_stands_where_slurm_has_its_account(reads: Reads):
    answer = await planned(reads, "[tenants.new]\nnominal = 1\n")
    (nlp, new) = answer.tenants
    assert (nlp.tenant, new.tenant, new.depth, new.before) == ("nlp", "new", 1, None)


async def test_a_place_other_than_slurms_is_warned_of(reads: Reads):
    (warned,) = (await planned(reads, "[tenants.vision]\nparent = 'nlp'\n")).warnings
    assert warned.startswith("In Slurm vision is below lab, and its limits bind there: sacctmgr")


async def test_too_much_for_the_cluster_needs_to_be_meant(reads: Reads):
    answer = await planned(reads, "[tenants.lab]\nnominal = 100\n")
    assert answer.needs_overcommit
    assert "overcommitted" in {one.kind for one in answer.harms}
    reads._ledger.shown = policy_of(tenant("lab", 100_000))  # type: ignore[attr-defined]
    assert not (await planned(reads, "[tenants.lab]\nnominal = 99\n")).needs_overcommit


async def test_faults_come_back_with_their_lines(reads: Reads):
    said = await refused(reads, "[tenants.vision]\nnominal = true\n\n[tenants.nlp]\nnominl = 3\n")
    assert "line 1: [tenants.vision] nominal" in said
    assert "line 4: [tenants.nlp]" in said
    assert "line 2: [tenants.nobody] Slurm has no account 'nobody'" in await refused(
        reads, "\n[tenants.nobody]\nnominal = 1\n"
    )
    assert "at line 1, column 9" in await refused(reads, "[tenants\n")


async def test_a_large_answer_is_cut(reads: Reads, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quota_plan_reads, "_MOST", 1)
    answer = await planned(reads, "[tenants.vision]\nnominal = 1\n")
    assert ([one.tenant for one in answer.tenants], answer.left_out) == (["lab"], 1)


async def test_only_operators_may_ask(reads: Reads):
    routes = Routes(
        {QuotaPlanRequest: lambda request, _: reads.handlers()[QuotaPlanRequest](request, ROOT)},
        lambda asker, uid: asker == "everybody" or uid == 0,
    )
    body = json.dumps({"text": "[tenants.vision]\nnominal = 1\n"}).encode()
    assert (await routes.reply(Asked("POST", "/v1/quota-plan", body, 61001))).status == 403
    assert (await routes.reply(Asked("POST", "/v1/quota-plan", body, 0))).status == 200
    long = json.dumps({"text": "#" * 40_000}).encode()
    assert (await routes.reply(Asked("POST", "/v1/quota-plan", long, 0))).status == 400
