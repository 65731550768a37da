"""Any policy on any tree of accounts, any order of changes, a death at any step: what must hold."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_database import (
    CAPACITY,
    KilledError,
    LimitLedger,
    Row,
    SlurmDatabase,
    Steps,
)
from slurm_database import settings as site

from cluster.errors import InvalidInputError, OutsideError
from cluster.slurm.interface import Qos
from cluster.units import Millislices
from slurm_plugin.compile import compile_limits
from slurm_plugin.decide.policy import TenantUpdate
from slurm_plugin.uninstall import uninstall

ACCOUNTS = ("a", "b", "c", "d")
Foreign = Mapping[tuple[str, str], tuple[frozenset[str], int | None, str]]
NORMAL, PREMIUM = frozenset({"normal"}), frozenset({"premium"})


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Accounts in any tree, with lists, defaults and limits of their own; users in some."""
    found = []
    for number, name in enumerate(ACCOUNTS):
        own = draw(st.sampled_from([None, NORMAL, NORMAL | PREMIUM]))
        billing = draw(st.sampled_from([None, 0, 500, 9000]))
        found.append(
            Row(
                name,
                parent=draw(st.sampled_from(("root", *ACCOUNTS[:number]))),
                own=own,
                default="normal" if own and draw(st.booleans()) else "",
                grp_tres={"cpu": 4} | ({} if billing is None else {"billing": billing}),
                run_mins=draw(st.sampled_from([{}, {"billing": 5}])),
            )
        )
    theirs = st.sampled_from([None, NORMAL, NORMAL | PREMIUM])
    users = [Row(name, "alice", own=draw(theirs)) for name in ACCOUNTS if draw(st.booleans())]
    return found + users


UPDATES = st.builds(
    TenantUpdate,
    tenant=st.sampled_from(ACCOUNTS),
    parent=st.sampled_from([None, "", *ACCOUNTS]),
    removed=st.sampled_from([None, None, None, True]),
    nominal_millislices=st.sampled_from([0, 500, 1000, 3000, 9000]).map(Millislices),
    type_limits=st.sampled_from([None, {}, {"1g.10gb": 2}]),
    model_limits=st.sampled_from([None, {}, {"A100-80GB": Millislices(4000)}]),
)


def change(ledger: LimitLedger, update: TenantUpdate) -> None:
    try:
        ledger.tenants.change(update, "op", "")
    except InvalidInputError:
        return


def persistently(
    program: object,
    slurm: SlurmDatabase,
    ledger: LimitLedger,
    kills: Sequence[int],
    term_s: int = 0,
):
    """Run it; start it again whenever it is killed. Returns what it says in the end."""
    for steps in (*kills, None):
        slurm.steps.left = ledger.steps.left = steps
        try:
            return asyncio.run(program(slurm, ledger, site(term_s=term_s)))  # type: ignore[operator]
        except KilledError:
            continue
    raise AssertionError


@settings(max_examples=examples(100))
@given(rows(), st.lists(st.lists(UPDATES, max_size=4), min_size=1, max_size=4), st.data())
def test_whatever_is_changed_and_killed_slurm_follows_and_forgets(
    accounts: list[Row], turns: list[list[TenantUpdate]], data: st.DataObject
) -> None:
    steps = Steps()
    slurm = SlurmDatabase(accounts, [Qos("premium", {}, frozenset())], steps)
    ledger = LimitLedger(steps)
    before, found = slurm.state(), foreign(slurm)
    kills = st.lists(st.integers(0, 12), max_size=2)
    for updates in turns:
        for update in updates:
            change(ledger, update)
        term_s = data.draw(st.sampled_from([0, 0, 7, 3600]))
        compiled = persistently(compile_limits, slurm, ledger, data.draw(kills), term_s)
        assert compiled.by_hand == ()
        assert persistently(compile_limits, slurm, ledger, (), term_s).changes == ()
        check(slurm, ledger, found)
        for name in ledger.shown:
            borrowed = slurm.known[f"slicewise_{name}_borrowed"]
            assert (borrowed.preempt_exempt_s, borrowed.preempt_mode) == (term_s or None, "requeue")
    slurm.partition_qos = ""
    persistently(uninstall, slurm, ledger, data.draw(kills))
    assert slurm.state() == before
    assert ledger.remembered == {}


