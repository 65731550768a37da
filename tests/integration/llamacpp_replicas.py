"""Servers of llama.cpp that serve on the sandbox, as their command lines have them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp


@dataclass(frozen=True)
class LlamaReplica:
    """One of them."""

    pid: int
    identity: str
    socket: str

    @property
    def task(self) -> str:
        """Its job, as Slurm names it."""
        return "_".join(self.identity.split(".")[1:])

    async def figures(self) -> dict[str, float]:
        """By name, of its own metrics; only root and its user come to it."""
        connector = aiohttp.UnixConnector(self.socket)
        opened = aiohttp.ClientSession(connector=connector)
        async with opened as session, session.get("http://here/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}


def llama_replicas(uid: int) -> list[LlamaReplica]:
    """Those of a user."""
    replicas = map(_replica, _processes_of(uid))
    return [replica for replica in replicas if replica is not None]


def _processes_of(uid: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == uid:
                yield process


def _replica(process: Path) -> LlamaReplica | None:
    with suppress(OSError, ValueError):
        words = (process / "cmdline").read_text().split("\0")
        if any(word.endswith("llama_server.py") for word in words):
            told = {name: words[words.index(name) + 1] for name in ("--tags", "--host")}
            return LlamaReplica(int(process.name), told["--tags"], told["--host"])
    return None
