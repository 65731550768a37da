"""Tests compiling and uninstalling against an accounting database that behaves like Slurm's."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from builders.jobs import a_job
from stand_ins.slurm_database import KilledError, LimitLedger, Row, SlurmDatabase, Steps, settings

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.quota_cycle import compile as compiling
from slicewise.slurm_plugin.quota_cycle.compile import (
    Compiled,
    compile_in_turn,
    compile_limits,
    look,
    slurm_now,
)
from slicewise.slurm_plugin.quota_cycle.uninstall import (
    Undone,
    finish,
    has_begun,
    plan,
    uninstall,
    want_again,
)
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    KnownLimit,
    LimitKey,
    Loan,
    Recall,
    TenantUpdate,
)

pytestmark = pytest.mark.usefixtures("clock")

LIMIT = LimitKey("qos", "slicewise_vision", "grptres=billing")


def database() -> SlurmDatabase:
    return SlurmDatabase(
        [
            Row("vision", parent="root", grp_tres={"cpu": 8}),
            Row("vision", "alice"),
            Row("lab", parent="root", own=frozenset({"normal", "premium"}), default="premium"),
            Row("speech", parent="lab", grp_tres={"billing": 77}, run_mins={"billing": 5}),
            Row("speech", "bob", own=frozenset({"premium"}), default="premium"),
        ],
        [Qos("premium", {}, frozenset())],
    )


def ledger(**nominal: int) -> LimitLedger:
    made = LimitLedger()
    for tenant, amount in nominal.items():
        quota(made, tenant, amount)
    return made


def quota(of: LimitLedger, tenant: str, amount: int) -> None:
    of.change(TenantUpdate(tenant, nominal_millislices=Millislices(amount)), "op", "")


async def compiled(
    slurm: SlurmDatabase,
    of: LimitLedger,
    by_hand: str = "put back",
    term_s: int = 0,
    *,
    billing: BillingUnit = MILLISLICES,
) -> Compiled:
    site = settings(by_hand, term_s, billing)
    return await compile_limits(slurm, of, site)  # type: ignore[arg-type]


def own(slurm: SlurmDatabase, name: str) -> int | None:
    """What the tenant's own QOS is limited to."""
    return slurm.known[f"slicewise_{name}"].grp_tres.get("billing")


def set_by_hand(slurm: SlurmDatabase, name: str, amount: int | None) -> None:
    qos = f"slicewise_{name}"
    limits = {} if amount is None else {"billing": amount}
    slurm.known[qos] = replace(slurm.known[qos], grp_tres=limits)


def waiting(qos: str, state: JobState = JobState.PENDING) -> JobView:
    return a_job(814, qos=qos, state=state, tres={})


async def test_applies_until_nothing_is_left_and_then_does_nothing():
    slurm, store = database(), ledger(vision=6000, lab=3000, speech=3000)
    first = await compiled(slurm, store)
    assert first.changes
    assert [own(slurm, name) for name in ("vision", "lab", "speech")] == [6000, 3000, 3000]
    assert slurm.rows["vision", ""].default == ""
    assert slurm.rows["vision", ""].grp_tres == {"cpu": 8}
    assert slurm.rows["speech", ""].grp_tres == {"billing": 77}
    assert (await compiled(slurm, store)).changes == ()


async def test_looking_changes_nothing():
    slurm, store = database(), ledger(vision=6000)
    before = slurm.state()
    seen = await look(slurm, store, settings())  # type: ignore[arg-type]
    assert seen.differences
    assert (slurm.state(), store.remembered) == (before, {})


async def test_all_accounts_together_have_no_more_than_the_cluster():
    """While nobody wants any of it, the first in order gives what is missing."""
    slurm, store = database(), ledger(vision=21_000, lab=7000)
    await compiled(slurm, store)
    assert (own(slurm, "vision"), own(slurm, "lab")) == (14_000, 0)


async def test_while_no_gpu_is_seen_limits_are_what_the_ledger_says(
    monkeypatch: pytest.MonkeyPatch,
):
    """Something else is wrong then, and limits of 0 would end all work."""

    async def none() -> tuple[NodeView, ...]:
        return ()

    slurm, store = database(), ledger(vision=6000, lab=3000)
    await compiled(slurm, store)
    monkeypatch.setattr(slurm, "nodes", none)
    assert (await compiled(slurm, store)).changes == ()
    quota(store, "vision", 5000)
    await compiled(slurm, store)
    assert [own(slurm, name) for name in ("vision", "lab")] == [5000, 3000]


async def test_what_is_recalled_is_in_no_limit():
    slurm, store = database(), ledger(vision=6000, lab=3000)
    store.called = (Recall("vision", "lab", Millislices(1000), 5),)
    await compiled(slurm, store)
    assert [own(slurm, name) for name in ("vision", "lab")] == [5000, 3000]


async def test_says_so_if_slurm_does_not_take_it():
    slurm = database()
    slurm.ignores = ("",)
    with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
        await compiled(slurm, ledger(vision=6000))


@pytest.mark.parametrize(
    "name", ["odd[", "odd[1-3]", "a,b", "it's", '"', "x]", " odd", "new\nline"]
)
async def test_an_account_that_sacctmgr_can_not_be_told_stops_no_limit(name: str):
    """A coordinator has made it: what stands behind a bracket in a list of names is one name."""
    slurm, store = database(), ledger(vision=6000, lab=3000, speech=3000)
    slurm.rows[name, ""] = Row(name, parent="vision", own=frozenset({"premium"}))
    slurm.rows["vision", name] = Row("vision", name, own=frozenset({"premium"}))
    slurm.refuses = (name,)
    found = await compiled(slurm, store)
    assert [own(slurm, one) for one in ("vision", "lab", "speech")] == [6000, 3000, 3000]
    assert found.refused == {}
    (told,) = (text for text in found.warnings if "can't be given to sacctmgr" in text)
    assert ascii(name) in told
    assert "\n" not in told
    assert not any(name in command for command in slurm.commands)


