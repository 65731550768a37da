"""A socket for each test, and a stand-in for the daemon on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import Daemon, Reply


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admission.sock"


@pytest.fixture
def listening(path: Path) -> Iterator[Callable[..., Daemon]]:
    started: list[Daemon] = []

    def start(reply: Reply, **options: Any) -> Daemon:
        path.unlink(missing_ok=True)
        started.append(Daemon(path, reply, **options))
        return started[-1]

    yield start
    for daemon in started:
        daemon.close()
