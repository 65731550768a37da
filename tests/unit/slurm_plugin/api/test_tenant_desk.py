"""Tests who may ask about tenants and change them, and when an answer comes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.rpc.message import ACTING_PATH, VERSION_PATH, Request, requests
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.desk import Roles
from slicewise.slurm_plugin.api.desks import operators_handlers
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.routes import Asked, Routes
from slicewise.slurm_plugin.common import (
    budget_requests,
    calendar_requests,
    compile_requests,
    quota_file_requests,
    record_requests,
    repartition_requests,
    tenant_requests,
)
from slicewise.slurm_plugin.common.budget_requests import (
    BudgetDeleteRequest,
    BudgetEnterRequest,
    BudgetSetRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import (
    TariffApplyRequest,
    TariffPlanRequest,
    TariffsRequest,
)
from slicewise.slurm_plugin.common.tenant_requests import (
    InForceRequest,
    QuotaSetRequest,
    TenantCreateRequest,
    TenantDeleteRequest,
    TenantImportRequest,
    TenantMoveRequest,
)
from slicewise.slurm_plugin.common.usage_requests import ForgetPersonRequest
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

ROOT, ALICE, WEB, LAUNCHER = 0, 61001, 61002, 61003
ROLES = Roles(frozenset({ROOT}), LAUNCHER, web=WEB, web_operators=frozenset({"olga"}))
MODULES = {
    module.__name__
    for module in (
        *(tenant_requests, budget_requests, calendar_requests),
        *(compile_requests, quota_file_requests, record_requests, repartition_requests),
    )
}
OTHERS = {ForgetPersonRequest, TariffApplyRequest, TariffPlanRequest, TariffsRequest}
"""Of modules that have requests of users, too."""
OURS = [kind for kind in requests() if kind.__module__ in MODULES or kind in OTHERS]
FIELDS: dict[str, Any] = {
    "tenant": "vision",
    "parent": "",
    "change_id": 1,
    "kind": "grant",
    "units": 1,
    "key": "k",
    "reason": "r",
    "window": {"window_id": 0, "tenant": "vision", "kind": "nominal", "amount_millislices": 1},
    "window_id": 1,
    "person": "alice",
    "repartition_id": 1,
    "packed": "",
    "errand": "0123456789abcdef",
    "file": "quotas.toml",
    "text": "",
}


class Ledger(ScriptedLedger):
    """Counts what is written."""

    compiled_ids = frozenset[int]()

    def change(self, *words: object) -> Any:
        self.said.append(words)  # type: ignore[arg-type]

    def compiled(self, change_id: int) -> bool:
        return change_id in self.compiled_ids

    def history(self, _: str) -> tuple[Any, ...]:
        return ()


class Site:
    """The desk with its ledger, asked as the sockets ask."""

    def __init__(self, ledger: Ledger, cluster_state: ClusterState, slurm: ScriptedSlurm) -> None:
        self.ledger, self.cluster_state = ledger, cluster_state
        reads = Reads(settings(), slurm, ledger, cluster_state)  # type: ignore[arg-type]
        given = settings(), slurm, ledger, cluster_state, reads
        self.handlers = operators_handlers(*given)  # type: ignore[arg-type]
        self._routes = Routes(
            {
                kind: lambda request, caller, handle=handle: handle(
                    request, Principal(caller.uid, "x", None)
                )
                for kind, handle in self.handlers.items()
            },
            ROLES.allows,
            ROLES.acting,
        )

    async def answered(self, request: Request, uid: int, acting_for: str = "") -> bytes:
        target, body = request.sent()
        if acting_for:
            target = f"{ACTING_PATH}{acting_for}/{target.removeprefix(VERSION_PATH)}"
        return (await self._routes.reply(Asked(request.method, target, body, uid))).body


@pytest.fixture
async def site() -> Site:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return Site(Ledger(shown=policy_of(tenant("vision", 2000))), cluster_state, slurm)


def request_of(kind: type[Request]) -> Request:
    names = kind.model_fields.keys() & FIELDS.keys()
    return kind.of(**{name: FIELDS[name] for name in names})


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("uid", [ALICE, LAUNCHER, WEB])
async def test_who_is_no_operator_is_refused_and_nothing_is_written(
    site: Site, kind: type[Request], uid: int
):
    answer = await site.answered(request_of(kind), uid)
    assert b"SW-FORBIDDEN" in answer
    assert b"Only root and SlurmUser may do that." in answer
    assert (site.ledger.said, site.ledger.entered) == ([], [])


@pytest.mark.parametrize("kind", [kind for kind in OURS if kind.changes])
async def test_no_page_changes_tenants_not_even_for_an_operator(site: Site, kind: type[Request]):
    answer = await site.answered(request_of(kind), WEB, acting_for="olga")
    assert b"SW-FORBIDDEN" in answer
    assert (site.ledger.said, site.ledger.entered) == ([], [])


def test_every_request_of_operators_about_tenants_has_a_handler(site: Site):
    assert site.handlers.keys() == set(OURS)
    assert {kind.asker for kind in OURS} == {"operators"}


@pytest.mark.parametrize(
    "request_",
    [
        TenantCreateRequest(tenant="new", parent=""),
        TenantMoveRequest(tenant="vision", parent="lab"),
        TenantDeleteRequest(tenant="vision"),
        BudgetSetRequest(tenant="vision", period="day", amount="1"),
        BudgetDeleteRequest(tenant="vision"),
        BudgetEnterRequest(tenant="vision", kind="grant", units=1, key="k", reason="r"),
    ],
)
async def test_a_daemon_that_stands_by_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, request_: Request
):
    def standby(_: ClusterState) -> None:
        raise UnreachableError("SW-DAEMON-STANDBY", "Another one leads.")

    monkeypatch.setattr(ClusterState, "require_leader", standby)
    with pytest.raises(SlicewiseError, match="SW-DAEMON-STANDBY"):
        await site.handlers[type(request_)](request_, Principal(ROOT, "root", None))
    assert (site.ledger.said, site.ledger.entered) == ([], [])


async def test_a_change_has_a_round_made_at_once_and_an_answer_when_it_is_over(site: Site):
    news = site.cluster_state.after_looks()
    await site.handlers[TenantMoveRequest](
        TenantMoveRequest(tenant="vision", parent="lab"), Principal(ROOT, "root", None)
    )
    assert news.is_set()
    assert site.ledger.said
    waiting = asyncio.create_task(site.answered(InForceRequest(change_id=7, wait_s=9), ROOT))
    done, _ = await asyncio.wait((waiting,), timeout=0.05)
    assert not done
    site.ledger.compiled_ids = frozenset({7})
    site.cluster_state.note_round()
    done, _ = await asyncio.wait((waiting,), timeout=0.5)
    assert b'"in_force":true' in waiting.result()


async def test_a_tenant_that_is_deleted_meanwhile_does_not_come_back_without_slurm(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    """It would stand at the top, wherever its account is."""

    async def down(*_: object) -> None:
        raise UnreachableError("SW-SLURM-DOWN", "no")

    def deleted(decide: Callable[[Policy], object], *_: object) -> tuple[Policy, object]:
        return {}, decide({})

    monkeypatch.setattr(Reads, "accounts", down)
    monkeypatch.setattr(site.ledger, "change_by", deleted, raising=False)
    answer = await site.answered(QuotaSetRequest(tenant="vision", quota={"weight": "2"}), ROOT)
    assert b"SW-TENANT-UNKNOWN" in answer


async def test_what_is_no_name_is_no_tenant_to_delete(site: Site, monkeypatch: pytest.MonkeyPatch):
    def change_by(decide: Callable[[Policy], object], *_: object) -> tuple[Policy, object]:
        return {}, decide({})

    monkeypatch.setattr(site.ledger, "change_by", change_by, raising=False)
    answer = await site.answered(TenantDeleteRequest(tenant="x'; --"), ROOT)
    assert b"SW-TENANT-UNKNOWN" in answer


async def test_a_dry_import_writes_nothing(site: Site):
    request = TenantImportRequest(is_dry=True)
    await site.handlers[TenantImportRequest](request, Principal(ROOT, "root", None))
    assert (site.ledger.said, site.ledger.entered) == ([], [])


@pytest.mark.parametrize(
    "words",
    [
        {"units": 0},
        {"units": -1},
        {"kind": "adjust", "units": 0},
        {"kind": "adjust", "units": -(10**30)},
        {"units": 10**30},
        {"key": ""},
        {"key": "a\0b"},
        {"reason": " "},
    ],
)
async def test_the_daemon_books_nothing_that_a_command_would_not(site: Site, words: dict[str, Any]):
    """Only the commands looked: at the socket, a grant could take back, without a reason."""
    fields = {"tenant": "vision", "kind": "grant", "units": 1, "key": "k"}
    request = BudgetEnterRequest.model_construct(**{**fields, "reason": "r", **words})
    assert b"SW-WIRE" in await site.answered(request, ROOT)
    assert site.ledger.entered == []