async def test_what_slurm_refuses_of_one_keeps_no_other_back():
    slurm, store = database(), ledger(vision=6000, lab=3000, speech=3000)
    slurm.refuses = ("name=bob",)
    found = await compiled(slurm, store)
    assert [own(slurm, one) for one in ("vision", "lab", "speech")] == [6000, 3000, 3000]
    (refused,) = found.refused
    assert refused[:6] == ("modify", "user", "where", "name=bob", "account=speech", "cluster=c")
    assert refused not in found.changes
    slurm.refuses = ()
    assert (await compiled(slurm, store)).refused == {}
    assert "slicewise_speech" in slurm._list(slurm.rows["speech", "bob"])


async def test_a_limit_of_a_tenant_that_is_refused_is_an_error_when_all_else_is_done():
    slurm, store = database(), ledger(vision=6000, lab=3000, speech=3000)
    await compiled(slurm, store)
    for name, amount in (("vision", 5000), ("lab", 2000), ("speech", 2000)):
        quota(store, name, amount)
    slurm.refuses = ("grptres=billing=5000",)
    with pytest.raises(OutsideError, match=r"of qos slicewise_vision: Nothing modified.*UNSETTLED"):
        await compiled(slurm, store)
    assert [own(slurm, one) for one in ("speech", "lab", "vision")] == [2000, 2000, 6000]


async def test_nothing_grows_by_what_is_not_given_up():
    """vision's slice for lab stays its own, and speech's comes from no tenant."""
    slurm, store = database(), ledger(vision=6000, lab=3000, speech=1000)
    for name, limit in (("vision", "lending_limit"), ("lab", "borrowing_limit")):
        many: dict[str, Any] = {f"{limit}_millislices": Millislices(9000)}
        store.change(TenantUpdate(name, **many), "op", "")
    await compiled(slurm, store)
    store.lent = (Loan("vision", "lab", Millislices(1000)),)
    quota(store, "speech", 2000)
    slurm.refuses = ("name=slicewise_vision set",)
    with pytest.raises(OutsideError, match=r"of qos slicewise_vision: Nothing modified.*UNSETTLED"):
        await compiled(slurm, store)
    assert slurm.limits("vision", "lab", "speech") == [6000, 3000, 2000, 0, 0, 0]
    slurm.refuses = ()
    await compiled(slurm, store)
    assert slurm.limits("vision", "lab", "speech") == [5000, 3000, 2000, 0, 1000, 0]


async def test_what_slurm_does_not_shrink_without_a_word_costs_only_who_would_have_it():
    """lab's slice was to come from vision; speech's is free."""
    slurm, store = database(), ledger(vision=14_000)
    await compiled(slurm, store)
    for name, amount in (("vision", 12_000), ("lab", 1000)):
        quota(store, name, amount)
    await compiled(slurm, store)
    for name, amount in (("vision", 10_000), ("lab", 2000), ("speech", 2000)):
        quota(store, name, amount)
    slurm.ignores = ("name=slicewise_vision set",)
    slurm.commands.clear()
    with pytest.raises(OutsideError, match=r"to 10000, and Slurm still shows 12000.*UNSETTLED"):
        await compiled(slurm, store)
    assert slurm.limits("vision", "lab", "speech") == [12_000, 2000, 0, 0, 0, 0]
    assert len([one for one in slurm.commands if "name=slicewise_vision set" in one]) == 2
    slurm.ignores = ()
    assert (await compiled(slurm, store)).out_of_band == ()
    assert slurm.limits("vision", "lab", "speech") == [10_000, 2000, 2000, 0, 0, 0]


async def test_a_new_tenant_has_nothing_of_what_is_not_given_up():
    slurm, store = database(), ledger(vision=14_000)
    await compiled(slurm, store)
    quota(store, "vision", 7000)
    quota(store, "lab", 7000)
    slurm.refuses = ("name=slicewise_vision set",)
    with pytest.raises(OutsideError, match=r"of qos slicewise_vision: Nothing modified.*UNSETTLED"):
        await compiled(slurm, store)
    assert slurm.limits("vision", "lab") == [14_000, 0, 0, 0]
    slurm.refuses = ()
    assert (await compiled(slurm, store)).out_of_band == ()
    assert slurm.limits("vision", "lab") == [7000, 7000, 0, 0]


class Busy(SlurmDatabase):
    """At each look its one job is the next of ``turns``, and stays the last one."""

    def __init__(self) -> None:
        super().__init__([Row("vision", parent="root")])
        self.turns: list[JobView] = []

    async def jobs(self) -> tuple[JobView, ...]:
        if self.turns:
            self.running = (self.turns.pop(0),)
        return self.running


async def test_a_job_that_starts_before_its_qos_shrinks_keeps_the_other_one_from_growing():
    on_loan = replace(waiting("slicewise_vision_borrowed"), **RUNNING)
    started = replace(waiting("slicewise_vision", JobState.RUNNING), **RUNNING)
    slurm, store = Busy(), ledger(vision=1000)
    await compiled(slurm, store)
    slurm.commands.clear()
    slurm.turns = [on_loan, started]
    await compiled(slurm, store)
    assert slurm.limits("vision") == [1000, 0]
    assert [one for one in slurm.commands if "name=slicewise_vision_borrowed" in one] == []


async def in_turn(slurm: SlurmDatabase, of: LimitLedger, *seen_before: JobView) -> Compiled:
    """By a look at jobs that is older than that at limits."""
    before = await slurm_now(slurm, jobs=seen_before)  # type: ignore[arg-type]
    store = ledger_view_now(of, settings())  # type: ignore[arg-type]
    return await compile_in_turn(slurm, of, settings(), before, store)  # type: ignore[arg-type]


