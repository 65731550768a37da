"""Policy on a real PostgreSQL: deltas, loans, what the database forbids, upgrades, roles."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from uuid import uuid4

import psycopg
import pytest
from builders.policy_world import PolicyWorld, broken_rules
from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from ledger_rows import rows_of_every_table
from psycopg.sql import SQL, Identifier
from sqlalchemy import event

from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.rebalances import RunOutcome, StepName, StepOutcome
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.runtime.database import postgres_engine
from slicewise.launcher.process.store import StateStore
from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.keys import NewKey
from slicewise.slurm_plugin.ledger.server_facts import ledger_facts
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import (
    BudgetEntry,
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.common.history import ClusterFigures, HistorySample
from slicewise.slurm_plugin.rules.common.observations import Observations, QuotaUse
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    Budget,
    KnownLimit,
    LimitKey,
    Loan,
    Policy,
    Quota,
    Recall,
    Tenant,
    TenantUpdate,
)

pytestmark = pytest.mark.integration


def execute(database: str, statement: str, *parameters: object) -> None:
    """As a user who goes around the program."""
    with psycopg.connect(database) as connection:
        connection.execute(statement, parameters or None)


def nominal(tenant: str, millislices: int, parent: str | None = None) -> TenantUpdate:
    return TenantUpdate(tenant, parent, nominal_millislices=Millislices(millislices))


def lender_and_borrower(ledger: Ledger, lending: int = 2000, borrowing: int = 2000) -> None:
    lender = TenantUpdate(
        "vision",
        nominal_millislices=Millislices(6000),
        lending_limit_millislices=Millislices(lending),
    )
    borrower = TenantUpdate("nlp", borrowing_limit_millislices=Millislices(borrowing))
    ledger.tenants.change(lender, "root", "")
    ledger.tenants.change(borrower, "root", "")


def loan(amount: int, lender: str = "vision", borrower: str = "nlp") -> Loan:
    return Loan(lender, borrower, Millislices(amount))


# Tenants


def test_every_history_of_policy_holds_its_rules(ledger: Ledger, database: str):
    class World(PolicyWorld):
        pass

    World.database = database
    few = settings(
        max_examples=examples(40, nightly=4000),
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(World, settings=few)


def test_what_an_update_leaves_out_stays(ledger: Ledger):
    budget = Budget(Period.MONTH, MillisliceSeconds(900), MillisliceSeconds(90))
    first = TenantUpdate(
        "vision",
        nominal_millislices=Millislices(6000),
        weight=3,
        type_limits={"3g.40gb": 2},
        type_nominals={"1g.10gb": 4},
        budget=budget,
    )
    ledger.tenants.change(nominal("lab", 0), "root", "")
    ledger.tenants.change(first, "root", "")
    ledger.tenants.change(TenantUpdate("vision", parent="lab"), "root", "")
    quota = Quota(
        Millislices(6000), weight=3, type_limits={"3g.40gb": 2}, type_nominals={"1g.10gb": 4}
    )
    assert ledger.tenants.policy()["vision"] == Tenant("vision", "lab", quota, budget)
    ledger.tenants.change(
        TenantUpdate("vision", type_limits={}, type_nominals={}, budget="off"), "root", ""
    )
    assert ledger.tenants.policy()["vision"] == Tenant(
        "vision", "lab", Quota(Millislices(6000), weight=3)
    )


@pytest.mark.promise("The history of quotas says what each change was.")
def test_history_says_what_each_row_changed(ledger: Ledger):
    first = ledger.tenants.change(nominal("vision", 6000), "root", "start")
    second = ledger.tenants.change(
        TenantUpdate("vision", weight=2), "olga", "it's; DROP TABLE – over"
    )
    assert ledger.tenants.history("vision") == (second, first)
    assert second.update == TenantUpdate("vision", nominal_millislices=Millislices(6000), weight=2)
    assert ledger.tenants.history("nobody") == ()


def test_several_change_together_or_not_at_all(ledger: Ledger, database: str):
    ledger.tenants.change(nominal("lab", 3000), "root", "")
    ledger.tenants.change(nominal("vision", 3000, "lab"), "root", "")
    ledger.tenants.change(
        TenantUpdate("vision", lending_limit_millislices=Millislices(3000)), "root", ""
    )
    ledger.tenants.change(
        TenantUpdate("nlp", borrowing_limit_millislices=Millislices(3000)), "root", ""
    )
    ledger.loans.replace([loan(3000)], "")
    budget = Budget(Period.NONE, MillisliceSeconds(900))
    larger = [nominal("vision", 5000), nominal("lab", 5000), TenantUpdate("nlp", budget=budget)]
    asked: list[tuple[str, Budget]] = []

    def amend(tenant: str, of: Budget) -> Callable[..., BudgetEntry]:
        asked.append((tenant, of))
        return lambda *_: BudgetEntry(tenant, "adjust", 7, None, "root", "")

    before = rows_of_every_table(database)
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        ledger.tenants.change_together([*larger, TenantUpdate("bio", weight=0)], "root", "", amend)
    assert rows_of_every_table(database) == before
    less = TenantUpdate("nlp", borrowing_limit_millislices=Millislices(0), budget=budget)
    changes = ledger.tenants.change_together([*larger[:2], less], "olga", "new GPUs", amend)
    assert [one.update.tenant for one in changes] == ["vision", "lab", "nlp"]
    assert ledger.tenants.change_id() == changes[-1].change_id
    assert ledger.tenants.policy()["lab"].quota.nominal_millislices == 5000
    assert (ledger.loans.outstanding(), asked) == ((), [("nlp", budget)])
    assert ledger.budgets.balances()["nlp"].available == 7


def test_each_decides_on_the_policy_that_the_one_before_left(ledger: Ledger):
    def more(policy: Policy) -> TenantUpdate:
        nominal = policy["physics"].quota.nominal_millislices if "physics" in policy else 0
        return TenantUpdate("physics", nominal_millislices=Millislices(nominal + 1000))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ledger.tenants.change_by(more, "root", ""), range(8)))
    assert ledger.tenants.policy()["physics"].quota.nominal_millislices == 8000
    changes = ledger.tenants.history("physics")
    assert ledger.tenants.change_by(lambda _: None, "root", "") == (ledger.tenants.policy(), None)
    assert ledger.tenants.history("physics") == changes


def test_tenants_move_and_go_together_or_not_at_all(ledger: Ledger, database: str):
    for first in (nominal("lab", 4000), nominal("vision", 4000, "lab"), nominal("nlp", 3000)):
        ledger.tenants.change(first, "root", "")
    move, go = TenantUpdate("vision", parent="nlp"), TenantUpdate("lab", removed=True)
    before = rows_of_every_table(database)
    with pytest.raises(InvalidInputError, match="SW-QUOTA-TREE"):
        ledger.tenants.change_together([move, go], "root", "", no_amend)
    with pytest.raises(InvalidInputError, match="SW-TENANT-CHILDREN"):
        ledger.tenants.change_together([go], "root", "", no_amend)
    assert rows_of_every_table(database) == before
    ledger.tenants.change_together([nominal("nlp", 6000), move, go], "olga", "moved", no_amend)
    assert {name: one.parent for name, one in ledger.tenants.policy().items()} == {
        "nlp": "",
        "vision": "nlp",
    }


def no_amend(_tenant: str, _budget: Budget) -> Callable[..., None]:
    return lambda *_: None


def test_a_removed_tenant_comes_back_with_nothing_of_before(ledger: Ledger):
    ledger.tenants.change(
        TenantUpdate("vision", nominal_millislices=Millislices(1), weight=9), "root", ""
    )
    ledger.tenants.change(TenantUpdate("vision", removed=True, weight=5), "root", "")
    assert ledger.tenants.policy() == {}
    assert ledger.tenants.history("vision")[0].update == TenantUpdate(
        "vision", removed=True, nominal_millislices=Millislices(0)
    )
    ledger.tenants.change(TenantUpdate("vision", removed=False), "root", "")
    assert ledger.tenants.policy() == {"vision": Tenant("vision", "", Quota(Millislices(0)))}


def test_a_row_of_an_old_program_changes_the_nominal_alone(ledger: Ledger, database: str):
    old = (
        "INSERT INTO slicewise.quota_changes (cluster, tenant, nominal_millislices, author, reason)"
        " VALUES ('testing', 'vision', 7000, 'olga', '')"
    )
    ledger.tenants.change(
        TenantUpdate("vision", nominal_millislices=Millislices(1), weight=9), "root", ""
    )
    execute(database, old)
    quota = Quota(Millislices(7000), weight=9)
    assert ledger.tenants.policy() == {"vision": Tenant("vision", "", quota)}
    ledger.tenants.change(TenantUpdate("vision", removed=True), "root", "")
    execute(database, old)
    assert ledger.tenants.policy() == {"vision": Tenant("vision", "", Quota(Millislices(7000)))}


@pytest.mark.promise("Several clusters share one PostgreSQL and know nothing of each other.")
def test_clusters_know_nothing_of_each_other(ledger: Ledger, database: str):
    lender_and_borrower(ledger)
    ledger.loans.replace([loan(500)], "")
    ledger.limits.know({LimitKey("qos", "a", "grptres=billing"): KnownLimit("", "1")})
    with Ledger(database, "another") as another:
        assert (another.tenants.policy(), another.loans.outstanding(), another.limits.known()) == (
            {},
            (),
            {},
        )
        assert (another.tenants.change_id(), another.tenants.history("vision")) == (0, ())


_TOO_MUCH = Millislices(MAX_NOMINAL_MILLISLICES + 1)
_BAD = {
    "SW-VALUE": [
        nominal("", 1),
        nominal("root", 1),
        nominal("a,b", 1),
        nominal("vision\n", 1),
        nominal("x'; DROP TABLE slicewise.runs; --", 1),
        nominal("\udcff", 1),
        nominal("a\x00b", 1),
        nominal("x" * 64, 1),
        nominal("vision", -1),
        nominal("vision", _TOO_MUCH),
        nominal("vision", 2**63),
        TenantUpdate("vision", borrowing_limit_millislices=_TOO_MUCH),
        TenantUpdate("vision", lending_limit_millislices=Millislices(-1)),
        TenantUpdate("vision", model_limits={"H200-141GB": _TOO_MUCH}),
        TenantUpdate("vision", weight=0),
        TenantUpdate("vision", weight=10**20),
        TenantUpdate("vision", type_limits={"3g.40gb": -1}),
        TenantUpdate("vision", type_limits={"3g.40gb": 10**20}),
        TenantUpdate("vision", type_limits={"\udcff": 1}),
        TenantUpdate("vision", type_limits={"a\x00": 1}),
        TenantUpdate("vision", type_nominals={"3g.40gb": -1}),
        TenantUpdate("vision", budget=Budget(Period.DAY, MillisliceSeconds(-1))),
        TenantUpdate(
            "vision", budget=Budget(Period.DAY, MillisliceSeconds(MAX_BUDGET_MILLISLICE_S + 1))
        ),
        TenantUpdate(
            "vision",
            budget=Budget(Period.DAY, MillisliceSeconds(1), MillisliceSeconds(2**63)),
        ),
        TenantUpdate("vision", budget=Budget("fortnight", MillisliceSeconds(1))),  # type: ignore[arg-type],
    ],
    "SW-TENANT-UNKNOWN": [
        TenantUpdate("nobody", removed=True),
        nominal("nlp", 1, "nobody"),
        nominal("nlp", 1, "\udcff"),
    ],
    "SW-TENANT-CHILDREN": [
        TenantUpdate("lab", parent="vision"),
        TenantUpdate("lab", parent="lab"),
        TenantUpdate("lab", removed=True),
    ],
    "SW-QUOTA-TREE": [
        nominal("lab", 5999),
        nominal("vision", 8001),
        nominal("nlp", 2001, "lab"),
    ],
}


@pytest.mark.parametrize("code", _BAD)
def test_bad_input_writes_nothing(ledger: Ledger, database: str, code: str):
    ledger.tenants.change(nominal("lab", 8000), "root", "")
    ledger.tenants.change(nominal("vision", 6000, "lab"), "root", "")
    before = rows_of_every_table(database)
    for update in _BAD[code]:
        with pytest.raises(InvalidInputError, match=code) as raised:
            ledger.tenants.change(update, "root", "")
        assert raised.value.refusal.hint
    assert rows_of_every_table(database) == before


@pytest.mark.parametrize(("author", "reason"), [("\udcff", ""), ("root", "a\x00b"), ("a\nb", "")])
def test_words_that_nobody_can_read_are_refused(
    ledger: Ledger, database: str, author: str, reason: str
):
    before = rows_of_every_table(database)
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        ledger.tenants.change(nominal("vision", 1), author, reason)
    assert rows_of_every_table(database) == before


def test_a_name_that_is_no_text_is_refused_when_asked_for(ledger: Ledger):
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        ledger.tenants.history("\udcff")


def test_the_compilation_of_a_change_is_known(ledger: Ledger):
    change = ledger.tenants.change(nominal("vision", 6000), "root", "")
    assert ledger.tenants.change_id() == change.change_id
    assert not ledger.limits.compiled(change.change_id)
    ledger.limits.mark_compiled(change.change_id)
    ledger.limits.mark_compiled(change.change_id - 1)
    assert ledger.limits.compiled(change.change_id)
    assert not ledger.limits.compiled(change.change_id + 1)


def test_that_limits_were_taken_out_is_known_until_they_are_wanted_again(ledger: Ledger):
    assert not ledger.limits.is_uninstalled()
    ledger.limits.mark_uninstalled()
    # One who compiled while they were taken out.
    ledger.limits.mark_compiled(1)
    assert ledger.limits.is_uninstalled()
    assert ledger.view(0.0, "UTC").is_uninstalled
    assert not ledger.limits.compiled(0)
    ledger.limits.forget()
    assert ledger.limits.is_uninstalled()
    ledger.limits.mark_wanted()
    assert not ledger.limits.is_uninstalled()
    ledger.limits.mark_compiled(1)
    assert ledger.limits.compiled(1)


# Loans


def test_loans_are_kept_with_their_history(ledger: Ledger, database: str):
    lender_and_borrower(ledger)
    ledger.loans.replace([loan(1500)], "idle")
    ledger.loans.replace([loan(1500)], "still")
    ledger.loans.replace([loan(700)], "less")
    assert ledger.loans.outstanding() == (loan(700),)
    ledger.loans.replace([], "back")
    assert ledger.loans.outstanding() == ()
    for tenant in ("vision", "nlp"):
        said = [(one.loan, one.reason) for one in ledger.loans.history(tenant, 9)]
        assert said == [(loan(0), "back"), (loan(700), "less"), (loan(1500), "idle")]
    assert ledger.loans.history("nobody", 9) == ()
    last, first = ledger.loans.history("vision", 2), ledger.loans.history("vision", 9)[2:]
    assert ledger.loans.history("vision", 2, last[-1].change_id) == first


DAY_S = 86_400


def grows_older(database: str, **days: int) -> None:
    """Makes the changes of loans with these reasons so old."""
    with psycopg.connect(database) as connection:
        # As a superuser may: the trigger is off.
        connection.execute("SET session_replication_role = replica")
        for reason, number in days.items():
            connection.execute(
                "UPDATE slicewise.loan_changes SET recorded_at = now() - %s * interval '1 day'"
                " WHERE reason = %s",
                (number, reason),
            )


def reasons(ledger: Ledger, tenant: str = "vision") -> list[str]:
    return [one.reason for one in reversed(ledger.loans.history(tenant, 99))]


def test_old_changes_of_loans_go_and_the_loans_stay(ledger: Ledger, database: str):
    lender_and_borrower(ledger)
    ledger.tenants.change(
        TenantUpdate("lab", borrowing_limit_millislices=Millislices(900)), "olga", ""
    )
    for amount, reason in ((500, "begun"), (900, "grown"), (700, "kept"), (800, "young")):
        ledger.loans.replace([loan(amount), loan(100 + amount // 9, borrower="lab")], reason)
    ledger.loans.replace([loan(800)], "over")
    grows_older(database, begun=800, grown=700, kept=500, young=399, over=500)
    before_s = time.time() - 400 * DAY_S
    with Ledger(database, "other") as other:
        assert other.loans.forget(before_s, 0, 100) is None
    # Some at a time, as a daemon does it in turns, one day after the other.
    for at_once in (3, 3, 3, 100):
        seen: int | None = 0
        while (seen := ledger.loans.forget(before_s, seen or 0, at_once)) is not None:
            pass
    assert reasons(ledger, "nlp") == ["kept", "young"]
    assert reasons(ledger, "lab") == ["young", "over"]
    assert ledger.loans.outstanding() == (loan(800),)
    assert [int(one.since_s) for one in ledger.loans.terms()] == [
        pytest.approx(time.time() - 500 * DAY_S, abs=60)
    ]
    # Of a loan that is over nothing stays once its end is old.
    grows_older(database, young=402, over=401)
    for _ in range(3):
        ledger.loans.forget(before_s, 0, 100)
    assert reasons(ledger, "lab") == []
    assert reasons(ledger, "nlp") == ["young"]
    assert ledger.audit.verify().faults == ()


def test_young_changes_of_loans_can_not_be_deleted_by_anybody(ledger: Ledger, database: str):
    lender_and_borrower(ledger)
    for amount in (500, 900):
        ledger.loans.replace([loan(amount)], "idle")
    grows_older(database, idle=89)
    ledger.loans.forget(time.time() + DAY_S, 0, 100)
    assert reasons(ledger) == ["idle", "idle"]
    with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
        execute(database, "DELETE FROM slicewise.loan_changes")


def test_what_the_policy_forbids_is_cut(ledger: Ledger):
    lender_and_borrower(ledger, lending=1000)
    ledger.loans.replace(
        [loan(1500), loan(10, "vision", "nobody"), loan(10, "nlp", "vision")], "old"
    )
    assert ledger.loans.outstanding() == (loan(1000),)


def test_a_change_cuts_loans_and_says_so(ledger: Ledger):
    lender_and_borrower(ledger)
    ledger.loans.replace([loan(1500)], "idle")
    change = ledger.tenants.change(nominal("vision", 600), "root", "")
    assert ledger.loans.outstanding() == (loan(600),)
    assert ledger.loans.history("nlp", 1)[0].reason == f"change {change.change_id}: vision"
    ledger.tenants.change(TenantUpdate("vision", removed=True), "root", "")
    assert ledger.loans.outstanding() == ()


_LEND = (
    "INSERT INTO slicewise.loan_changes (cluster, lender, borrower, amount_millislices, reason)"
    " VALUES ('testing', %s, %s, %s, '')"
)


@pytest.mark.parametrize(
    ("lender", "borrower", "amount"),
    [
        ("vision", "nlp", 2001),
        ("vision", "audio", 1501),
        ("audio", "nlp", 101),
        ("vision", "vision", 1),
        ("vision", "nobody", 1),
        ("nobody", "nlp", 1),
        ("nlp", "vision", 1),
        ("vision", "nlp", -1),
    ],
)
def test_the_database_itself_refuses_loans_beyond_limits(
    ledger: Ledger, database: str, lender: str, borrower: str, amount: int
):
    lender_and_borrower(ledger)
    audio = TenantUpdate(
        "audio",
        nominal_millislices=Millislices(100),
        borrowing_limit_millislices=Millislices(1500),
        lending_limit_millislices=MAX_NOMINAL_MILLISLICES,
    )
    ledger.tenants.change(audio, "root", "")
    before = rows_of_every_table(database)
    with pytest.raises(psycopg.errors.CheckViolation):
        execute(database, _LEND, lender, borrower, amount)
    assert rows_of_every_table(database) == before
    execute(database, _LEND, "audio", "nlp", 100)
    assert ledger.loans.outstanding() == (loan(100, "audio"),)


def test_two_who_lend_the_same_at_once_are_told_apart(ledger: Ledger, database: str):
    lender_and_borrower(ledger, borrowing=9000)
    ledger.tenants.change(
        TenantUpdate("audio", borrowing_limit_millislices=Millislices(9000)), "root", ""
    )
    with psycopg.connect(database) as one, psycopg.connect(database) as other:
        one.execute(_LEND, ("vision", "nlp", 1200))
        other.execute(_LEND, ("vision", "audio", 1200))
        one.commit()
        with pytest.raises(psycopg.errors.CheckViolation, match="would lend 2400"):
            other.commit()
    assert ledger.loans.outstanding() == (loan(1200),)


def test_a_quota_below_what_is_lent_is_refused_to_others(ledger: Ledger, database: str):
    lender_and_borrower(ledger)
    ledger.loans.replace([loan(1500)], "idle")
    with pytest.raises(psycopg.errors.CheckViolation, match="would lend 1500 "):
        execute(
            database,
            "INSERT INTO slicewise.quota_changes"
            " (cluster, tenant, nominal_millislices, author, reason)"
            " VALUES ('testing', 'vision', 1499, 'olga', '')",
        )


def test_what_stays_below_a_tenant_is_not_held_against_it(ledger: Ledger):
    """Its own limits are for what leaves its subtree."""
    ledger.tenants.change(nominal("lab", 8000), "root", "")
    borrower = TenantUpdate("nlp", "lab", borrowing_limit_millislices=Millislices(5000))
    ledger.tenants.change(borrower, "root", "")
    ledger.loans.replace([loan(3000, "lab")], "inside")
    assert ledger.loans.outstanding() == (loan(3000, "lab"),)


@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET reason = ''", "DELETE FROM {}", "TRUNCATE {}"]
)
@pytest.mark.parametrize("table", ["quota_changes", "loan_changes"])
def test_history_can_not_be_altered(ledger: Ledger, database: str, table: str, statement: str):
    lender_and_borrower(ledger)
    ledger.loans.replace([loan(1500)], "idle")
    with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
        execute(database, statement.format(f"slicewise.{table}"))


def test_operators_and_daemons_at_once_keep_the_rules(ledger: Ledger, database: str):
    lender_and_borrower(ledger)

    def writer(number: int) -> None:
        with Ledger(database, "testing") as own:
            for turn in range(8):
                if number % 2:
                    own.tenants.change(nominal("vision", 100 * number + turn), "root", "")
                else:
                    own.loans.replace([loan(100 * turn + number + 1)], "turn")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(writer, range(6)))
    assert len(ledger.tenants.history("vision")) == 1 + 3 * 8
    assert ledger.tenants.policy()["vision"].quota.nominal_millislices == (
        ledger.tenants.history("vision")[0].update.nominal_millislices
    )
    assert broken_rules(ledger.tenants.policy(), ledger.loans.outstanding()) == []


def test_the_books_are_one_look_in_one_transaction(ledger: Ledger):
    lender_and_borrower(ledger)
    ledger.loans.replace([loan(500)], "idle", [a_recall()])
    ledger.limits.know({LimitKey("qos", "a", "grptres=billing"): KnownLimit("", "1")})
    ledger.limits.mark_compiled(1)
    ledger.charges.post([settled(1)[0]])
    ledger.budgets.enter(a_grant(), None)
    window = Window(0, "nlp", WindowKind.NOMINAL, Millislices(10))
    ledger.windows.add(window, "olga", "", "UTC")
    began: list[object] = []
    event.listen(ledger._database.engine, "begin", began.append)
    ledger_view = ledger.view(1_800_000_000.5, "UTC")
    assert (len(began), ledger_view.now_s) == (1, 1_800_000_000)
    assert (ledger_view.tenants, ledger_view.change_id) == (
        ledger.tenants.policy(),
        ledger.tenants.change_id(),
    )
    assert ledger_view.compiled_id == 1
    assert ledger_view.windows == ledger.windows.not_over() != ()
    assert (ledger_view.loans, ledger_view.recalls) == ((loan(500),), ledger.loans.recalls())
    assert (ledger_view.balances, ledger_view.rollovers) == (
        ledger.budgets.balances(),
        ledger.budgets.rollovers(),
    )
    assert ledger_view.reservations == ledger.charges.open_reservations() != ()
    assert ledger_view.known == ledger.limits.known() != {}
    assert ledger_view.policy["nlp"].quota.nominal_millislices == 10


def test_what_is_known_of_limits_is_replaced_and_forgotten(ledger: Ledger):
    key = LimitKey("account", "vision", "grptres=billing")
    other = LimitKey("qos", "slicewise_vision", "maxtresperaccount=billing")
    ledger.limits.know({key: KnownLimit("", "6000"), other: KnownLimit("5", "6000")})
    ledger.limits.know({})
    ledger.limits.know({key: KnownLimit("", "7000")})
    assert ledger.limits.known() == {key: KnownLimit("", "7000"), other: KnownLimit("5", "6000")}
    ledger.limits.forget()
    assert ledger.limits.known() == {}


# Roles


@pytest.fixture
def role(sandbox: Sandbox, database: str) -> Iterator[str]:
    """A role of its own: a name that must be quoted."""
    name = f'Ro"le{uuid4().hex}'
    quoted = '"' + name.replace('"', '""') + '"'
    server = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {quoted} LOGIN")
    yield name
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {quoted}")
        connection.execute(f"DROP ROLE {quoted}")


@pytest.fixture
def reader(sandbox: Sandbox, ledger: Ledger, database: str) -> Iterator[str]:
    """The URL of a role that only reads."""
    name = f"reader{uuid4().hex}"
    server = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
    schema_revisions.grant(database, name, "reader")
    url = postgres_engine(database).url.set(drivername="postgresql", username=name)
    yield url.render_as_string(hide_password=False)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def own(ledger: Ledger, database: str, role: str) -> Iterator[Ledger]:
    """The ledger as that role sees it."""
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    with Ledger(url.render_as_string(hide_password=False), "testing") as opened:
        yield opened


def settled(number: int) -> tuple[Charge, Charge]:
    run = Run(
        RunKey("testing", number, 100), "vision", "alice", "1", {}, Millislices(1000), "vision"
    )

    def transfer(kind: TransferKind, seconds: int, until_s: int) -> Transfer:
        return Transfer(kind, MillisliceSeconds(1000 * seconds), until_s)

    end = (transfer(TransferKind.POST, 20, 120), transfer(TransferKind.VOID, 40, 120))
    return Charge(run, 0, (transfer(TransferKind.RESERVE, 60, 160),)), Charge(run, 1, end)


def a_grant() -> BudgetEntry:
    return BudgetEntry("vision", "grant", MillisliceSeconds(500), None, "olga", "more")


def refused(action: Callable[[], object]) -> bool:
    with pytest.raises(OutsideError, match="permission denied"):
        action()
    return True


_ALTERATIONS = (
    "UPDATE {table} SET {column} = {column}",
    "DELETE FROM {table}",
    "TRUNCATE {table}",
    "ALTER TABLE {table} DISABLE TRIGGER ALL",
    "DROP TABLE {table}",
)


JOURNALS = frozenset(
    {
        "repartitions",
        "repartition_steps",
        "mig_nodes",
        "rebalance_runs",
        "rebalance_steps",
        "recalls",
        "locks",
    }
)


def all_tables_refuse(database: str, role: str, kept: frozenset[str]) -> None:
    tables = rows_of_every_table(database).keys() - kept
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    with psycopg.connect(url.render_as_string(), autocommit=True) as connection:
        for table in tables:
            column = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
                " ORDER BY attnum DESC LIMIT 1",
                (f"slicewise.{table}",),
            ).fetchone()[0]
            for statement in _ALTERATIONS:
                words = {"table": Identifier("slicewise", table), "column": Identifier(column)}
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(SQL(statement).format(**words))


HISTORY = frozenset({"history_subjects", "history_cluster", "history_tenants", "history_services"})


def keeps_history(own: Ledger) -> None:
    cluster = ClusterFigures(1, 0, 0, 0, 0, 0, 0)
    own.history.add([HistorySample(at_s, cluster, (), ()) for at_s in (0, 60)])
    own.history.sum_up(60)
    assert own.history.forget(3600, {10: 0, 60: 0, 3600: 0}, 100)
    own.history.forget_names()
    assert own.history.knows("", "")


def lacks(database: str, role: str) -> tuple[str, ...]:
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    return ledger_facts(url.render_as_string()).lacks


def a_recall() -> Recall:
    return Recall("vision", "nlp", Millislices(300), 1)


def rebalances_in_a_window(own: Ledger) -> None:
    window = Window(0, "nlp", WindowKind.CAP, Millislices(100))
    window = own.windows.add(window, "olga", "", "UTC")
    run_id = own.rebalances.open("cron", "head1")
    own.rebalances.end_step(
        own.rebalances.begin_step(run_id, StepName.LEND), StepOutcome.DONE, {}, [], ""
    )
    own.rebalances.finish(run_id, RunOutcome.DONE)
    own.windows.end(window.window_id, "olga", "")
    own.loans.replace(own.loans.outstanding(), "back", [])
    assert (own.loans.recalls(), own.windows.not_over(), len(own.loans.terms())) == ((), (), 1)


def says_that_it_does_the_trigger_s_work(database: str, role: str) -> None:
    """As ``slicewise.book`` says; then it grants another 500."""
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    entry = json.dumps({**asdict(a_grant()), "cluster": "testing"})
    with psycopg.connect(url.render_as_string()) as connection:
        connection.execute("SET slicewise.booking = 'on'")
        connection.execute("SELECT slicewise.enter_budget(%s::jsonb, NULL)", (entry,))


@pytest.mark.promise("No role of the database alters an entry of the ledger.")
def test_the_daemons_role_does_all_it_must_and_alters_no_entry(
    database: str, role: str, own: Ledger
):
    schema_revisions.grant(database, role, "daemon")
    assert lacks(database, role) == ()
    own.require_current()
    lender_and_borrower(own)
    own.loans.replace([loan(500)], "idle", [a_recall()])
    rebalances_in_a_window(own)
    own.limits.mark_compiled(own.tenants.change_id())
    own.limits.know({LimitKey("qos", "a", "grptres=billing"): KnownLimit("", "1")})
    own.limits.forget()
    own.observations.add(Observations(quota=(QuotaUse(0, "a", 1, 1, 0, 0, 0),)), 0)
    assert own.observations.since(0).quota != ()
    assert own.loans.forget(time.time(), 0, 100) is None
    assert own.repartitions.forget(time.time(), 100) == 0
    keeps_history(own)
    own.charges.set_accounted_until_s(own.charges.accounted_until_s() + 1)
    reserved, end = settled(1)
    assert len(own.charges.post([reserved])) == 1
    assert len(own.charges.open_reservations()) == 1
    assert len(own.charges.post([end])) == 1
    assert own.charges.seal() == 3
    assert own.budgets.enter(a_grant(), None)
    assert own.budgets.balances()["vision"].used == 20_000
    assert own.audit.verify().imbalance == 0
    assert len(own.audit.statement(None, 0, 1000).rows) == 1
    assert len(own.audit.export(0, 0, own.audit.newest_sealed_id(), 10)) == 3
    all_tables_refuse(
        database,
        role,
        kept=JOURNALS
        | {"compilations", "known_limits", "lost_runs", "watermarks", "api_key_uses", "allowances"}
        | {"guests"}
        | {"observed_submissions", "observed_loans", "observed_quota"}
        | HISTORY,
    )


def test_an_operators_role_sets_policy_and_budgets_and_charges_nothing(
    database: str, role: str, own: Ledger
):
    schema_revisions.grant(database, role, "operator")
    assert "to keep history" in lacks(database, role)
    lender_and_borrower(own)
    own.loans.replace([loan(500)], "idle", [a_recall()])
    rebalances_in_a_window(own)
    own.tenants.change(nominal("vision", 400), "olga", "cuts the loan")
    assert own.budgets.enter(a_grant(), None)
    says_that_it_does_the_trigger_s_work(database, role)
    assert own.budgets.balances()["vision"].granted == 1000
    assert own.audit.verify().faults == ()
    assert refused(lambda: own.charges.post([settled(1)[0]]))
    assert refused(own.charges.seal)
    assert refused(lambda: own.limits.mark_compiled(1))
    all_tables_refuse(database, role, kept=JOURNALS)


_FORGED = """
INSERT INTO slicewise.quota_changes (cluster, tenant, nominal_millislices, author, reason, {})
    OVERRIDING SYSTEM VALUE VALUES ('testing', 'vision', 7, 'olga', '', %s)
