"""Compiling and uninstalling against an accounting database that behaves like Slurm's."""

import asyncio
from dataclasses import replace

import pytest
from slurm_database import LimitLedger, Row, SlurmDatabase, settings

from cluster.errors import OutsideError
from cluster.jobs import JobState, JobView, NodeView
from cluster.slurm.interface import Qos
from cluster.units import Millislices
from slurm_plugin.compile import Compiled, compile_limits, look
from slurm_plugin.decide.policy import KnownLimit, LimitKey, Recall, TenantUpdate
from slurm_plugin.uninstall import plan, uninstall

CEILING = LimitKey("account", "vision", "grptres=billing")


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
    slurm: SlurmDatabase, of: LimitLedger, by_hand: str = "put back", term_s: int = 0
) -> Compiled:
    return await compile_limits(slurm, of, settings(by_hand, term_s))  # type: ignore[arg-type]


def waiting(qos: str, state: JobState = JobState.PENDING) -> JobView:
    blank = dict.fromkeys(JobView.__dataclass_fields__)
    return JobView(**{**blank, "job_id": 814, "qos": qos, "state": state})  # type: ignore[arg-type]


async def test_applies_until_nothing_is_left_and_then_does_nothing():
    slurm, books = database(), ledger(vision=6000, lab=3000, speech=3000)
    first = await compiled(slurm, books)
    assert first.changes
    assert [slurm.limit(name) for name in ("vision", "lab", "speech")] == [6000, 3000, 3000]
    assert slurm.rows["vision", ""].default == "slicewise_vision"
    assert slurm.rows["vision", ""].grp_tres["cpu"] == 8
    assert (await compiled(slurm, books)).changes == ()


async def test_looking_changes_nothing():
    slurm, books = database(), ledger(vision=6000)
    before = slurm.state()
    seen = await look(slurm, books, settings())  # type: ignore[arg-type]
    assert seen.differences
    assert (slurm.state(), books.known) == (before, {})


async def test_no_account_may_have_more_than_the_cluster():
    slurm, books = database(), ledger(vision=21_000, lab=7000)
    await compiled(slurm, books)
    assert (slurm.limit("vision"), slurm.limit("lab")) == (10_500, 3500)


async def test_while_no_gpu_is_seen_limits_are_what_the_ledger_says(
    monkeypatch: pytest.MonkeyPatch,
):
    """Something else is wrong then, and limits of 0 would end all work."""

    async def none() -> tuple[NodeView, ...]:
        return ()

    slurm, books = database(), ledger(vision=6000, lab=3000)
    await compiled(slurm, books)
    monkeypatch.setattr(slurm, "nodes", none)
    assert (await compiled(slurm, books)).changes == ()
    quota(books, "vision", 5000)
    await compiled(slurm, books)
    assert [slurm.limit(name) for name in ("vision", "lab")] == [5000, 3000]


async def test_what_is_recalled_is_in_no_limit():
    slurm, books = database(), ledger(vision=6000, lab=3000)
    books.called = (Recall("vision", "lab", Millislices(1000), 5),)
    await compiled(slurm, books)
    assert [slurm.limit(name) for name in ("vision", "lab")] == [5000, 3000]
    assert slurm.known["slicewise_vision"].max_tres_per_account == {"billing": 5000}


async def test_says_so_if_slurm_does_not_take_it():
    slurm = database()
    slurm.deaf = True
    with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
        await compiled(slurm, ledger(vision=6000))


@pytest.mark.parametrize(
    "name", ["odd[", "odd[1-3]", "a,b", "it's", '"', "x]", " odd", "new\nline"]
)
async def test_an_account_that_sacctmgr_can_not_be_told_stops_no_limit(name: str):
    """A coordinator has made it: what stands behind a bracket in a list of names is one name."""
    slurm, books = database(), ledger(vision=6000, lab=3000, speech=3000)
    slurm.rows[name, ""] = Row(name, parent="shop", own=frozenset({"premium"}))
    slurm.rows["shop", ""] = Row("shop", parent="root")
    slurm.rows["shop", name] = Row("shop", name, own=frozenset({"premium"}))
    slurm.refuses = (name,)
    found = await compiled(slurm, books)
    assert [slurm.limit(one) for one in ("vision", "lab", "speech")] == [6000, 3000, 3000]
    assert slurm.rows["vision", ""].default == "slicewise_vision"
    assert found.refused == {}
    (told,) = (text for text in found.warnings if "can't be told to sacctmgr" in text)
    assert ascii(name) in told
    assert "\n" not in told
    assert not any(name in command for command in slurm.commands)


