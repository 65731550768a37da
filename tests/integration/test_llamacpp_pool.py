"""Language models of one tenant that share a slice: real llama.cpp's servers in one replica."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai_clients
import pytest
from llamacpp_replicas import LlamaReplica, llama_replicas
from quotas import until_in_force
from service_status import services, until_routed
from waiting import PATIENCE_S, until

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.integration

NAMES = ("first", "second", "third")
FILE = """\
[service]
name = "{name}"
tenant = "nlp"
pool = "chats"
engine = "llamacpp"
model_repository = {models}
model = "model-of-{name}"
model_mib = 250
profile = "1g.18gb"
max_replicas = 1
concurrency = 2
keep_alive_s = 120
memory_mib = 1024
environment = {{ LLAMA_ARG_CTX_SIZE = "8192" }}
"""


class Chats:
    """Three services of bob's, whose tenant has one slice."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._models = sandbox.layout.models / "chats"
        self._home = sandbox.layout.home / sandbox.state.users["bob"].name

    def apply(self) -> None:
        for name in NAMES:
            folder = self._models / f"model-of-{name}"
            folder.mkdir(parents=True)
            write_tiny_model(folder / "tiny.gguf")
            file = self._home / f"{name}.toml"
            file.write_text(FILE.format(name=name, models=json.dumps(str(self._models))))
            self.sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
        for name in NAMES:
            until_routed(self.sandbox, f"nlp/{name}")

    def delete(self) -> None:
        for name in NAMES:
            command = ("slicewise", "service", "delete", f"nlp/{name}", "--now")
            self.sandbox.run("bob", command, check=False)
        until(lambda: not {f"nlp/{name}" for name in NAMES} & services(self.sandbox).keys())
        until(lambda: not self.servers())

    def servers(self) -> list[LlamaReplica]:
        """Of all models."""
        return llama_replicas(self.sandbox.state.users["bob"].uid)

    def loads(self) -> list[dict[str, Any]]:
        """The starts of models in another service's replica, once each guest has one."""
        found = []
        for name in NAMES:
            words = ("slicewise", "service", "trace", f"nlp/{name}", "--json")
            starts = json.loads(self.sandbox.run("bob", words).stdout)["starts"]
            found += [start for start in starts if start["start_class"] == "pool"]
        ready = [start for start in found if start["state"] == "ready"]
        return ready if len(ready) == len(NAMES) - 1 else []

    async def asked(self, session: aiohttp.ClientSession, name: str) -> str:
        """The model that answers at a service's address, whatever its client names."""
        url = f"{self.sandbox.layout.gateway_url}/nlp/{name}/v1/completions"
        body = {"model": "gpt", "prompt": "a", "max_tokens": 4}
        status, answer = await openai_clients.asked(session, url, body)
        assert status == 200, answer
        model: str = answer["model"]
        return model


@pytest.fixture(scope="module")
def chats(sandbox: Sandbox) -> Iterator[Chats]:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "1"))
    until_in_force(sandbox, "nlp")
    services_of_bob = Chats(sandbox)
    services_of_bob.apply()
    yield services_of_bob
    services_of_bob.delete()


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2 * PATIENCE_S))


async def test_one_slice_answers_for_all_with_the_model_of_each(chats: Chats) -> None:
    async with client() as session:
        models = await asyncio.gather(*(chats.asked(session, name) for name in NAMES))
        assert models == [f"model-of-{name}" for name in NAMES]
        assert len({server.identity for server in chats.servers()}) == 1
        assert len(chats.servers()) == len(NAMES)
        # Who waited for a load sees in its own service's trace where the seconds went.
        for start in await asyncio.to_thread(until, chats.loads):
            assert list(start["at_s"]) == [
                *("held", "seen", "desired", "loaded", "routed"),
                "answered",
            ]
            assert start["node"]
        shown = chats.sandbox.run("bob", ("slicewise", "service", "status", NAMES[0], "--json"))
        there = json.loads(shown.stdout)["pool"]
        assert {row["service"]: row["state"] for row in there} == {
            f"nlp/{name}": "ready" for name in NAMES
        }
        assert len({(row["array_job_id"], row["slot"]) for row in there}) == 1
        assert sum(row["load_s"] is not None for row in there) == len(NAMES) - 1
        # One that has ended by itself begins again, and the next request waits for that.
        (replica,) = {server.identity.split(".")[0] for server in chats.servers()}
        lost = next(name for name in NAMES if name != replica)
        number = NAMES.index(lost)
        killed = next(server for server in chats.servers() if has_alias(server.pid, lost))
        os.kill(killed.pid, signal.SIGKILL)
        until(lambda: {s.pid for s in chats.servers() if has_alias(s.pid, lost)} - {killed.pid})
        assert await chats.asked(session, lost) == models[number]


async def test_with_the_program_that_starts_them_all_servers_end_and_the_slice_is_free(
    chats: Chats,
) -> None:
    async with client() as session:
        models = await asyncio.gather(*(chats.asked(session, name) for name in NAMES))
        before = {server.pid for server in chats.servers()}
        (supervisor,) = supervisors(chats.sandbox.state.users["bob"].uid)
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not before & {server.pid for server in chats.servers()})
        # The tenant has one slice: another replica starts in it.
        assert await asyncio.gather(*(chats.asked(session, name) for name in NAMES)) == models


def supervisors(uid: int) -> set[int]:
    """The processes of models.py."""
    pids = set[int]()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            program = cmdline.read_bytes().split(b"\0")[1:2]
            if cmdline.stat().st_uid == uid and any(
                word.endswith(b"/models.py") for word in program
            ):
                pids.add(int(cmdline.parent.name))
    return pids


def has_alias(pid: int, name: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return f"\0model-of-{name}\0".encode() in words
