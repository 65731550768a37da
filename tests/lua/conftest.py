"""Gives each test a socket, and a stand-in for the daemon on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import LUAS, Daemon, Interpreter, Reply


@pytest.fixture(params=LUAS, autouse=True)
def lua(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the interpreter under which the test runs."""
    name = str(request.param)
    monkeypatch.setattr(Interpreter, "name", name)
    return name


@pytest.fixture(autouse=True, scope="session")
def _interpreters() -> Iterator[None]:
    yield
    Interpreter.end_all()


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
