"""Copies of the ledger, and what comes of them: dumps, and a restore to a point in time."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from quotas import until_in_force
from second_witness import accounted_runs
from test_ledger import a_run, execute, reserve, settle
from typer.testing import CliRunner
from waiting import until, until_is

from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.cluster.language.jobs import RunRecord
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.runtime.database import postgres_engine
from slicewise.launcher.main import app
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CLUSTER
from slicewise.sandbox.host.process import is_alive
from slicewise.sandbox.servers.postgres import binaries
from slicewise.slurm_plugin.ledger import backups, schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.charging import Rates, charge

pytestmark = pytest.mark.integration


@pytest.fixture
def dumped(
    sandbox: Sandbox, ledger: Ledger, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Where the dump of a ledger with one sealed run will be."""
    place = binaries(sandbox.state.program)
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(sandbox.layout.settings_file))
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", database)
    ledger.charges.post([reserve(a_run(1))])
    ledger.charges.post([settle(a_run(1), 10)])
    ledger.charges.seal()
    yield tmp_path / "ledger.dump"
    assert scratch_databases(database) == []


def run(*words: str) -> Mapping[str, Any]:
    found = CliRunner().invoke(app, ("ledger", "db", *words, "--json"), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout))


def scratch_databases(database: str) -> list[str]:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE '%check%'")
        return [name for (name,) in found]


def change(record: Path, **values: object) -> None:
    """What the record beside a dump says."""
    record.write_text(json.dumps({**json.loads(record.read_text()), **values}))


def refused(code: str, *words: str) -> str:
    with pytest.raises((InvalidInputError, OutsideError)) as error:
        run(*words)
    assert error.value.refusal.code == code
    return error.value.refusal.message


@pytest.mark.promise("A backup is checked by a restore.")
def test_a_dump_is_checked_by_a_restore_with_the_seal_in_it(
    dumped: Path, ledger: Ledger, database: str, monkeypatch: pytest.MonkeyPatch
):
    """On the live system: what is booked and sealed while pg_dump begins is not in the dump, and
    the seal that goes with the dump is not that one.
    """
    run_program, seals = backups._run, [ledger.audit.verify().seal]

    def book_first(*given: Any, **named: Any) -> None:
        ledger.charges.post([reserve(a_run(2))])
        ledger.charges.seal()
        seals.append(ledger.audit.verify().seal)
        run_program(*given, **named)

    monkeypatch.setattr(backups, "_run", book_first)
    made = run("backup", str(dumped))
    monkeypatch.setattr(backups, "_run", run_program)
    assert (made["transfers"], made["seal"]) == (3, seals[0])
    assert made["revision"] == schema_revisions.head()
    assert run("check-backup", str(dumped)) == made
    assert {path.stat().st_mode & 0o777 for path in dumped.parent.iterdir()} == {0o600}
    # The seal that is read after the dump: the page said so.
    change(dumped.with_name("ledger.dump.json"), seal=seals[1])
    assert "is not in its chain" in refused("SW-BACKUP-BROKEN", "check-backup", str(dumped))


def test_the_server_found_is_asked_and_no_argument_shows_a_password(
    dumped: Path, database: str, monkeypatch: pytest.MonkeyPatch
):
    """Of a URL that names several servers; libpq reads only the last of hosts given one by one."""
    at = postgres_engine(database).url
    (host, port), nowhere = (at.query["host"], at.query.get("port", "5432")), "/nowhere"
    places = {"host": (f"{host}:{port}", f"{nowhere}:1"), "password": "sEcret"}
    both = at.set(drivername="postgresql", host=None, port=None, query=places)
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", both.render_as_string(hide_password=False))
    started, run_program = list[str](), subprocess.run

    def noted(words: Sequence[str], **named: Any) -> subprocess.CompletedProcess[str]:
        started.extend(words)
        return run_program(words, **named)

    monkeypatch.setattr(backups.subprocess, "run", noted)
    assert run("backup", str(dumped)) == run("check-backup", str(dumped))
    assert {word for word in started if word.startswith("pg_")} == {"pg_dump", "pg_restore"}
    assert not [word for word in started if "sEcret" in word or nowhere in word]


