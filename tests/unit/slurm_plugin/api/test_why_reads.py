"""Tests which users may see what of ``slicewise why``."""

from dataclasses import replace
from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from builders.why_world import job, running
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, desire, settings, sync_of
from stand_ins.scripted import job as slot

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.jobs import JobTag, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.rpc.messages import ServiceReport, ServiceReportRequest
from slicewise.cluster.rpc.read_messages import WhyAnswer
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.priority_reads import explain_priority
from slicewise.slurm_plugin.api.why_reads import why
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.types import Budget

pytestmark = pytest.mark.usefixtures("clock")

ALICE, MALLORY = 61001, 666
OTHERS = {"uid": MALLORY, "user": "mallory"}


UNDECIDED = JobTag("ab", "vision", is_undecided=True)
DOWN = UnreachableError("SW-DATABASE-DOWN", "down")


async def asked(
    about: str,
    uid: int,
    *tenants: str,
    everything: bool = False,
    failure: UnreachableError | None = None,
) -> WhyAnswer:
    held = running(1), running(2, **OTHERS)
    undecided = job(12, "JobHeldUser", admin_comment=UNDECIDED.text())
    waiting = job(9, "QOSGrpBilling"), job(10, "QOSGrpBilling", **OTHERS)
    elsewhere = job(11, "Priority", account="nlp", **OTHERS)
    cluster_state = sync_of(ScriptedSlurm(*held, *waiting, undecided, elsewhere))
    await cluster_state.turn()
    principal = Principal(uid, "", None if everything else frozenset(tenants))
    ledger = ScriptedLedger(failures={"policy": [failure] if failure else []})
    return why(about, principal, ledger, settings(), cluster_state)


async def test_everybody_sees_his_own_jobs_and_those_of_his_tenants():
    for number in ("9", "10"):
        found = await asked(number, ALICE, "vision")
        assert [row.what for row in found.tables[0].rows] == [
            "job 1 of alice",
            "job 2 of mallory",
        ]
    assert (await asked("vision", ALICE, "vision")).headline.startswith("vision holds 2 of")


async def test_who_has_left_a_tenant_sees_his_own_jobs_and_nobody_else_s():
    found = await asked("9", ALICE)
    assert found.tables == ()
    assert "mallory" not in found.model_dump_json()


async def test_operators_see_everything():
    assert (await asked("11", 0, everything=True)).reason == "Priority"
    assert (await asked("vision", 0, everything=True)).about == "vision"


async def test_an_account_that_is_no_tenant_any_more_has_its_jobs_explained():
    for reader in ({"everything": True}, {"tenants": ("nlp",)}):
        found = await asked("nlp", 0, *reader.pop("tenants", ()), **reader)
        assert found.headline == "nlp is no tenant, and its jobs hold 0 slices; 1 job waits."
    with pytest.raises(InvalidInputError, match="has no quota: it is no tenant yet"):
        await asked("guest", ALICE, "guest")


@pytest.mark.parametrize("about", ["11", "nlp", "10", "vision", "4711", "814_3", "x;y"])
async def test_what_is_others_and_what_is_not_get_the_same_answer(about: str):
    with pytest.raises(InvalidInputError) as refused:
        await asked(about, ALICE, "guest")
    refusal = refused.value.refusal
    assert refusal.code == "SW-FORBIDDEN"
    assert refusal.message == f"There is no job, service or tenant {about!r} that you may see."
    assert refusal.hint.endswith("Your tenants: guest.")
    assert about not in refusal.hint


@pytest.mark.parametrize("about", ["4711", "guest", "vision/none"])
async def test_who_may_see_all_is_told_that_there_is_none(about: str):
    with pytest.raises(InvalidInputError, match="SW-NAME-UNKNOWN") as refused:
        await asked(about, 0, everything=True)
    assert "that you may see" not in refused.value.refusal.message


async def test_a_job_without_a_priority_is_unknown_to_who_may_see_all_and_hidden_from_others():
    cluster_state = sync_of(slurm := ScriptedSlurm(job(11, "Priority", account="nlp", **OTHERS)))
    await cluster_state.turn()
    for about, tenants, code in (
        ("4711", None, "SW-NAME-UNKNOWN"),
        ("4711", frozenset({"vision"}), "SW-FORBIDDEN"),
        ("11", frozenset({"vision"}), "SW-FORBIDDEN"),
    ):
        with pytest.raises(InvalidInputError, match=code):
            await explain_priority(
                about, Principal(ALICE, "", tenants), slurm, settings(), cluster_state
            )


SERVICES = {814: "vision/bert", 820: "vision/chat", 830: "vision/bert", 840: "nlp/bert"}