async def test_before_a_limit_grows_it_is_looked_who_has_started_meanwhile():
    on_loan = replace(waiting("slicewise_vision_borrowed"), **RUNNING)
    its_own = replace(waiting("slicewise_vision"), **RUNNING)
    slurm, of = Busy(), ledger(vision=1000)
    slurm.running = (on_loan,)
    await compiled(slurm, of)
    assert slurm.limits("vision") == [0, 1000]
    slurm.commands.clear()
    slurm.running = (replace(on_loan, state=JobState.RUNNING),)
    await in_turn(slurm, of, its_own)
    assert slurm.limits("vision") == [0, 1000]
    assert [one for one in slurm.commands if "name=slicewise_vision set" in one] == []


async def test_nothing_grows_by_an_older_look_where_nothing_shrinks():
    on_loan, its_own = (
        replace(waiting(f"slicewise_vision{end}"), **RUNNING) for end in ("_borrowed", "")
    )
    slurm, of = Busy(), ledger(vision=1000)
    await compiled(slurm, of)
    quota(of, "vision", 2000)
    slurm.commands.clear()
    slurm.running = (on_loan,)
    await in_turn(slurm, of, its_own)
    assert slurm.limits("vision") == [1000, 1000]
    assert not any("2000" in one for one in slurm.commands)


async def test_what_slurm_did_not_let_grow_is_tried_again_only_by_a_new_look():
    """Meanwhile another job runs on what it was to be."""
    on_loan = replace(waiting("slicewise_vision_borrowed", JobState.RUNNING), **RUNNING)
    its_own = replace(waiting("slicewise_vision"), **RUNNING)
    slurm, of = Busy(), ledger(vision=1000)
    await compiled(slurm, of)
    quota(of, "vision", 2000)
    slurm.turns = [its_own, on_loan]
    slurm.ignores = ("grptres=billing=2000",)
    await compiled(slurm, of)
    assert len([one for one in slurm.commands if "billing=2000" in one]) == 1
    assert slurm.limits("vision") == [1000, 1000]


async def test_what_shrinks_by_an_older_look_grows_back_at_once():
    on_loan = replace(waiting("slicewise_vision_borrowed"), **RUNNING)
    started = replace(waiting("slicewise_vision", JobState.RUNNING), **RUNNING)
    slurm, of = Busy(), ledger(vision=1000)
    await compiled(slurm, of)
    slurm.running = (started,)
    assert (await in_turn(slurm, of, on_loan)).waits == ()
    assert slurm.limits("vision") == [1000, 0]


async def test_what_is_left_to_the_next_compilation_is_said():
    """A job starts in the own QOS just before that shrinks once more for the borrowed one."""
    on_loan = replace(waiting("slicewise_vision_borrowed"), **RUNNING)
    more = replace(on_loan, tres={"gres/gpu:1g.10gb": "2"})
    started = replace(waiting("slicewise_vision", JobState.RUNNING), **RUNNING)
    slurm, store = Busy(), ledger(vision=2000)
    assert (await compiled(slurm, store)).waits == ()
    slurm.turns = [on_loan, more, started]
    (left,) = (await compiled(slurm, store)).waits
    assert left.text == "qos slicewise_vision_borrowed grptres=billing: 0 to 2000"
    assert slurm.limits("vision") == [0, 0]
    assert (await compiled(slurm, store)).waits == ()
    assert slurm.limits("vision") == [2000, 0]


async def test_a_use_that_keeps_moving_is_not_followed_for_ever():
    """The daemon looks again soon; Slurm has taken everything."""
    on_loan, its_own = (
        replace(waiting(f"slicewise_vision{end}"), **RUNNING) for end in ("_borrowed", "")
    )
    slurm, store = Busy(), ledger(vision=1000)
    await compiled(slurm, store)
    slurm.turns = [on_loan, its_own] * 20
    await compiled(slurm, store)
    assert sum(limit or 0 for limit in slurm.limits("vision")) == 1000


async def test_what_somebody_changed_by_hand_is_told_once_and_put_back():
    slurm, store = database(), ledger(vision=6000)
    assert (await compiled(slurm, store)).out_of_band == ()
    set_by_hand(slurm, "vision", 9000)
    (told,) = (await compiled(slurm, store)).out_of_band
    assert (told.key, told.was, told.now) == (LIMIT, "6000", "9000")
    assert own(slurm, "vision") == 6000
    assert (await compiled(slurm, store)).out_of_band == ()


@pytest.mark.parametrize("by_hand", ["put back", "adopt"])
@pytest.mark.parametrize("left", range(5))
async def test_a_hand_is_told_of_though_who_saw_it_is_killed(
    by_hand: str, left: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, by_hand)
    set_by_hand(slurm, "vision", 9000)
    steps = slurm.steps = store.steps = Steps(left)
    change = store.change

    def stepped(update: TenantUpdate, author: str, reason: str) -> None:
        steps.step()
        change(update, author, reason)

    monkeypatch.setattr(store, "change", stepped)
    told: list[OutOfBandChange] = []
    with suppress(KilledError):
        told += (await compiled(slurm, store, by_hand)).out_of_band
    steps.left = None
    told += (await compiled(slurm, store, by_hand)).out_of_band
    assert told or "limit_changed_by_hand" in caplog.text
    assert own(slurm, "vision") == store.shown["vision"].quota.nominal_millislices


async def test_what_a_quota_changed_was_nobodys_hand():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    quota(store, "vision", 5000)
    assert (await compiled(slurm, store)).out_of_band == ()


async def test_an_accounts_limit_may_be_adopted_as_its_nominal():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, "adopt")
    set_by_hand(slurm, "vision", 9000)
    (told,) = (await compiled(slurm, store, "adopt")).out_of_band
    assert told.now == "9000"
    assert store.shown["vision"].quota.nominal_millislices == 9000
    assert store.authors[-1] == "sacctmgr"
    assert own(slurm, "vision") == 9000
    assert (await compiled(slurm, store, "adopt")).out_of_band == ()


