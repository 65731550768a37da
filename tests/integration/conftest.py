"""One cluster for all integration tests of a worker, cleaned after each module."""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from effort import is_ci
from jobs_as_users import Users
from json_checker import check_output
from quotas import delete_tenants, until_daemon_leads
from run_folder import path_for
from schedule import needs_no_sandbox

from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger

if TYPE_CHECKING:
    from browser import Browser
    from gateway_harness import Harness, Replica

_NEXT_VERSION = Path(__file__).parents[1] / "assets/next_version"
_LOGS = ("daemon", "launcher", "slurmctld")
_LAST_BYTES = 4000
_RUNNING: list[Sandbox] = []
"""The worker's sandbox, once a test has asked for it."""
_LOGGED = pytest.StashKey[dict[Path, int]]()


@pytest.fixture(scope="session", autouse=True)
def _printed_documents_are_checked() -> Iterator[None]:
    """What ``slicewise ... --json`` prints in the sandbox is compared with its published schema."""
    run = Sandbox.run

    def checked(self: Sandbox, user: str, argv: Sequence[str], **options: Any) -> Any:
        done = run(self, user, argv, **options)
        if argv[0] == "slicewise":
            check_output(argv[1:], done.stdout)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sandbox, "run", checked)
        yield


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A whole running sandbox, Slicewise's own daemon and launcher included."""
    running = Sandbox.up(path_for("cluster"), progress=print)
    _leave_disks_alone(running)
    _RUNNING.append(running)
    yield running
    _down()


def _down() -> None:
    while _RUNNING:
        _RUNNING.pop().down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
    """A sandbox that nobody needs any more would take a fourteenth of a processor."""
    result = yield
    if needs_no_sandbox(nextitem, item.session.items):
        _down()
    return result


@pytest.fixture(scope="module", autouse=True)
def _cleaned() -> Iterator[None]:
    """What a module leaves behind is not met by the next: jobs, tenants, servers that ended."""
    yield
    for running in _RUNNING:
        running.restore(print)
        Users(running).clear()
        # A test may have killed the daemon just now.
        until_daemon_leads(running)
        delete_tenants(running)


@pytest.fixture
async def gateway(tmp_path: Path) -> "AsyncIterator[Harness]":
    """A gateway of its own, without the sandbox; a module that wants another one has its own."""
    from gateway_harness import gateway_up

    async with gateway_up(tmp_path) as harness:
        yield harness


@pytest.fixture
async def replicas() -> "AsyncIterator[tuple[Replica, Replica]]":
    """Two that only sleep."""
    from gateway_harness import replicas_up

    async with replicas_up() as pair:
        yield pair


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> "AsyncIterator[Browser]":
    """One Chromium; the tests that use it run in the session's event loop."""
    from browser import PROGRAMS, browser_up, installed

    if (program := installed()) is None:
        (pytest.fail if is_ci() else pytest.skip)(f"none of {', '.join(PROGRAMS)} is installed")
    async with browser_up(program, tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def without_admission(sandbox: Sandbox) -> Iterator[None]:
    """Jobs without GPUs may be submitted: the module is about Slurm, and takes no GPU for that."""
    sandbox.run("root", ("slicewise", "admission", "off"))
    yield
    sandbox.run("root", ("slicewise", "admission", "on"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember how long the logs are."""
    item.stash[_LOGGED] = {log: log.stat().st_size for log in _logs() if log.exists()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """A test that fails shows what the servers said meanwhile."""
    report: pytest.TestReport = yield
    if report.failed:
        before = item.stash.get(_LOGGED, {})
        for log in _logs():
            said = _said(log, before.get(log, 0))[-_LAST_BYTES:].decode(errors="replace")
            report.sections.append((f"{log.name} meanwhile", said))
    return report


def _logs() -> list[Path]:
    return [running.layout.log / f"{name}.log" for running in _RUNNING for name in _LOGS]


def _said(log: Path, since: int) -> bytes:
    try:
        return log.read_bytes()[since:]
    except OSError:
        return b""


def _leave_disks_alone(sandbox: Sandbox) -> None:
    """PostgreSQL waits for no disk: what tests kill loses nothing that the kernel has."""
    with psycopg.connect(_server(sandbox), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


def _server(sandbox: Sandbox) -> str:
    return sandbox.layout.database_url(sandbox.state.users["slurm"].name)


@pytest.fixture(scope="session")
def _migrated(sandbox: Sandbox) -> str:
    """The name of an unused database with the ledger's tables."""
    name = _create(sandbox, "template1")
    url = f"SLICEWISE_DATABASE_URL={_url(sandbox, name)}"
    # A program of its own: PostgreSQL copies no database to which a session is connected.
    sandbox.run("root", ("env", url, "slicewise", "ledger", "db", "upgrade"))
    return name


@pytest.fixture
def database(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of its own on the sandbox's server.

    It is empty, unless the test asks for ``ledger_database``, too.
    """
    with_tables = "ledger_database" in request.fixturenames
    template = request.getfixturevalue("_migrated") if with_tables else "template1"
    name = _create(sandbox, template)
    yield _url(sandbox, name)
    with psycopg.connect(_server(sandbox), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ledger_database(database: str) -> str:
    """``database`` itself, with the ledger's tables: copied, not migrated."""
    return database


@pytest.fixture
def ledger(ledger_database: str) -> Iterator[Ledger]:
    """A ledger of a cluster of its own, empty."""
    with Ledger(ledger_database, "testing") as opened:
        yield opened


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The revision that the next version of the program would know, once this is that version."""
    folder = tmp_path / "migrations"
    shutil.copytree(str(files("migrations")), folder)
    shutil.copytree(_NEXT_VERSION, folder / "versions", dirs_exist_ok=True)
    monkeypatch.setattr(schema_revisions, "_FOLDER", folder)
    return "0002"


def _create(sandbox: Sandbox, template: str) -> str:
    name = f"ledger_{uuid4().hex}"
    with psycopg.connect(_server(sandbox), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return name


def _url(sandbox: Sandbox, name: str) -> str:
    return _server(sandbox).replace("/slicewise?", f"/{name}?")
