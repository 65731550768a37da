"""Tests which users may see and do what, from this host and others."""

import json
import pwd
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import pytest
from builders.tenants import policy_of, tenant
from pydantic import BaseModel, ValidationError
from stand_ins.http_peer import sent
from stand_ins.remote_daemon import OtherHost, scripted_munge
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.rpc.key_messages import (
    GrantsAnswer,
    KeyGrant,
    KeyMadeAnswer,
    KeysAnswer,
)
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, LimitsAnswer, RequestLimits
from slicewise.cluster.rpc.message import (
    DoneAnswer,
    Request,
    answer_of,
    failure_in,
    read_answer,
    requests,
)
from slicewise.cluster.rpc.messages import (
    CheckRequest,
    DesiredSlotsAnswer,
    StatusAnswer,
    SubmitAnswer,
    ViewAnswer,
)
from slicewise.cluster.rpc.web_messages import WhoamiAnswer
from slicewise.cluster.settings.file import DaemonSettings, OidcSettings, WebSettings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.api import desk as desk_module
from slicewise.slurm_plugin.api import guests as guests_module
from slicewise.slurm_plugin.api import keys as keys_module
from slicewise.slurm_plugin.api import rate_limit
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.api.desk import Desk, Roles
from slicewise.slurm_plugin.api.desks import operators_handlers
from slicewise.slurm_plugin.api.energy import EnergyBooks
from slicewise.slurm_plugin.api.generations import ServiceGenerations
from slicewise.slurm_plugin.api.guests import GuestLogins
from slicewise.slurm_plugin.api.keys import ServiceKeys
from slicewise.slurm_plugin.api.orders import ServiceOrders
from slicewise.slurm_plugin.api.rate_limit import OF_PAGE, OF_USER, RateLimiter
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.remote_socket import RemoteSocket
from slicewise.slurm_plugin.api.routes import Asked
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.api.usage import UsageBooks
from slicewise.slurm_plugin.api.web_logins import WebLogins
from slicewise.slurm_plugin.common.explain_requests import HeadroomAnswer
from slicewise.slurm_plugin.state.cluster_state import ClusterState
from slicewise.slurm_plugin.state.reports import OLD_S

pytestmark = pytest.mark.usefixtures("clock")

ROOT, LAUNCHER, ALICE, BOB = 0, 500, 61001, 61002
STRANGER = 61099
NAMES = {ROOT: "root", LAUNCHER: "slicewise", ALICE: "alice", BOB: "bob", STRANGER: "stranger"}
STATUS = StatusAnswer(
    version="1", mode="enforce", host="head", is_leader=True, complete=True, observed_s=1.0
)


PROVIDER = OidcSettings(tenant_claim="groups", claimed_tenants=("vision", "lab"))


class Daemon:
    """What a look at Slurm's accounts finds is up to the test."""

    def __init__(self) -> None:
        self.looks = 0
        self.finds: Callable[[], None] = lambda: None

    def status(self) -> StatusAnswer:
        return STATUS

    async def see_accounts(self) -> None:
        self.looks += 1
        self.finds()


class Answers(Protocol):
    """What is asked: the routes, as the user socket does, or a daemon on another host."""

    async def answer(self, asked: Asked) -> BaseModel: ...


class Asking:
    """The desk, asked as a given user."""

    def __init__(
        self,
        desk: Desk,
        slurm: ScriptedSlurm,
        daemon: Daemon,
        cluster_state: ClusterState,
        keys: ServiceKeys,
        *,
        answers: Answers | None = None,
    ) -> None:
        self.answer = (answers or desk.routes).answer
        self.routes = desk.routes
        self.slurm, self.daemon, self.cluster_state = slurm, daemon, cluster_state
        self.keys = keys

    async def as_user(self, uid: int, op: str, **fields: object) -> BaseModel:
        return await self.answer(Asked(*sent(op, **fields), uid))

    async def code(self, uid: int, op: str, **fields: object) -> str:
        with pytest.raises(SlicewiseError) as raised:
            await self.as_user(uid, op, **fields)
        return raised.value.refusal.code


@pytest.fixture(params=["this host", "another host"])
async def asked(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Asking]:
    """Whoever may do what by the user socket may do that over TCP with munge, and no more."""
    monkeypatch.setattr(desk_module, "user_name", NAMES.__getitem__)
    monkeypatch.setattr(keys_module, "user_name", NAMES.__getitem__)
    slurm = ScriptedSlurm(job(0), job(1))
    cluster_state = sync_of(slurm)
    accounts = {ALICE: frozenset({"vision"}), BOB: frozenset({"nlp"})}
    policy = policy_of(tenant("vision", 2000), tenant("nlp", 1000))
    cluster_state.set_policy(policy, accounts)
    cluster_state.set_members({NAMES[uid]: frozenset(own) for uid, own in accounts.items()}, {})
    await cluster_state.turn()
    ledger: Any = ScriptedLedger(shown=policy)
    reads = Reads(settings(), slurm, ledger, cluster_state)
    who = Roles(frozenset({ROOT}), LAUNCHER)
    rates = RateLimiter()
    guests = GuestLogins(ledger, PROVIDER, ALONE, rates)
    keys = ServiceKeys(
        *(ledger, cluster_state, reads, ALONE),
        guests=guests,
        rates=rates,
        operators=who.administrators,
        aliases={},
    )
    desk = Desk(
        cluster_state,
        Admission("enforce"),
        who,
        reads=reads,
        orders=ServiceOrders(ledger, cluster_state, reads, ALONE, rates=rates),
        generations=ServiceGenerations(ledger, cluster_state, reads),
        keys=keys,
        guests=guests,
        usage=UsageBooks(ledger, ALONE, "UTC"),
        energy=EnergyBooks(ledger, cluster_state, ALONE, "UTC"),
        web_logins=WebLogins(WebSettings(listen="127.0.0.1:8690"), SlurmTokens(None)),
        operators=operators_handlers(settings(), slurm, ledger, cluster_state, reads),
        daemon=(daemon := Daemon()),
    )
    parts = (desk, slurm, daemon, cluster_state, keys)
    if request.param == "this host":
        yield Asking(*parts)
        return
    munge, place = scripted_munge(monkeypatch), "127.0.0.1:7443"
    server = RemoteSocket(DaemonSettings(listen=place), desk.routes, who, SlurmTokens(None))
    await server.start()
    yield Asking(*parts, answers=OtherHost(munge, place))
    await server.stop()


def test_every_request_that_is_declared_has_a_handler(asked: Asking):
    assert asked.routes.handlers.keys() == set(requests())


async def test_everybody_may_ask_how_the_daemon_is(asked: Asking):
    assert await asked.as_user(BOB, op="status") == STATUS


async def test_users_are_told_whether_they_are_operators(asked: Asking):
    for uid, is_operator in ((ROOT, True), (ALICE, False), (LAUNCHER, False)):
        assert await asked.as_user(uid, op="whoami") == WhoamiAnswer(is_operator=is_operator)