async def test_what_is_adopted_is_in_the_sites_own_unit():
    slurm, store, eight = database(), ledger(vision=6000), BillingUnit(Fraction(8))
    await compiled(slurm, store, "adopt", billing=eight)
    assert own(slurm, "vision") == 48
    set_by_hand(slurm, "vision", 60)
    assert len((await compiled(slurm, store, "adopt", billing=eight)).out_of_band) == 1
    assert store.shown["vision"].quota.nominal_millislices == 7500
    assert (await compiled(slurm, store, "adopt", billing=eight)).out_of_band == ()
    assert own(slurm, "vision") == 60


async def test_a_site_that_changes_its_unit_has_all_limits_in_it_and_nobodys_hand_in_that():
    slurm, store = database(), ledger(vision=6000, lab=3300)
    for name, limit in (("lab", "lending_limit"), ("vision", "borrowing_limit")):
        many: dict[str, Any] = {f"{limit}_millislices": Millislices(9000)}
        store.change(TenantUpdate(name, **many), "op", "")
    store.lent = (Loan("lab", "vision", Millislices(500)),)
    for per_slice, limits in (
        (1000, [6000, 2800, 500, 0]),
        (8, [48, 22, 4, 0]),
        (2000, [12_000, 5600, 1000, 0]),
    ):
        done = await compiled(slurm, store, billing=BillingUnit(Fraction(per_slice)))
        assert done.out_of_band == ()
        assert slurm.limits("vision", "lab") == limits
        stale = "are those of billing_per_slice = 1000"
        assert any(stale in text for text in done.warnings) == (per_slice != 1000)


async def test_what_slurm_does_not_shrink_leaves_others_so_much_in_the_sites_own_unit():
    """112 are there, vision stays at 48, lab grows from 24 to 28: for 72 there is no room."""
    slurm, store = database(), ledger(vision=6000, lab=3000, speech=0)
    eight = BillingUnit(Fraction(8))
    await compiled(slurm, store, billing=eight)
    slurm.refuses = ("name=slicewise_vision set",)
    for name, nominal in (("vision", 1000), ("lab", 3500), ("speech", 9000)):
        quota(store, name, nominal)
    with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
        await compiled(slurm, store, billing=eight)
    assert slurm.limits("vision", "lab", "speech") == [48, 28, 0, 0, 0, 0]


async def test_what_is_adopted_is_adopted_once_though_slurm_goes_on_showing_it():
    """A slice of it is for a borrowed job, and Slurm refuses to move it there."""
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, "adopt")
    set_by_hand(slurm, "vision", 9000)
    slurm.running = (replace(waiting("slicewise_vision_borrowed"), **RUNNING),)
    slurm.refuses = ("name=slicewise_vision set",)
    for _ in range(2):
        with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
            await compiled(slurm, store, "adopt")
        assert store.shown["vision"].quota.nominal_millislices == 9000
    slurm.refuses = ()
    assert (await compiled(slurm, store, "adopt")).out_of_band == ()
    assert slurm.limits("vision") == [8000, 1000]


@pytest.mark.parametrize("left", range(4))
async def test_what_is_adopted_is_adopted_once_though_who_does_is_killed(left: int):
    """A slice of it is for a borrowed job: the limit is wanted at another value at once."""
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, "adopt")
    set_by_hand(slurm, "vision", 9000)
    slurm.running = (replace(waiting("slicewise_vision_borrowed"), **RUNNING),)
    steps = slurm.steps = store.steps = Steps(left)
    with suppress(KilledError):
        await compiled(slurm, store, "adopt")
    steps.left = None
    await compiled(slurm, store, "adopt")
    assert store.shown["vision"].quota.nominal_millislices == 9000
    assert slurm.limits("vision") == [8000, 1000]


async def test_a_hand_is_told_once_though_it_is_put_back_only_after_others_shrank():
    slurm, store = database(), ledger(vision=6000, lab=3000)
    await compiled(slurm, store)
    set_by_hand(slurm, "vision", 5000)
    quota(store, "vision", 7000)
    quota(store, "lab", 2000)
    assert len((await compiled(slurm, store)).out_of_band) == 1
    assert slurm.limits("vision", "lab") == [7000, 2000, 0, 0]


async def test_no_limit_at_all_is_no_nominal_and_put_back():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, "adopt")
    set_by_hand(slurm, "vision", None)
    assert len((await compiled(slurm, store, "adopt")).out_of_band) == 1
    assert own(slurm, "vision") == 6000
    assert store.shown["vision"].quota.nominal_millislices == 6000


async def test_of_what_is_adopted_the_rest_of_the_nominal_is_as_it_was():
    """Its own QOS is limited to less: a loan, and what those below it are due."""
    slurm, store = database(), ledger(vision=3000, lab=5000)
    store.change(
        TenantUpdate("speech", parent="lab", nominal_millislices=Millislices(2000)), "", ""
    )
    for name, limit in (("lab", "lending_limit"), ("vision", "borrowing_limit")):
        many: dict[str, Any] = {f"{limit}_millislices": Millislices(9000)}
        store.change(TenantUpdate(name, **many), "op", "")
    store.lent = (Loan("lab", "vision", Millislices(1000)),)
    await compiled(slurm, store, "adopt")
    assert slurm.limits("lab", "vision") == [2000, 3000, 0, 1000]
    set_by_hand(slurm, "lab", 3500)
    await compiled(slurm, store, "adopt")
    assert store.shown["lab"].quota.nominal_millislices == 6500
    assert own(slurm, "lab") == 3500


