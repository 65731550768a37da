"""Tests what users read through the daemon: their own tenants, and nothing of others."""

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from pydantic import BaseModel
from stand_ins.ledger_reads import POLICY, seen_reads
from stand_ins.scripted import ScriptedLedger

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.rpc.history_messages import HistoryRequest
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.read_messages import PriorityAnswer, PriorityRequest
from slicewise.slurm_plugin.api import reads as reads_module
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.common.energy_requests import EnergyRequest
from slicewise.slurm_plugin.common.explain_requests import HeadroomRequest
from slicewise.slurm_plugin.common.ledger_requests import (
    BalanceRequest,
    BudgetsRequest,
    StatementAnswer,
    StatementRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import ChargeCursor, ChargesRequest
from slicewise.slurm_plugin.common.usage_requests import TokenUsageRequest
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.common.history import HistorySteps
from slicewise.slurm_plugin.rules.quota.types import Budget

pytestmark = pytest.mark.usefixtures("clock")

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


class Past:
    """A history that has one look, of the tenants and services that it names."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self.names = names

    def knows(self, tenant_name: str, service: str) -> bool:
        return (tenant_name, service) in self.names

    def rows(self, tenant_name: str, service: str, steps: HistorySteps) -> dict[int, Any]:
        row = {"used": 1500.0004, "in_use": 1500.0004, "max_in_use": 2000, "ready": 2.0}
        return {steps.times_s[1]: row}


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> Past:
    found = Past(*(("vision", "bert"), ("gone", "")), *(("nlp", ""), ("nlp", "gpt")))
    monkeypatch.setattr(ScriptedLedger, "history", found, raising=False)
    return found


def of_the_past(about: str) -> HistoryRequest:
    return HistoryRequest(about=about, since_s=int(time.time()) - 100, until_s=2**40)


@pytest.mark.parametrize(
    ("about", "name"),
    [("cluster", "used"), ("vision", "in_use"), ("vision/bert", "ready"), ("vision/", "in_use")],
)
async def test_history_shows_the_cluster_and_own_tenants(
    reads: Reads, past: Past, about: str, name: str
):
    answer = await ask(reads, of_the_past(about))
    series = {one["name"]: one for one in answer["series"]}
    shown = series[name]["values"]
    assert shown[:2] == [None, 2.0 if about == "vision/bert" else 1500.0]
    assert (answer["step_s"], answer["zone"]) == (10, "UTC")


@pytest.mark.parametrize("about", ["nlp", "nlp/gpt", "nosuch", "/bert", "cluster/"])
async def test_history_of_others_looks_like_none(reads: Reads, past: Past, about: str):
    error = await refusal(reads, of_the_past(about))
    assert error.refusal.code in {"SW-TENANT-UNKNOWN", "SW-SERVICE-UNKNOWN"}
    if about != "/bert":
        assert error.refusal.code == "SW-TENANT-UNKNOWN"


async def test_history_of_an_own_account_without_any_is_gaps(reads: Reads, past: Past):
    mine = replace(ALICE, tenants=frozenset({"vision", "former"}))
    assert (await ask(reads, of_the_past("former"), mine))["series"] != []


@pytest.mark.parametrize("about", ["vision/\0", "\0", "vision\n"])
def test_history_of_control_characters_is_refused(about: str):
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        HistoryRequest.of(about=about, since_s=0, until_s=1)


async def test_history_of_what_was_once_is_shown_to_operators(reads: Reads, past: Past):
    assert (await ask(reads, of_the_past("gone"), ROOT))["series"] != []
    assert (await refusal(reads, of_the_past("nosuch"), ROOT)).refusal.code == "SW-TENANT-UNKNOWN"
    error = await refusal(reads, of_the_past("vision/nosuch"), ROOT)
    assert error.refusal.code == "SW-SERVICE-UNKNOWN"


async def test_a_statement_shows_own_tenants_only(reads: Reads):
    mine = await ask(reads, StatementRequest())
    assert [(row["run"]["tenant"], row["used_millislice_s"]) for row in mine["rows"]] == [
        ("vision", 10_000),
        ("vision", 30_000),
    ]
    assert len((await ask(reads, StatementRequest(), ROOT))["rows"]) == 3
    assert (await ask(reads, StatementRequest(), replace(ALICE, tenants=frozenset())))["rows"] == []


async def test_a_statement_has_what_the_tenant_pays_for_of_accounts_that_the_user_may_read(
    reads: Reads,
):
    request = StatementRequest(tenant="lab")
    everything = await ask(reads, request, ROOT)
    assert [row["run"]["key"]["job_id"] for row in everything["rows"]] == [2, 1, 3]
    member = replace(ALICE, tenants=frozenset({"lab", "vision"}))
    mine = await ask(reads, request, member)
    assert [row["run"]["key"]["job_id"] for row in mine["rows"]] == [1, 3]


async def test_a_long_statement_comes_in_pages(reads: Reads, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reads_module, "_PAGE_ROWS", 2)
    found, more, pages = [], None, 0
    while pages == 0 or more is not None:
        page = await reads.handlers()[StatementRequest](StatementRequest(after=more), ROOT)
        assert isinstance(page, StatementAnswer)
        found += [row.run.key.job_id for row in page.rows]
        more, pages = page.more, pages + 1
    assert (found, pages) == ([2, 1, 3], 2)


async def test_balances_are_of_own_tenants_only(reads: Reads):
    mine = await ask(reads, BalanceRequest())
    assert {one["tenant"] for one in mine["balances"]} == {"vision"}
    everyone = await ask(reads, BalanceRequest(), ROOT)
    assert {one["tenant"] for one in everyone["balances"]} == {"lab", "nlp", "vision"}


async def test_users_see_the_budgets_that_pay_for_their_tenants(reads: Reads):
    month = Budget(Period.MONTH, MillisliceSeconds(100_000))
    reads._ledger.shown = {  # type: ignore[attr-defined]
        name: replace(one, budget=month if name in {"lab", "bio"} else None)
        for name, one in POLICY.items()
    }
    mine = await ask(reads, BudgetsRequest())
    assert [one["tenant"] for one in mine["budgets"]] == ["lab"]
    assert (await ask(reads, BudgetsRequest(tenant="vision")))["budgets"][0]["tenant"] == "lab"
    everyone = await ask(reads, BudgetsRequest(), ROOT)
    assert [one["tenant"] for one in everyone["budgets"]] == ["bio", "lab"]
    outsider = replace(ALICE, tenants=frozenset({"guest"}))
    assert (await ask(reads, BudgetsRequest(), outsider))["budgets"] == []


async def test_an_explanation_is_what_the_operator_sees_of_that_tenant(reads: Reads):
    request = HeadroomRequest(tenant="vision")
    assert await ask(reads, request) == await ask(reads, request, ROOT)


async def test_an_explanation_has_nothing_of_a_sister(reads: Reads):
    """Not her name, and of what she holds only what it leaves of the account above both."""
    shown = json.dumps(await ask(reads, HeadroomRequest(tenant="vision")))
    assert "vision holds 1 of 2 guaranteed slices" in shown
    for name in ("nlp", "bio", "bob"):
        assert name not in shown
    reads._ledger.shown = policy_of(  # type: ignore[attr-defined]
        tenant("lab", 6000), tenant("vision", 2000, "lab"), tenant("secret", 4000, "lab")
    )
    assert json.dumps(await ask(reads, HeadroomRequest(tenant="vision"))) == shown


REQUESTS = (
    lambda name: HeadroomRequest(tenant=name),
    lambda name: StatementRequest(tenant=name),
    lambda name: BalanceRequest(tenant=name),
    lambda name: BudgetsRequest(tenant=name),
)


@pytest.mark.parametrize("request_for", REQUESTS)
async def test_tenants_of_others_can_not_be_told_from_none(reads: Reads, request_for: Any):
    foreign = await refusal(reads, request_for("nlp"))
    unknown = await refusal(reads, request_for("xyz"))
    assert foreign.refusal.code == "SW-TENANT-UNKNOWN"
    assert str(foreign).replace("nlp", "?") == str(unknown).replace("xyz", "?")
    assert "Yours: guest, vision." in str(foreign)


async def test_members_of_the_account_above_do_not_see_what_is_below(reads: Reads):
    head = Principal(61009, "head", frozenset({"lab"}))
    for request in (StatementRequest(), StatementRequest(tenant="lab")):
        assert (await ask(reads, request, head))["rows"] == []
    assert isinstance(await refusal(reads, StatementRequest(tenant="nlp"), head), InvalidInputError)


@pytest.mark.parametrize("request_for", REQUESTS)
async def test_an_own_account_without_quota_is_told_so(reads: Reads, request_for: Any):
    assert "Your account 'guest' has no quota." in str(await refusal(reads, request_for("guest")))
    assert "slicewise tenant list" in str(await refusal(reads, request_for("guest"), ROOT))


async def test_without_slurm_nothing_is_explained(reads: Reads):
    reads._cluster_state.view = reads._cluster_state.view.model_copy(update={"complete": False})
    error = await refusal(reads, HeadroomRequest(tenant="vision"))
    assert (type(error), error.refusal.code) == (UnreachableError, "SW-SLURM-DOWN")
    assert (await ask(reads, StatementRequest()))["rows"]


async def test_one_users_questions_to_slurm_leave_room_for_others(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    """He asks 30 times at once, and Slurm is slow: the next user is not the 31st in line."""
    asked: list[int] = []
    answered = asyncio.Event()

    async def slow(job: str, principal: Principal, *_: object) -> PriorityAnswer:
        asked.append(principal.uid)
        await answered.wait()
        raise InvalidInputError("SW-FORBIDDEN", f"There is no job {job!r}.")

    monkeypatch.setattr(reads_module, "explain_priority", slow)
    request = PriorityRequest(job="7")
    asking = [asyncio.create_task(refusal(reads, request)) for _ in range(30)]
    await asyncio.sleep(0)
    asking.append(asyncio.create_task(refusal(reads, request, replace(ALICE, uid=61002))))
    await asyncio.sleep(0)
    answered.set()
    codes = [error.refusal.code for error in await asyncio.gather(*asking)]
    assert codes == ["SW-FORBIDDEN"] * 2 + ["SW-BUSY"] * 28 + ["SW-FORBIDDEN"]
    assert asked == [ALICE.uid, ALICE.uid, 61002]
    assert (await refusal(reads, request)).refusal.code == "SW-FORBIDDEN"


@pytest.mark.parametrize("code", ["SW-DATABASE-DOWN", "SW-DATABASE-RIGHTS"])
async def test_only_operators_are_told_where_the_database_is(reads: Reads, code: str):
    down = UnreachableError(code, "'slicewise' at db.site:5432 does not answer.", "See the URL.")
    reads._ledger.failures["policy"] = [down] * 2  # type: ignore[attr-defined]
    request = HeadroomRequest(tenant="vision")
    words = f"The ledger does not answer now. Try again later. [{code}]"
    assert str(await refusal(reads, request)) == words
    assert "db.site" in str(await refusal(reads, request, ROOT))


async def test_budgets_in_money_are_told_of_own_tenants_and_those_above(reads: Reads):
    policy = policy_of(
        tenant("science", 4000), tenant("vision", 2000, parent="science"), tenant("nlp", 2000)
    )
    reads._cluster_state.set_policy(policy, {})
    reads._cluster_state.money_budgets = tuple(
        MoneyBudgetStatus(name, 500, 100, 0.8, 1) for name in ("nlp", "science", "vision")
    )
    span = {"since_s": 0, "until_s": 86_400}

    async def told(request: ChargesRequest, principal: Principal) -> list[str]:
        return [each["tenant"] for each in (await ask(reads, request, principal))["budgets"]]

    everything = ChargesRequest.of(**span)
    assert await told(everything, ROOT) == ["nlp", "science", "vision"]
    assert await told(everything, ALICE) == ["vision"]
    own = ChargesRequest.of(tenant="vision", **span)
    assert await told(own, ROOT) == ["science", "vision"]
    assert await told(own, ALICE) == ["vision"]
    after = ChargeCursor(part="requests", now_s=1)
    assert await told(own.model_copy(update={"after": after}), ROOT) == []


async def test_of_a_tenant_that_there_is_not_no_use_is_told_of(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    nothing = SimpleNamespace(
        lines=lambda *_, **__: (),
        unattributed=lambda *_: ((), 0),
        rows=lambda _: (),
        unmeasured=lambda *_: (),
    )
    for part in ("usage_reads", "energy"):
        monkeypatch.setattr(ScriptedLedger, part, nothing, raising=False)
    span = {"since_s": 0, "until_s": 86_400}
    for kind in (TokenUsageRequest, EnergyRequest):
        for who, name in ((ROOT, "nosuch"), (ALICE, "nosuch"), (ALICE, "nlp")):
            error = await refusal(reads, kind.of(tenant=name, **span), who)
            assert error.refusal.code == "SW-TENANT-UNKNOWN"
        for who in (ROOT, ALICE):
            assert (await ask(reads, kind.of(tenant="vision", **span), who))["lines"] == []
