"""One cluster for all integration tests of a worker, cleaned after each module."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from run_folder import path_for
from waiting import until

from sandbox.cluster import Sandbox
from slurm_plugin.ledger.store import Ledger

_LOGS = ("daemon", "launcher", "slurmctld")
_LAST_BYTES = 4000
_RUNNING: list[Sandbox] = []
"""The worker's sandbox, once a test has asked for it."""
_LOGGED = pytest.StashKey[dict[Path, int]]()


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A whole running sandbox, Slicewise's own daemon and launcher included."""
    running = Sandbox.up(path_for("cluster"), progress=print)
    _leave_disks_alone(running)
    _RUNNING.append(running)
    yield running
    _RUNNING.clear()
    running.down()


@pytest.fixture(scope="module", autouse=True)
def _cleaned() -> Iterator[None]:
    """What a module leaves behind is not met by the next: jobs, tenants, servers that ended."""
    yield
    for running in _RUNNING:
        running.restore(print)
        _cancel_jobs(running)
        _remove_tenants(running)


def _cancel_jobs(sandbox: Sandbox) -> None:
    for user in ("alice", "bob", "carol"):
        sandbox.run("root", ("scancel", "--quiet", f"--user={user}"), check=False)
    until(lambda: not sandbox.run("root", ("squeue", "--noheader")).stdout)


def _remove_tenants(sandbox: Sandbox) -> None:
    """Children before their parents."""
    listed = json.loads(sandbox.run("root", ("slicewise", "tenant", "list", "--json")).stdout)
    for name in reversed([row["tenant"] for row in listed]):
        sandbox.run("root", ("slicewise", "tenant", "remove", name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember how long the logs are."""
    logs = [running.layout.log / f"{name}.log" for running in _RUNNING for name in _LOGS]
    item.stash[_LOGGED] = {log: log.stat().st_size for log in logs if log.exists()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """A test that fails shows what the servers said meanwhile."""
    report: pytest.TestReport = yield
    if report.failed:
        for log, begun in item.stash.get(_LOGGED, {}).items():
            said = log.read_bytes()[begun:][-_LAST_BYTES:].decode(errors="replace")
            report.sections.append((f"{log.name} meanwhile", said))
    return report


def _leave_disks_alone(sandbox: Sandbox) -> None:
    """PostgreSQL waits for no disk: what tests kill loses nothing that the kernel has."""
    with psycopg.connect(_server(sandbox), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


def _server(sandbox: Sandbox) -> str:
    return sandbox.layout.database_url(sandbox.state.users["slurm"].name)


@pytest.fixture
def database(sandbox: Sandbox) -> Iterator[str]:
    """The URL of an empty database of its own on the sandbox's server."""
    name = _create(sandbox, "template1")
    yield _url(sandbox, name)
    _drop(sandbox, name)


@pytest.fixture(scope="session")
def _migrated(sandbox: Sandbox) -> str:
    """The name of a database with the ledger's tables, which nobody uses."""
    name = _create(sandbox, "template1")
    url = f"SLICEWISE_DATABASE_URL={_url(sandbox, name)}"
    # A program of its own: PostgreSQL copies no database to which somebody is connected.
    sandbox.run("root", ("env", url, "slicewise", "db", "upgrade"))
    return name


@pytest.fixture
def ledger_database(sandbox: Sandbox, database: str, _migrated: str) -> str:
    """``database`` itself, once it has the ledger's tables: copied, not migrated."""
    name = database.partition("?")[0].rpartition("/")[2]
    _drop(sandbox, name)
    _create(sandbox, _migrated, name)
    return database


@pytest.fixture
def ledger(ledger_database: str) -> Iterator[Ledger]:
    """A ledger of a cluster of its own, empty."""
    with Ledger(ledger_database, "testing") as opened:
        yield opened


def _create(sandbox: Sandbox, template: str, name: str = "") -> str:
    name = name or f"ledger_{uuid4().hex}"
    with psycopg.connect(_server(sandbox), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return name


def _drop(sandbox: Sandbox, name: str) -> None:
    with psycopg.connect(_server(sandbox), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _url(sandbox: Sandbox, name: str) -> str:
    return _server(sandbox).replace("/slicewise?", f"/{name}?")