async def test_a_nominal_that_the_tree_forbids_is_not_adopted():
    slurm, store = database(), ledger(lab=5000)
    store.change(
        TenantUpdate("speech", parent="lab", nominal_millislices=Millislices(4000)), "op", ""
    )
    await compiled(slurm, store, "adopt")
    set_by_hand(slurm, "speech", 6000)
    assert len((await compiled(slurm, store, "adopt")).out_of_band) == 1
    assert slurm.limits("lab", "speech") == [1000, 4000, 0, 0]


async def test_other_limits_are_put_back_though_own_ones_are_adopted():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, "adopt")
    set_by_hand(slurm, "vision_borrowed", 4000)
    (told,) = (await compiled(slurm, store, "adopt")).out_of_band
    assert (told.key.name, told.now) == ("slicewise_vision_borrowed", "4000")
    assert slurm.limits("vision") == [6000, 0]
    assert store.shown["vision"].quota.nominal_millislices == 6000


async def test_a_change_that_was_cut_short_is_nobodys_hand():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    assert store.remembered[LIMIT] == KnownLimit("", "6000")
    store.remembered[LIMIT] = KnownLimit("", "6000 or 7000")
    for now in (6000, 7000):
        set_by_hand(slurm, "vision", now)
        quota(store, "vision", 8000)
        assert (await look(slurm, store, settings())).out_of_band == ()  # type: ignore[arg-type]


async def test_another_compile_at_the_same_time_is_nobodys_hand(monkeypatch: pytest.MonkeyPatch):
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    nodes = slurm.nodes

    async def meanwhile() -> tuple[NodeView, ...]:
        monkeypatch.undo()
        await asyncio.sleep(0)  # the accounts are read by now
        quota(store, "vision", 3000)
        await compile_limits(slurm, store, settings("adopt"))  # type: ignore[arg-type]
        return await nodes()

    monkeypatch.setattr(slurm, "nodes", meanwhile)
    done = await compile_limits(slurm, store, settings("adopt"))  # type: ignore[arg-type]
    assert done.out_of_band == ()
    assert own(slurm, "vision") == 3000


def budget(of: LimitLedger, tenant: str, slice_minutes: int) -> None:
    """It has so much left."""
    rule = Budget(Period.NONE, MillisliceSeconds(1))
    of.change(TenantUpdate(tenant, budget=rule), "op", "")
    of.left[tenant] = slice_minutes * 60_000