async def test_what_slurm_refuses_of_one_keeps_no_other_back():
    slurm, books = database(), ledger(vision=6000, lab=3000, speech=3000)
    slurm.rows["shop", ""] = Row("shop", parent="root", grp_tres={"billing": 5})
    slurm.rows["shed", ""] = Row("shed", parent="root", grp_tres={"billing": 5})
    slurm.refuses = ("shop",)
    found = await compiled(slurm, books)
    assert [slurm.limit(one) for one in ("vision", "lab", "speech")] == [6000, 3000, 3000]
    assert (slurm.limit("shed"), slurm.limit("shop")) == (0, 5)
    refused = ("modify", "account", "where", "name=shop", "cluster=c", "set", "grptres=billing=0")
    assert found.refused == {refused: " Nothing modified"}
    assert refused not in found.changes
    slurm.refuses = ()
    assert (await compiled(slurm, books)).refused == {}
    assert slurm.limit("shop") == 0


async def test_a_user_that_can_not_be_named_costs_its_account_the_default_only():
    """Slurm refuses a default to which a user with a list of his own has no access."""
    slurm, books = database(), ledger(vision=6000, lab=3000)
    slurm.rows["vision", "u["] = Row("vision", "u[", own=frozenset({"premium"}))
    slurm.shows_refusals = True
    found = await compiled(slurm, books)
    assert [slurm.limit(one) for one in ("vision", "lab")] == [6000, 3000]
    assert slurm.rows["lab", ""].default == "slicewise_lab"
    (refused,) = found.refused
    assert refused[2:] == (
        "where",
        "name=vision",
        "cluster=c",
        "set",
        "defaultqos=slicewise_vision",
    )


async def test_a_limit_of_a_tenant_that_is_refused_is_an_error_when_all_else_is_done():
    slurm, books = database(), ledger(vision=6000, lab=3000, speech=3000)
    slurm.refuses = ("grptres=billing=6000",)
    with pytest.raises(OutsideError, match=r"of account vision: Nothing modified.*UNSETTLED"):
        await compiled(slurm, books)
    assert (slurm.limit("speech"), slurm.limit("lab"), slurm.limit("vision")) == (3000, 3000, None)
    assert slurm.rows["vision", ""].default == "slicewise_vision"
    assert slurm.known["slicewise_vision"].max_tres_per_account == {"billing": 6000}


async def test_what_somebody_changed_by_hand_is_told_once_and_put_back():
    slurm, books = database(), ledger(vision=6000)
    assert (await compiled(slurm, books)).by_hand == ()
    slurm.rows["vision", ""].grp_tres["billing"] = 9000
    (told,) = (await compiled(slurm, books)).by_hand
    assert (told.key, told.was, told.now) == (CEILING, "6000", "9000")
    assert slurm.limit("vision") == 6000
    assert (await compiled(slurm, books)).by_hand == ()


async def test_what_a_quota_changed_was_nobodys_hand():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    quota(books, "vision", 5000)
    assert (await compiled(slurm, books)).by_hand == ()


async def test_an_accounts_limit_may_be_adopted_as_its_nominal():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books, "adopt")
    slurm.rows["vision", ""].grp_tres["billing"] = 9000
    (told,) = (await compiled(slurm, books, "adopt")).by_hand
    assert told.now == "9000"
    assert books.tenants["vision"].quota.nominal_millislices == 9000
    assert books.authors[-1] == "sacctmgr"
    assert slurm.known["slicewise_vision"].max_tres_per_account == {"billing": 9000}
    assert (await compiled(slurm, books, "adopt")).by_hand == ()


@pytest.mark.parametrize("account", ["vision", "speech"])
async def test_what_cannot_be_adopted_is_put_back(account: str):
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books, "adopt")
    before = slurm.limit(account)
    # No limit at all is no nominal; an account without a tenant has none.
    slurm.rows[account, ""].grp_tres = {} if account == "vision" else {"billing": 9000}
    assert len((await compiled(slurm, books, "adopt")).by_hand) == 1
    assert slurm.limit(account) == before
    assert books.tenants["vision"].quota.nominal_millislices == 6000


