"""Meters beside slices on a real PostgreSQL: each has its own transfers, balances and budgets."""

from dataclasses import replace

import psycopg
import pytest

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.meters import SLICES, Meter
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import (
    Balance,
    BudgetEntry,
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.integration

RESERVE, EXTEND, POST, VOID, REVERSE, WAIVE, GRANT, REVOKE, *_ = TransferKind
TOKENS = Meter("tokens", "million tokens", 1_000_000)


def a_run(meter: Meter, payer: str = "science", number: int = 7) -> Run:
    """The same number and start on each meter, which are two runs."""
    key = RunKey("testing", number, 100, meter.name)
    is_slices = meter is SLICES
    gres, cost = ({"1g.10gb": 1}, 1000) if is_slices else ({}, 0)
    return Run(key, "vision", "alice", "7" if is_slices else "chat", gres, Millislices(cost), payer)


def charged(run: Run, after: int, *steps: tuple[TransferKind, int]) -> Charge:
    return Charge(run, after, tuple(Transfer(kind, amount, 110) for kind, amount in steps))


def a_grant(amount: int, meter: Meter) -> BudgetEntry:
    return BudgetEntry("science", "grant", amount, None, "olga", "", meter=meter.name)


@pytest.fixture
def two_meters(ledger: Ledger) -> Ledger:
    """Science pays 10 s of a slice, and 3,000 tokens, with 2,000 more in a lease."""
    slices, tokens = a_run(SLICES), a_run(TOKENS)
    begun = charged(slices, 0, (RESERVE, 60_000)), charged(tokens, 0, (RESERVE, 5000))
    used = charged(slices, 1, (POST, 10_000), (VOID, 50_000)), charged(tokens, 1, (POST, 3000))
    for charges in (begun, used):
        assert len(ledger.charges.post(charges)) == 2
        assert ledger.charges.post(charges) == frozenset()
    assert ledger.budgets.enter(a_grant(9_000_000, TOKENS), -3000)
    assert ledger.budgets.enter(a_grant(77, SLICES), -10_000)
    return ledger


def is_balanced(ledger: Ledger) -> bool:
    return ledger.audit.verify().imbalance == 0


def test_each_meter_has_its_own_balances(two_meters: Ledger):
    assert two_meters.budgets.balances(TOKENS.name) == {
        "science": Balance("science", 9_000_000, 8_995_000, 2000, 0, 0),
        "vision": Balance("vision", 0, 0, 0, 3000, 0),
    }
    assert two_meters.budgets.balances() == {
        "science": Balance("science", 77, 77 - 10_000, 0, 0, 0),
        "vision": Balance("vision", 0, 0, 0, 10_000, 0),
    }
    two_meters.charges.seal()
    assert is_balanced(two_meters)


def test_a_statement_is_of_slices_alone(two_meters: Ledger):
    (row,) = two_meters.audit.statement(None, 0, 200).rows
    assert (row.run.key.meter, row.used_millislice_s, row.end_s) == (SLICES.name, 10_000, 110)
    assert two_meters.charges.open_reservations() == ()


def test_an_export_says_which_meter_each_amount_is_of(two_meters: Ledger):
    two_meters.charges.seal()
    rows = two_meters.audit.export(0, 0, two_meters.audit.newest_sealed_id(), 10)
    assert [(row["meter"], row["kind"], row["amount"]) for row in rows] == [
        (SLICES.name, "reserve", 60_000),
        (TOKENS.name, "reserve", 5000),
        (SLICES.name, "post", 10_000),
        (SLICES.name, "void", 50_000),
        (TOKENS.name, "post", 3000),
        (TOKENS.name, "grant", 9_000_000),
        (SLICES.name, "grant", 77),
    ]


def test_a_budget_s_period_begins_once_on_each_meter(ledger: Ledger):
    rolls = [
        BudgetEntry("science", "roll", amount, 1000, "slicewise", "roll", meter=meter.name)
        for meter, amount in ((SLICES, 500), (TOKENS, 9))
    ]
    assert [ledger.budgets.enter(roll, 0) for roll in (*rolls, *rolls)] == [True] * 2 + [False] * 2
    assert ledger.budgets.rollovers(TOKENS.name) == ledger.budgets.rollovers() == {"science": 1000}
    for meter, amount in ((SLICES, 500), (TOKENS, 9)):
        found = ledger.budgets.entries("science", 0, meter.name)
        assert [(entry.meter, entry.amount) for entry in found] == [(meter.name, amount)]
    assert ledger.budgets.entries("science", 0) == ledger.budgets.entries(None, 0, SLICES.name)
    assert is_balanced(ledger)


def test_more_tokens_than_were_leased_are_not_posted(two_meters: Ledger):
    before = two_meters.budgets.balances(TOKENS.name)
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        two_meters.charges.post([charged(a_run(TOKENS), 2, (POST, 2001))])
    assert two_meters.budgets.balances(TOKENS.name) == before
    assert is_balanced(two_meters)


def test_a_meter_without_a_name_or_tokens_with_a_cost_are_refused(ledger: Ledger):
    nameless, dear = a_run(replace(TOKENS, name="")), a_run(TOKENS)
    free = replace(a_run(SLICES), cost_millislices=Millislices(0))
    for run in (nameless, replace(dear, cost_millislices=Millislices(1)), free):
        with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
            ledger.charges.post([charged(run, 0, (RESERVE, 1))])
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.budgets.enter(replace(a_grant(1, TOKENS), meter=""), None)
    assert ledger.budgets.balances() == ledger.budgets.balances("") == {}


_BY_HAND = """
INSERT INTO slicewise.transfers
       (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
SELECT r.id, 3, 'post', d.id, c.id, 10, 110
  FROM slicewise.runs r, slicewise.accounts d, slicewise.accounts c
 WHERE r.meter = 'tokens' AND (d.meter, d.tenant, d.kind) = (%s, 'science', 'reserved')
   AND (c.meter, c.tenant, c.kind) = (%s, 'vision', 'used')
"""


@pytest.mark.parametrize(
    "meters",
    [(SLICES.name, TOKENS.name), (TOKENS.name, SLICES.name), (SLICES.name, SLICES.name)],
    ids="-".join,
)
def test_nothing_moves_from_one_meter_to_another(
    two_meters: Ledger, database: str, meters: tuple[str, str]
):
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.IntegrityError):
            connection.execute(_BY_HAND, meters)
        connection.execute(_BY_HAND, (TOKENS.name, TOKENS.name))
    assert is_balanced(two_meters)


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE runs SET meter = 'requests' WHERE meter = 'tokens'",
        "UPDATE accounts SET meter = 'requests' WHERE (tenant, meter) = ('vision', 'tokens')",
        "UPDATE accounts SET meter = 'requests' WHERE meter = 'tokens'",
        "UPDATE budget_entries SET meter = 'requests' WHERE meter = 'tokens'",
        """UPDATE balances SET debits = debits + 1 WHERE account_id = (
               SELECT id FROM accounts WHERE (meter, tenant, kind) = ('tokens', 'vision', 'used'))
        """,
        "UPDATE open_reservations SET reserved = reserved - 1",
        """ALTER TABLE runs DROP CONSTRAINT ck_runs_cost_positive;
           UPDATE runs SET cost_millislices = 0""",
    ],
)
def test_verify_finds_what_was_altered_on_any_meter(
    two_meters: Ledger, database: str, tampering: str
):
    assert is_balanced(two_meters)
    with psycopg.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET search_path = slicewise, pg_temp")
        connection.execute(tampering)
    assert not is_balanced(two_meters)


def test_a_seal_finds_a_meter_that_was_renamed_everywhere(two_meters: Ledger, database: str):
    two_meters.charges.seal()
    assert is_balanced(two_meters)
    with psycopg.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")
        rename = "UPDATE slicewise.{} SET meter = 'requests' WHERE meter = 'tokens'"
        for table in ("accounts", "runs", "budget_entries"):
            connection.execute(rename.format(table))
    assert not is_balanced(two_meters)