"""


@pytest.mark.parametrize("forged", [("id", 2**62), ("recorded_at", "2001-01-01")])
@pytest.mark.parametrize("duty", ["daemon", "operator"])
def test_no_role_says_itself_when_a_change_was_made(
    database: str, role: str, own: Ledger, duty: schema_revisions.Duty, forged: tuple[str, object]
):
    schema_revisions.grant(database, role, duty)
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    column, value = forged
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(url.render_as_string(), _FORGED.format(column), value)
    assert own.tenants.policy() == {}


def test_a_readers_role_only_reads(database: str, role: str, own: Ledger):
    schema_revisions.grant(database, role, "daemon")
    schema_revisions.grant(database, role, "reader")
    assert (own.tenants.policy(), own.loans.outstanding(), own.limits.known()) == ({}, (), {})
    assert own.audit.verify().imbalance == 0
    assert refused(lambda: own.tenants.change(nominal("vision", 1), "olga", ""))
    assert refused(lambda: own.charges.post([settled(1)[0]]))
    assert refused(lambda: own.budgets.enter(a_grant(), None))
    all_tables_refuse(database, role, kept=frozenset())


ADVISORY = (
    "SELECT pg_advisory_lock(key), pg_advisory_lock_shared(key) FROM unnest(ARRAY[5171717, 5171718,"
    " 5171719, hashtextextended('slicewise policy of testing', 0),"
    " hashtextextended('slicewise policy of keys of testing', 0),"
    " hashtextextended('slicewise.history_names testing', 0),"
    " hashtextextended('slicewise leader testing', 0),"
    " hashtextextended('slicewise compile testing', 0),"
    " hashtextextended('slicewise rebalance testing', 0),"
    " hashtextextended('slicewise repartition testing', 0),"
    " hashtextextended('slicewise launcher testing', 0)]) AS key"
)
LOCK_MODES = ("ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE")
HARDER_MODES = ("SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE")


def takes_what_it_can(session: psycopg.Connection, tables: Iterable[str]) -> int:
    """Lock whatever the role may, and keep it; return how many tables that were."""
    session.execute(ADVISORY)
    taken = 0
    for table in tables:
        ways = [f"LOCK TABLE slicewise.{table} IN {one} MODE" for one in LOCK_MODES + HARDER_MODES]
        for way in (*ways, f"SELECT FROM slicewise.{table} FOR KEY SHARE"):
            with suppress(psycopg.errors.InsufficientPrivilege), session.transaction():
                session.execute(way)
                taken += 1
    return taken


@pytest.mark.parametrize("duty", ["reader", "launcher", None])
def test_a_role_without_the_duty_stops_nobody_who_has_it(
    ledger: Ledger, database: str, role: str, duty: schema_revisions.Duty | None
):
    """By advisory locks, which are open to every role, it stopped writers and the daemon."""
    if duty:
        schema_revisions.grant(database, role, duty)
    tables = rows_of_every_table(database).keys() | {"alembic_version"}
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    with psycopg.connect(url.render_as_string()) as session:
        # A reader may read, so it has the lock of who reads.
        assert takes_what_it_can(session, tables) == (len(tables) if duty == "reader" else 0)
        locks = ledger.locks
        for lock in (locks.leader("a"), locks.compiling(), locks.rebalancing("a")):
            assert lock.hold()
            lock.give_up()
        lock = StateStore(database, "testing").lock("a")
        assert lock.hold()
        lock.give_up()
        ledger.tenants.change(nominal("vision", 6000), "olga", "")
        ledger.keys.add(NewKey("0" * 12, "vision", "ci", "0" * 64, "alice"))
        reserved, end = settled(1)
        assert len(ledger.charges.post([reserved])) == len(ledger.charges.post([end])) == 1
        assert ledger.charges.seal() == 3
        keeps_history(ledger)
        assert schema_revisions.upgrade(database) == (schema_revisions.head(),) * 2


def test_who_is_waited_for_too_long_is_named(ledger: Ledger, database: str):
    with psycopg.connect(database, application_name="a long psql") as other:
        other.execute("SELECT slicewise.lock_policy('keys of testing')")
        with pytest.raises(UnreachableError, match="SW-DATABASE-BUSY") as caught:
            ledger.keys.add(NewKey("0" * 12, "vision", "ci", "0" * 64, "alice"))
        role = other.info.user
    said = caught.value.refusal.message
    assert re.search(rf"role {role} \(a long psql\) has Row\w+ on locks since [\d:]+ UTC", said)


def test_the_doctor_says_who_has_had_a_lock(ledger: Ledger, database: str, role: str, reader: str):
    schema_revisions.grant(database, role, "operator")
    url = postgres_engine(database).url.set(drivername="postgresql", username=role)
    assert ledger_facts(database).holders == ()
    with psycopg.connect(url.render_as_string(), application_name="psql") as session:
        session.execute("SELECT slicewise.lock_policy('testing')")
        # Also to a role that does not see when the other's transaction began.
        for who in (database, reader):
            (found,) = ledger_facts(who).holders
            assert (found.role, found.application) == (role, "psql")
            assert found.what == "RowExclusiveLock on locks"
            assert (found.age_s is None) == (who != database)
        assert ledger_facts(database).most_connected[1] > 0
    lock = ledger.locks.rebalancing("ctl1")
    assert lock.hold()
    assert ledger_facts(database).holders == ()
    execute(database, "UPDATE slicewise.locks SET taken_at = now() - interval '2 h'")
    (found,) = ledger_facts(database).holders
    assert (found.application, found.what) == ("slicewise rebalance ctl1", "slicewise rebalance")
    assert found.age_s == pytest.approx(7200, abs=600)
    lock.give_up()


def test_the_doctor_says_who_may_change_what_was_booked(ledger: Ledger, database: str, role: str):
    for duty in ("daemon", "operator", "reader"):
        schema_revisions.grant(database, role, duty)
        assert ledger_facts(database).changers == ()
    quoted = '"' + role.replace('"', '""') + '"'
    execute(database, f"GRANT DELETE ON slicewise.transfers TO {quoted}")
    execute(database, f"GRANT UPDATE (hash) ON slicewise.seals TO {quoted}")
    assert ledger_facts(database).changers == ((quoted, "seals"), (quoted, "transfers"))
    schema_revisions.grant(database, role, "reader")
    assert ledger_facts(database).changers == ()


def test_a_role_that_was_granted_nothing_sees_nothing(own: Ledger):
    assert refused(own.tenants.policy)


@pytest.mark.parametrize("name", ["nobody", "public", "x; DROP SCHEMA slicewise", "\udcff"])
def test_roles_that_do_not_exist_are_refused(ledger: Ledger, database: str, name: str):
    with pytest.raises(InvalidInputError, match=r"SW-DATABASE-ROLE|SW-VALUE"):
        schema_revisions.grant(database, name, "reader")


def test_the_owner_can_not_be_restricted(ledger: Ledger, database: str, sandbox: Sandbox):
    owner = sandbox.state.users["slurm"].name
    with pytest.raises(InvalidInputError, match="SW-DATABASE-ROLE"):
        schema_revisions.grant(database, owner, "reader")
    ledger.tenants.policy()