def check(
    slurm: SlurmDatabase,
    ledger: LimitLedger,
    found: Foreign,
) -> None:
    """Written anew from the rules, on what Slurm has: of accounts only their lists change."""
    together = sum(limit or 0 for limit in slurm.limits(*ledger.shown))
    assert together <= CAPACITY
    assert slurm.known["slicewise_gate"].grp_tres == {"billing": 0}
    for row in slurm.rows.values():
        if row.account == "root":
            continue
        listed = {name for name in slurm._list(row) if name.startswith("slicewise")}
        if row.account in ledger.shown:
            assert listed == {f"slicewise_{row.account}", f"slicewise_{row.account}_borrowed"}
        assert listed <= {
            f"slicewise_{name}{end}" for name in ledger.shown for end in ("", "_borrowed")
        }
        assert slurm._list(row) - listed == found[row.account, row.user][0]
        assert (row.grp_tres.get("billing"), row.default) == found[row.account, row.user][1:]
        assert row.grp_tres.get("cpu", 4) == 4
    for name in slurm.known:
        if name.startswith("slicewise_") and name != "slicewise_gate":
            assert slurm.known[name].flags == {"overpartqos"}
            whose = name.removeprefix("slicewise_").removesuffix("_borrowed")
            assert whose in ledger.shown or slurm.known[name].grp_tres["billing"] == 0


def foreign(
    slurm: SlurmDatabase,
) -> Foreign:
    """What is of the site's own: QOS, slices and default of each account and user."""
    return {
        key: (slurm._list(row), row.grp_tres.get("billing"), row.default)
        for key, row in slurm.rows.items()
    }


@pytest.mark.parametrize("by_hand", ["put back", "adopt"])
@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 9), max_size=3), st.sampled_from([500, 3000, 5000]))
def test_a_death_is_never_taken_for_somebodys_hand(
    by_hand: str, kills: list[int], nominal: int
) -> None:
    steps = Steps()
    slurm, ledger = SlurmDatabase([Row("a", parent="root")], steps=steps), LimitLedger(steps)
    for amount in (1000, nominal, 2000):
        change(ledger, TenantUpdate("a", nominal_millislices=Millislices(amount)))
        for left in kills:
            steps.left = left
            try:
                asyncio.run(compile_limits(slurm, ledger, site(by_hand)))  # type: ignore[arg-type]
            except KilledError:
                continue
    steps.left = None
    compiled = asyncio.run(compile_limits(slurm, ledger, site(by_hand)))  # type: ignore[arg-type]
    assert compiled.by_hand == ()
    assert ledger.shown["a"].quota.nominal_millislices == 2000
    assert slurm.limits("a") == [2000, 0]


class Watched(SlurmDatabase):
    """Notes what all tenants together may hold, after each command."""

    def _take(self, words: list[str]) -> None:
        super()._take(words)
        self.totals.append(sum(limit or 0 for limit in self.limits(*ACCOUNTS)))

    totals: list[int]


TWO_TURNS = tuple(
    st.lists(st.sampled_from([0, 1000, 3000, 9000]), min_size=4, max_size=4) for _ in range(2)
)


@settings(max_examples=examples(50))
@given(*TWO_TURNS)
def test_at_no_moment_more_is_allowed_than_before_or_after(
    first: list[int], second: list[int]
) -> None:
    slurm, ledger = Watched([Row(name, parent="root") for name in ACCOUNTS]), LimitLedger()
    for nominal in (first, second):
        for name, amount in zip(ACCOUNTS, nominal, strict=True):
            change(ledger, TenantUpdate(name, nominal_millislices=Millislices(amount)))
        before = sum(limit or 0 for limit in slurm.limits(*ACCOUNTS))
        slurm.totals = [before]
        asyncio.run(compile_limits(slurm, ledger, site()))  # type: ignore[arg-type]
        if nominal is second:
            assert max(slurm.totals) <= max(before, slurm.totals[-1])


@settings(max_examples=examples(50))
@given(*TWO_TURNS, st.sampled_from(ACCOUNTS))
def test_what_slurm_refuses_to_shrink_is_given_to_nobody(
    first: list[int], second: list[int], stuck: str
) -> None:
    slurm, ledger = Watched([Row(name, parent="root") for name in ACCOUNTS]), LimitLedger()
    slurm.totals = []
    for nominal in (first, second):
        for name, amount in zip(ACCOUNTS, nominal, strict=True):
            change(ledger, TenantUpdate(name, nominal_millislices=Millislices(amount)))
        with suppress(OutsideError):
            asyncio.run(compile_limits(slurm, ledger, site()))  # type: ignore[arg-type]
        slurm.refuses = (f"name=slicewise_{stuck} set",)
    assert max(slurm.totals) <= CAPACITY