async def test_services_are_shown_to_their_tenants_the_launcher_and_operators(asked: Asking):
    for uid, seen in ((ALICE, 1), (LAUNCHER, 1), (ROOT, 1), (BOB, 0), (61099, 0)):
        NAMES.setdefault(uid, str(uid))
        view = await asked.as_user(uid, op="view")
        assert isinstance(view, ViewAnswer)
        assert len(view.services) == seen


async def test_a_user_who_was_added_to_an_account_just_now_is_not_refused(asked: Asking):
    added = {BOB: {"nlp": frozenset[str](), "vision": frozenset[str]()}}
    asked.daemon.finds = lambda: asked.cluster_state.set_accounts(added)
    assert isinstance(await asked.as_user(BOB, op="headroom", tenant="vision"), HeadroomAnswer)
    assert asked.daemon.looks == 1
    assert asked.cluster_state.quotas.policy.keys() == {"vision", "nlp"}


async def test_whose_accounts_are_as_before_is_refused_after_one_look(asked: Asking):
    assert await asked.code(BOB, op="headroom", tenant="vision") == "SW-TENANT-UNKNOWN"
    assert await asked.code(ROOT, op="headroom", tenant="nobody") == "SW-TENANT-UNKNOWN"
    assert asked.daemon.looks == 1


