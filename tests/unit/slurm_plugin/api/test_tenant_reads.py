"""Tests what the daemon tells of tenants, their loans and budgets, to whom and in which pages."""

from dataclasses import replace

import pytest
from builders.tenants import policy_of, tenant
from builders.why_world import job, running
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.api import tenant_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.common.ledger_requests import TenantsAnswer, TenantsRequest
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Recall

pytestmark = pytest.mark.usefixtures("clock")

ALICE = Principal(61001, "alice", frozenset({"vision"}))
ROOT = Principal(0, "root", None)
MONTH = Budget(Period.MONTH, MillisliceSeconds(100_000))
POLICY = policy_of(
    replace(tenant("lab", 6000), budget=MONTH),
    tenant("vision", 2000, "lab"),
    tenant("nlp", 3000, "lab"),
    replace(tenant("bio", 7000), budget=replace(MONTH, period=Period.NONE)),
)


@pytest.fixture
async def reads() -> Reads:
    lent = (
        Loan("bio", "vision", Millislices(700)),
        Loan("nlp", "vision", Millislices(300)),
        Loan("nlp", "bio", Millislices(50)),
    )
    ledger = ScriptedLedger(
        shown=POLICY, lent=lent, recalled=(Recall("vision", "nlp", Millislices(200), 9900),)
    )
    slurm = ScriptedSlurm(running(1), job(8, "Resources", account="nlp"))
    state = sync_of(slurm)
    state.set_policy(POLICY, {})
    await state.turn()
    return Reads(settings(), slurm, ledger, state)


async def asked(reads: Reads, principal: Principal = ROOT, after: int = 0) -> TenantsAnswer:
    handle = reads.handlers()[TenantsRequest]
    answer = await handle(TenantsRequest(after=after), principal)
    assert isinstance(answer, TenantsAnswer)
    return answer


async def test_an_operator_sees_every_tenant_loan_and_budget(reads: Reads):
    answer = await asked(reads)
    assert [one.name for one in answer.tenants] == ["bio", "lab", "nlp", "vision"]
    assert answer.others is None
    assert [(one.lender, one.borrower, one.amount_millislices) for one in answer.loans] == [
        ("bio", "vision", 700),
        ("nlp", "bio", 50),
        ("nlp", "vision", 300),
        ("vision", "nlp", 200),
    ]
    bio, lab = answer.budgets
    assert (bio.tenant, bio.period_start_s, bio.resets_s) == ("bio", None, None)
    assert lab.budget.amount == 100_000
    assert lab.period_start_s is not None
    assert lab.resets_s is not None
    assert lab.period_start_s <= answer.now_s < lab.resets_s
    assert answer.more is None


async def test_a_user_sees_nothing_of_others_but_sums(reads: Reads):
    answer = await asked(reads, ALICE)
    assert [one.name for one in answer.tenants] == ["vision"]
    assert answer.others is not None
    assert (answer.others.tenants, answer.others.waiting_jobs) == (3, 1)
    assert [(one.lender, one.borrower, one.amount_millislices) for one in answer.loans] == [
        ("", "vision", 1000),
        ("vision", "", 200),
    ]
    assert [one.tenant for one in answer.budgets] == ["lab"]
    said = answer.model_dump_json()
    assert "nlp" not in said
    assert "bio" not in said
    nobody = await asked(reads, replace(ALICE, tenants=frozenset()))
    assert (nobody.tenants, nobody.loans, nobody.budgets) == ((), (), ())


async def test_a_large_tree_comes_in_pages_with_each_loan_once(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tenant_reads, "_PAGE_TENANTS", 2)
    first = await asked(reads)
    assert first.more == 2
    second = await asked(reads, after=2)
    assert [one.name for one in (*first.tenants, *second.tenants)] == [
        "bio",
        "lab",
        "nlp",
        "vision",
    ]
    loans = [(one.lender, one.borrower) for one in (*first.loans, *second.loans)]
    assert (len(loans), len(set(loans))) == (4, 4)
    assert second.more is None
    assert (await asked(reads, after=4)).tenants == ()


async def test_a_ledger_that_does_not_answer_is_an_error(reads: Reads):
    down = UnreachableError("SW-DATABASE-DOWN", "'slicewise' at db.site:5432 does not answer.")
    reads._ledger.failures["policy"] = [down]  # type: ignore[attr-defined]
    with pytest.raises(UnreachableError, match="The ledger does not answer now"):
        await asked(reads, ALICE)
