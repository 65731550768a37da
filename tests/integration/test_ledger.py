"""The ledger on a real PostgreSQL: histories as in memory, and what the database forbids."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count
from multiprocessing import get_context
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from ledger_world import World

from cluster.errors import InvalidInputError, OutsideError, UnreachableError
from cluster.units import Millislices, MillisliceSeconds
from sandbox.cluster import Sandbox
from slurm_plugin.decide.model import Charge, Run, RunKey, Transfer, TransferKind
from slurm_plugin.ledger import schema
from slurm_plugin.ledger.connection import ledger_engine
from slurm_plugin.ledger.store import QUOTA_CHANNEL, Ledger
from slurm_plugin.ledger.tables import SCHEMA, metadata

pytestmark = pytest.mark.integration


@pytest.fixture
def database(sandbox: Sandbox) -> Iterator[str]:
    """The URL of an empty database of its own on the sandbox's server."""
    server = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    name = f"ledger_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.replace("/slicewise?", f"/{name}?")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    schema.upgrade(database)
    with Ledger(database, "testing") as opened:
        yield opened


def a_run(job_id: int = 1, tenant: str = "vision", cost: int = 1000) -> Run:
    key = RunKey("testing", job_id, 100)
    return Run(key, tenant, "alice", str(job_id), {"1g.10gb": 1}, Millislices(cost))


def a_transfer(kind: TransferKind, amount: int, until_s: int) -> Transfer:
    return Transfer(kind, MillisliceSeconds(amount), until_s)


def reserve(run: Run) -> Charge:
    return Charge(run, 0, (a_transfer(TransferKind.RESERVE, 60 * run.cost_millislices, 160),))


def settle(run: Run, seconds: int) -> Charge:
    used = seconds * run.cost_millislices
    rest = 60 * run.cost_millislices - used
    post = a_transfer(TransferKind.POST, used, 100 + seconds)
    return Charge(run, 1, (post, a_transfer(TransferKind.VOID, rest, 100 + seconds)))