async def test_a_nominal_that_the_tree_forbids_is_not_adopted():
    slurm, books = database(), ledger(lab=5000)
    books.change(
        TenantUpdate("speech", parent="lab", nominal_millislices=Millislices(4000)), "op", ""
    )
    await compiled(slurm, books, "adopt")
    slurm.rows["lab", ""].grp_tres["billing"] = 3000
    assert len((await compiled(slurm, books, "adopt")).by_hand) == 1
    assert slurm.limit("lab") == 5000


async def test_other_fields_are_put_back_though_limits_are_adopted():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books, "adopt")
    slurm.rows["vision", ""].default = "normal"
    (told,) = (await compiled(slurm, books, "adopt")).by_hand
    assert (told.key.field, told.now) == ("defaultqos", "normal")
    assert slurm.rows["vision", ""].default == "slicewise_vision"


async def test_a_change_that_was_cut_short_is_nobodys_hand():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    assert books.known[CEILING] == KnownLimit("", "6000")
    books.known[CEILING] = KnownLimit("", "6000 or 7000")
    for now in (6000, 7000):
        slurm.rows["vision", ""].grp_tres["billing"] = now
        quota(books, "vision", 8000)
        assert (await look(slurm, books, settings())).by_hand == ()  # type: ignore[arg-type]


async def test_another_compile_at_the_same_time_is_nobodys_hand(monkeypatch: pytest.MonkeyPatch):
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    nodes = slurm.nodes

    async def meanwhile() -> tuple[NodeView, ...]:
        monkeypatch.undo()
        await asyncio.sleep(0)  # the accounts are read by now
        quota(books, "vision", 3000)
        await compile_limits(slurm, books, settings("adopt"))  # type: ignore[arg-type]
        return await nodes()

    monkeypatch.setattr(slurm, "nodes", meanwhile)
    done = await compile_limits(slurm, books, settings("adopt"))  # type: ignore[arg-type]
    assert done.by_hand == ()
    assert slurm.limit("vision") == 3000


async def test_uninstalling_leaves_no_trace():
    slurm, books = database(), ledger(vision=6000, lab=3000)
    before = slurm.state()
    await compiled(slurm, books)
    quota(books, "vision", 1000)
    books.change(
        TenantUpdate(
            "speech",
            parent="lab",
            nominal_millislices=Millislices(1000),
            type_limits={"1g.10gb": 1},
        ),
        "op",
        "",
    )
    await compiled(slurm, books)
    books.change(TenantUpdate("speech", removed=True), "op", "")
    await compiled(slurm, books)
    assert slurm.state() != before
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.state() == before
    assert books.known == {}
    assert await uninstall(slurm, books, settings()) == ()  # type: ignore[arg-type]


async def test_what_slurm_refuses_on_the_way_back_keeps_no_other_back():
    slurm, books = database(), ledger(vision=6000, lab=3000)
    before = slurm.state()
    await compiled(slurm, books)
    slurm.refuses = ("name=lab",)
    with pytest.raises(OutsideError, match=r"refused 1 changes.*name=lab.*SW-SLURM-FAILED"):
        await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    left = (await plan(slurm, books, settings())).settings  # type: ignore[arg-type]
    assert {one.key.name for one in left} == {"lab"}
    slurm.refuses = ()
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.state() == before


async def test_uninstalling_gives_nodes_their_own_weights_back():
    slurm, books = database(), ledger()
    slurm.weight = 1_000_072
    (due,) = (await plan(slurm, books, settings())).weights  # type: ignore[arg-type]
    assert (due.key.entity, due.key.name, due.now, due.wanted) == ("node", "n1", "1000072", "7")
    assert await uninstall(slurm, books, settings()) == ()  # type: ignore[arg-type]
    assert slurm.weight == 7


async def test_uninstalling_leaves_another_cluster_the_qos_that_it_uses():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    slurm.elsewhere = frozenset({"slicewise-borrowed", "normal"})
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.known.keys() == {"normal", "premium", "slicewise-borrowed"}
    assert books.known == {}


