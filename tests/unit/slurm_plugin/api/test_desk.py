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
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant, KeysAnswer
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
from slicewise.cluster.settings.file import DaemonSettings, WebSettings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.api import desk as desk_module
from slicewise.slurm_plugin.api import keys as keys_module
from slicewise.slurm_plugin.api.desk import Desk, Roles
from slicewise.slurm_plugin.api.desks import operators_handlers
from slicewise.slurm_plugin.api.generations import ServiceGenerations
from slicewise.slurm_plugin.api.keys import ServiceKeys
from slicewise.slurm_plugin.api.orders import ServiceOrders
from slicewise.slurm_plugin.api.rate_limit import OF_USER, RateLimiter
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
NAMES = {ROOT: "root", LAUNCHER: "slicewise", ALICE: "alice", BOB: "bob"}
STATUS = StatusAnswer(
    version="1", mode="enforce", host="head", is_leader=True, complete=True, observed_s=1.0
)


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
    cluster_state.set_members({NAMES[uid]: frozenset(own) for uid, own in accounts.items()})
    await cluster_state.turn()
    ledger: Any = ScriptedLedger(shown=policy)
    reads = Reads(settings(), slurm, ledger, cluster_state)
    who = Roles(frozenset({ROOT}), LAUNCHER)
    rates = RateLimiter()
    keys = ServiceKeys(
        *(ledger, cluster_state, reads, ALONE),
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
        usage=UsageBooks(ledger, ALONE, "UTC"),
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
    asked.cluster_state.set_members({"alice": frozenset({"nlp"}), "bob": frozenset({"vision"})})
    assert await granted() == "b"
    asked.cluster_state.set_members({"bob": frozenset({"vision"})})
    assert await granted() == "b"
    # Users' uids may be unknown for a while, and so may all accounts: by that no key ends.
    asked.cluster_state.set_members({"alice": frozenset({"vision"})})
    asked.cluster_state.set_accounts({})
    assert await granted() == "ab"
    asked.cluster_state.set_members({})
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
    # What an operator has limited its person does not raise.
    await asked.as_user(ROOT, **LIMIT, **own)
    raised = {"op": "limit-change", "limits": {"concurrent": 99}, **own}
    assert await asked.code(ALICE, **raised) == "SW-FORBIDDEN"
    lifted = {"op": "limit-change", "lifted": ["concurrent"], **own}
    assert await asked.code(ALICE, **lifted) == "SW-FORBIDDEN"
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
        {"alice": frozenset({"vision"}), "carol": frozenset({"vision"})}
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


@pytest.mark.parametrize("op", CHANGES)
async def test_the_page_changes_no_key_and_no_limit(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, op: str
):
    as_user = acting(asked, monkeypatch)
    body = json.dumps(CHANGES[op]).encode()
    with pytest.raises(SlicewiseError, match=r"SW-FORBIDDEN|SW-WIRE"):
        await asked.answer(replace(as_user(WEB, "alice", op), method="POST", body=body))
    for read in ("keys", "limits"):
        await asked.answer(as_user(WEB, "alice", read))


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


@pytest.mark.parametrize("kind", list(requests()), ids=lambda kind: kind.__name__)
async def test_for_a_user_nothing_is_changed_and_no_program_is_asked_for(
    asked: Asking, monkeypatch: pytest.MonkeyPatch, kind: type[Request]
):
    acting(asked, monkeypatch)
    monkeypatch.setattr(asked.routes, "_read", lambda _asked, _target: kind.model_construct())
    reached: list[type[Request]] = []

    async def handled(request: Request, _: int) -> BaseModel:
        reached.append(type(request))
        return DoneAnswer()

    monkeypatch.setattr(asked.routes, "handlers", dict.fromkeys(requests(), handled))
    target = f"/v1/as/root/{kind.path.removeprefix('/v1/')}"
    if kind.changes or kind.asker in {"launcher", "web"}:
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

    async def handled(request: Request, uid: int) -> BaseModel:
        reached.append((type(request), uid))
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


@pytest.mark.parametrize("new", ["", ',"new":1'])
@pytest.mark.parametrize("kind", tuple(requests()), ids=lambda kind: kind.__name__)
def test_a_failure_is_no_answer_to_any_request(kind: type[Request], new: str):
    failure = f'{{"v":1,"ok":false,"code":"SW-BUSY","message":"No.","hint":""{new}}}'.encode()
    with pytest.raises(ValidationError):
        read_answer(answer_of(kind), failure)
    found = failure_in(failure)
    assert found is not None
    assert found.code == "SW-BUSY"