def test_every_history_in_memory_is_one_in_postgresql(ledger: Ledger, database: str):
    numbers = count()

    class LedgerInPostgresql(World):
        def make_store(self) -> Ledger:
            self.cluster = f"simulated{next(numbers)}"
            self.opened = Ledger(database, self.cluster)
            return self.opened

        def teardown(self) -> None:
            super().teardown()
            self.opened.close()

    few = settings(max_examples=25, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(LedgerInPostgresql, settings=few)
    assert ledger.imbalance() == 0


def test_migrations_make_what_the_models_say(ledger: Ledger, database: str):
    with ledger_engine(database).connect() as connection:
        options = {
            "include_schemas": True,
            "include_name": lambda name, kind, parents: kind != "schema" or name == SCHEMA,
            "version_table_schema": SCHEMA,
            "compare_server_default": True,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_up_down_and_up_again_on_data(ledger: Ledger, database: str):
    ledger.set_quota("vision", Millislices(6000), "root", "")
    ledger.apply([reserve(a_run())])
    assert schema.upgrade(database) == (schema.head(), schema.head())
    assert ledger.open_reservations() != ()
    assert schema.downgrade(database, schema.BASE) == (schema.head(), schema.BASE)
    with pytest.raises(InvalidInputError, match="SW-DATABASE-OLD"):
        ledger.require_current()
    with pytest.raises(InvalidInputError, match="SW-REVISION"):
        schema.downgrade(database, schema.head())
    assert schema.upgrade(database) == (schema.BASE, schema.head())
    ledger.require_current()
    assert ledger.quotas() == {}


def test_two_upgrades_at_once_run_one_after_the_other(database: str):
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        steps = list(pool.map(schema.upgrade, [database] * 3))
    assert {after for _, after in steps} == {schema.head()}


def test_a_database_of_a_newer_version_is_left_alone(ledger: Ledger, database: str):
    execute(database, "UPDATE slicewise.alembic_version SET version_num = '9999'")
    for use in (ledger.require_current, lambda: schema.upgrade(database)):
        with pytest.raises(InvalidInputError, match="SW-DATABASE-NEW"):
            use()


def test_quotas_keep_their_history(ledger: Ledger):
    assert ledger.quotas() == {}
    first = ledger.set_quota("vision", Millislices(6000), "root", "start")
    second = ledger.set_quota("vision", Millislices(0), "olga", "it's; DROP TABLE \u2013 over")
    ledger.set_quota("nlp", Millislices(3500), "root", "")
    assert {name: quota.nominal_millislices for name, quota in ledger.quotas().items()} == {
        "vision": 0,
        "nlp": 3500,
    }
    assert ledger.quota_history("vision") == (second, first)
    assert ledger.quota_history("nobody") == ()


def test_a_quota_belongs_to_one_cluster(ledger: Ledger, database: str):
    ledger.set_quota("vision", Millislices(6000), "root", "")
    with Ledger(database, "another") as another:
        assert another.quotas() == {}
        assert another.change_id() == 0


def test_a_bad_quota_writes_nothing(ledger: Ledger):
    bad = [
        ("vision", -1, "", "SW-QUOTA-RANGE"),
        ("vision", 10**9 + 1, "", "SW-QUOTA-RANGE"),
        ("", 1, "", "SW-TENANT-NAME"),
        ("root", 1, "", "SW-TENANT-NAME"),
        ("a,b", 1, "", "SW-TENANT-NAME"),
        ("vision\n", 1, "", "SW-TENANT-NAME"),
        ("vision", 1, "a\x00b", "SW-TEXT"),
        ("vision", 1, "\udcff", "SW-TEXT"),
    ]
    for tenant, nominal, reason, code in bad:
        with pytest.raises(InvalidInputError, match=code):
            ledger.set_quota(tenant, Millislices(nominal), "root", reason)
    assert ledger.change_id() == 0


def test_a_quota_change_is_notified_and_its_compilation_known(ledger: Ledger, database: str):
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute(f"LISTEN {QUOTA_CHANNEL}")
        change = ledger.set_quota("vision", Millislices(6000), "root", "")
        (notice,) = listener.notifies(timeout=5, stop_after=1)
    assert (int(notice.payload), ledger.change_id()) == (change.change_id, change.change_id)
    assert not ledger.compiled(change.change_id)
    ledger.mark_compiled(change.change_id)
    ledger.mark_compiled(change.change_id - 1)
    assert ledger.compiled(change.change_id)
    assert not ledger.compiled(change.change_id + 1)


def test_the_watermark_begins_now_and_never_goes_back(ledger: Ledger):
    begin_s = ledger.accounted_until_s()
    assert begin_s > 1_700_000_000
    ledger.set_accounted_until_s(begin_s + 5)
    ledger.set_accounted_until_s(begin_s - 5)
    assert ledger.accounted_until_s() == begin_s + 5


def test_a_charge_applies_once(ledger: Ledger):
    run = a_run()
    assert ledger.apply([reserve(run)]) == {run.key}
    assert ledger.apply([reserve(run)]) == frozenset()
    assert [one.reserved_millislice_s for one in ledger.open_reservations()] == [60_000]
    assert ledger.apply([settle(run, 10)]) == {run.key}
    assert ledger.apply([settle(run, 20), reserve(run)]) == frozenset()
    (row,) = ledger.statement("vision", 0, 1000).rows
    assert (row.used_millislice_s, row.reserved_millislice_s, row.end_s) == (10_000, 0, 110)
    assert ledger.imbalance() == 0


def test_writers_at_the_same_time_charge_each_run_once(ledger: Ledger, database: str):
    runs = [a_run(job_id, f"tenant{job_id % 3}") for job_id in range(40)]

    def writer(_: int) -> int:
        with Ledger(database, "testing") as own:
            return sum(
                applied(own, [reserve(run)]) + applied(own, [settle(run, 9)]) for run in runs
            )

    with ThreadPoolExecutor(6) as pool:
        done = sum(pool.map(writer, range(6)))
    assert done == 2 * len(runs)
    assert ledger.open_reservations() == ()
    assert sum(row.used_millislice_s for row in ledger.statement(None, 0, 0).rows) == 40 * 9000
    assert ledger.imbalance() == 0


def applied(ledger: Ledger, charges: Sequence[Charge]) -> int:
    """As the daemon does: what lost a race is decided anew at the next turn."""
    try:
        return len(ledger.apply(charges))
    except OutsideError as error:
        if error.refusal.code != "SW-LEDGER-REFUSED":
            raise
        return 0


def test_all_of_a_transaction_or_nothing(ledger: Ledger):
    good, bad = a_run(1), a_run(2)
    overdrawn = Charge(bad, 1, (a_transfer(TransferKind.POST, 60_001, 200),))
    ledger.apply([reserve(bad)])
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.apply([reserve(good), overdrawn])
    assert [one.key for one in ledger.open_reservations()] == [bad.key]
    assert ledger.imbalance() == 0


def execute(database: str, statement: str) -> None:
    """As somebody who goes around the program."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("table", ["quota_changes", "accounts", "runs", "transfers"])
def test_entries_can_not_be_altered(ledger: Ledger, database: str, table: str):
    ledger.set_quota("vision", Millislices(1), "root", "")
    ledger.apply([reserve(a_run())])
    for statement in (
        "UPDATE slicewise.{} SET id = DEFAULT",
        "DELETE FROM slicewise.{}",
        "TRUNCATE slicewise.{} CASCADE",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            execute(database, statement.format(table))
    assert len(ledger.open_reservations()) == 1


_INSERT = """
INSERT INTO slicewise.transfers
    (run_id, number, kind, debit_account_id, credit_account_id, amount_millislice_s, until_s)
SELECT r.id, {number}, '{kind}', d.id, c.id, {amount}, 1
  FROM slicewise.runs r, slicewise.accounts d, slicewise.accounts c
 WHERE r.task = '1' AND d.kind = '{debit}' AND d.tenant = '{tenant}'
   AND c.kind = '{credit}' AND c.tenant = 'vision'
"""
_POST = {
    "number": 2,
    "kind": "post",
    "debit": "reserved",
    "credit": "used",
    "amount": 60_000,
    "tenant": "vision",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "post", "debit": "available", "credit": "used"},
        {"kind": "post", "debit": "reserved", "credit": "available"},
        {"kind": "void", "debit": "reserved", "credit": "used"},
        {"kind": "extend", "debit": "reserved", "credit": "available"},
        {"kind": "extend", "debit": "available", "credit": "reserved", "tenant": "nlp"},
        {"kind": "gift", "debit": "available", "credit": "used"},
        {"kind": "reserve", "debit": "available", "credit": "reserved"},
        {"kind": "reserve", "debit": "available", "credit": "reserved", "number": 1},
        {"amount": 0},
        {"amount": -5},
        {"amount": 60_001},
    ],
)
def test_the_database_itself_refuses_unbalanced_transfers(
    ledger: Ledger, database: str, wrong: dict[str, object]
):
    ledger.apply([reserve(a_run(1)), reserve(a_run(2, "nlp"))])
    with pytest.raises(psycopg.errors.IntegrityError):
        execute(database, _INSERT.format(**(_POST | wrong)))
    assert ledger.imbalance() == 0


def test_a_correct_transfer_by_hand_is_taken(ledger: Ledger, database: str):
    ledger.apply([reserve(a_run(1))])
    execute(database, _INSERT.format(**_POST))
    assert ledger.open_reservations() == ()
    assert ledger.imbalance() == 0


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE open_reservations SET reserved_millislice_s = reserved_millislice_s + 7",
        "DELETE FROM open_reservations WHERE run_id = (SELECT min(id) FROM runs)",
        "UPDATE transfers SET amount_millislice_s = amount_millislice_s + 1 WHERE number = 1",
        "DELETE FROM transfers WHERE kind = 'void'",
        """UPDATE transfers SET credit_account_id = (
               SELECT id FROM accounts WHERE tenant = 'nlp' AND kind = 'reserved'
           ) WHERE kind = 'reserve'""",
    ],
)
def test_tampering_shows(ledger: Ledger, database: str, tampering: str):
    ledger.apply([reserve(a_run(1)), reserve(a_run(2)), reserve(a_run(3, "nlp"))])
    ledger.apply([settle(a_run(2), 10)])
    assert ledger.imbalance() == 0
    execute(database, "ALTER TABLE slicewise.transfers DISABLE TRIGGER append_only")
    execute(database, f"SET search_path = slicewise; {tampering}")
    assert ledger.imbalance() > 0


def test_a_broken_connection_is_replaced(ledger: Ledger, database: str):
    ledger.quotas()
    execute(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert ledger.quotas() == {}


def test_a_server_that_is_away_is_named_without_the_password():
    with (
        Ledger("postgresql://olga:s3cr3t@127.0.0.1:9/ledger", "testing") as away,
        pytest.raises(UnreachableError, match="SW-DATABASE-DOWN") as raised,
    ):
        away.quotas()
    assert "s3cr3t" not in str(raised.value)
    assert "127.0.0.1:9" in str(raised.value)


@pytest.mark.parametrize("url", ["", "mysql://h/d", "postgresql://u:s3cr3t@h:port/d", "sqlite://"])
def test_another_url_is_refused_and_not_shown(url: str):
    with pytest.raises(InvalidInputError, match="SW-DATABASE-URL") as raised:
        Ledger(url, "testing")
    assert "s3cr3t" not in str(raised.value)