def array_of_service(number: int, **changes: Any) -> JobView:
    account, _, service = SERVICES[number].partition("/")
    comment = JobTag("ab", account, service=service).text()
    own = {"job_id": number, "array_job_id": number, "account": account, "admin_comment": comment}
    return slot(0, **own, **changes)


async def asked_about_services(about: str, *tenants: str) -> WhyAnswer:
    mine = (array_of_service(number) for number in (814, 820, 830))
    slurm = ScriptedSlurm(*mine, array_of_service(840, **OTHERS))
    for number, name in SERVICES.items():
        account, _, service = name.partition("/")
        script = f"#!/bin/bash\n#SLICEWISE name={service}\n#SLICEWISE tenant={account}\n"
        slurm.scripts = {**slurm.scripts, number: script}
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return why(
        about, Principal(ALICE, "", frozenset(tenants)), ScriptedLedger(), settings(), cluster_state
    )


@pytest.mark.parametrize(
    ("about", "tenants", "array"),
    [
        ("bert", ("vision",), "830"),
        ("vision/bert", ("vision", "nlp"), "830"),
        ("nlp/bert", ("vision", "nlp"), "840"),
        ("chat", ("vision", "nlp"), "820"),
        ("bert", (), "830"),
    ],
)
async def test_a_service_is_the_array_of_its_newest_generation(
    about: str, tenants: tuple[str, ...], array: str
):
    found = await asked_about_services(about, *tenants)
    assert found.about == array
    assert f"service {SERVICES[int(array)]} at rest" in found.headline


async def test_a_service_of_others_is_none_and_a_name_of_two_is_ambiguous():
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await asked_about_services("nlp/bert", "vision")
    with pytest.raises(InvalidInputError, match="SW-USAGE") as refused:
        await asked_about_services("bert", "vision", "nlp")
    assert refused.value.refusal.hint == "Name one of: nlp/bert, vision/bert."


async def test_an_account_without_a_quota_is_no_tenant():
    """Its users read that there was no 'guest', and beside it "Your tenants: guest."."""
    with pytest.raises(InvalidInputError, match=r"'guest' has no quota.*SW-FORBIDDEN"):
        await asked("guest", ALICE, "guest")


async def test_a_job_for_which_the_budget_is_not_enough_is_told_so():
    cluster_state = sync_of(ScriptedSlurm(job(9, "QOSGrpBilling")))
    await cluster_state.turn()
    budget = Budget(Period.NONE, MillisliceSeconds(3_599_999))
    ledger = ScriptedLedger(shown=policy_of(replace(tenant("vision", 2000), budget=budget)))
    ledger.budgets.enter(BudgetEntry("vision", "roll", 3_599_999, 0, "olga", "begin"), None)
    found = why("9", Principal(ALICE, "", frozenset({"vision"})), ledger, settings(), cluster_state)
    assert "the budget does not allow a run this long now" in found.headline
    assert found.reason == "QOSGrpBilling"


async def test_without_the_ledger_slurm_s_reason_is_told():
    found = await asked("9", ALICE, "vision", failure=DOWN)
    assert found.headline == "Job 9 of alice waits: its tenant's guaranteed part is used up."
    assert (found.state, found.reason) == ("PENDING", "QOSGrpBilling")
    assert found.sentences == ("The ledger does not answer now, so there are no numbers.",)
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await asked("10", ALICE, failure=DOWN)


@pytest.mark.parametrize("about", ["1", "12", "vision"])
async def test_what_slurm_s_reason_does_not_tell_needs_the_ledger(about: str):
    with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN"):
        await asked(about, ALICE, "vision", failure=DOWN)


async def test_of_a_service_s_slots_those_that_quota_keeps_back_are_told_so():
    cluster_state = sync_of(ScriptedSlurm(*map(slot, range(4))))
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0, 1, 2}))
    assert answer.kept_back == (2,)
    counts = {"in_flight": 2, "queued": 1, "held": 0, "rate_per_s": 0.1, "desired_replicas": 3}
    told = ServiceReport(tenant="vision", name="bert", reason="1 waits", **counts)
    cluster_state.service_reports.take(ServiceReportRequest(services=(told,)))
    alice, ledger = Principal(ALICE, "", frozenset({"vision"})), ScriptedLedger()
    found = {
        index: why(f"814_{index}", alice, ledger, settings(), cluster_state).sentences[0]
        for index in (2, 3)
    }
    assert found[2] == f"It is not started for want of {answer.note}."
    assert found[3] == "The launcher decides when it runs, by the service's requests."