def parts(slurm: SlurmDatabase, name: str) -> list[int | None]:
    """Of its budget, in slice-minutes: of its own QOS and of its borrowed one."""
    found = (slurm.known[f"slicewise_{name}{end}"] for end in ("", "_borrowed"))
    minutes = (one.grp_tres_run_mins.get("billing") for one in found)
    return [None if limit is None else limit // 1000 for limit in minutes]


async def test_what_others_below_a_tenant_run_is_no_use_of_its_budget():
    """Their runs are charged to no tenant, and lending does not count them either."""
    slurm, store = database(), ledger(lab=3000)
    budget(store, "lab", 600)
    job = {**RUNNING, "end_s": 4_000_000_000}
    normal = replace(waiting("normal", JobState.RUNNING), **job)
    slurm.running = (replace(normal, account="speech"),)
    await compiled(slurm, store)
    assert parts(slurm, "lab") == [600, 0]
    slurm.running = (replace(normal, account="lab"),)
    await compiled(slurm, store)
    assert parts(slurm, "lab") == [0, 0]


async def test_what_slurm_refuses_for_weeks_is_not_remembered_each_time():
    slurm, store = database(), ledger(vision=3000)
    budget(store, "vision", 9000)
    await compiled(slurm, store)
    slurm.refuses = ("name=slicewise_vision set",)
    key = LimitKey("qos", "slicewise_vision", "grptresrunmins=billing")
    for left in range(8000, 2000, -200):
        budget(store, "vision", left)
        with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
            await compiled(slurm, store)
    known = store.remembered[key].last.split(" or ")
    assert (known[0], known[-1]) == ("9000000", "2200000")
    assert len(known) == 5, "what Slurm has, and the newest"
    slurm.refuses = ()
    assert (await compiled(slurm, store)).out_of_band == ()
    assert store.remembered[key].last == "2200000"


async def test_a_site_limits_accounts_as_it_likes():
    slurm, store = database(), ledger(speech=6000)
    budget(store, "speech", 600)
    await compiled(slurm, store)
    assert slurm.rows["speech", ""].run_mins == {"billing": 5}
    store.change(TenantUpdate("speech", budget="off"), "op", "")
    await compiled(slurm, store)
    assert (parts(slurm, "speech"), slurm.rows["speech", ""].run_mins) == (
        [None, None],
        {"billing": 5},
    )


async def test_a_part_of_a_budget_that_was_changed_by_hand_is_told_and_put_back():
    slurm, store = database(), ledger(vision=6000)
    budget(store, "vision", 600)
    await compiled(slurm, store)
    mine = slurm.known["slicewise_vision"]
    slurm.known["slicewise_vision"] = replace(mine, grp_tres_run_mins={"billing": 999_999})
    (told,) = (await compiled(slurm, store, "adopt")).out_of_band
    assert (told.key.field, told.was, told.now) == ("grptresrunmins=billing", "600000", "999999")
    assert parts(slurm, "vision") == [600, 0]


async def test_no_part_of_a_budget_grows_by_what_slurm_refuses_to_take_from_another():
    """speech's job needs more than the half of lab's budget."""
    slurm, store = database(), ledger(vision=6000, lab=3000)
    speech = TenantUpdate("speech", parent="lab", nominal_millislices=Millislices(1000))
    store.change(speech, "op", "")
    budget(store, "vision", 100)
    budget(store, "lab", 600)
    await compiled(slurm, store)
    assert (parts(slurm, "lab"), parts(slurm, "speech")) == ([300, 0], [300, 0])
    job = {**RUNNING, "account": "speech", "time_limit_s": 400 * 60}
    slurm.running = (replace(waiting("slicewise_speech"), **job),)
    budget(store, "vision", 200)
    slurm.refuses = ("name=slicewise_lab set",)
    with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
        await compiled(slurm, store)
    assert (parts(slurm, "lab"), parts(slurm, "speech")) == ([300, 0], [300, 0])
    assert parts(slurm, "vision") == [200, 0]
    slurm.refuses = ()
    await compiled(slurm, store)
    assert (parts(slurm, "lab"), parts(slurm, "speech")) == ([100, 0], [500, 0])


class UsedUp(LimitLedger):
    """From look to look 20 slice-minutes of each budget are used up."""

    def view(self, at_s: float, zone: str) -> LedgerView:
        self.left = {name: left - 20 * 60_000 for name, left in self.left.items()}
        return super().view(at_s, zone)


async def test_a_budget_that_running_jobs_use_up_meanwhile_keeps_no_limit_from_growing():
    slurm, store = database(), UsedUp()
    for name in ("vision", "lab"):
        quota(store, name, 3000)
    budget(store, "vision", 900)
    await compiled(slurm, store)
    quota(store, "lab", 5000)
    await compiled(slurm, store)
    assert own(slurm, "lab") == 5000
    last = store.left["vision"] // 60_000
    assert last <= (parts(slurm, "vision")[0] or 0) <= last + 60, "what the second look showed"


async def test_uninstalling_leaves_no_trace():
    slurm, store = database(), ledger(vision=6000, lab=3000)
    before = slurm.state()
    await compiled(slurm, store)
    quota(store, "vision", 1000)
    store.change(
        TenantUpdate(
            "speech",
            parent="lab",
            nominal_millislices=Millislices(1000),
            type_limits={"1g.10gb": 1},
        ),
        "op",
        "",
    )
    await compiled(slurm, store)
    store.change(TenantUpdate("speech", removed=True), "op", "")
    await compiled(slurm, store)
    assert slurm.state() != before
    slurm.partition_qos = ""
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    assert slurm.state() == before
    assert store.remembered == {}
    assert await uninstall(slurm, store, settings()) == Undone((), ())  # type: ignore[arg-type]


async def test_the_gate_is_opened_first_and_stays_as_long_as_a_partition_has_it():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.commands.clear()
    done = await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    assert slurm.commands[0] == "modify qos where name=slicewise_gate set grptres=billing=-1"
    assert [one.startswith("Partition gpu has QOS=slicewise_gate") for one in done.waits] == [True]
    assert slurm.known.keys() == {"normal", "premium", "slicewise_gate"}
    slurm.partition_qos = ""
    assert (await uninstall(slurm, store, settings())).waits == ()  # type: ignore[arg-type]
    assert slurm.known.keys() == {"normal", "premium"}
    assert store.remembered == {}


@pytest.mark.parametrize(("word", "qos_list"), [("AllowQos", "allow_qos"), ("DenyQos", "deny_qos")])
async def test_what_a_partition_lists_stays_until_its_line_is_changed(word: str, qos_list: str):
    """Slurm 25.11 does not start where such a list names a QOS that is not there."""
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.partition_qos = ""
    setattr(slurm, qos_list, frozenset({"premium", "slicewise_vision", "slicewise_unmade"}))
    (told,) = (await uninstall(slurm, store, settings())).waits  # type: ignore[arg-type]
    assert told.startswith(f"{word} of partition gpu has slicewise_vision: take them out")
    assert slurm.known.keys() == {"normal", "premium", "slicewise_vision"}
    setattr(slurm, qos_list, frozenset({"premium"}))
    assert (await uninstall(slurm, store, settings())).waits == ()  # type: ignore[arg-type]
    assert slurm.known.keys() == {"normal", "premium"}
    assert store.remembered == {}


async def test_a_list_that_bars_what_still_waits_is_named():
    """A site puts its AllowQos back with the gate gone: jobs in our QOS then waited for ever."""
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.partition_qos, slurm.allow_qos = "", frozenset({"normal"})
    slurm.running = (waiting("slicewise_vision"),)
    told = (await uninstall(slurm, store, settings())).waits  # type: ignore[arg-type]
    (barred,) = [one for one in told if "AllowQos" in one]
    assert barred.startswith("Partition gpu has AllowQos without slicewise_vision: their jobs do")
    assert barred.endswith("Put your own list back once those jobs have ended.")
    slurm.running = ()
    assert (await uninstall(slurm, store, settings())).waits == ()  # type: ignore[arg-type]


async def test_another_clusters_gate_is_left_closed():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.elsewhere = frozenset({"slicewise_theirs"})
    (told,) = (await uninstall(slurm, store, settings())).waits  # type: ignore[arg-type]
    assert slurm.known["slicewise_gate"].grp_tres == {"billing": 0}
    assert "slicewise_gate, which stays closed for another cluster" in told


RUNNING: Mapping[str, Any] = {
    "account": "vision",
    "partition": "gpu",
    "reason": "None",
    "tres": {"gres/gpu:1g.10gb": "1"},
}


async def test_what_slurm_refuses_on_the_way_back_keeps_no_other_back():
    slurm, store = database(), ledger(vision=6000, lab=3000)
    before = slurm.state()
    await compiled(slurm, store)
    slurm.refuses = ("name=lab",)
    with pytest.raises(OutsideError, match=r"refused 1 changes.*name=lab.*SW-SLURM-FAILED"):
        await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    left = (await plan(slurm, store, settings())).settings  # type: ignore[arg-type]
    assert {one.key.name for one in left} == {"lab"}
    slurm.refuses, slurm.partition_qos = (), ""
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    assert slurm.state() == before


async def test_uninstalling_gives_nodes_their_own_weights_back():
    slurm, store = database(), ledger()
    slurm.weight = 1_000_072
    (due,) = (await plan(slurm, store, settings())).weights  # type: ignore[arg-type]
    assert (due.key.entity, due.key.name, due.now, due.wanted) == ("node", "n1", "1000072", "7")
    assert (await uninstall(slurm, store, settings())).changes == ()  # type: ignore[arg-type]
    assert slurm.weight == 7


async def test_uninstalling_leaves_another_cluster_the_qos_that_it_uses():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.elsewhere = frozenset({"slicewise_vision_borrowed", "normal"})
    slurm.partition_qos = ""
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    ours = {"slicewise_gate", "slicewise_vision_borrowed"}
    assert slurm.known.keys() == {"normal", "premium", *ours}
    assert store.remembered == {}


async def test_a_term_is_set_changed_and_handed_back():
    slurm, store = database(), ledger(vision=6000)
    for term_s in (150, 7):
        await compiled(slurm, store, term_s=term_s)
        assert exempt_s(slurm) == term_s
        assert (await compiled(slurm, store, term_s=term_s)).changes == ()
    (back,) = (await compiled(slurm, store)).changes
    assert " ".join(back) == (
        "modify qos where name=slicewise_vision_borrowed set preemptexempttime=-1"
    )
    assert (await compiled(slurm, store)).changes == ()


async def test_without_a_term_the_sites_own_exempt_time_stays_and_comes_back():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    borrowed = slurm.known["slicewise_vision_borrowed"]
    slurm.known["slicewise_vision_borrowed"] = replace(borrowed, preempt_exempt_s=300)
    for term_s in (0, 60, 0):
        assert (await compiled(slurm, store, term_s=term_s)).out_of_band == ()
        assert exempt_s(slurm) == (term_s or 300)


async def test_a_term_that_somebody_changed_by_hand_is_put_back():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, term_s=60)
    borrowed = slurm.known["slicewise_vision_borrowed"]
    slurm.known["slicewise_vision_borrowed"] = replace(borrowed, preempt_exempt_s=None)
    (told,) = (await compiled(slurm, store, term_s=60)).out_of_band
    assert (told.key.field, told.was, told.now) == ("preemptexempttime", "60", "")
    assert exempt_s(slurm) == 60