async def test_a_term_is_set_changed_and_handed_back():
    slurm, books = database(), ledger(vision=6000)
    for term_s in (150, 7):
        await compiled(slurm, books, term_s=term_s)
        assert exempt_s(slurm) == term_s
        assert (await compiled(slurm, books, term_s=term_s)).changes == ()
    (back,) = (await compiled(slurm, books)).changes
    assert " ".join(back) == ("modify qos where name=slicewise-borrowed set preemptexempttime=-1")
    assert (await compiled(slurm, books)).changes == ()


async def test_without_a_term_the_sites_own_exempt_time_stays_and_comes_back():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    borrowed = slurm.known["slicewise-borrowed"]
    slurm.known["slicewise-borrowed"] = replace(borrowed, preempt_exempt_s=300)
    for term_s in (0, 60, 0):
        assert (await compiled(slurm, books, term_s=term_s)).by_hand == ()
        assert exempt_s(slurm) == (term_s or 300)


async def test_a_term_that_somebody_changed_by_hand_is_put_back():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books, term_s=60)
    borrowed = slurm.known["slicewise-borrowed"]
    slurm.known["slicewise-borrowed"] = replace(borrowed, preempt_exempt_s=None)
    (told,) = (await compiled(slurm, books, term_s=60)).by_hand
    assert (told.key.field, told.was, told.now) == ("preemptexempttime", "60", "")
    assert exempt_s(slurm) == 60


async def test_uninstalling_takes_its_term_from_a_qos_that_another_cluster_uses():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books, term_s=60)
    slurm.elsewhere = frozenset({"slicewise-borrowed"})
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert exempt_s(slurm) is None


def exempt_s(slurm: SlurmDatabase) -> int | None:
    return slurm.known["slicewise-borrowed"].preempt_exempt_s


async def test_uninstalling_waits_for_jobs_in_its_qos():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    before = slurm.state()
    slurm.running = (waiting("slicewise_vision"),)
    with pytest.raises(OutsideError, match="814"):
        await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.state() == before
    slurm.running = (waiting("normal"), waiting("slicewise_vision", JobState.ENDED))
    assert await uninstall(slurm, books, settings())  # type: ignore[arg-type]


async def test_a_plan_to_uninstall_changes_nothing():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    before = slurm.state(), dict(books.known)
    due = await plan(slurm, books, settings())  # type: ignore[arg-type]
    assert {one.wanted for one in due.settings} == {"", "inherited", "77"}
    assert {one.now for one in due.qos} == {"slicewise-borrowed", "slicewise_vision"}
    assert (slurm.state(), books.known) == before


async def test_uninstalling_leaves_alone_what_was_never_changed():
    slurm, books = database(), ledger(vision=6000)
    slurm.rows["vision", ""].grp_tres["billing"] = 6000
    await compiled(slurm, books)
    slurm.rows["vision", ""].grp_tres["billing"] = 9000
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.limit("vision") == 9000


async def test_a_qos_of_its_own_keeps_what_a_site_added_to_it():
    slurm, books = database(), ledger(vision=6000)
    await compiled(slurm, books)
    ours = slurm.known["slicewise_vision"]
    slurm.known["slicewise_vision"] = replace(ours, preempt=ours.preempt | {"premium"})
    assert (await compiled(slurm, books)).changes == ()


async def test_what_an_earlier_version_set_is_no_limit_of_the_sites():
    """It remembered nothing: account and QOS are as decision 4 has them."""
    slurm, books = database(), ledger(vision=6000)
    before = slurm.state()
    slurm.known["slicewise_vision"] = Qos("slicewise_vision", {}, frozenset())
    row = slurm.rows["vision", ""]
    row.plus, row.default = frozenset({"slicewise_vision"}), "slicewise_vision"
    row.grp_tres["billing"] = 5000
    assert (await compiled(slurm, books)).by_hand == ()
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.limit("vision") is None
    assert slurm.rows["vision", ""] == before[0]["vision", ""]
    assert slurm.known.keys() == {"normal", "premium"}


async def test_uninstalling_before_the_first_compilation_takes_out_what_is_there():
    slurm, books = database(), ledger(vision=6000)
    before = slurm.state()
    slurm.known["slicewise_vision"] = Qos("slicewise_vision", {}, frozenset())
    row = slurm.rows["vision", ""]
    row.plus, row.default = frozenset({"slicewise_vision"}), "slicewise_vision"
    await uninstall(slurm, books, settings())  # type: ignore[arg-type]
    assert slurm.state()[0] == before[0]
