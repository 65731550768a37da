"""The ledger's tables from nothing to this version, and to a made-up next one and back."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import psycopg
import pytest
from test_ledger import a_run, execute, is_balanced, reserve, settle
from waiting import until

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate

pytestmark = pytest.mark.integration


def test_up_down_and_up_again_on_data(ledger: Ledger, database: str):
    ledger.charges.post([reserve(a_run())])
    assert schema_revisions.upgrade(database) == ("0001", "0001")
    assert ledger.charges.open_reservations() != ()
    assert schema_revisions.downgrade(database, schema_revisions.BASE) == ("0001", "base")
    with pytest.raises(InvalidInputError, match="SW-DATABASE-OLD"):
        ledger.require_current()
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        schema_revisions.downgrade(database, "0001")
    assert schema_revisions.upgrade(database) == ("base", "0001")
    ledger.require_current()
    assert ledger.charges.open_reservations() == ()


def test_several_upgrades_at_once_run_one_after_the_other(database: str):
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        steps = list(pool.map(schema_revisions.upgrade, [database] * 3))
    assert {after for _, after in steps} == {schema_revisions.head()}


def test_a_next_version_keeps_what_is_booked_forth_and_back(
    ledger: Ledger, database: str, next_version: str
):
    ledger.charges.post([reserve(a_run(1)), reserve(a_run(2))])
    ledger.tenants.change(TenantUpdate("vision", nominal_millislices=Millislices(7)), "root", "")
    assert ledger.charges.seal() == 2
    with pytest.raises(InvalidInputError, match="SW-DATABASE-OLD"):
        ledger.require_current()
    before = (ledger.charges.open_reservations(), ledger.tenants.policy())
    assert schema_revisions.upgrade(database) == ("0001", next_version)
    ledger.require_current()
    assert (ledger.charges.open_reservations(), ledger.tenants.policy()) == before
    ledger.charges.post([settle(a_run(1), 10)])
    assert schema_revisions.downgrade(database, "0001") == (next_version, "0001")
    ledger.charges.post([settle(a_run(2), 10)])
    assert is_balanced(ledger)
    assert ledger.tenants.policy() == before[1]


def test_an_empty_database_comes_to_a_next_version_in_one_step(database: str, next_version: str):
    lines: list[str] = []
    assert schema_revisions.upgrade(database, lines.append) == ("base", next_version)
    assert lines == []
    assert has_valid_index(database)


def test_an_older_program_uses_the_database_of_a_next_version_that_serves_it(
    ledger: Ledger, database: str, next_version: str, monkeypatch: pytest.MonkeyPatch
):
    schema_revisions.upgrade(database)
    monkeypatch.undo()
    ledger.require_current()
    ledger.charges.post([reserve(a_run())])
    for change in (schema_revisions.upgrade, lambda url: schema_revisions.downgrade(url, "0001")):
        with pytest.raises(InvalidInputError, match=r"SW-DATABASE-NEW|SW-VALUE"):
            change(database)
    assert schema_revisions.current_of(database) == next_version
    execute(database, "DELETE FROM slicewise.served_revisions")
    for use in (ledger.require_current, lambda: schema_revisions.upgrade(database)):
        with pytest.raises(InvalidInputError, match="SW-DATABASE-NEW"):
            use()


def test_an_upgrade_does_not_wait_long_for_a_table(
    ledger: Ledger, database: str, next_version: str
):
    with psycopg.connect(database) as reader:
        reader.execute("SELECT FROM slicewise.quota_changes")
        with pytest.raises(UnreachableError, match="SW-DATABASE-BUSY"):
            schema_revisions.upgrade(database)
    assert schema_revisions.current_of(database) == "0001"
    # What was prepared outside of the transaction is met by the next try.
    lines: list[str] = []
    assert schema_revisions.upgrade(database, lines.append) == ("0001", next_version)
    assert lines == []


def test_a_step_without_a_transaction_that_was_cut_short_is_done_again(
    ledger: Ledger, database: str, next_version: str
):
    execute(database, "CREATE INDEX ix_runs_user ON slicewise.runs (cluster, user_name)")
    which = "WHERE indexrelid = 'slicewise.ix_runs_user'::regclass"
    execute(database, f"UPDATE pg_index SET indisvalid = false {which}")  # noqa: S608
    assert schema_revisions.upgrade(database) == ("0001", next_version)
    assert has_valid_index(database)


def test_two_upgrades_with_a_step_beside_the_daemon_wait_for_others_and_say_so(
    ledger: Ledger, database: str, next_version: str
):
    ledger.charges.post([reserve(a_run())])
    first: list[str] = []
    second: list[str] = []
    with psycopg.connect(database) as dump, ThreadPoolExecutor(2) as pool:
        dump.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            dump.execute("SELECT id FROM slicewise.runs")
            upgrades = [pool.submit(schema_revisions.upgrade, database, first.append)]
            until(lambda: any(line.startswith("Building an index") for line in first))
            until(lambda: is_building(database))
            upgrades.append(pool.submit(schema_revisions.upgrade, database, second.append))
            until(lambda: any(line.startswith("Another upgrade") for line in second))
            ledger.charges.post([reserve(a_run(2))])
        finally:
            dump.rollback()
        steps = [upgrade.result() for upgrade in upgrades]
    assert steps == [("0001", next_version)] * 2
    assert (len(first), len(second)) == (1, 1)
    assert len(ledger.charges.open_reservations()) == 2


def is_building(database: str) -> bool:
    """Whether an index is built there that waits for others' transactions."""
    with psycopg.connect(database, autocommit=True) as connection:
        phases = connection.execute(
            "SELECT phase FROM pg_stat_progress_create_index WHERE datname = current_database()"
        ).fetchall()
    return any("waiting for" in phase for (phase,) in phases)


def has_valid_index(database: str) -> bool:
    with psycopg.connect(database) as connection:
        valid = connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'slicewise.ix_runs_user'::regclass"
        ).fetchone()
    return valid == (True,)
