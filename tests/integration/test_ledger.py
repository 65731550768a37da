"""Charges and budgets on a real PostgreSQL: histories as in memory, and what it forbids."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from builders.ledger_world import World
from builders.settings import site_settings
from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from installed_wheel import built, installed
from lock_files import pins
from stand_ins.daemon_in_process import answer_from, record_handlers

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.cluster.runtime.database import postgres_engine
from slicewise.launcher.process import store
from slicewise.slurm_plugin.api import record_desk
from slicewise.slurm_plugin.common.record_requests import ExportRequest
from slicewise.slurm_plugin.ledger import charges, queries, schema_revisions
from slicewise.slurm_plugin.ledger.charges import _values
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tables import SCHEMA, metadata
from slicewise.slurm_plugin.quota_cycle.post_charges import post
from slicewise.slurm_plugin.rules.accounting.budgets import Amend
from slicewise.slurm_plugin.rules.accounting.lost_runs import LostRun
from slicewise.slurm_plugin.rules.accounting.overview import used_ever, used_since
from slicewise.slurm_plugin.rules.accounting.types import (
    DEBIT_CREDIT,
    Balance,
    BudgetEntry,
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Policy, Recall, TenantUpdate

OWN_SCHEMAS = {SCHEMA, "launcher"}

pytestmark = pytest.mark.integration

RESERVE, EXTEND, POST, VOID, REVERSE, WAIVE, GRANT, REVOKE, *_ = TransferKind


def a_run(job_id: int = 1, tenant: str = "vision", payer: str | None = None) -> Run:
    """On a slice of 1000 millislices, since second 100."""
    key = RunKey("testing", job_id, 100)
    gres = {"1g.10gb": 1}
    return Run(key, tenant, "alice", str(job_id), gres, Millislices(1000), payer or tenant)


def a_generation(array_job_id: int, service: str) -> GenerationRecord:
    return GenerationRecord(
        array_job_id=array_job_id,
        submitted_s=100,
        tenant="vision",
        name=service,
        author="alice",
        directives={"tenant": "vision", "name": service},
    )


def step(kind: TransferKind, slice_s: int, until_s: int) -> Transfer:
    return Transfer(kind, MillisliceSeconds(slice_s * 1000), until_s)


def reserve(run: Run) -> Charge:
    """For a minute."""
    return Charge(run, 0, (step(RESERVE, 60, 160),))


def settle(run: Run, seconds: int) -> Charge:
    """After so many of these."""
    end_s = 100 + seconds
    return Charge(run, 1, (step(POST, seconds, end_s), step(VOID, 60 - seconds, end_s)))


def a_roll(amount: int, period_start_s: int, tenant: str = "vision") -> BudgetEntry:
    return BudgetEntry(tenant, "roll", amount, period_start_s, "slicewise", "roll")


def an_adjustment(amount: int, tenant: str = "vision") -> BudgetEntry:
    return BudgetEntry(tenant, "adjust", amount, None, "olga", "it's; DROP TABLE \u2013 over")


def is_balanced(ledger: Ledger) -> bool:
    verified = ledger.audit.verify()
    assert (verified.imbalance == 0) == (verified.faults == ())
    return verified.imbalance == 0


def test_every_history_in_memory_is_one_in_postgresql(ledger: Ledger, database: str):
    numbers = count()

    class LedgerInPostgresql(World):
        def make_store(self) -> Ledger:
            self.cluster = f"simulated{next(numbers)}"
            self.opened = Ledger(database, self.cluster)
            return self.opened

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                self.opened.close()

    few = settings(
        max_examples=examples(50, nightly=6000),
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(LedgerInPostgresql, settings=few)
    assert is_balanced(ledger)


def test_migrations_make_the_columns_that_queries_name(ledger: Ledger, database: str):
    with postgres_engine(database).connect() as connection:
        options = {
            "include_schemas": True,
            "include_name": lambda name, kind, parents: kind != "schema" or name in OWN_SCHEMAS,
            "version_table_schema": SCHEMA,
            "include_object": lambda made, name, kind, *_: kind in {"table", "column"},
        }
        context = MigrationContext.configure(connection, opts=options)
        differences = chain.from_iterable(
            found if isinstance(found, list) else [found]
            for found in compare_metadata(context, [metadata, store.metadata])
        )
        # All else is in the migrations alone.
        of_the_migrations = {"modify_nullable", "remove_table_comment", "remove_table"}
        assert [found for found in differences if found[0] not in of_the_migrations] == []


def test_what_a_tenant_pays_for_is_found_by_an_index(ledger: Ledger, database: str):
    ledger.charges.post([reserve(a_run(number, f"tenant{number}")) for number in range(200)])
    use = queries.settled_use_paid_by("testing", "tenant7", 0)
    with postgres_engine(database).connect() as connection:
        statement = use.compile(connection, compile_kwargs={"literal_binds": True})
        connection.exec_driver_sql("ANALYZE slicewise.runs")
        connection.exec_driver_sql("SET enable_seqscan = off")
        plan = connection.exec_driver_sql(f"EXPLAIN {statement}").scalars().all()
        assert any("ix_runs_payer" in line for line in plan), plan


def test_a_page_of_a_statement_reads_nothing_of_the_pages_before(ledger: Ledger, database: str):
    runs = (replace(a_run(), key=RunKey("testing", 1, start_s)) for start_s in range(3000))
    ledger.charges.post([reserve(run) for run in runs])
    with postgres_engine(database).connect() as connection:
        # As with very many runs, which make each of these dear.
        for kind in ("seqscan", "bitmapscan", "sort"):
            connection.exec_driver_sql(f"SET enable_{kind} = off")
        connection.exec_driver_sql("ANALYZE slicewise.runs")
        blocks = []
        for after_s in (0, 2980):
            after = ("vision", after_s, 0)
            page = queries.statement_page_of("testing", "vision", 0, after, None, accounts=None)
            found = page.limit(10).compile(connection, compile_kwargs={"literal_binds": True})
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {found}"
            (root,) = connection.exec_driver_sql(explained).scalar_one()
            blocks.append(_blocks(root["Plan"], "ix_runs_tenant"))
    first, last = blocks
    assert 0 < last < 2 * first, blocks


def _blocks(node: Mapping[str, Any], index: str) -> int:
    """Blocks that a plan has read by an index."""
    if node.get("Index Name") == index:
        return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])
    return sum(_blocks(below, index) for below in node.get("Plans", ()))


def test_the_watermark_begins_now_and_never_goes_back(ledger: Ledger):
    begin_s = ledger.charges.accounted_until_s()
    assert begin_s > 1_700_000_000
    ledger.charges.set_accounted_until_s(begin_s + 5)
    ledger.charges.set_accounted_until_s(begin_s - 5)
    assert ledger.charges.accounted_until_s() == begin_s + 5
    # Written by a clock that was ahead.
    ledger.charges.set_accounted_until_s(begin_s + 86_400)
    ledger.charges.set_accounted_until_s(begin_s + 10)
    assert ledger.charges.accounted_until_s() == begin_s + 10


@pytest.mark.promise("A run is charged once, however often it is booked.")
def test_a_charge_applies_once(ledger: Ledger):
    run = a_run()
    assert ledger.charges.post([reserve(run)]) == {run.key}
    assert ledger.charges.post([reserve(run)]) == frozenset()
    assert [one.reserved_millislice_s for one in ledger.charges.open_reservations()] == [60_000]
    assert ledger.charges.post([settle(run, 10)]) == {run.key}
    assert ledger.charges.post([settle(run, 20), reserve(run)]) == frozenset()
    (row,) = ledger.audit.statement("vision", 0, 1000).rows
    assert (row.used_millislice_s, row.reserved_millislice_s, row.end_s) == (10_000, 0, 110)
    assert is_balanced(ledger)


def test_a_run_is_named_by_the_service_of_its_array(ledger: Ledger):
    tasks = {1: "814_0", 2: "814_7", 3: "815_0", 4: "814", 5: "odd"}
    runs = [replace(a_run(number), task=task) for number, task in tasks.items()]
    other = replace(a_run(6, "nlp"), task="814_1")
    ledger.charges.post([reserve(run) for run in (*runs, other)])
    ledger.charges.post([settle(runs[1], 10)])
    named = [a_generation(814, "bert"), a_generation(816, "chat")]
    for _ in range(2):
        ledger.generations.record(named)
    found = {row.run.task: row.service for row in ledger.audit.statement(None, 0, 1000).rows}
    assert found == {
        "814_0": "bert",
        "814_7": "bert",
        "814": "bert",
        "815_0": "",
        "odd": "",
        "814_1": "",
    }
    assert ledger.audit.used_of_budget("nlp", 0, 110) == 10_000
    ledger.generations.record([a_generation(814, "again")])
    page = ledger.audit.statement_page("vision", 0, 1000, None, 9)
    assert [row.service for row in page if row.run.task == "814_0"] == ["again"]


def test_nothing_to_charge_is_no_error(ledger: Ledger):
    assert ledger.charges.post([]) == frozenset()


def test_what_is_posted_before_the_end_is_kept_apart(ledger: Ledger):
    run = a_run()
    ledger.charges.post([reserve(run), reserve(a_run(2))])
    ledger.charges.post([Charge(run, 1, (step(POST, 20, 120),))])
    held = ledger.charges.open_reservations()[0]
    assert (held.reserved_millislice_s, held.posted_millislice_s) == (40_000, 20_000)
    assert held.transfers == 2
    (row, _) = ledger.audit.statement("vision", 0, 130).rows
    assert (row.used_millislice_s, row.reserved_millislice_s, row.end_s) == (30_000, 30_000, None)
    ended_before = (step(REVERSE, 5, 115), step(VOID, 45, 115))
    ledger.charges.post([Charge(run, 2, ended_before)])
    (row, _) = ledger.audit.statement("vision", 0, 130).rows
    assert (row.used_millislice_s, row.reserved_millislice_s, row.end_s) == (15_000, 0, 115)
    assert is_balanced(ledger)


def test_who_pays_and_who_used_it(ledger: Ledger):
    run = a_run(1, "vision", payer="science")
    failed = a_run(2, "nlp", payer="science")
    waiver = (
        step(POST, 20, 120),
        step(REVERSE, 20, 130),
        step(WAIVE, 30, 130),
        step(VOID, 60, 130),
    )
    ledger.charges.post([reserve(run), reserve(failed)])
    ledger.charges.post([settle(run, 10), Charge(failed, 1, waiver)])
    assert ledger.budgets.balances() == {
        "nlp": a_balance("nlp", waived=30_000),
        "science": a_balance("science", available=-10_000),
        "vision": a_balance("vision", used=10_000),
    }
    rows = ledger.audit.statement(None, 0, 0).rows
    assert [(row.run.tenant, row.run.payer, row.used_millislice_s) for row in rows] == [
        ("nlp", "science", 0),
        ("vision", "science", 10_000),
    ]
    assert [row.waived_millislice_s for row in rows] == [30_000, 0]
    assert ledger.charges.charged_tenants() == {"nlp", "vision"}
    assert is_balanced(ledger)


def a_balance(tenant: str, **amounts: int) -> Balance:
    kinds = ("granted", "available", "reserved", "used", "waived")
    return Balance(tenant, *(MillisliceSeconds(amounts.get(kind, 0)) for kind in kinds))


def test_a_statement_of_a_time_leaves_out_what_ended_before(ledger: Ledger):
    runs = [a_run(number) for number in range(3)]
    ledger.charges.post([reserve(run) for run in runs])
    ledger.charges.post([settle(runs[0], 10), settle(runs[1], 20)])
    assert [row.run.key.job_id for row in ledger.audit.statement(None, 120, 130).rows] == [1, 2]
    assert ledger.audit.statement("nlp", 0, 130).rows == ()


def test_a_budget_rolls_once_per_period(ledger: Ledger):
    first, second = a_roll(500, 1000), a_roll(-200, 2000)
    assert ledger.budgets.enter(first, 0)
    assert not ledger.budgets.enter(first, 500)
    assert ledger.budgets.enter(second, 500)
    assert not ledger.budgets.enter(first, None)
    assert ledger.budgets.enter(a_roll(0, 3000), 300)
    assert ledger.budgets.rollovers() == {"vision": 3000}
    assert ledger.budgets.balances() == {"vision": a_balance("vision", granted=300, available=300)}
    assert is_balanced(ledger)


def test_a_roll_of_a_budget_that_was_changed_is_not_booked(ledger: Ledger):
    month = Budget(Period.MONTH, MillisliceSeconds(500))
    was = ledger.tenants.change(TenantUpdate("vision", budget=month), "root", "").change_id
    assert ledger.tenants.change_id() == was
    now = ledger.tenants.change(TenantUpdate("vision", budget="off"), "root", "").change_id
    assert not ledger.budgets.enter(a_roll(500, 1000), 0, was)
    assert ledger.budgets.rollovers() == {}
    assert ledger.budgets.enter(a_roll(500, 1000), 0, now)


def test_a_budget_is_renewed_if_it_was_taken_away_after_its_last_roll(ledger: Ledger):
    budget = TenantUpdate("vision", budget=Budget(Period.MONTH, MillisliceSeconds(500)))
    ledger.tenants.change(budget, "root", "")
    ledger.budgets.enter(a_roll(500, 1000), 0)
    ledger.tenants.change(budget, "root", "")
    assert ledger.budgets.renewed() == {}
    ledger.tenants.change(TenantUpdate("vision", removed=True), "root", "")
    assert ledger.budgets.renewed() == {}
    again = ledger.tenants.change(budget, "root", "")
    ledger.tenants.change(budget, "root", "")
    assert ledger.budgets.renewed() == {"vision": again.at_s}
    ledger.budgets.enter(a_roll(0, 2000), 500)
    assert ledger.budgets.renewed() == {}


def test_a_budgets_rule_changes_with_its_running_period_or_not_at_all(ledger: Ledger):
    more = TenantUpdate("vision", budget=Budget(Period.MONTH, MillisliceSeconds(700)))
    ledger.budgets.enter(a_roll(500, 1000), 0)
    seen: list[tuple[Budget | None, int | None, int]] = []

    def amend(was: Budget | None, last_rollover_s: int | None, unspent_amount: int) -> BudgetEntry:
        seen.append((was, last_rollover_s, unspent_amount))
        if len(seen) == 1:
            ledger.budgets.enter(an_adjustment(-100), None)
        return an_adjustment(200)

    assert ledger.tenants.set_budget(more, "root", "", amend) == 200
    assert seen == [(None, 1000, 500), (None, 1000, 400)]
    assert ledger.budgets.balances() == {"vision": a_balance("vision", granted=600, available=600)}

    def fail(*_: object) -> BudgetEntry:
        return an_adjustment(2**63)

    before = ledger.tenants.policy()
    with pytest.raises(OutsideError):
        ledger.tenants.set_budget(TenantUpdate("vision", budget="off"), "root", "", fail)
    assert ledger.tenants.policy() == before


def test_a_budget_entry_is_booked_on_what_it_was_decided_on_or_not_at_all(
    ledger: Ledger, database: str
):
    run = a_run(1, "nlp", payer="vision")
    ledger.charges.post([reserve(run)])
    ledger.charges.post([settle(run, 10)])
    assert not ledger.budgets.enter(an_adjustment(7), 0)
    assert ledger.budgets.entries(None, 0) == ()
    assert ledger.budgets.enter(an_adjustment(7), -10_000)
    assert ledger.budgets.enter(an_adjustment(-9), None)
    with Ledger(database, "another") as another:
        assert another.budgets.entries(None, 0) == ()
    entries = ledger.budgets.entries("vision", 0)
    assert [replace(entry, at_s=None) for entry in entries] == [
        an_adjustment(7),
        an_adjustment(-9),
    ]
    assert ledger.budgets.entries("vision", (entries[0].at_s or 0) + 60) == ()
    assert ledger.budgets.entries("nlp", 0) == ()


def test_of_two_rolls_at_once_one_is_booked(ledger: Ledger):
    with ThreadPoolExecutor(4) as pool:
        booked = list(pool.map(lambda _: ledger.budgets.enter(a_roll(500, 1000), None), range(8)))
    assert sorted(booked) == [False] * 7 + [True]
    assert ledger.budgets.balances()["vision"].available == 500


@pytest.mark.promise("An export of the ledger has every transfer in order.")
def test_an_export_has_every_transfer_in_order(ledger: Ledger):
    ledger.charges.post([reserve(a_run(1, "vision", payer="science"))])
    ledger.budgets.enter(an_adjustment(-5, "science"), None)
    ledger.charges.post([settle(a_run(1, "vision", payer="science"), 10)])
    assert ledger.audit.newest_sealed_id() == 0
    ledger.charges.seal()
    until_id = ledger.audit.newest_sealed_id()
    rows = ledger.audit.export(0, 0, until_id, 10)
    assert rows[-1]["id"] == until_id
    columns = ("tenant", "payer", "task", "kind", "debit", "credit", "amount")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("vision", "science", "1", "reserve", "available", "reserved", 60_000),
        ("science", "science", None, "revoke", "available", "granted", 5),
        ("vision", "science", "1", "post", "reserved", "used", 10_000),
        ("vision", "science", "1", "void", "reserved", "available", 50_000),
    ]
    assert [row["until_s"] for row in rows] == [160, None, 110, 110]
    assert {(row["cluster"], row["meter"]) for row in rows} == {("testing", SLICES.name)}
    assert ledger.audit.export(2**40, 0, until_id, 10) == ()
    first = ledger.audit.export(0, 0, until_id, 3)
    assert (*first, *ledger.audit.export(0, int(str(first[-1]["id"])), until_id, 3)) == rows
    ledger.budgets.enter(an_adjustment(-7, "science"), None)
    assert ledger.audit.export(0, 0, until_id, 10) == rows


def test_an_export_lacks_nothing_that_one_call_does_not_seal(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(charges, "_SEALED_AT_ONCE", 1)
    monkeypatch.setattr(charges, "_BATCHES", 1)
    monkeypatch.setattr(record_desk, "MOST_SEALED", 1)
    answer_from(monkeypatch, record_handlers(site_settings(), ledger))
    for number in range(5):
        ledger.charges.post([reserve(a_run(number + 1))])
    answer = DaemonClient(site_settings().daemon).call(ExportRequest())
    assert [row["job_id"] for row in answer.rows] == [1, 2, 3, 4, 5]
    assert answer.more is None


def test_what_is_judged_wrong_of_several_changes_undoes_them_all(ledger: Ledger):
    """The judge sees what an operator has set since the caller looked."""
    ledger.tenants.change(TenantUpdate("nlp", nominal_millislices=Millislices(4000)), "olga", "")
    updates = (TenantUpdate("vision", nominal_millislices=Millislices(3000)),)
    seen: list[tuple[set[str], set[str]]] = []

    def no_budget(tenant: str, _: Budget) -> Amend:
        raise AssertionError(tenant)

    def judge(before: Policy, after: Policy) -> None:
        seen.append(({*before}, {*after}))
        raise InvalidInputError(Code.QUOTA_CAPACITY, "no")

    with pytest.raises(InvalidInputError, match="SW-QUOTA-CAPACITY"):
        ledger.tenants.change_together(updates, "otto", "", no_budget, judge)
    assert seen == [({"nlp"}, {"nlp", "vision"})]
    assert set(ledger.tenants.policy()) == {"nlp"}
    assert ledger.tenants.history("vision") == ()


def test_writers_at_the_same_time_charge_each_run_once(ledger: Ledger, database: str):
    runs = [a_run(number, f"tenant{number % 3}", f"payer{number % 2}") for number in range(40)]

    def writer(number: int) -> int:
        own_order = runs if number % 2 else runs[::-1]
        with Ledger(database, "testing") as own:
            return sum(
                len(own.charges.post([reserve(run)])) + len(own.charges.post([settle(run, 9)]))
                for run in own_order
            )

    with ThreadPoolExecutor(6) as pool:
        done = sum(pool.map(writer, range(6)))
    assert done == 2 * len(runs)
    assert ledger.charges.open_reservations() == ()
    assert (
        sum(row.used_millislice_s for row in ledger.audit.statement(None, 0, 0).rows) == 40 * 9000
    )
    assert is_balanced(ledger)


def test_whole_batches_of_the_same_tenants_never_wait_for_each_other(ledger: Ledger, database: str):
    def writer(number: int) -> int:
        ids = range(number * 1000, number * 1000 + 60)
        runs = [a_run(each, f"tenant{each * (number + 1) % 7}", f"payer{each % 3}") for each in ids]
        with Ledger(database, "testing") as own:
            done = len(own.charges.post([reserve(run) for run in runs]))
            return done + len(own.charges.post([settle(run, 9) for run in reversed(runs)]))

    def budgets(number: int) -> int:
        names = [f"payer{each % 3}" for each in range(60)]
        return sum(ledger.budgets.enter(an_adjustment(1, name), None) for name in names[::number])

    with ThreadPoolExecutor(6) as pool:
        booked = [pool.submit(budgets, number) for number in (1, -1)]
        assert list(pool.map(writer, range(6))) == [120] * 6
        assert [one.result() for one in booked] == [60, 60]
    assert is_balanced(ledger)


def test_the_same_batch_from_two_writers_is_booked_once(ledger: Ledger, database: str):
    runs = [a_run(number, f"tenant{number % 5}") for number in range(200)]

    def writer(number: int) -> int:
        order = runs if number % 2 else runs[::-1]
        with Ledger(database, "testing") as own:
            done = len(own.charges.post([reserve(run) for run in order]))
            return done + len(own.charges.post([settle(run, 9) for run in order]))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(writer, range(4))) == 400
    assert is_balanced(ledger)


def test_all_of_a_transaction_or_nothing(ledger: Ledger):
    good, bad = a_run(1), a_run(2)
    overdrawn = Charge(bad, 1, (step(POST, 61, 200),))
    ledger.charges.post([reserve(bad)])
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.charges.post([reserve(good), overdrawn])
    assert [one.key for one in ledger.charges.open_reservations()] == [bad.key]
    assert is_balanced(ledger)


@pytest.mark.parametrize(
    "steps",
    [
        (step(POST, 61, 161), step(EXTEND, 10, 170)),
        (step(VOID, 60, 130), step(EXTEND, 10, 170)),
        (step(REVERSE, 1, 130),),
        (step(POST, 10, 110), step(REVERSE, 11, 110)),
        (step(REVERSE, 1, 110), step(POST, 10, 110)),
        (step(POST, 0, 100),),
        (step(GRANT, 5, 100),),
        (step(RESERVE, 5, 165),),
    ],
    ids=lambda steps: " ".join(f"{one.kind}-{one.amount}" for one in steps),
)
def test_each_step_of_a_charge_must_be_possible_in_its_turn(
    ledger: Ledger, steps: tuple[Transfer, ...]
):
    ledger.charges.post([reserve(a_run())])
    before = ledger.budgets.balances()
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.charges.post([Charge(a_run(), 1, steps)])
    assert ledger.budgets.balances() == before
    assert is_balanced(ledger)


def test_a_settled_run_takes_nothing_more(ledger: Ledger):
    ledger.charges.post([reserve(a_run())])
    ledger.charges.post([settle(a_run(), 10)])
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.charges.post([Charge(a_run(), 3, (step(EXTEND, 10, 170),))])
    assert is_balanced(ledger)


def test_a_charge_beyond_what_a_balance_holds_keeps_no_other_back(ledger: Ledger):
    ledger.charges.post(
        [Charge(a_run(9), 0, (Transfer(RESERVE, MillisliceSeconds(2**63 - 1), 160),))]
    )
    charges = [reserve(a_run(number, "vision" if number == 5 else "nlp")) for number in range(8)]
    posted = post(ledger, charges)
    assert {key.job_id for key in posted.refused} == {5}
    assert {key.job_id for key in posted.booked} == {0, 1, 2, 3, 4, 6, 7}
    assert is_balanced(ledger)


def test_an_entry_of_one_key_is_booked_once_however_often_it_is_asked_for(
    ledger: Ledger, database: str
):
    entry = replace(an_adjustment(5), key="ticket-814")
    with ThreadPoolExecutor(8) as pool:
        booked = list(pool.map(lambda _: ledger.budgets.enter(entry, None), range(8)))
    assert booked == [True] * 8
    (found,) = ledger.budgets.entries(None, 0)
    assert replace(found, at_s=None) == entry
    assert ledger.budgets.balances() == {"vision": a_balance("vision", granted=5, available=5)}
    for other in (replace(entry, tenant="nlp"), replace(entry, amount=6)):
        with pytest.raises(InvalidInputError, match="SW-BUDGET-KEY"):
            ledger.budgets.enter(other, None)
    with Ledger(database, "another") as another:
        assert another.budgets.enter(entry, None)
    assert is_balanced(ledger)


def test_sums_beyond_what_a_balance_holds_are_refused(ledger: Ledger):
    most = 2**63 - 1
    assert ledger.budgets.enter(an_adjustment(most), None)
    with pytest.raises(OutsideError):
        ledger.budgets.enter(an_adjustment(1), None)
    with pytest.raises(OutsideError):
        ledger.budgets.enter(an_adjustment(2 * most), None)
    assert ledger.budgets.balances() == {
        "vision": a_balance("vision", granted=most, available=most)
    }
    assert is_balanced(ledger)


@pytest.mark.parametrize(
    "wrong",
    [{"tenant": ""}, {"amount": 0}, {"kind": "gift"}, {"period_start_s": 5}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_bad_budget_entry_writes_nothing(ledger: Ledger, wrong: Mapping[str, object]):
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.budgets.enter(replace(an_adjustment(5), **wrong), None)
    assert (ledger.budgets.entries(None, 0), ledger.budgets.balances()) == ((), {})


def test_names_are_never_sql(ledger: Ledger):
    name = "'; DROP TABLE slicewise.runs; --\\"
    run = replace(a_run(1, name), user=name, task=name, gres={name: 1})
    ledger.charges.post([reserve(run)])
    (held,) = ledger.charges.open_reservations()
    assert (held.tenant, held.user, held.task, held.gres) == (name, name, name, {name: 1})


@pytest.mark.parametrize("name", ["a\x00b", "\udcff"])
def test_what_is_no_text_is_refused(ledger: Ledger, name: str):
    with pytest.raises(OutsideError):
        ledger.charges.post([reserve(a_run(1, name))])
    with pytest.raises(OutsideError):
        ledger.budgets.enter(an_adjustment(5, name), None)
    assert ledger.audit.verify().transfers == 0


def execute(database: str, statement: str) -> None:
    """As a user who goes around the program."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("table", ["accounts", "budget_entries", "runs", "transfers"])
