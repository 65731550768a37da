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
    yield running
    running.down()


@pytest.fixture
def database(sandbox: Sandbox) -> Iterator[str]:
    """The URL of an empty database of its own on the sandbox's server."""
    server = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    name = f"ledger_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/slicewise?", f"/{name}?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