async def test_uninstalling_takes_its_term_from_a_qos_that_another_cluster_uses():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, term_s=60)
    slurm.elsewhere = frozenset({"slicewise_vision_borrowed"})
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    assert exempt_s(slurm) is None


def exempt_s(slurm: SlurmDatabase) -> int | None:
    return slurm.known["slicewise_vision_borrowed"].preempt_exempt_s


async def test_what_runs_or_waits_in_its_qos_goes_on_until_it_has_ended():
    slurm, store = database(), ledger(vision=6000, lab=1000)
    before = slurm.state()
    await compiled(slurm, store)
    slurm.partition_qos = ""
    slurm.running = (waiting("slicewise_vision"), waiting("normal"))
    done = await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    assert ["814" in one for one in done.waits] == [True]
    assert slurm.known.keys() == {"normal", "premium", "slicewise_vision"}
    assert own(slurm, "vision") == 6000
    assert slurm._list(slurm.rows["vision", ""]) == {"normal", "slicewise_vision"}
    assert store.remembered != {}
    slurm.running = (waiting("slicewise_vision", JobState.ENDED),)
    assert (await uninstall(slurm, store, settings())).waits == ()  # type: ignore[arg-type]
    assert slurm.state() == before
    assert store.remembered == {}


async def test_what_an_uninstall_removed_that_still_waits_is_nobodys_hand():
    """The gate stays for as long as the partition has it."""
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store, term_s=60)
    assert (await uninstall(slurm, store, settings())).waits  # type: ignore[arg-type]
    assert "slicewise_vision" not in slurm.known
    await want_again(slurm, store, settings())  # type: ignore[arg-type]
    assert (await compiled(slurm, store, term_s=60)).out_of_band == ()
    assert slurm.limits("vision") == [6000, 0]


async def test_a_plan_to_uninstall_changes_nothing():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    before = slurm.state(), dict(store.remembered)
    due = await plan(slurm, store, settings())  # type: ignore[arg-type]
    assert {one.wanted for one in due.settings} == {"inherited"}
    assert [(one.key.name, one.now, one.wanted) for one in due.gate] == [
        ("slicewise_gate", "0", "")
    ]
    assert {one.now for one in due.qos} == {"slicewise_vision_borrowed", "slicewise_vision"}
    assert (slurm.state(), store.remembered) == before


async def test_a_qos_of_its_own_keeps_what_a_site_added_to_it():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    ours = slurm.known["slicewise_vision"]
    slurm.known["slicewise_vision"] = replace(ours, preempt=ours.preempt | {"premium"})
    assert (await compiled(slurm, store)).changes == ()


async def test_uninstalling_before_the_first_compilation_takes_out_what_is_there():
    slurm, store = database(), ledger(vision=6000)
    before = slurm.state()
    slurm.known["slicewise_vision"] = Qos("slicewise_vision", {}, frozenset())
    row = slurm.rows["vision", ""]
    row.plus, row.default = frozenset({"slicewise_vision"}), "slicewise_vision"
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    assert slurm.state()[0] == before[0]


async def test_after_an_uninstall_no_limit_is_set_until_it_is_wanted_again():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.partition_qos = ""
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    before = slurm.state()
    quota(store, "vision", 5000)
    with pytest.raises(InvalidInputError, match=r"compile --again.*SW-UNINSTALLED"):
        await compiled(slurm, store)
    seen = await look(slurm, store, settings())  # type: ignore[arg-type]
    assert "SW-UNINSTALLED" in seen.warnings[0]
    assert slurm.state() == before
    await want_again(slurm, store, settings())  # type: ignore[arg-type]
    assert (await compiled(slurm, store)).out_of_band == ()
    assert slurm.limits("vision") == [5000, 0]


