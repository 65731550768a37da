"""One cluster for all integration tests."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from sandbox.cluster import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A whole running sandbox, Slicewise's own daemon and launcher included."""
    running = Sandbox.up(Path(f"/tmp/slicewise-test-{os.getpid()}"), progress=print)
    _leave_disks_alone(running)
    yield running
    running.down()


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
    server = _server(sandbox)
    name = f"ledger_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/slicewise?", f"/{name}?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