@pytest.fixture
def keeper(dumped: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the dump will be of a ledger whose owner is no superuser, but may create databases."""
    name = f"keeper_{uuid4().hex}"
    execute(database, f"CREATE ROLE {name} LOGIN CREATEDB")
    execute(database, f"CREATE DATABASE {name} OWNER {name}")
    url = postgres_engine(database).url.set(drivername="postgresql", username=name, database=name)
    owned = url.render_as_string(hide_password=False)
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", owned)
    schema_revisions.upgrade(owned)
    with Ledger(owned, "testing") as ledger:
        ledger.charges.post([reserve(a_run(1))])
        ledger.charges.seal()
    yield dumped
    execute(database, f"DROP DATABASE {name} WITH (FORCE)")
    execute(database, f"DROP ROLE {name}")


def test_the_tables_owner_makes_and_checks_dumps(keeper: Path, database: str):
    made = run("backup", str(keeper))
    assert (made["transfers"], len(made["seal"])) == (1, 64)
    assert run("check-backup", str(keeper)) == made
    execute(database, f"ALTER ROLE {made['database']} NOCREATEDB")
    with pytest.raises(SlicewiseError, match="permission denied to create database") as error:
        run("check-backup", str(keeper))
    assert "CREATEDB" in error.value.refusal.hint


def test_a_dump_of_before_an_upgrade_is_checked_with_the_tables_of_this_version(
    dumped: Path, database: str, next_version: str
):
    made = run("backup", str(dumped))
    assert (made["revision"], made["transfers"], len(made["seal"])) == ("0001", 3, 64)
    assert schema_revisions.head() == next_version
    assert run("check-backup", str(dumped)) == made
    assert schema_revisions.current_of(database) == "0001"
    change(dumped.with_name("ledger.dump.json"), revision=next_version)
    assert "revision 0001" in refused("SW-BACKUP-BROKEN", "check-backup", str(dumped))
    schema_revisions.downgrade(database, schema_revisions.BASE)
    refused("SW-DATABASE-OLD", "backup", str(dumped))


def test_a_dump_that_is_not_whole_is_refused(dumped: Path, database: str):
    run("backup", str(dumped))
    record = dumped.with_name("ledger.dump.json")
    whole = dumped.read_bytes()
    # pg_restore does not miss the last bytes.
    dumped.write_bytes(whole[:-100])
    assert "checksum" in refused("SW-BACKUP-BROKEN", "check-backup", str(dumped))
    dumped.write_bytes(whole[: len(whole) // 2])
    size, sha256 = backups._fingerprint(dumped)
    change(record, size=size, sha256=sha256)
    assert "pg_restore" in refused("SW-DATABASE-FAILED", "check-backup", str(dumped))
    record.write_text("{}")
    refused("SW-BACKUP-BROKEN", "check-backup", str(dumped))
    record.unlink()
    assert "ledger.dump.json" in refused("SW-BACKUP-BROKEN", "check-backup", str(dumped))
    # Of a ledger that was written to around its triggers.
    with psycopg.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM slicewise.transfers WHERE number = 3")
    run("backup", str(dumped))
    assert "is not whole" in refused("SW-BACKUP-BROKEN", "check-backup", str(dumped))


def test_a_dump_that_fails_leaves_the_last_one(
    dumped: Path, database: str, monkeypatch: pytest.MonkeyPatch
):
    run("backup", str(dumped))
    before = {path: path.read_bytes() for path in dumped.parent.iterdir()}
    role = "slicewise_daemon"
    execute(database, f"GRANT USAGE ON SCHEMA slicewise TO {role}")
    execute(database, f"GRANT SELECT ON ALL TABLES IN SCHEMA slicewise TO {role}")
    owner, _, place = database.partition("://")[2].partition("@")
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", f"postgresql://{role}:geheim@{place}")
    said = refused("SW-DATABASE-FAILED", "backup", str(dumped))
    assert "permission denied" in said
    assert "geheim" not in said
    assert owner not in said
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", database)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "pg_dump" in refused("SW-PROGRAM", "backup", str(dumped))
    assert {path: path.read_bytes() for path in dumped.parent.iterdir()} == before


SHOWN_UNTIL_S = 100 + 50


def accounted(job_id: int, seconds: int | None) -> RunRecord:
    """What sacct has of ``a_run``; of one that goes on, None."""
    end_s = None if seconds is None else 100 + seconds
    words = (str(job_id), "alice", "vision", "gpu", 100, end_s)
    state = "RUNNING" if end_s is None else "COMPLETED"
    return RunRecord(job_id, *words, state, 60, {"billing": "1000", "gres/gpu:1g.10gb": "1"})


@pytest.mark.promise("What ended after a backup is charged once in the restored ledger.")
def test_what_ended_after_a_dump_is_charged_in_the_restored_ledger_once(
    dumped: Path, ledger: Ledger, database: str
):
    """By the decisions of a daemon on what accounting shows. On a live cluster: below, by night."""
    ended, lasts, missed = 2, 3, 4
    ledger.charges.post([reserve(a_run(ended)), reserve(a_run(lasts))])
    run("backup", str(dumped))
    since = [reserve(a_run(missed)), settle(a_run(missed), 7), settle(a_run(ended), 20)]
    for one in since:
        assert ledger.charges.post([one])
    shown = [accounted(*one) for one in ((1, 10), (ended, 20), (lasts, None), (missed, 7))]
    rates = Rates("testing", frozenset({"gpu"}), {"1g.10gb": Millislices(1000)}, {}, "tenant")
    engine = postgres_engine(database)
    with backups._scratch(engine) as scratch:
        backups._run((*backups._RESTORE, str(dumped)), scratch)
        with Ledger(scratch.url, "testing") as restored:
            # As a daemon does it turn by turn, also where one is cut short.
            for _ in range(2):
                held = restored.charges.open_reservations()
                decided = charge(rates, (), shown, held, {}).charges
                restored.charges.post(decided)
                restored.charges.post(decided)
            found = restored.audit.statement(None, 0, SHOWN_UNTIL_S)
            assert found == ledger.audit.statement(None, 0, SHOWN_UNTIL_S)
            assert restored.budgets.balances() == ledger.budgets.balances()
            assert restored.charges.seal() == 2 + 2 + 3
            assert restored.audit.verify().faults == ()


TENANT = "restored"
GPU = "--gres=gpu:1g.10gb:1"


class Archive:
    """A base backup of the sandbox's PostgreSQL, and a restore of it to a time, by what it has
    written ahead since.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        layout = sandbox.layout
        self._url = layout.database_url(sandbox.state.users["slurm"].name)
        self._data = layout.lib / "postgresql"
        self._base, self._old = layout.lib / "postgresql-base", layout.lib / "postgresql-old"
        hba = self._data / "pg_hba.conf"
        lines = hba.read_text()
        hba.write_text(f"{lines}local replication all peer map=sandbox\n")
        self._ask("SELECT pg_reload_conf()")
        owner = sandbox.state.users["slurm"].name
        sandbox.run("root", ("install", "-d", "-o", owner, "-m", "700", str(self._base)))
        program = str(binaries(sandbox.state.program) / "pg_basebackup")
        at = (f"--host={layout.postgres_directory}", f"--pgdata={self._base}")
        sandbox.run("slurm", (program, *at, "--checkpoint=fast", "--no-sync"))
        for one in (hba, self._base / "pg_hba.conf"):
            one.write_text(lines)

    def now(self) -> str:
        """As PostgreSQL's clock has it, in its own words."""
        return self._ask("SELECT clock_timestamp()::text")

    def restore(self, at: str) -> None:
        """In place of the server that runs; its daemon and its launcher have ended. As
        docs/how-to/backup.md says it.
        """
        self._sandbox.kill("postgres", signal.SIGINT)
        until_is(lambda: is_alive(self._sandbox.state.processes["postgres"]), False)
        settings = (
            f"restore_command = 'cp {self._old}/pg_wal/%f %p'",
            f"recovery_target_time = '{at}'",
            "recovery_target_action = 'promote'",
            "hot_standby = off",
        )
        text = "".join(f"{one}\n" for one in settings)
        (self._base / "recovery.signal").touch()
        with (self._base / "postgresql.auto.conf").open("a") as file:
            file.write(text)
        owner = self._sandbox.state.users["slurm"].name
        moved = f"mv {self._data} {self._old} && mv {self._base} {self._data}"
        self._sandbox.run("root", ("bash", "-c", f"{moved} && chown -R {owner} {self._data}"))
        self._sandbox.restore(print)
        file = self._data / "postgresql.auto.conf"
        file.write_text(file.read_text().removesuffix(text))
        self._ask("SELECT pg_reload_conf()")
        self._sandbox.run("root", ("rm", "-rf", str(self._old)))

    def _ask(self, statement: str) -> str:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return str(connection.execute(statement).fetchone()[0])


class Books:
    """The jobs of one tenant, what the ledger has charged for them, and what accounting says."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
        user = sandbox.state.users["alice"].name
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "account", TENANT))
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "user", user, f"account={TENANT}"))
        self.set_nominal("5")

    def set_nominal(self, slices: str) -> None:
        argv = ("slicewise", "tenant-quota", "set", TENANT, "--nominal", slices)
        self.sandbox.run("root", argv)
        until_in_force(self.sandbox, TENANT)

    def submit(self, seconds: int) -> int:
        """A job that takes so long."""
        fixed = ("--parsable", "--output=/dev/null", f"--account={TENANT}", "--time=9", GPU)
        argv = ("sbatch", *fixed, f"--wrap=exec sleep {seconds}")
        return int(self.sandbox.run("alice", argv).stdout)

    def cancel(self, *jobs: int) -> None:
        self.sandbox.run("slurm", ("scancel", *map(str, jobs)))

    def charged(self) -> dict[int, int | None]:
        """Millislice-seconds by job, None of one that has not ended; each job has one run."""
        with Ledger(self.url, CLUSTER) as ledger:
            rows = ledger.audit.statement(TENANT, 0, 0).rows
        found = {one.run.key.job_id: one.used_millislice_s if one.end_s else None for one in rows}
        assert len(found) == len(rows)
        return found

    def accounting(self) -> dict[int, int]:
        """The same of what has ended."""
        runs = [one for one in accounted_runs(self.sandbox) if one.account == TENANT]
        return {one.job_id: one.used_millislice_s for one in runs}

    def is_reserved(self, *jobs: int) -> bool:
        found = self.charged()
        return all(job in found and found[job] is None for job in jobs)

    def is_booked(self, *jobs: int) -> bool:
        found = self.charged()
        return all(found.get(job) is not None for job in jobs)


@pytest.mark.nightly
def test_a_ledger_restored_to_a_point_in_time_charges_what_has_ended_since(sandbox: Sandbox):
    """What Slurm's accounting says, to the millislice-second, and nothing twice."""
    books = Books(sandbox)
    archive = Archive(sandbox)
    over, across, lasting = books.submit(1), books.submit(600), books.submit(600)
    until(lambda: books.is_booked(over) and books.is_reserved(across, lasting))
    with Ledger(books.url, CLUSTER) as ledger:
        ledger.charges.seal()
        seal = ledger.audit.verify().seal
    at = archive.now()

    # What the restored ledger never saw: booked once here, and once more there.
    books.set_nominal("4")
    within, begun = books.submit(1), books.submit(600)
    until(lambda: books.is_reserved(begun))
    books.cancel(across)
    until(lambda: books.is_booked(within, across))
    before = books.charged()
    for name in ("launcher", "daemon"):
        sandbox.stop(name)
    books.cancel(begun)
    archive.restore(at)

    until(lambda: books.is_booked(across, within, begun))
    found = books.charged()
    assert {job: found[job] for job in (over, across, within)} == {
        job: before[job] for job in (over, across, within)
    }
    assert found.pop(lasting) is None
    until_is(books.accounting, found)
    assert found.keys() == {over, across, within, begun}
    books.cancel(lasting)
    with Ledger(books.url, CLUSTER) as ledger:
        assert ledger.audit.verify().faults == ()
        assert ledger.audit.has_seal(seal)
        assert ledger.tenants.policy()[TENANT].quota.nominal_millislices == 5000
    until_in_force(sandbox, TENANT)