def test_entries_can_not_be_altered(ledger: Ledger, database: str, table: str):
    ledger.charges.post([reserve(a_run())])
    ledger.budgets.enter(an_adjustment(5), None)
    for statement in (
        "UPDATE slicewise.{} SET id = DEFAULT",
        "DELETE FROM slicewise.{}",
        "TRUNCATE slicewise.{} CASCADE",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            execute(database, statement.format(table))
    assert ledger.audit.verify().transfers == 2


_INSERT = """
INSERT INTO slicewise.transfers
    (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
SELECT r.id, {number}, '{kind}', d.id, c.id, {amount}, 1
  FROM slicewise.runs r, slicewise.accounts d, slicewise.accounts c
 WHERE r.task = '{task}' AND d.tenant || ' ' || d.kind = '{debit}'
   AND c.tenant || ' ' || c.kind = '{credit}'
"""


def by_hand(kind: str, debit: str, credit: str, **other: object) -> str:
    values = {"number": 3, "amount": 1000, "task": "1"} | other
    return _INSERT.format(kind=kind, debit=debit, credit=credit, **values)


_INSERT_OF_ENTRY = """
INSERT INTO slicewise.transfers
    (budget_entry_id, kind, debit_account_id, credit_account_id, amount)
SELECT b.id, '{kind}', d.id, c.id, 5000
  FROM slicewise.budget_entries b, slicewise.accounts d, slicewise.accounts c
 WHERE b.kind = '{entry}' AND (d.kind, d.tenant) = ('{debit}', 'science')
   AND (c.kind, c.tenant) = ('{credit}', 'science')
"""


def of_entry(entry: str, kind: str, debit: str, credit: str) -> str:
    return _INSERT_OF_ENTRY.format(entry=entry, kind=kind, debit=debit, credit=credit)


@pytest.fixture
def paid_by_science(ledger: Ledger) -> Ledger:
    """Run 1 of vision, which science pays, with 40 s reserved and 20 s posted; run 2 of nlp.

    Science had 5 slice-seconds granted by an adjustment, nothing by a roll.
    """
    run = a_run(1, "vision", payer="science")
    ledger.charges.post([reserve(run), reserve(a_run(2, "nlp"))])
    ledger.charges.post([Charge(run, 1, (step(POST, 20, 120),))])
    ledger.budgets.enter(an_adjustment(5000, "science"), None)
    ledger.budgets.enter(a_roll(0, 1000, "science"), None)
    return ledger


def test_a_tenant_s_statement_shows_what_its_budget_paid_for(paid_by_science: Ledger):
    students, own = a_run(3, "students", "science"), a_run(4, "science")
    paid_by_science.charges.post([reserve(students), reserve(own)])
    paid_by_science.charges.post([settle(students, 10), settle(own, 20)])
    audit = paid_by_science.audit
    rows = audit.statement("science", 0, 130).rows
    assert {row.run.key.job_id for row in rows} == {1, 3, 4}
    used = sum(row.used_millislice_s for row in rows)
    assert used == audit.used_of_budget("science", 0, 130) == 60_000
    # The account's own statement has the run, too, whoever paid.
    assert [row.run.key.job_id for row in audit.statement("students", 0, 130).rows] == [3]
    assert audit.statement_page("science", 0, 130, None, 9) == rows
    (last,) = audit.statement_page("science", 0, 130, ("students", 0, 0), 1)
    assert last.run.tenant == "students"
    page = audit.statement_page("science", 0, 130, None, 9, accounts={"science", "nlp"})
    assert [row.run.tenant for row in page] == ["science"]


@pytest.mark.promise("The ledger is double-entry: statements add up to its balances.")
def test_a_statement_of_a_payer_adds_up_to_what_its_balances_say_was_ever_used(
    paid_by_science: Ledger,
):
    waived, own = a_run(3, "vision", payer="science"), a_run(4, "science")
    paid_by_science.charges.post([reserve(waived), reserve(own)])
    end = (step(WAIVE, 7, 107), step(VOID, 60, 107))
    paid_by_science.charges.post([Charge(waived, 1, end), settle(own, 10)])
    ledger_view = paid_by_science.view(130, "UTC")
    rows = paid_by_science.audit.statement(None, 0, 130).rows
    assert used_ever(ledger_view, "science") == used_since(rows, "science", 0) == 40_000
    assert used_ever(ledger_view, "unknown") == 0


@pytest.mark.parametrize(
    ("since_s", "used"), [(0, 60_000), (105, 45_000), (110, 30_000), (111, 28_000), (130, 0)]
)
def test_use_of_a_budget_adds_up_as_in_a_statement(
    paid_by_science: Ledger, since_s: int, used: int
):
    ended, longer, other = a_run(3, "science"), a_run(4, "vision", "science"), a_run(5, "vision")
    paid_by_science.charges.post([reserve(run) for run in (ended, longer, other)])
    ends = [settle(ended, 10), settle(longer, 20), settle(other, 30)]
    paid_by_science.charges.post(ends)
    rows = paid_by_science.audit.statement(None, since_s, 130).rows
    found = paid_by_science.audit.used_of_budget("science", since_s, 130)
    assert found == used_since(rows, "science", since_s) == used


@pytest.mark.parametrize(
    ("transfer", "reserved_s", "posted_s"),
    [
        (("extend", "science available", "science reserved"), 41, 20),
        (("post", "science reserved", "vision used"), 39, 21),
        (("void", "science reserved", "science available"), 39, 20),
        (("reverse", "vision used", "science reserved"), 41, 19),
        (("waive", "vision operator", "vision waived"), 40, 20),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_correct_transfer_by_hand_is_taken(
    paid_by_science: Ledger,
    database: str,
    transfer: tuple[str, str, str],
    reserved_s: int,
    posted_s: int,
):
    execute(database, by_hand(*transfer))
    held = paid_by_science.charges.open_reservations()[0]
    expected = (reserved_s * 1000, posted_s * 1000)
    assert (held.reserved_millislice_s, held.posted_millislice_s) == expected
    assert is_balanced(paid_by_science)


WRONG = [
    by_hand("post", "science available", "vision used"),
    by_hand("post", "science reserved", "science available"),
    by_hand("post", "vision used", "science reserved"),
    by_hand("post", "science reserved", "nlp used"),
    by_hand("void", "science reserved", "vision used"),
    by_hand("void", "science reserved", "nlp available"),
    by_hand("extend", "science reserved", "science available"),
    by_hand("extend", "nlp available", "nlp reserved"),
    by_hand("reverse", "science reserved", "vision used"),
    by_hand("reverse", "nlp used", "science reserved"),
    by_hand("reverse", "vision used", "science reserved", amount=20_001),
    by_hand("waive", "vision operator", "vision used"),
    by_hand("waive", "science reserved", "vision waived"),
    by_hand("waive", "nlp operator", "vision waived"),
    by_hand("waive", "vision operator", "nlp waived"),
    by_hand("waive", "vision operator", "vision waived", amount=40_001),
    by_hand("grant", "science granted", "science available"),
    by_hand("revoke", "science available", "science granted", number="NULL"),
    by_hand("gift", "science available", "vision used"),
    by_hand("reserve", "science available", "science reserved"),
    by_hand("reserve", "science available", "science reserved", number=1),
    by_hand("post", "science reserved", "vision used", number=1),
    by_hand("post", "science reserved", "vision used", number=2),
    by_hand("post", "science reserved", "vision used", number="NULL"),
    by_hand("post", "science reserved", "vision used", amount=0),
    by_hand("post", "science reserved", "vision used", amount=-5),
    by_hand("post", "science reserved", "vision used", amount=40_001),
    by_hand("post", "science reserved", "vision used", task="2"),
    "INSERT INTO slicewise.open_reservations SELECT id, 0 FROM slicewise.runs",
    "UPDATE slicewise.open_reservations SET reserved = 0",
    "UPDATE slicewise.open_reservations SET posted = -1",
    "UPDATE slicewise.balances SET debits = -1",
    of_entry("adjust", "grant", "granted", "available"),
    of_entry("roll", "grant", "granted", "available"),
    of_entry("roll", "revoke", "available", "granted"),
    of_entry("roll", "extend", "available", "reserved"),
    of_entry("roll", "void", "reserved", "available"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_database_itself_refuses_what_is_wrong(
    paid_by_science: Ledger, database: str, wrong: str
):
    before = paid_by_science.budgets.balances(), paid_by_science.charges.open_reservations()
    with pytest.raises(psycopg.errors.IntegrityError):
        execute(database, wrong)
    assert (
        paid_by_science.budgets.balances(),
        paid_by_science.charges.open_reservations(),
    ) == before
    assert is_balanced(paid_by_science)


def test_a_budget_entry_by_hand_brings_its_transfer(ledger: Ledger, database: str):
    execute(
        database,
        "INSERT INTO slicewise.budget_entries"
        " (cluster, tenant, meter, kind, amount, author, reason)"
        " VALUES ('testing', 'vision', 'slice-seconds', 'grant', 7, 'olga', '')",
    )
    assert ledger.budgets.balances() == {"vision": a_balance("vision", granted=7, available=7)}
    assert is_balanced(ledger)


_SHIFT = """
    UPDATE balances b SET debits = b.debits {sign} m.amount
      FROM moved m WHERE b.account_id = m.debit_account_id;
    UPDATE balances b SET credits = b.credits {sign} m.amount
      FROM moved m WHERE b.account_id = m.credit_account_id;
"""
_MOVED = """CREATE TEMP TABLE moved AS
    SELECT debit_account_id, credit_account_id, sum(amount) AS amount
      FROM transfers WHERE {which} GROUP BY 1, 2;"""
_OF_RUN = "run_id = (SELECT id FROM runs WHERE task = '{task}')"
_DELETE = "DELETE FROM transfers WHERE {which};"
_UPDATE = "UPDATE transfers SET {change} WHERE {which};"


def gone(which: str, *others: str) -> str:
    """Transfers are deleted, and balances are as if they had never been; and what else."""
    back = _SHIFT.format(sign="-")
    return " ".join((_MOVED.format(which=which), back, _DELETE.format(which=which), *others))


def altered(which: str, change: str, *others: str) -> str:
    """Transfers are changed, and balances are as if they had always been so; and what else."""
    moved, update = _MOVED.format(which=which), _UPDATE.format(which=which, change=change)
    away, back = _SHIFT.format(sign="-"), _SHIFT.format(sign="+")
    return " ".join((moved, away, "DROP TABLE moved;", update, moved, back, *others))


def of_run(task: int) -> str:
    return _OF_RUN.format(task=task)


TAMPERINGS = [
    "UPDATE open_reservations SET reserved = reserved + 7",
    "UPDATE open_reservations SET posted = posted + 7",
    "DELETE FROM open_reservations WHERE run_id = (SELECT min(id) FROM runs)",
    "INSERT INTO open_reservations SELECT id, 1 FROM runs WHERE task = '2'",
    "UPDATE balances SET debits = debits + 1",
    "UPDATE balances SET credits = debits, debits = credits",
    "DELETE FROM balances WHERE debits > 0",
    "UPDATE transfers SET amount = amount + 1 WHERE number = 1",
    "UPDATE transfers SET kind = 'void' WHERE kind = 'post'",
    "DELETE FROM transfers WHERE kind = 'void'",
    "DELETE FROM transfers WHERE kind = 'grant'",
    """UPDATE transfers SET credit_account_id = (
           SELECT id FROM accounts WHERE tenant = 'nlp' AND kind = 'reserved'
       ) WHERE kind = 'reserve'""",
    "UPDATE budget_entries SET amount = 6",
    "UPDATE accounts SET meter = 'tokens' WHERE kind = 'used'",
    "UPDATE accounts SET meter = 'tokens' WHERE kind = 'granted'",
    "UPDATE budget_entries SET meter = 'tokens'",
    "UPDATE runs SET meter = 'tokens', cost_millislices = 0 WHERE task = '2'",
    "UPDATE budget_entries SET tenant = 'nlp'",
    "UPDATE runs SET payer = 'nlp' WHERE task = '1'",
    "UPDATE runs SET tenant = 'nlp' WHERE task = '1'",
    "UPDATE loans SET amount_millislices = 501",
    "DELETE FROM loans",
    "INSERT INTO loans VALUES ('testing', 'nlp', 'vision', 5)",
]
"""What balances, reservations and loans don't follow from."""

TAMPERINGS_REPLAYED = [
    # Of a settled run.
    "UPDATE runs SET cost_millislices = 900 WHERE task = '2'",
    "UPDATE runs SET start_s = start_s - 1 WHERE task = '2'",
    "UPDATE transfers SET until_s = until_s + 1 WHERE number = 3",
    altered(
        f"{of_run(2)} AND kind IN ('reserve', 'post')",
        "amount = amount - 1000",
    ),
    altered(
        f"{of_run(2)} AND kind IN ('post', 'void')",
        "amount = amount + CASE kind WHEN 'post' THEN -1000 ELSE 1000 END",
    ),
    "UPDATE transfers SET number = number + 5 WHERE number > 1",
    gone(of_run(2)),
    gone(of_run(2), "DELETE FROM runs WHERE task = '2'"),
    gone(f"number > 1 AND {of_run(2)}"),
    # Of runs that still run.
    "UPDATE runs SET user_name = 'mallory' WHERE task = '1'",
    "UPDATE runs SET gres = '{}' WHERE task = '1'",
    "UPDATE runs SET job_id = 77 WHERE task = '1'",
    gone(
        of_run(3),
        "DELETE FROM open_reservations WHERE run_id = (SELECT max(id) FROM runs);",
        "DELETE FROM runs WHERE task = '3'",
    ),
    "UPDATE transfers SET recorded_at = recorded_at - interval '1 day'",
    # Of a budget.
    gone("budget_entry_id IS NOT NULL", "DELETE FROM budget_entries"),
    altered(
        "kind = 'grant'",
        "amount = 9",
        "UPDATE budget_entries SET amount = 9",
    ),
    "UPDATE budget_entries SET author = 'mallory'",
    "UPDATE budget_entries SET reason = 'as agreed'",
    # Of the chain.
    "DELETE FROM seals WHERE id = (SELECT min(id) FROM seals)",
    r"UPDATE seals SET hash = '\x00' WHERE id = (SELECT max(id) FROM seals)",
    "UPDATE seals SET last_transfer_id = last_transfer_id - 1",
    gone(
        "id > (SELECT min(last_transfer_id) FROM seals)",
        "DELETE FROM budget_entries;",
        "INSERT INTO open_reservations SELECT id, 60000 FROM runs WHERE task = '2';",
        "DELETE FROM seals WHERE id > (SELECT min(id) FROM seals)",
    ),
    gone(
        "true",
        "DELETE FROM budget_entries; DELETE FROM runs; DELETE FROM open_reservations;",
        "DELETE FROM seals",
    ),
    # Of policy.
    """UPDATE quota_changes SET lending_limit_millislices = 400 WHERE tenant = 'vision'""",
    """UPDATE loan_changes SET amount_millislices = 600;
       UPDATE loans SET amount_millislices = 600""",
    "INSERT INTO recalls VALUES ('testing', 'vision', 'nobody', 1, 5)",
    "INSERT INTO recalls VALUES ('testing', 'vision', 'nlp', 4000000000, 5)",
    "UPDATE watermarks SET accounted_until_s = 4000000000",
]
"""After which all that is kept of sums fits again."""


@pytest.mark.parametrize("tampering", TAMPERINGS + TAMPERINGS_REPLAYED)
def test_tampering_shows(ledger: Ledger, database: str, tampering: str):
    ledger.charges.post([reserve(a_run(1)), reserve(a_run(2)), reserve(a_run(3, "nlp"))])
    assert ledger.charges.seal() == 3
    ledger.charges.post([settle(a_run(2), 10)])
    ledger.budgets.enter(an_adjustment(5), None)
    assert (ledger.charges.seal(), ledger.charges.seal()) == (3, 0)
    ledger.charges.accounted_until_s()
    some = Millislices(500)
    ledger.tenants.change(TenantUpdate("vision", None, None, some, some, some), "root", "")
    ledger.tenants.change(TenantUpdate("nlp", None, None, some, some, some), "root", "")
    ledger.loans.replace([Loan("vision", "nlp", some)], "idle")
    assert is_balanced(ledger)
    with psycopg.connect(database) as connection:
        # As a superuser may: no trigger, no foreign key.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET search_path = slicewise, pg_temp")
        connection.execute(tampering)
    assert not is_balanced(ledger)


TAMPERINGS_OF_POLICY = [
    "UPDATE quota_changes SET author = 'mallory'",
    "UPDATE quota_changes SET reason = 'as agreed' WHERE tenant = 'nlp'",
    "UPDATE quota_changes SET nominal_millislices = nominal_millislices + 1 WHERE tenant = 'nlp'",
    "UPDATE quota_changes SET weight = 7",
    "UPDATE quota_changes SET recorded_at = recorded_at - interval '1 day'",
    "UPDATE quota_changes SET cluster = 'other' WHERE tenant = 'hpc'",
    "DELETE FROM quota_changes WHERE tenant = 'hpc'",
    """INSERT INTO quota_changes (cluster, tenant, nominal_millislices, author, reason, id)
       OVERRIDING SYSTEM VALUE VALUES ('testing', 'mallory', 9000, 'root', '', 0)""",
    "UPDATE quota_windows SET amount_millislices = 9000",
    "DELETE FROM quota_window_ends; DELETE FROM quota_windows",
    "DELETE FROM quota_window_ends",
    "UPDATE quota_window_ends SET author = 'mallory'",
]
"""As a superuser may: no trigger refuses it."""

TAMPERINGS_OF_STATES = [
    "UPDATE recalls SET amount_millislices = amount_millislices - 1",
    "UPDATE recalls SET called_s = called_s - 60",
    "DELETE FROM recalls",
    "INSERT INTO recalls VALUES ('testing', 'nlp', 'vision', 7, 5)",
    "UPDATE watermarks SET accounted_until_s = accounted_until_s - 60",
    "UPDATE watermarks SET accounted_until_s = accounted_until_s + 60",
    "DELETE FROM watermarks",
    "DELETE FROM sealed_states",
]


@pytest.mark.parametrize(
    ("role", "tampering"),
    [
        *(("replica", tampering) for tampering in TAMPERINGS_OF_POLICY),
        *(("origin", tampering) for tampering in TAMPERINGS_OF_STATES),
    ],
)
def test_tampering_with_policy_and_with_what_is_overwritten_shows(
    ledger: Ledger, database: str, role: str, tampering: str
):
    ledger.charges.set_accounted_until_s(1000)
    some = Millislices(500)
    for name in ("vision", "nlp", "hpc"):
        ledger.tenants.change(TenantUpdate(name, None, None, some, some, some), "root", "")
    set_window(database, "vision")
    ledger.loans.replace([], "idle", [Recall("vision", "nlp", some, 900)])
    assert ledger.charges.seal() == 0
    ledger.charges.post([reserve(a_run(1))])
    ledger.tenants.change(
        TenantUpdate("nlp", nominal_millislices=Millislices(2000)), "root", "more"
    )
    assert (ledger.charges.seal(), ledger.charges.seal()) == (1, 0)
    assert ledger.audit.verify().faults == ()
    with psycopg.connect(database) as connection:
        connection.execute(f"SET session_replication_role = {role}")
        connection.execute("SET search_path = slicewise, pg_temp")
        connection.execute(tampering)
    assert not is_balanced(ledger)


def set_window(database: str, tenant: str) -> None:
    """A window that was set and removed."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO slicewise.quota_windows (cluster, tenant, kind, amount_millislices, days,"
            " begin_min, end_min, author, reason)"
            " VALUES ('testing', %s, 'nominal', 700, '[1]', 0, 60, 'root', 'nights')",
            (tenant,),
        )
        connection.execute(
            "INSERT INTO slicewise.quota_window_ends (window_id, author, reason)"
            " SELECT id, 'root', 'over' FROM slicewise.quota_windows"
        )


def test_seals_of_policy_that_were_deleted_show(ledger: Ledger, database: str):
    ledger.tenants.change(TenantUpdate("vision", nominal_millislices=Millislices(2000)), "root", "")
    ledger.charges.seal()
    kept = ledger.audit.verify().seal
    with psycopg.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM slicewise.quota_changes; DELETE FROM slicewise.seals")
    assert not is_balanced(ledger)
    assert not ledger.audit.has_seal(kept)


def test_a_transfer_that_was_on_its_way_is_in_the_seal_of_its_number(ledger: Ledger, database: str):
    """One with a smaller number that is committed later would never be sealed."""
    ledger.charges.post([reserve(a_run(1))])
    ledger.charges.seal()
    values = json.dumps([dict(_values(reserve(a_run(2))))])
    with psycopg.connect(database) as slow, ThreadPoolExecutor(1) as pool:
        slow.execute("SELECT slicewise.book(%s)", (values,))
        sealed = pool.submit(ledger.charges.seal)
        with pytest.raises(TimeoutError):
            sealed.result(0.5)
        slow.commit()
        assert sealed.result(30) == 1
    verified = ledger.audit.verify()
    assert (verified.sealed, verified.faults) == (2, ())
    assert len(verified.seal) == 64


def test_a_seal_that_failed_is_no_seal_that_was_deleted(ledger: Ledger, database: str):
    ledger.charges.post([reserve(a_run(1))])
    with psycopg.connect(database) as killed:
        killed.execute("SELECT slicewise.seal(10)")
        killed.rollback()
    assert is_balanced(ledger)
    assert ledger.charges.seal() == 1
    assert is_balanced(ledger)


@pytest.mark.promise("A seal shows that entries were altered behind the ledger's back.")
def test_a_seal_that_is_kept_elsewhere_finds_an_end_that_was_deleted_and_booked_over(
    ledger: Ledger, database: str
):
    """Which nothing in the database tells from bookings that failed."""
    ledger.charges.post([reserve(a_run(1))])
    ledger.charges.seal()
    first = ledger.audit.verify().seal
    ledger.charges.post([reserve(a_run(2))])
    ledger.charges.seal()
    kept = ledger.audit.verify().seal
    assert ledger.audit.has_seal(first)
    assert ledger.audit.has_seal(kept)
    with psycopg.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET search_path = slicewise, pg_temp")
        newest = "id > (SELECT min(last_transfer_id) FROM seals)"
        rest = "DELETE FROM {0} WHERE run_id = (SELECT max(id) FROM runs);"
        runs = "DELETE FROM runs WHERE task = '2';"
        seals = "DELETE FROM seals WHERE id > (SELECT min(id) FROM seals)"
        connection.execute(gone(newest, rest.format("open_reservations"), runs, seals))
    assert not is_balanced(ledger)
    ledger.charges.post([reserve(a_run(3))])
    ledger.charges.seal()
    assert is_balanced(ledger)
    assert ledger.audit.has_seal(first)
    assert not ledger.audit.has_seal(kept)


def test_what_was_known_of_lost_runs_the_next_daemon_knows(ledger: Ledger):
    """Its own monotonic clock shows another time."""
    ledger.charges.post([reserve(a_run(1)), reserve(a_run(2))])
    first, second = a_run(1).key, a_run(2).key
    known = {first: LostRun(100.0, 150), second: LostRun(130.5, 170, shown_s=140)}
    ledger.charges.keep_lost_runs(known, 160.0)
    after = {first: LostRun(940.0, 150), second: LostRun(970.5, 170, shown_s=140)}
    assert ledger.charges.lost_runs(1000.0) == after
    ledger.charges.keep_lost_runs({second: after[second]}, 1000.0)
    assert ledger.charges.lost_runs(1000.0) == {second: after[second]}
    ledger.charges.keep_lost_runs({}, 1000.0)
    assert ledger.charges.lost_runs(1000.0) == {}


def test_verify_counts_what_it_compared(ledger: Ledger):
    ledger.charges.post([reserve(a_run(1)), reserve(a_run(2))])
    ledger.charges.post([settle(a_run(2), 10)])
    ledger.budgets.enter(an_adjustment(5), None)
    verified = ledger.audit.verify()
    assert (verified.transfers, verified.accounts, verified.reservations) == (5, 6, 1)


INSERTED = """
INSERT INTO slicewise.runs
       (cluster, meter, job_id, start_s, tenant, user_name, task, gres, cost_millislices)
VALUES ('testing', 'slice-seconds', {task}, 100, 'vision', 'alice', '{task}', '{{"1g.10gb": 1}}',
        1000)
    ON CONFLICT DO NOTHING;
INSERT INTO slicewise.accounts (cluster, tenant, meter, kind)
SELECT 'testing', 'vision', 'slice-seconds', kind
  FROM unnest(ARRAY['available', 'reserved', 'used']) AS kind ON CONFLICT DO NOTHING;
INSERT INTO slicewise.transfers
    (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
SELECT r.id, {number}, '{kind}', d.id, c.id, {amount}, {until_s}
  FROM slicewise.runs r, slicewise.accounts d, slicewise.accounts c
 WHERE r.task = '{task}' AND d.kind = '{debit}' AND c.kind = '{credit}'
"""


def insert(database: str, task: int, charges: Sequence[Transfer], after: int = 0) -> None:
    """As who goes around the function that books: the trigger on transfers does its work."""
    for number, one in enumerate(charges, start=after + 1):
        debit, credit = DEBIT_CREDIT[one.kind]
        values = {"kind": one.kind, "amount": one.amount, "until_s": one.until_s}
        accounts = {"debit": debit, "credit": credit}
        execute(database, INSERTED.format(task=task, number=number, **values, **accounts))


def test_transfers_that_are_inserted_by_hand_are_booked_or_refused(ledger: Ledger, database: str):
    insert(database, 1, reserve(a_run(1)).transfers)
    insert(database, 2, reserve(a_run(2)).transfers)
    insert(database, 2, settle(a_run(2), 10).transfers, after=1)
    with pytest.raises(psycopg.errors.IntegrityError):
        insert(database, 1, (step(POST, 61, 161),), after=1)
    assert ledger.budgets.balances() == {
        "vision": a_balance("vision", available=-70_000, reserved=60_000, used=10_000)
    }
    assert ledger.charges.post([settle(a_run(1), 20)]) == {a_run(1).key}
    assert is_balanced(ledger)


def disconnect(database: str) -> None:
    execute(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def test_a_broken_connection_is_replaced(ledger: Ledger, database: str):
    ledger.charges.post([reserve(a_run())])
    disconnect(database)
    assert ledger.charges.open_reservations() != ()
    assert ledger.charges.post([settle(a_run(), 10)]) == {a_run().key}
    assert is_balanced(ledger)


def test_what_is_booked_is_on_disk(ledger: Ledger, database: str):
    execute(
        database,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',"
        " current_database()); END $$",
    )
    with Ledger(database, "testing") as opened, opened._database.booking.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_a_server_that_is_away_is_named_without_the_password():
    with Ledger("postgresql://olga:s3cr3t@127.0.0.1:9/ledger", "testing") as away:
        for use in (away.charges.open_reservations, lambda: away.charges.post([reserve(a_run())])):
            with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN") as raised:
                use()
            assert "s3cr3t" not in str(raised.value)
            assert "127.0.0.1:9" in str(raised.value)


@pytest.mark.parametrize("url", ["", "mysql://h/d", "postgresql://u:s3cr3t@h:port/d", "sqlite://"])
def test_another_url_is_refused_and_not_shown(url: str):
    with pytest.raises(InvalidInputError, match="SW-SETTINGS") as raised:
        Ledger(url, "testing")
    assert "s3cr3t" not in str(raised.value)


def test_the_wheel_makes_the_tables_without_the_clone(database: str, tmp_path: Path) -> None:
    site = installed(built(tmp_path), tmp_path / "slicewise", pins("product"))
    config = str(site.share / "slicewise.toml")
    variables = {"SLICEWISE_CONFIG": config, "SLICEWISE_DATABASE_URL": database}
    done = site.run("slicewise", "ledger", "db", "upgrade", **variables)
    assert done.returncode == 0, done.stderr
    assert schema_revisions.current_of(database) == schema_revisions.head()