async def test_a_compilation_that_takes_long_ends_where_it_is_when_all_is_taken_out(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(compiling, "_NEWS_S", -1.0)
    slurm, store = database(), ledger(vision=6000, lab=3000)
    await compiled(slurm, store)
    quota(store, "vision", 5000)
    quota(store, "lab", 4000)
    take = slurm.sacctmgr

    async def last(changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        store.mark_uninstalled()
        return await take(changes)

    monkeypatch.setattr(slurm, "sacctmgr", last)
    with pytest.raises(InvalidInputError, match="SW-UNINSTALLED"):
        await compiled(slurm, store)
    assert slurm.limits("vision", "lab")[:2] == [5000, 3000], "what shrinks came first"


async def test_finishing_removes_a_qos_once_its_last_job_has_ended():
    slurm, store = database(), ledger(vision=6000)
    before = slurm.state()
    await compiled(slurm, store)
    installed = slurm.state()
    assert await finish(slurm, store, settings()) is None, "none has begun"  # type: ignore[arg-type]
    assert slurm.state() == installed
    slurm.partition_qos, slurm.running = "", (waiting("slicewise_vision"),)
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    still = await finish(slurm, store, settings())  # type: ignore[arg-type]
    assert still is not None
    assert "slicewise uninstall --finish" in still.waits[0]
    assert slurm.known.keys() == {"normal", "premium", "slicewise_vision"}
    slurm.running = ()
    done = await finish(slurm, store, settings())  # type: ignore[arg-type]
    assert done is not None
    assert done.waits == ()
    assert slurm.state() == before


async def test_nothing_is_finished_once_limits_are_wanted_again():
    slurm, store = database(), ledger(vision=6000)
    await compiled(slurm, store)
    slurm.running = (waiting("slicewise_vision"),)
    await uninstall(slurm, store, settings())  # type: ignore[arg-type]
    await want_again(slurm, store, settings())  # type: ignore[arg-type]
    assert await finish(slurm, store, settings()) is None  # type: ignore[arg-type]
    assert not store.is_uninstalled()


async def test_without_the_ledger_it_goes_by_what_stands_in_slurm():
    slurm, store = database(), ledger(vision=6000, lab=3000)
    quota(store, "speech", 1000)
    before = slurm.state()
    await compiled(slurm, store)
    slurm.partition_qos, slurm.weight = "", 1_000_072
    slurm.commands.clear()
    (kept,) = (await uninstall(slurm, None, settings())).waits  # type: ignore[arg-type]
    assert "sacctmgr remove qos slicewise_uninstalled_c" in kept
    assert slurm.commands[:2] == [
        "add qos slicewise_uninstalled_c",
        "modify qos where name=slicewise_gate set grptres=billing=-1",
    ]
    assert slurm.known.keys() == {"normal", "premium", "slicewise_uninstalled_c"}
    rows, _, weight = slurm.state()
    assert (rows, weight) == (before[0], 7)

    # The ledger is there again, with all that it knew.
    with pytest.raises(InvalidInputError, match="SW-UNINSTALLED"):
        await compiled(slurm, store)
    assert slurm.known.keys() == {"normal", "premium", "slicewise_uninstalled_c"}
    done = await finish(slurm, store, settings())  # type: ignore[arg-type]
    assert done is not None
    assert slurm.known.keys() == {"normal", "premium"}
    with pytest.raises(InvalidInputError, match="SW-UNINSTALLED"):
        await compiled(slurm, store)


async def test_what_was_taken_out_without_the_ledger_is_nobodys_hand_when_it_is_wanted_again():
    slurm, store = database(), ledger(vision=6000, lab=3000)
    await compiled(slurm, store)
    slurm.running = (replace(waiting("slicewise_vision", JobState.RUNNING), **RUNNING),)
    await uninstall(slurm, None, settings())  # type: ignore[arg-type]
    assert "slicewise_lab" not in slurm.known
    await want_again(slurm, store, settings())  # type: ignore[arg-type]
    assert (await compiled(slurm, store)).out_of_band == ()
    assert slurm.limits("vision", "lab") == [6000, 3000, 0, 0]
    assert slurm.known["slicewise_gate"].grp_tres == {"billing": 0}
    assert "slicewise_uninstalled_c" not in slurm.known


async def test_without_the_ledger_limits_on_types_stay_and_are_named():
    slurm, store = database(), ledger(lab=3000)
    limited = TenantUpdate("lab", type_limits={"1g.10gb": 2})
    store.change(limited, "op", "")
    await compiled(slurm, store)
    slurm.partition_qos = ""
    unknown, _ = (await uninstall(slurm, None, settings())).waits  # type: ignore[arg-type]
    assert "(lab): only the ledger knows" in unknown
    assert slurm.rows["lab", ""].grp_tres == {"gres/gpu:1g.10gb": 2}
    assert await finish(slurm, store, settings())  # type: ignore[arg-type]
    assert slurm.rows["lab", ""].grp_tres == {}


async def test_another_clusters_word_says_nothing_of_this_one():
    slurm, store = database(), ledger(vision=6000)
    theirs = Qos("slicewise_uninstalled_d", {}, frozenset())
    slurm.known[theirs.name] = theirs
    await compiled(slurm, store)
    assert slurm.limits("vision") == [6000, 0]
    assert not await has_begun(slurm, store, settings())  # type: ignore[arg-type]
    slurm.partition_qos = ""
    await uninstall(slurm, None, settings())  # type: ignore[arg-type]
    assert slurm.known.keys() >= {theirs.name, "slicewise_uninstalled_c"}


async def test_where_nothing_is_ours_no_word_is_left_that_it_was_taken_out():
    slurm = database()
    slurm.partition_qos = ""
    before = slurm.state()
    assert await uninstall(slurm, None, settings()) == Undone((), ())  # type: ignore[arg-type]
    assert slurm.state() == before