async def test_a_service_is_checked_again_after_a_look(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    def check(_: object, request: CheckRequest, uid: int) -> SubmitAnswer:
        if request.tenant not in asked.cluster_state.quotas.accounts_by_uid[uid]:
            raise InvalidInputError("SW-TENANT-UNKNOWN", "None of yours.")
        return SubmitAnswer(action="admit")

    monkeypatch.setattr(Admission, "check", check)
    check_of_bob = {
        "op": "admission-check",
        "tenant": "vision",
        "directives": ["#SLICEWISE name=x"],
    }
    assert await asked.code(BOB, **check_of_bob) == "SW-TENANT-UNKNOWN"
    asked.daemon.finds = lambda: asked.cluster_state.set_accounts({BOB: {"vision": frozenset()}})
    assert await asked.as_user(BOB, **check_of_bob) == SubmitAnswer(action="admit")


@pytest.mark.parametrize("uid", [ALICE, BOB])
async def test_only_the_launcher_and_operators_wish(asked: Asking, uid: int):
    before = list(asked.slurm.actions)
    wish = {
        "op": "desired-slots",
        "array_job_id": 814,
        "slots": [0],
        "replaces_version": asked.cluster_state.desired_slots_versions[814],
    }
    assert await asked.code(uid, **wish) == "SW-FORBIDDEN"
    assert asked.slurm.actions == before
    answer = await asked.as_user(LAUNCHER, **wish)
    assert isinstance(answer, DesiredSlotsAnswer)


async def test_only_the_launcher_sees_which_request_for_slots_was_taken_last(asked: Asking):
    for uid, numbers in (
        (LAUNCHER, dict(asked.cluster_state.desired_slots_versions)),
        (ROOT, {}),
        (ALICE, {}),
    ):
        view = await asked.as_user(uid, op="view")
        assert isinstance(view, ViewAnswer)
        assert view.desired_slots_versions == numbers
    wish = {
        "op": "desired-slots",
        "array_job_id": 814,
        "slots": [0],
        "replaces_version": asked.cluster_state.desired_slots_versions[814],
    }
    await asked.as_user(LAUNCHER, **wish)
    assert await asked.code(LAUNCHER, **wish) == "SW-SERVICE-CHANGED"


NEWS = {"tenant": "vision", "in_flight": 1, "queued": 0, "held": 0, "rate_per_s": 0.5}
TOLD = NEWS | {"name": "bert", "desired_replicas": 1, "reason": "1 in flight: 1"}


async def test_the_launcher_tells_and_who_may_see_the_service_reads_it(asked: Asking):
    others = TOLD | {"name": "nobody"}
    assert await asked.code(ALICE, op="service-reports", services=[TOLD]) == "SW-FORBIDDEN"
    await asked.as_user(LAUNCHER, op="service-reports", services=[TOLD, others])
    for uid, seen in ((ALICE, ["bert"]), (ROOT, ["bert"]), (BOB, []), (LAUNCHER, [])):
        view = await asked.as_user(uid, op="view")
        assert isinstance(view, ViewAnswer)
        assert [one.name for one in view.service_reports] == seen


async def test_what_the_launcher_told_long_ago_says_nothing(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    await asked.as_user(LAUNCHER, op="service-reports", services=[TOLD])
    late_s = time.monotonic() + OLD_S
    monkeypatch.setattr(time, "monotonic", lambda: late_s)
    view = await asked.as_user(ALICE, op="view")
    assert isinstance(view, ViewAnswer)
    assert view.service_reports == ()


@pytest.mark.parametrize("uid", [BOB, LAUNCHER])
async def test_a_service_is_deleted_by_its_owner_and_operators_only(asked: Asking, uid: int):
    assert await asked.code(uid, op="service-delete", array_job_id=814) == "SW-FORBIDDEN"
    assert isinstance(await asked.as_user(ALICE, op="service-delete", array_job_id=814), DoneAnswer)


@pytest.mark.parametrize("uid", [ALICE, BOB, LAUNCHER])
async def test_only_operators_tell_replicas_to_leave(asked: Asking, uid: int):
    leave = {"op": "evict", "runs": [[900, None]], "why": "its GPU is cut anew"}
    assert await asked.code(uid, **leave) == "SW-FORBIDDEN"
    assert isinstance(await asked.as_user(ROOT, **leave), DoneAnswer)


async def test_the_launcher_reads_no_more_of_the_ledger_than_a_user(asked: Asking):
    for uid in (ALICE, ROOT):
        assert isinstance(await asked.as_user(uid, op="headroom", tenant="vision"), HeadroomAnswer)
    for uid in (BOB, LAUNCHER):
        assert await asked.code(uid, op="headroom", tenant="vision") == "SW-TENANT-UNKNOWN"


@pytest.mark.parametrize("uid", [ALICE, BOB])
async def test_only_the_launcher_and_operators_retire_and_know_what_keys_grant(
    asked: Asking, uid: int
):
    before = list(asked.slurm.actions)
    assert await asked.code(uid, op="service-retire", array_job_id=814) == "SW-FORBIDDEN"
    assert await asked.code(uid, op="key-grants") == "SW-FORBIDDEN"
    assert asked.slurm.actions == before


@pytest.mark.parametrize("uid", [BOB, LAUNCHER])
async def test_a_service_is_ordered_by_its_owner_and_operators_only(asked: Asking, uid: int):
    order = {"op": "service-order", "array_job_id": 814, "what": "restart"}
    assert await asked.code(uid, **order) == "SW-FORBIDDEN"
    for owner in (ALICE, ROOT):
        assert isinstance(await asked.as_user(owner, **order), DoneAnswer)


KEY = {"op": "key-create", "tenant": "vision", "name": "ci", "sha256": "a" * 64}
OF_ALICE = KeyGrant(opens="vision", key_id="a" * 12, person="alice")


async def test_keys_are_made_seen_and_revoked_by_their_persons_and_operators(asked: Asking):
    for uid, digit in ((ALICE, "a"), (ROOT, "b")):
        key = {**KEY, "sha256": digit * 64}
        assert isinstance(await asked.as_user(uid, **key, key_id=digit * 12), DoneAnswer)
    assert await asked.code(BOB, **KEY, key_id="c" * 12) == "SW-TENANT-UNKNOWN"
    for uid, seen in ((ALICE, 1), (ROOT, 2), (BOB, 0), (LAUNCHER, 0)):
        answer = await asked.as_user(uid, op="keys")
        assert isinstance(answer, KeysAnswer)
        assert len(answer.keys) == seen
    answer = await asked.as_user(ALICE, op="keys")
    # Whether hers is the last she must know, whoever has the others.
    assert isinstance(answer, KeysAnswer)
    assert answer.valid == {"vision": 2}
    for key_id in ("b" * 12, "f" * 12):
        assert await asked.code(ALICE, op="key-revoke", key_id=key_id) == "SW-NAME-UNKNOWN"
    assert await asked.code(BOB, op="key-revoke", key_id="a" * 12) == "SW-NAME-UNKNOWN"
    with pytest.raises(SlicewiseError, match=f"give its id: {'a' * 12} of vision"):
        await asked.as_user(ALICE, op="key-revoke", key_id="ci")
    assert isinstance(await asked.as_user(ALICE, op="key-revoke", key_id="a" * 12), DoneAnswer)


async def test_keys_of_who_has_left_the_tenant_let_nothing_in(asked: Asking):
    for uid, key_id, digit in ((ALICE, "a" * 12, "a"), (ROOT, "b" * 12, "b")):
        await asked.as_user(uid, **{**KEY, "sha256": digit * 64}, key_id=key_id)

    async def granted() -> str:
        await asked.keys.turn()
        answer: Any = await asked.as_user(ROOT, op="keys")
        let_in: Any = await asked.as_user(LAUNCHER, op="key-grants")
        living = {key.key_id for key in let_in.keys.values()}
        assert all(key.has_left == (key.key_id not in living) for key in answer.keys)
        assert let_in.protected == ("vision",)
        return "".join(sorted(key_id[0] for key_id in living))

    assert await granted() == "ab"
    asked.cluster_state.set_members({"alice": frozenset({"nlp"}), "bob": frozenset({"vision"})}, {})
    assert await granted() == "b"
    asked.cluster_state.set_members({"bob": frozenset({"vision"})}, {})
    assert await granted() == "b"
    # Users' uids may be unknown for a while, and so may all accounts: by that no key ends.
    asked.cluster_state.set_members({"alice": frozenset({"vision"})}, {})
    asked.cluster_state.set_accounts({})
    assert await granted() == "ab"
    asked.cluster_state.set_members({}, {})
    assert await granted() == "ab"


async def test_an_operator_makes_a_key_for_a_member(asked: Asking):
    of_alice = {**KEY, "person": "alice"}
    assert await asked.code(BOB, **{**of_alice, "tenant": "nlp"}, key_id="a" * 12) == "SW-FORBIDDEN"
    assert await asked.code(ROOT, **KEY, key_id="a" * 12, person="bob") == "SW-NAME-UNKNOWN"
    await asked.as_user(ROOT, **of_alice, key_id="a" * 12)
    granted = await asked.as_user(LAUNCHER, op="key-grants")
    assert isinstance(granted, GrantsAnswer)
    assert granted.keys == {"a" * 64: OF_ALICE}
    shown = await asked.as_user(ALICE, op="keys")
    assert isinstance(shown, KeysAnswer)
    assert [(key.created_by, key.person) for key in shown.keys] == [("root", "alice")]
    await asked.as_user(ALICE, op="key-revoke", key_id="a" * 12)


async def test_clients_get_keys_before_a_tenant_wants_them(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    now_s = int(time.time())
    require = {"op": "key-require", "tenant": "vision"}

    async def protected() -> tuple[str, ...]:
        granted = await asked.as_user(LAUNCHER, op="key-grants")
        assert isinstance(granted, GrantsAnswer)
        return granted.protected

    await asked.as_user(ALICE, **require, from_s=now_s + 3600)
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    assert await protected() == ()
    shown = await asked.as_user(ALICE, op="keys")
    assert isinstance(shown, KeysAnswer)
    assert (shown.unprotected, shown.wanted_from_s) == (("vision",), {"vision": now_s + 3600})
    # Earlier, but not later: else each member could open the services of all.
    assert await asked.code(ALICE, **require, from_s=now_s + 7200) == "SW-FORBIDDEN"
    assert await asked.code(BOB, **require, from_s=now_s + 60) == "SW-TENANT-UNKNOWN"
    await asked.as_user(ALICE, **require, from_s=now_s + 60)
    monkeypatch.setattr(keys_module, "wall_s", lambda: now_s + 61.0)
    assert await protected() == ("vision",)
    assert await asked.code(ALICE, **require, from_s=now_s + 7200) == "SW-FORBIDDEN"
    await asked.as_user(ROOT, **require, from_s=now_s + 7200)
    assert await protected() == ()
    # Without any key, too.
    await asked.as_user(BOB, **{**require, "tenant": "nlp"}, from_s=now_s)
    assert await protected() == ("nlp",)


LIMIT = {"op": "limit-change", "limits": {"concurrent": 2}}


async def test_limits_are_set_by_operators_and_of_a_key_by_its_person(asked: Asking):
    for number, uid in enumerate((ALICE, ROOT)):
        key = {**KEY, "sha256": f"{number:064x}", "key_id": f"{number:012x}"}
        await asked.as_user(uid, **key)
    own, other, tenant_s = (
        {"key_id": f"{0:012x}"},
        {"key_id": f"{1:012x}"},
        {"tenant": "vision"},
    )
    persons = {"tenant": "vision", "person": "alice"}
    for uid, subject, refusal in (
        (ALICE, tenant_s, "SW-FORBIDDEN"),
        (ALICE, persons, "SW-FORBIDDEN"),
        (ALICE, other, "SW-NAME-UNKNOWN"),
        (ALICE, {"key_id": "f" * 12}, "SW-NAME-UNKNOWN"),
        (ALICE, {}, "SW-VALUE"),
        (BOB, tenant_s, "SW-TENANT-UNKNOWN"),
        (BOB, own, "SW-NAME-UNKNOWN"),
        (LAUNCHER, own, "SW-NAME-UNKNOWN"),
        (LAUNCHER, tenant_s, "SW-TENANT-UNKNOWN"),
        (ROOT, {"tenant": "visoin"}, "SW-TENANT-UNKNOWN"),
    ):
        assert await asked.code(uid, **LIMIT, **subject) == refusal
    for uid, subject in ((ROOT, tenant_s), (ROOT, persons), (ALICE, own), (ROOT, other)):
        await asked.as_user(uid, **LIMIT, **subject)

    async def seen(uid: int) -> list[tuple[str, str, str]]:
        answer = await asked.as_user(uid, op="limits")
        assert isinstance(answer, LimitsAnswer)
        return [(one.tenant, one.person, one.key_id) for one in answer.limits]

    assert len(await seen(ROOT)) == 4
    mine = [("vision", "", ""), ("vision", "alice", ""), ("vision", "", f"{0:012x}")]
    assert await seen(ALICE) == mine
    assert await seen(BOB) == await seen(LAUNCHER) == []
    told = await asked.as_user(LAUNCHER, op="key-grants")
    assert isinstance(told, GrantsAnswer)
    assert len(told.limits) == 4
    # What an operator has limited its person only tightens.
    await asked.as_user(ROOT, **LIMIT, **own)
    for change, holds in (
        ({"limits": {"concurrent": 99}}, 2),
        ({"lifted": ["concurrent"]}, 2),
        ({"limits": {"concurrent": 1}}, 1),
    ):
        await asked.as_user(ALICE, op="limit-change", **change, **own)
        told = await asked.as_user(LAUNCHER, op="key-grants")
        assert isinstance(told, GrantsAnswer)
        (limits,) = (one.limits for one in told.limits if one.key_id == own["key_id"])
        assert limits.concurrent == holds
    # A key that is no more has no limits at the gateway.
    await asked.as_user(ALICE, op="key-revoke", key_id=f"{0:012x}")
    told = await asked.as_user(LAUNCHER, op="key-grants")
    assert isinstance(told, GrantsAnswer)
    assert len(told.limits) == 3


CAROL = 61098
OF_OTHERS = {
    "key-revoke": {"key_id": "a" * 12},
    "limit-change": {"key_id": "a" * 12, "limits": {"concurrent": 1}},
    "key-create": {"tenant": "vision", "name": "x", "sha256": "e" * 64, "person": "alice"},
}


@pytest.mark.parametrize("op", OF_OTHERS)
@pytest.mark.parametrize("uid", [CAROL, BOB, LAUNCHER])
async def test_nobody_does_anything_by_or_to_the_key_of_another(
    asked: Asking, uid: int, op: str, monkeypatch: pytest.MonkeyPatch
):
    """Not a colleague in the tenant, not another tenant's member, not the launcher."""
    monkeypatch.setitem(NAMES, CAROL, "carol")
    both = {uid: {"vision": frozenset[str]()} for uid in (ALICE, CAROL)}
    asked.cluster_state.set_accounts({**both, BOB: {"nlp": frozenset()}})
    asked.cluster_state.set_members(
        {"alice": frozenset({"vision"}), "carol": frozenset({"vision"})}, {}
    )
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    await asked.as_user(ROOT, op="limit-change", key_id="a" * 12, limits={"concurrent": 7})
    await asked.as_user(ROOT, op="limit-change", tenant="vision", person="alice", lifted=["models"])
    before = await asked.as_user(LAUNCHER, op="key-grants")
    fields = dict(OF_OTHERS[op])
    if op == "key-create":
        fields["key_id"] = "e" * 12
    refusal = await asked.code(uid, op, **fields)
    assert refusal in {"SW-NAME-UNKNOWN", "SW-FORBIDDEN", "SW-TENANT-UNKNOWN"}
    # The same words for a key that there is not: ids can't be guessed by that.
    if "key_id" in OF_OTHERS[op]:
        assert refusal == await asked.code(uid, op, **{**fields, "key_id": "0" * 12})
    assert await asked.as_user(LAUNCHER, op="key-grants") == before
    keys, limits = await asked.as_user(uid, op="keys"), await asked.as_user(uid, op="limits")
    assert "alice" not in keys.model_dump_json() + limits.model_dump_json()
    assert "a" * 12 not in keys.model_dump_json() + limits.model_dump_json()


CHANGES: dict[str, dict[str, object]] = {
    "key-revoke": {"key_id": "a" * 12},
    "key-create": {"tenant": "vision", "name": "x", "sha256": "e" * 64, "key_id": "e" * 12},
    "key-open": {"tenant": "vision"},
    "key-require": {"tenant": "vision", "from_s": 5},
    "limit-change": {"key_id": "a" * 12, "limits": {"concurrent": 1}},
}


ON_PAGE = ("key-create", "key-revoke", "limit-change")


def posted(ask: Asked, **fields: object) -> Asked:
    return replace(ask, method="POST", body=json.dumps(fields).encode())


@pytest.mark.parametrize("op", CHANGES)
@pytest.mark.parametrize("user", ["bob", "carol", "root", "slicewise", "web", "nobody", ""])
async def test_by_the_page_nobody_changes_anything_of_another(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, op: str, user: str
):
    """Not by an operator's name, which sees all there, and not by root's or a program's."""
    monkeypatch.setitem(NAMES, CAROL, "carol")
    asked.cluster_state.set_accounts(
        {ALICE: {"vision": frozenset()}, BOB: {"nlp": frozenset()}, CAROL: {"cg": frozenset()}}
    )
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    before = await asked.as_user(LAUNCHER, op="key-grants")
    as_user = acting(asked, monkeypatch)
    with pytest.raises(InvalidInputError) as raised:
        await asked.answer(posted(as_user(WEB, user, op), **CHANGES[op]))
    assert raised.value.refusal.code in {"SW-FORBIDDEN", *_OTHERS.get(op, ())}
    assert await asked.as_user(LAUNCHER, op="key-grants") == before


_OTHERS: dict[str, set[str]] = {
    "key-create": {"SW-TENANT-UNKNOWN"},
    "key-revoke": {"SW-NAME-UNKNOWN"},
    "limit-change": {"SW-NAME-UNKNOWN"},
}


async def test_a_person_makes_limits_and_ends_own_keys_by_the_page(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    as_user = acting(asked, monkeypatch)

    async def by_page(op: str, user: str = "alice", **fields: object) -> BaseModel:
        return await asked.answer(posted(as_user(WEB, user, op), **fields))

    made = {name: word for name, word in KEY.items() if name != "op"}
    # Whose it is and by which way it came stands in the ledger.
    for user, tenant_s, digit in (("alice", "vision", "a"), ("bob", "nlp", "b")):
        words = {**made, "tenant": tenant_s, "sha256": digit * 64, "key_id": digit * 12}
        assert await by_page("key-create", user, **words) == KeyMadeAnswer(person=user)
    shown: Any = await asked.as_user(ROOT, op="keys")
    assert [(one.person, one.created_by) for one in shown.keys] == [
        ("alice", "alice (page)"),
        ("bob", "bob (page)"),
    ]
    own = {"key_id": "a" * 12}
    await by_page("limit-change", **own, limits={"concurrent": 2})
    # Tenants and persons are not limited there, by whomever.
    for subject in ({"tenant": "vision"}, {"tenant": "vision", "person": "alice"}):
        with pytest.raises(InvalidInputError, match="your keys"):
            await by_page("limit-change", **subject, limits={"concurrent": 1})
    with pytest.raises(InvalidInputError, match="Only operators"):
        await by_page("key-create", **made, key_id="c" * 12, person="bob")
    # An operator by name sees all keys on the page, and changes those of nobody else.
    seen: Any = await asked.answer(as_user(WEB, "bob", "keys"))
    assert len(seen.keys) == 2
    with pytest.raises(InvalidInputError, match="You have no key"):
        await by_page("key-revoke", "bob", **own)
    await by_page("key-revoke", **own)
    granted: Any = await asked.as_user(LAUNCHER, op="key-grants")
    assert granted.keys.keys() == {"b" * 64}


async def test_a_site_may_let_the_page_change_nothing(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    as_user = acting(asked, monkeypatch)
    who = Roles(frozenset({ROOT}), LAUNCHER, WEB, page_changes=False)
    monkeypatch.setattr(asked.routes, "_acting", who.acting)
    for op in ON_PAGE:
        with pytest.raises(InvalidInputError, match=r"web\.change_keys"):
            await asked.answer(posted(as_user(WEB, "alice", op), **CHANGES[op]))
    await asked.answer(as_user(WEB, "alice", "keys"))


@pytest.mark.parametrize("key_id", [f"{ALICE:012x}", "no such key"])
async def test_a_visitor_of_the_page_keeps_no_other_from_changes(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, key_id: str
):
    """Nor by changes that are refused; a leaked key of another can't wait."""
    as_user = guests_may_ask(asked, monkeypatch)
    await two_keys(asked)
    said = set[str]()
    for _ in range(OF_PAGE.at_once):
        try:
            await asked.answer(posted(as_user("alice", "key-revoke"), key_id=key_id))
        except InvalidInputError as error:
            said.add(error.refusal.code)
    assert "SW-RATE" in said
    await asked.answer(posted(as_user("bob", "key-revoke"), key_id=f"{BOB:012x}"))
    await let_in(asked, "vision")


async def test_all_visitors_of_the_page_together_change_at_a_bounded_rate(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    """Ends of keys, too: so a web server that was taken over ends a few at a time."""
    as_user = acting(asked, monkeypatch)
    await two_keys(asked)
    monkeypatch.setattr(rate_limit, "OF_VISITOR", OF_PAGE)
    for _ in range(OF_PAGE.at_once):
        one = as_user(WEB, "alice", "key-revoke")
        await asked.answer(posted(one, key_id=f"{ALICE:012x}"))
    with pytest.raises(InvalidInputError, match="page's visitors"):
        await asked.answer(posted(as_user(WEB, "bob", "key-revoke"), key_id=f"{BOB:012x}"))
    # In a shell a leaked key doesn't wait.
    await asked.as_user(BOB, op="key-revoke", key_id=f"{BOB:012x}")


async def two_keys(asked: Asking) -> None:
    """A key of alice's, and one of bob's."""
    for uid, tenant_s in ((ALICE, "vision"), (BOB, "nlp")):
        words = {**KEY, "tenant": tenant_s, "sha256": f"{uid:064x}"}
        await asked.as_user(uid, **words, key_id=f"{uid:012x}")


async def test_a_first_key_is_made_knowingly(asked: Asking):
    first = {**KEY, "may_be_first": False}
    assert await asked.code(ALICE, **first, key_id="a" * 12) == "SW-KEY-FIRST"
    await asked.as_user(ALICE, **KEY, key_id="b" * 12)
    await asked.as_user(ALICE, **{**first, "sha256": "c" * 64}, key_id="c" * 12)


async def test_limits_are_of_members_and_of_who_had_some(asked: Asking):
    nobody = {"tenant": "vision", "person": "visoin"}
    assert await asked.code(ROOT, **LIMIT, **nobody) == "SW-NAME-UNKNOWN"
    await asked.as_user(ROOT, **LIMIT, tenant="vision", person="alice")
    asked.cluster_state.set_members({"bob": frozenset({"nlp"})}, {})
    assert await asked.code(ROOT, **LIMIT, tenant="vision", person="alice") == "SW-NAME-UNKNOWN"
    lifted = {"op": "limit-change", "lifted": ["concurrent"], "tenant": "vision"}
    await asked.as_user(ROOT, **lifted, person="alice")


async def managed(asked: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carol coordinates an account above vision, and belongs to none; alice has a key there."""
    monkeypatch.setitem(NAMES, CAROL, "carol")
    members = {"alice": frozenset({"vision"}), "bob": frozenset({"nlp"})}
    asked.cluster_state.set_members(members, {"vision": "lab", "lab": "root", "nlp": "root"})
    asked.cluster_state.set_coordinators({"lab": frozenset({"carol"}), "vision": frozenset()})
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    of_bob = {**KEY, "tenant": "nlp", "sha256": "b" * 64}
    await asked.as_user(BOB, **of_bob, key_id="b" * 12)


async def test_a_manager_lists_limits_and_ends_keys_of_the_accounts_below(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    await managed(asked, monkeypatch)
    shown: Any = await asked.as_user(CAROL, op="keys")
    assert [one.key_id for one in shown.keys] == ["a" * 12]
    subjects: tuple[dict[str, object], ...] = (
        {"key_id": "a" * 12},
        {"tenant": "vision"},
        {"tenant": "vision", "person": "alice"},
    )
    for subject in subjects:
        await asked.as_user(CAROL, **LIMIT, **subject)
    seen: Any = await asked.as_user(CAROL, op="limits")
    assert len(seen.limits) == 3
    # No person loosens that.
    await asked.as_user(ALICE, op="limit-change", key_id="a" * 12, limits={"concurrent": 99})
    told: Any = await asked.as_user(LAUNCHER, op="key-grants")
    assert {one.limits.concurrent for one in told.limits} == {2}
    # A manager loosens nothing of an operator's, who has the last word.
    await asked.as_user(ROOT, op="limit-change", tenant="vision", limits={"concurrent": 1})
    await asked.as_user(CAROL, op="limit-change", tenant="vision", lifted=["concurrent"])
    told = await asked.as_user(LAUNCHER, op="key-grants")
    (limits,) = (one.limits for one in told.limits if not one.person and not one.key_id)
    assert limits.concurrent == 1
    await asked.as_user(CAROL, op="key-revoke", key_id="a" * 12)
    told = await asked.as_user(LAUNCHER, op="key-grants")
    assert told.keys.keys() == {"b" * 64}


MANAGERS_MAY_NOT: tuple[tuple[dict[str, object], str], ...] = (
    ({"op": "key-revoke", "key_id": "b" * 12}, "SW-NAME-UNKNOWN"),
    ({**LIMIT, "key_id": "b" * 12}, "SW-NAME-UNKNOWN"),
    ({**LIMIT, "tenant": "nlp"}, "SW-TENANT-UNKNOWN"),
    ({**LIMIT, "tenant": "nlp", "person": "bob"}, "SW-TENANT-UNKNOWN"),
    ({**LIMIT, "tenant": "vision", "person": "bob"}, "SW-NAME-UNKNOWN"),
    ({**KEY, "sha256": "e" * 64, "key_id": "e" * 12}, "SW-TENANT-UNKNOWN"),
    ({**KEY, "sha256": "e" * 64, "key_id": "e" * 12, "person": "alice"}, "SW-TENANT-UNKNOWN"),
    ({"op": "key-open", "tenant": "vision"}, "SW-TENANT-UNKNOWN"),
    ({"op": "key-require", "tenant": "vision", "from_s": 5}, "SW-TENANT-UNKNOWN"),
    ({"op": "person-forget", "person": "alice"}, "SW-FORBIDDEN"),
)


@pytest.mark.parametrize(("request_", "refusal"), MANAGERS_MAY_NOT)
async def test_a_manager_does_nothing_else_and_nothing_elsewhere(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, request_: dict[str, Any], refusal: str
):
    await managed(asked, monkeypatch)
    before = await asked.as_user(LAUNCHER, op="key-grants")
    assert await asked.code(CAROL, **request_) == refusal
    assert await asked.as_user(LAUNCHER, op="key-grants") == before


async def test_nobody_is_a_manager_by_the_page(asked: Asking, monkeypatch: pytest.MonkeyPatch):
    await managed(asked, monkeypatch)
    as_user = acting(asked, monkeypatch)
    shown: Any = await asked.answer(as_user(WEB, "carol", "keys"))
    assert shown.keys == ()
    for op in ("key-revoke", "limit-change"):
        with pytest.raises(InvalidInputError, match="You have no key"):
            await asked.answer(posted(as_user(WEB, "carol", op), **CHANGES[op]))


async def test_who_coordinates_no_more_manages_no_more(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    await managed(asked, monkeypatch)
    asked.cluster_state.set_coordinators({"lab": frozenset(), "nlp": frozenset({"carol"})})
    assert await asked.code(CAROL, op="key-revoke", key_id="a" * 12) == "SW-NAME-UNKNOWN"
    await asked.as_user(CAROL, op="key-revoke", key_id="b" * 12)


async def test_a_member_sets_no_moment_that_never_comes(asked: Asking):
    far = {"op": "key-require", "tenant": "vision", "from_s": 253_000_000_000}
    assert await asked.code(ALICE, **far) == "SW-FORBIDDEN"
    await asked.as_user(ROOT, **far)
    # Whoever has set it: a member makes it earlier.
    soon = {**far, "from_s": int(time.time()) + 60}
    await asked.as_user(ALICE, **soon)
    assert await asked.code(ALICE, **far) == "SW-FORBIDDEN"


def test_a_change_of_limits_leaves_the_others_as_they_are():
    before = RequestLimits(concurrent=2, tokens_per_month=5, is_exact=True)
    change = LimitChangeRequest(limits=RequestLimits(requests_per_minute=0), lifted={"concurrent"})
    after = RequestLimits(requests_per_minute=0, tokens_per_month=5, is_exact=True)
    assert change.changed(before) == after
    assert change.model_copy(update={"is_exact": False}).changed(before).is_exact is False


async def test_keys_are_made_at_a_bounded_rate(asked: Asking):
    for number in range(OF_USER.at_once):
        await asked.as_user(ALICE, **KEY, key_id=f"{number:012x}")
    assert await asked.code(ALICE, **KEY, key_id="f" * 12) == "SW-RATE"
    assert isinstance(await asked.as_user(ALICE, op="key-revoke", key_id=f"{1:012x}"), DoneAnswer)
    # A key that has leaked can't wait. She has made what she may; that is nothing to an operator.
    assert isinstance(await asked.as_user(ROOT, **KEY, key_id="e" * 12), DoneAnswer)


async def test_a_key_that_was_revoked_is_not_revoked_again(asked: Asking):
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    for _ in range(2 * OF_USER.at_once):
        await asked.as_user(ALICE, op="key-revoke", key_id="a" * 12)


async def test_the_launcher_is_told_what_keys_grant_at_once_and_without_revoked_ones(
    asked: Asking,
):
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    granted = await asked.as_user(LAUNCHER, op="key-grants")
    wanted: Any = {"protected": ("vision",), "wanted_from_s": {"vision": 1.0}}
    assert granted == GrantsAnswer(keys={"a" * 64: OF_ALICE}, **wanted)
    await asked.as_user(ALICE, op="key-revoke", key_id="a" * 12)
    granted = await asked.as_user(LAUNCHER, op="key-grants")
    assert granted == GrantsAnswer(**wanted)


async def test_a_key_of_one_service_opens_it_alone_and_until_it_expires(asked: Asking):
    ends_s = int(time.time()) + 3600
    await asked.as_user(ALICE, **KEY, key_id="a" * 12, service="bert", expires_s=ends_s)
    granted = await asked.as_user(LAUNCHER, op="key-grants")
    assert isinstance(granted, GrantsAnswer)
    grant = OF_ALICE.model_copy(update={"opens": "vision/bert", "expires_s": ends_s})
    assert (granted.keys, granted.at(ends_s - 1)) == ({"a" * 64: grant}, granted)
    assert granted.at(ends_s).keys == {}
    assert granted.at(ends_s).protected == ("vision",)
    # Also while the database can't be asked: the daemon itself knows when.
    await asked.as_user(ALICE, **{**KEY, "sha256": "b" * 64}, key_id="b" * 12, expires_s=1)
    assert await asked.as_user(LAUNCHER, op="key-grants") == granted


async def test_who_makes_a_first_key_learns_what_it_closes(asked: Asking):
    before = await asked.as_user(ALICE, op="keys")
    assert isinstance(before, KeysAnswer)
    assert before.unprotected == ("vision",)
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    after = await asked.as_user(ALICE, op="keys")
    assert isinstance(after, KeysAnswer)
    assert after.unprotected == ()


async def test_the_launcher_says_when_keys_were_used(asked: Asking):
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    uses = {"op": "key-uses", "used_s": {"a" * 64: 5.0, "f" * 64: 6.0}}
    assert await asked.code(ALICE, **uses) == "SW-FORBIDDEN"
    assert isinstance(await asked.as_user(LAUNCHER, **uses), DoneAnswer)
    listed = await asked.as_user(ALICE, op="keys")
    assert isinstance(listed, KeysAnswer)
    assert [key.used_s for key in listed.keys] == [5.0]


async def test_a_tenant_is_opened_again_by_its_members(asked: Asking):
    await asked.as_user(ALICE, **KEY, key_id="a" * 12)
    await asked.as_user(ALICE, op="key-revoke", key_id="a" * 12)
    assert await asked.code(BOB, op="key-open", tenant="vision") == "SW-TENANT-UNKNOWN"
    assert isinstance(await asked.as_user(ALICE, op="key-open", tenant="vision"), DoneAnswer)
    assert await asked.as_user(LAUNCHER, op="key-grants") == GrantsAnswer()


async def test_an_operators_key_for_a_tenant_that_there_is_not_is_refused(asked: Asking):
    key = {**KEY, "tenant": "visoin"}
    assert await asked.code(ROOT, **key, key_id="a" * 12) == "SW-TENANT-UNKNOWN"


async def test_a_tenant_that_there_is_not_is_not_opened(asked: Asking):
    assert await asked.code(ROOT, op="key-open", tenant="visoin") == "SW-TENANT-UNKNOWN"
    assert isinstance(await asked.as_user(ROOT, op="key-open", tenant="nlp"), DoneAnswer)


WEB = 501


def acting(asked: Asking, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str, str], Asked]:
    """Questions that the web server asks for a user, who is known on this host."""
    found = {
        name: pwd.struct_passwd((name, "x", uid, uid, "", "/", ""))
        for uid, name in {**NAMES, WEB: "web"}.items()
    }
    monkeypatch.setattr(pwd, "getpwnam", found.__getitem__)
    who = Roles(frozenset({ROOT}), LAUNCHER, WEB, frozenset({"bob"}))
    monkeypatch.setattr(asked.routes, "_allows", who.allows)
    monkeypatch.setattr(asked.routes, "_acting", who.acting)
    return lambda uid, user, op: Asked("GET", f"/v1/as/{user}/{op}", b"", uid)


async def test_the_web_server_sees_what_its_user_would(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    as_user = acting(asked, monkeypatch)
    for user, seen in (("alice", 1), ("root", 1)):
        view = await asked.answer(as_user(WEB, user, "view"))
        assert isinstance(view, ViewAnswer)
        assert len(view.services) == seen


@pytest.mark.parametrize(
    ("uid", "user"),
    [
        (ALICE, "bob"),
        (LAUNCHER, "alice"),
        (WEB, "slicewise"),
        (WEB, "web"),
        (WEB, "nobody"),
        (WEB, ""),
        (WEB, "al%00ice"),
        (WEB, "..%2froot"),
    ],
)
async def test_nobody_else_asks_for_a_user_and_none_asks_for_a_program(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, uid: int, user: str
):
    as_user = acting(asked, monkeypatch)
    with pytest.raises(InvalidInputError) as raised:
        await asked.answer(as_user(uid, user, "view"))
    assert raised.value.refusal.code == "SW-FORBIDDEN"


def guests_may_ask(asked: Asking, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Asked]:
    """Questions that the web server asks for somebody, by the desk's own rules."""
    own = asked.routes._acting
    acting(asked, monkeypatch)
    monkeypatch.setattr(asked.routes, "_acting", own)
    monkeypatch.setattr(own.__self__, "_roles", Roles(frozenset({ROOT}), LAUNCHER, WEB))  # type: ignore[attr-defined]
    return lambda user, op: Asked("GET", f"/v1/as/{user}/{op}", b"", WEB)


async def let_in(asked: Asking, *tenants: str, name: str = "anna") -> str:
    answer: Any = await asked.as_user(WEB, op="web-guest", name=name, tenants=list(tenants))
    assert answer.user == f"oidc+{name}"
    return "oidc%2B" + name


async def test_a_guest_makes_limits_and_ends_own_keys_of_the_claimed_tenants(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    as_guest = guests_may_ask(asked, monkeypatch)
    anna = await let_in(asked, "vision", "nlp")
    made = {name: word for name, word in KEY.items() if name != "op"} | {"key_id": "a" * 12}
    # A tenant that is open to all is closed by its members.
    with pytest.raises(InvalidInputError, match="first key"):
        await asked.answer(posted(as_guest(anna, "key-create"), **made))
    await asked.as_user(ALICE, **{**KEY, "sha256": "b" * 64}, key_id="b" * 12)
    answer = await asked.answer(posted(as_guest(anna, "key-create"), **made))
    assert answer == KeyMadeAnswer(person="oidc+anna")
    for other in ({"tenant": "nlp"}, {"person": "alice"}):
        words = {**made, "sha256": "c" * 64, "key_id": "c" * 12, **other}
        with pytest.raises(InvalidInputError):
            await asked.answer(posted(as_guest(anna, "key-create"), **words))
    limit = {"key_id": "a" * 12, "limits": {"concurrent": 3}}
    await asked.answer(posted(as_guest(anna, "limit-change"), **limit))
    shown: Any = await asked.answer(as_guest(anna, "keys"))
    assert [key.key_id for key in shown.keys] == ["a" * 12]
    assert shown.tenants == ("vision",)
    granted: Any = await asked.as_user(LAUNCHER, op="key-grants")
    assert granted.keys["a" * 64] == KeyGrant(opens="vision", key_id="a" * 12, person="oidc+anna")
    listed: Any = await asked.as_user(ROOT, op="keys")
    assert {key.person for key in listed.keys} == {"alice", "oidc+anna"}
    for op in ("key-revoke", "limit-change"):
        with pytest.raises(InvalidInputError, match="You have no key"):
            await asked.answer(posted(as_guest(anna, op), **CHANGES[op] | {"key_id": "b" * 12}))
    await asked.answer(posted(as_guest(anna, "key-revoke"), key_id="a" * 12))


async def test_a_guest_s_membership_ends(asked: Asking, monkeypatch: pytest.MonkeyPatch):
    as_guest = guests_may_ask(asked, monkeypatch)
    anna = await let_in(asked, "vision")
    await asked.as_user(ALICE, **{**KEY, "sha256": "b" * 64}, key_id="b" * 12)
    made = {name: word for name, word in KEY.items() if name != "op"} | {"key_id": "a" * 12}
    await asked.answer(posted(as_guest(anna, "key-create"), **made))

    async def is_let_in() -> bool:
        await asked.keys.turn()
        granted: Any = await asked.as_user(LAUNCHER, op="key-grants")
        listed: Any = await asked.as_user(ROOT, op="keys")
        (key,) = (one for one in listed.keys if one.key_id == "a" * 12)
        assert key.has_left == ("a" * 64 not in granted.keys)
        if key.has_left:
            with pytest.raises(InvalidInputError, match="identity provider"):
                await asked.answer(as_guest(anna, "keys"))
        return "a" * 64 in granted.keys

    assert await is_let_in()
    # The next login names another tenant, one that nobody allowed, or none.
    for named in (["lab"], ["nlp"], []):
        claim = {"op": "web-guest", "name": "anna", "tenants": named}
        if named == ["lab"]:
            await asked.as_user(WEB, **claim)
            await asked.keys.turn()
            granted: Any = await asked.as_user(LAUNCHER, op="key-grants")
            assert "a" * 64 not in granted.keys
        else:
            assert await asked.code(WEB, **claim) == "SW-FORBIDDEN"
            assert not await is_let_in()
    await let_in(asked, "vision")
    assert await is_let_in()
    # No login for long.
    now_s = time.time()
    monkeypatch.setattr(guests_module, "wall_s", lambda: now_s + 31 * 86_400)
    assert not await is_let_in()
    monkeypatch.setattr(guests_module, "wall_s", lambda: now_s)
    # An operator's word counts more than the provider's.
    end = {"op": "guest-end", "person": "oidc+anna", "tenant": "vision"}
    for uid in (ALICE, LAUNCHER, WEB):
        assert await asked.code(uid, **end) == "SW-FORBIDDEN"
    await asked.as_user(ROOT, **end)
    assert not await is_let_in()
    assert await asked.code(WEB, op="web-guest", name="anna", tenants=["vision"]) == "SW-FORBIDDEN"
    await asked.as_user(ROOT, **end, again=True)
    assert not await is_let_in()
    await let_in(asked, "vision")
    assert await is_let_in()


@pytest.mark.parametrize("kind", list(requests()), ids=lambda kind: kind.__name__)
async def test_a_guest_asks_for_own_keys_limits_and_usage_and_nothing_else(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, kind: type[Request]
):
    as_guest = guests_may_ask(asked, monkeypatch)
    anna = await let_in(asked, "vision")
    monkeypatch.setattr(asked.routes, "_read", lambda _asked, _target: kind.model_construct())
    reached: list[type[Request]] = []

    async def handled(request: Request, caller: Caller) -> BaseModel:
        assert (caller.uid, caller.guest, caller.by_page) == (-1, "oidc+anna", True)
        reached.append(type(request))
        return DoneAnswer()

    monkeypatch.setattr(asked.routes, "handlers", dict.fromkeys(requests(), handled))
    op = kind.path.removeprefix("/v1/")
    allowed = {*ON_PAGE, "keys", "limits", "token-usage", "whoami"}
    if op in allowed:
        # From another host this answer to all is read as that to one.
        with suppress(ValidationError):
            await asked.answer(replace(as_guest(anna, op), method=kind.method))
        assert reached == [kind]
    else:
        with pytest.raises(InvalidInputError) as raised:
            await asked.answer(replace(as_guest(anna, op), method=kind.method))
        assert raised.value.refusal.code == "SW-FORBIDDEN"
        assert not reached


@pytest.mark.parametrize("guest", ["oidc%2Botto", "oidc%2B", "oidc%2Banna%00", "oidc%2BAnna"])
async def test_nobody_is_a_guest_whom_the_provider_has_not_named(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, guest: str
):
    as_guest = guests_may_ask(asked, monkeypatch)
    await let_in(asked, "vision")
    with pytest.raises(InvalidInputError) as raised:
        await asked.answer(as_guest(guest, "keys"))
    assert raised.value.refusal.code == "SW-FORBIDDEN"


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a,b", "a b", "a\nb", "x" * 65, "oidc+\\x"])
async def test_a_guest_s_name_is_bounded(asked: Asking, monkeypatch: pytest.MonkeyPatch, name: str):
    guests_may_ask(asked, monkeypatch)
    with pytest.raises(ValidationError):
        await asked.as_user(WEB, op="web-guest", name=name, tenants=["vision"])


async def test_only_the_web_server_lets_guests_in(asked: Asking, monkeypatch: pytest.MonkeyPatch):
    guests_may_ask(asked, monkeypatch)
    for uid in (ALICE, LAUNCHER):
        assert (
            await asked.code(uid, op="web-guest", name="anna", tenants=["vision"]) == "SW-FORBIDDEN"
        )
    # Whom this host knows by such a name is no guest.
    monkeypatch.setattr(guests_module, "uid_of", lambda _: 7)
    assert await asked.code(WEB, op="web-guest", name="anna", tenants=["vision"]) == "SW-FORBIDDEN"


@pytest.mark.parametrize("kind", list(requests()), ids=lambda kind: kind.__name__)
async def test_for_a_user_nothing_is_changed_and_no_program_is_asked_for(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, kind: type[Request]
):
    acting(asked, monkeypatch)
    monkeypatch.setattr(asked.routes, "_read", lambda _asked, _target: kind.model_construct())
    reached: list[type[Request]] = []

    async def handled(request: Request, _: Caller) -> BaseModel:
        reached.append(type(request))
        return DoneAnswer()

    monkeypatch.setattr(asked.routes, "handlers", dict.fromkeys(requests(), handled))
    target = f"/v1/as/root/{kind.path.removeprefix('/v1/')}"
    if kind.changes or kind.asker in {"launcher", "web"}:
        # Of root also what users change there.
        with pytest.raises(InvalidInputError) as raised:
            await asked.answer(Asked(kind.method, target, b"", WEB))
        assert raised.value.refusal.code == "SW-FORBIDDEN"
        assert not reached
    else:
        # From another host this answer to all is read as that to one.
        with suppress(ValidationError):
            await asked.answer(Asked(kind.method, target, b"", WEB))
        assert reached == [kind]


MAY = {
    "everybody": {ROOT, LAUNCHER, WEB, ALICE, BOB},
    "launcher": {ROOT, LAUNCHER},
    "web": {ROOT, WEB},
    "operators": {ROOT},
}


async def test_each_route_is_reached_by_whom_it_is_for_and_nobody_else(
    asked: Asking, monkeypatch: pytest.MonkeyPatch
):
    acting(asked, monkeypatch)
    reached: list[tuple[type[Request], int]] = []

    async def handled(request: Request, caller: Caller) -> BaseModel:
        reached.append((type(request), caller.uid))
        return DoneAnswer()

    monkeypatch.setattr(asked.routes, "handlers", dict.fromkeys(requests(), handled))
    for kind in requests():
        monkeypatch.setattr(asked.routes, "_read", lambda *_, kind=kind: kind.model_construct())
        for uid in MAY["everybody"]:
            with suppress(ValidationError, InvalidInputError):
                await asked.answer(Asked(kind.method, kind.path, b"", uid))
    assert sorted(reached, key=str) == sorted(
        ((kind, uid) for kind in requests() for uid in MAY[kind.asker]), key=str
    )


def test_three_requests_that_change_something_pass_for_a_user_and_no_others():
    changing = {kind.path for kind in requests() if kind.changes and kind.on_page}
    assert changing == {f"/v1/{op}" for op in ON_PAGE}


@pytest.mark.parametrize("new", ["", ',"new":1'])
@pytest.mark.parametrize("kind", tuple(requests()), ids=lambda kind: kind.__name__)
def test_a_failure_is_no_answer_to_any_request(kind: type[Request], new: str):
    failure = f'{{"v":1,"ok":false,"code":"SW-BUSY","message":"No.","hint":""{new}}}'.encode()
    with pytest.raises(ValidationError):
        read_answer(answer_of(kind), failure)
    found = failure_in(failure)
    assert found is not None
    assert found.code == "SW-BUSY"
