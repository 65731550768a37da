"""Property: what holds of limits for any policy, tree, order of changes, and death at a step."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from no_threads import no_threads
from stand_ins.scripted import job
from stand_ins.slurm_database import (
    CAPACITY,
    KilledError,
    LimitLedger,
    Row,
    SlurmDatabase,
    Steps,
)
from stand_ins.slurm_database import settings as site

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.quota_cycle.compile import (
    compile_in_turn,
    compile_limits,
    look,
    slurm_now,
)
from slicewise.slurm_plugin.quota_cycle.uninstall import uninstall
from slicewise.slurm_plugin.rules.explain.headroom import explain, situation
from slicewise.slurm_plugin.rules.limits.desired import BILLING
from slicewise.slurm_plugin.rules.quota.types import Budget, LimitKey, Loan, TenantUpdate
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of

pytestmark = pytest.mark.usefixtures("clock")

ACCOUNTS = ("a", "b", "c", "d")
Foreign = Mapping[tuple[str, str], tuple[frozenset[str], int | None, str]]
NORMAL, PREMIUM = frozenset({"normal"}), frozenset({"premium"})


@pytest.fixture(autouse=True, scope="module")
def _no_threads() -> Iterator[None]:
    with no_threads():
        yield


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


UNITS = st.integers(1, 5000).map(lambda number: BillingUnit(Fraction(2 * number)))
"""By which 1 and 3.5 slices are whole."""

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
    *,
    billing: BillingUnit = MILLISLICES,
):
    """Run it; start it again whenever it is killed. Returns what it says in the end."""
    for steps in (*kills, None):
        slurm.steps.left = ledger.steps.left = steps
        try:
            return asyncio.run(program(slurm, ledger, site(term_s=term_s, billing=billing)))  # type: ignore[operator]
        except KilledError:
            continue
    raise AssertionError


@settings(max_examples=examples(40, nightly=2000))
@given(rows(), st.lists(st.lists(UPDATES, max_size=4), min_size=1, max_size=4), st.data())
def test_whatever_is_changed_and_killed_slurm_follows_and_forgets(
    accounts: list[Row], turns: list[list[TenantUpdate]], data: st.DataObject
) -> None:
    steps = Steps()
    slurm = SlurmDatabase(accounts, [Qos("premium", {}, frozenset())], steps)
    ledger = LimitLedger(steps)
    before, found = slurm.state(), foreign(slurm)
    kills = st.lists(st.integers(0, 12), max_size=2)
    units = st.just(MILLISLICES) | UNITS
    for updates in turns:
        for update in updates:
            change(ledger, update)
        term_s = data.draw(st.sampled_from([0, 0, 7, 3600]))
        unit = data.draw(units)
        killed = data.draw(kills)
        compiled = persistently(compile_limits, slurm, ledger, killed, term_s, billing=unit)
        assert compiled.out_of_band == ()
        again = persistently(compile_limits, slurm, ledger, (), term_s, billing=unit)
        assert again.changes == ()
        check(slurm, ledger, found, unit)
        for name, standing in compiled.standings.items():
            allowed = (standing.own_qos_limit_millislices, standing.borrowed_qos_limit_millislices)
            assert slurm.limits(name) == [unit.limit(amount) for amount in allowed]
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
    unit: BillingUnit,
) -> None:
    """Written again from the rules, on what Slurm has: of accounts only their lists change."""
    together = sum(limit or 0 for limit in slurm.limits(*ledger.shown))
    assert together <= unit.exact(CAPACITY)
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
    assert compiled.out_of_band == ()
    assert ledger.shown["a"].quota.nominal_millislices == 2000
    assert slurm.limits("a") == [2000, 0]


class Watched(SlurmDatabase):
    """Notes what all tenants together may hold, after each command."""

    def _take(self, words: list[str]) -> None:
        super()._take(words)
        limits = [limit for limit in self.limits(*ACCOUNTS) if limit is not None]
        assert len(limits) == len(self.limits(*ACCOUNTS))
        self.totals.append(sum(limits))

    totals: list[int]


NOMINALS = st.sampled_from([0, 1000, 3000, 9000])
TWO_TURNS = tuple(
    st.lists(one, min_size=len(ACCOUNTS), max_size=len(ACCOUNTS))
    for one in (st.none() | NOMINALS, NOMINALS)
)
"""Of each account; one that has none at first is a new tenant then, and its QOS are new."""


def set_nominals(ledger: LimitLedger, nominals: Sequence[int | None]) -> None:
    for name, amount in zip(ACCOUNTS, nominals, strict=True):
        if amount is not None:
            change(ledger, TenantUpdate(name, nominal_millislices=Millislices(amount)))


@settings(max_examples=examples(30, nightly=1000))
@given(*TWO_TURNS)
def test_at_no_moment_more_is_allowed_than_before_or_after(
    first: list[int | None], second: list[int]
) -> None:
    slurm, ledger = Watched([Row(name, parent="root") for name in ACCOUNTS]), LimitLedger()
    for nominal in (first, second):
        set_nominals(ledger, nominal)
        before = sum(limit or 0 for limit in slurm.limits(*ACCOUNTS))
        slurm.totals = [before]
        asyncio.run(compile_limits(slurm, ledger, site()))  # type: ignore[arg-type]
        if nominal is second:
            assert max(slurm.totals) <= max(before, slurm.totals[-1])


@settings(max_examples=examples(30, nightly=1000))
@given(*TWO_TURNS, st.sampled_from(ACCOUNTS), st.sampled_from(["refuses", "ignores"]))
def test_what_slurm_does_not_shrink_is_given_to_nobody_and_all_else_to_those_who_wait(
    first: list[int | None], second: list[int], stuck: str, how: str
) -> None:
    slurm, ledger = Watched([Row(name, parent="root") for name in ACCOUNTS]), LimitLedger()
    slurm.totals = []
    for nominal in (first, second):
        set_nominals(ledger, nominal)
        with suppress(OutsideError):
            asyncio.run(compile_limits(slurm, ledger, site()))  # type: ignore[arg-type]
        setattr(slurm, how, (f"name=slicewise_{stuck}",))
    assert max(slurm.totals) <= CAPACITY
    seen = asyncio.run(look(slurm, ledger, site()))  # type: ignore[arg-type]
    for one in seen.differences:
        if one.key.field == BILLING and f"slicewise_{stuck}" not in one.key.name:
            assert int(one.wanted) - int(one.now) > CAPACITY - slurm.totals[-1]


class WatchedBudget(SlurmDatabase):
    """Notes what all QOS that draw on a's budget may take together, after each command."""

    def __init__(self) -> None:
        super().__init__([Row("a", parent="root"), Row("b", parent="a"), Row("c", parent="b")])
        self.totals: list[int] = []

    def together(self) -> int | None:
        """None while one of them has no limit."""
        names = [f"slicewise_{name}{end}" for name in "abc" for end in ("", "_borrowed")]
        limits = [one.grp_tres_run_mins.get("billing") for one in map(self.known.get, names) if one]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(names) else None

    def _take(self, words: list[str]) -> None:
        super()._take(words)
        self.totals += [] if (total := self.together()) is None else [total]


