"""One cluster for all integration tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.cluster import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A whole running sandbox, Slicewise's own daemon and launcher included."""
    running = Sandbox.up(Path(f"/tmp/slicewise-test-{os.getpid()}"), progress=print)
    yield running
    running.down()
