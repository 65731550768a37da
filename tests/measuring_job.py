"""Runs the client of a job of ``slicewise profile`` beside a server that a test plays."""

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web
from pydantic import BaseModel

from slicewise.launcher.profiling.job_main import main
from slicewise.launcher.rules.profiling.figures import Message, Point

FIRST_PID = 4242


class Killed:
    """Processes that the client has killed; the next one is there, as the script would have it."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pids: list[int] = []
        self.file = file
        monkeypatch.setattr(os, "kill", self)

    def __call__(self, pid: int, number: int) -> None:
        assert number == signal.SIGKILL
        assert self.file.read_text() == ""
        self.pids.append(pid)
        self.file.write_text(f"{pid + 1}\n")


def run_client(app: web.Application, asked: BaseModel, engine: str, killed: Killed) -> None:
    """Serve the app on a socket until the client has ended."""

    async def served() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        with TemporaryDirectory() as folder:
            behind = f"{folder}/http"
            await web.UnixSite(runner, behind).start()
            killed.file.write_text(f"{FIRST_PID}\n")
            words = (asked.model_dump_json(), behind, "me.7", str(killed.file), engine)
            await asyncio.to_thread(main, *words)
            await runner.cleanup()

    asyncio.run(served())


def points(found: Iterable[Message]) -> list[Point]:
    """Keep what was measured."""
    return [one for one in found if isinstance(one, Point)]