LEFT = st.integers(0, 5).map(lambda hours: hours * 3_600_000)
JOBS = st.lists(
    st.builds(
        job,
        index=st.integers(1, 9),
        state=st.sampled_from([JobState.RUNNING, JobState.PENDING]),
        account=st.sampled_from("abc"),
        qos=st.sampled_from(["slicewise_a", "slicewise_b", "slicewise_c_borrowed", "normal"]),
        time_limit_s=st.sampled_from([600, 7200]),
        end_s=st.sampled_from([None, 4_000_000_000]),
        held=st.just(False),
        reason=st.just("None"),
    ),
    max_size=4,
)
KINDS = st.sampled_from(["slicewise_{}", "slicewise_{}_borrowed", "normal"])


@settings(max_examples=examples(100, nightly=4000))
@given(
    st.lists(st.tuples(st.sampled_from("abc"), KINDS, JOBS), max_size=5),
    st.dictionaries(st.sampled_from(["ab", "ac", "ca"]), st.sampled_from([500, 1000, 4000])),
)
def test_nobody_is_told_that_more_may_start_than_slurm_lets(
    seen: Sequence[tuple[str, str, Sequence[JobView]]], loans: Mapping[str, int]
) -> None:
    slurm, ledger = WatchedBudget(), LimitLedger()
    for name, parent, amount in (("a", "", 9000), ("b", "a", 4000), ("c", "", 4000)):
        limits = dict.fromkeys(("borrowing_limit", "lending_limit"), Millislices(9000))
        quotas = {f"{limit}_millislices": most for limit, most in limits.items()}
        nominal = {"nominal_millislices": Millislices(amount)}
        change(ledger, TenantUpdate(name, parent=parent, **nominal, **quotas))
    ledger.lent = tuple(Loan(*ends, Millislices(amount)) for ends, amount in loans.items())
    slurm.running = tuple(
        replace(one, account=account, qos=kind.format(account))
        for account, kind, jobs in seen
        for one in jobs
    )
    found = asyncio.run(look(slurm, ledger, site()))  # type: ignore[arg-type]
    nodes = asyncio.run(slurm.nodes())
    now = situation(world_of(found.ledger_view, site(), SlurmView(slurm.running, nodes, ())))  # type: ignore[arg-type]
    for name in "abc":
        for room in explain(name, now).types:
            for qos, more in (("", room.guaranteed), ("_borrowed", room.borrowed)):
                key = LimitKey("qos", f"slicewise_{name}{qos}", BILLING)
                most = int(found.wanted.settings[key].value)
                holds = found.inputs.use.held.get(key.name, 0)
                assert more * room.cost_millislices <= max(0, most - holds)


@settings(max_examples=examples(60, nightly=2400))
@given(JOBS, JOBS, JOBS)
def test_no_limit_grows_but_to_what_it_is_by_a_new_look_at_jobs(
    first: Sequence[JobView], seen: Sequence[JobView], now: Sequence[JobView]
) -> None:
    """However old the one was at which it was begun to change limits."""
    limits = {}
    for looked in (now, seen):
        slurm, ledger = Watched([Row(name, parent="root") for name in ACCOUNTS]), LimitLedger()
        set_nominals(ledger, [3000] * len(ACCOUNTS))
        slurm.totals, slurm.running = [], tuple(first)
        asyncio.run(compile_limits(slurm, ledger, site()))  # type: ignore[arg-type]
        before = slurm.limits(*ACCOUNTS)
        slurm.totals, slurm.running = [sum(limit or 0 for limit in before)], tuple(now)
        asyncio.run(_compiled_by(slurm, ledger, tuple(looked)))
        assert max(slurm.totals) <= max(slurm.totals[0], slurm.totals[-1])
        limits[looked is now] = slurm.limits(*ACCOUNTS)
    for was, older, newer in zip(before, limits[False], limits[True], strict=True):
        assert older == newer or (older or 0) <= (was or 0)


async def _compiled_by(
    slurm: SlurmDatabase, ledger: LimitLedger, looked: tuple[JobView, ...]
) -> None:
    shown = await slurm_now(slurm, jobs=looked)  # type: ignore[arg-type]
    store = ledger_view_now(ledger, site())  # type: ignore[arg-type]
    await compile_in_turn(slurm, ledger, site(), shown, store)  # type: ignore[arg-type]


BUDGET_TURN = st.tuples(st.fixed_dictionaries({"a": LEFT, "c": LEFT}), JOBS)


@settings(max_examples=examples(40, nightly=1600))
@given(
    BUDGET_TURN,
    BUDGET_TURN,
    st.sampled_from(["", "a", "b", "c_borrowed"]),
    st.sampled_from(["refuses", "ignores"]),
)
def test_at_no_moment_more_of_a_budget_may_be_taken_than_before_or_after(
    first: tuple[Mapping[str, int], Sequence[JobView]],
    second: tuple[Mapping[str, int], Sequence[JobView]],
    stuck: str,
    how: str,
) -> None:
    """Nor when Slurm does not make a part less."""
    slurm, ledger = WatchedBudget(), LimitLedger()
    budget = Budget(Period.NONE, MillisliceSeconds(1))
    for name, parent, amount in (("a", "", 9000), ("b", "a", 4000), ("c", "b", 1000)):
        nominal = Millislices(amount)
        update = TenantUpdate(name, parent=parent, nominal_millislices=nominal)
        change(ledger, replace(update, budget="off" if name == "b" else budget))
    for number, (left, jobs) in enumerate((first, second)):
        ledger.left, slurm.running = dict(left), tuple(jobs)
        before = slurm.together() or 0
        slurm.totals.clear()
        setattr(slurm, how, (f"slicewise_{stuck} set",) if stuck and number else ())
        with suppress(OutsideError):
            asyncio.run(compile_limits(slurm, ledger, site()))  # type: ignore[arg-type]
        has = left["a"] // 60
        near = max(has // 100, 1000 * 6)
        assert max(slurm.totals, default=0) <= max(before, has + near)
    if not stuck:
        assert slurm.together() is not None
        assert slurm.rows["a", ""].run_mins == {}
