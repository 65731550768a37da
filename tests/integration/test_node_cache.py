"""A service whose model is kept on the node (``launcher.node_cache``), of a real llama.cpp."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai_clients import asked
from quotas import until_in_force
from service_status import services, until_routed
from waiting import PATIENCE_S, until, until_done

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.integration

SERVICE = "nlp/kept"
FILE = """\
[service]
name = "kept"
tenant = "nlp"
engine = "llamacpp"
model_repository = {models}
model = "tiny"
profile = "1g.18gb"
max_replicas = 1
concurrency = 4
keep_alive_s = {keep_alive_s}
memory_mib = 512
"""
QUESTION = {"model": "tiny", "prompt": "a", "max_tokens": 12, "temperature": 0, "seed": 1}


class Kept:
    """A service of bob's at a site that keeps models in a folder of its nodes."""

    keep_alive_s = 600

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.models = sandbox.layout.models / "kept"
        self.cache = sandbox.layout.models.parent / "node-cache"
        self._home = sandbox.layout.home / sandbox.state.users["bob"].name
        self._settings = self._home / "kept.slicewise.toml"

    def prepare(self) -> None:
        (self.models / "tiny").mkdir(parents=True)
        write_tiny_model(self.models / "tiny" / "tiny.gguf")
        self.cache.mkdir()
        self.cache.chmod(0o1777)
        site = self.sandbox.layout.settings_file.read_text()
        kept = f'[launcher]\nnode_cache = "{self.cache}"\nnode_cache_gib = 1\n'
        self._settings.write_text(site.replace("[launcher]\n", kept))
        self._settings.chmod(0o644)

    def slicewise(self, *words: str) -> str:
        command = ("env", f"SLICEWISE_CONFIG={self._settings}", "slicewise", *words)
        return self.sandbox.run("bob", command).stdout

    def apply(self) -> None:
        file = self._home / "kept.toml"
        words = {"models": json.dumps(str(self.models)), "keep_alive_s": self.keep_alive_s}
        file.write_text(FILE.format(**words))
        self.slicewise("service", "apply", str(file))

    async def answer(self, service: str = SERVICE) -> str:
        """What a replica says, which the request may wake."""
        timeout = aiohttp.ClientTimeout(total=2 * PATIENCE_S)
        url = f"{self.sandbox.layout.gateway_url}/{service}/v1/completions"
        async with aiohttp.ClientSession(timeout=timeout) as session:
            code, said = await asked(session, url, QUESTION)
        assert code == 200, said
        return str(said["choices"][0]["text"])

    def servers(self) -> list[list[str]]:
        """The command lines of bob's servers."""
        uid = self.sandbox.state.users["bob"].uid
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_text().split("\0")
                is_server = any(word.endswith("llama_server.py") for word in words)
                if process.stat().st_uid == uid and is_server:
                    found.append(words)
        return found

    def task(self) -> str:
        """The task of its replica."""
        (words,) = self.servers()
        return "_".join(words[words.index("--tags") + 1].split(".")[1:])

    def end_replica(self) -> None:
        """As its own watcher does at the end of its lease: the slot comes back held."""
        before = self.servers()
        self.sandbox.run("bob", ("scancel", "--batch", "--signal=USR1", self.task()))
        until(lambda: before != self.servers())

    def ready_starts(self, count: int) -> list[dict[str, Any]]:
        """Those that became ready, the first one first; nothing until so many are over."""
        shown = json.loads(self.slicewise("service", "trace", SERVICE, "--json"))
        ready = [start for start in shown["starts"] if start["state"] == "ready"]
        return ready if len(ready) >= count else []

    def brought(self) -> list[str]:
        """How its replicas have got their model, the last one at the end."""
        log = self.slicewise("service", "logs", SERVICE, "--since", "1d")
        return [line.partition(" weights=")[2] for line in log.splitlines() if " weights=" in line]


@pytest.fixture(scope="module")
def kept(sandbox: Sandbox) -> Iterator[Kept]:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "4"))
    until_in_force(sandbox, "nlp")
    found = Kept(sandbox)
    found.prepare()
    found.apply()
    until_routed(sandbox, SERVICE)
    yield found
    sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
    until(lambda: SERVICE not in services(sandbox))
    until(lambda: not found.servers())


@pytest.mark.promise("A model is copied to a node once, and read there by the starts that follow.")
async def test_the_second_start_reads_what_the_first_has_copied(kept: Kept) -> None:
    first = await kept.answer()
    (line,) = kept.brought()
    outcome, _, size, entry = line.split()
    assert (outcome, int(size)) == ("copied", (kept.models / "tiny/tiny.gguf").stat().st_size)
    assert model_of(kept.servers()) == f"{entry}/models/tiny/tiny.gguf"
    kept.end_replica()
    assert await kept.answer() == first
    assert [said.split()[0] for said in kept.brought()] == ["copied", "hit"]
    assert model_of(kept.servers()) == f"{entry}/models/tiny/tiny.gguf"
    trace = await asyncio.to_thread(until, lambda: kept.ready_starts(2))
    assert [start["start_class"] for start in trace] == ["copied", "node"]
    for start in trace:
        assert (start["weights_bytes"], start["fallback"]) == (int(size), None)
        assert start["bytes_per_s"] > 0
        phases = {phase["phase"]: phase["seconds"] for phase in start["phases"]}
        marks_s = [start["at_s"][moment] for moment in ("script", "brought", "engine")]
        assert [phases["copy"], phases["step"]] == pytest.approx(
            [end_s - begin_s for begin_s, end_s in pairwise(marks_s)], abs=0.002
        )
        assert phases["copy"] > 0


async def test_an_idle_replica_is_kept_warm_and_spares_the_next_request_a_wait(kept: Kept) -> None:
    def spared() -> list[int]:
        """How many requests were spared one by day, while a replica is idle."""
        report = json.loads(kept.slicewise("service", "status", SERVICE, "--json"))["report"]
        is_idle = report is not None and report["warm_replicas"] == 1
        return [day["spared"] for day in report["warm_days"]] if is_idle else []

    await kept.answer()
    before = sum(await asyncio.to_thread(until, spared))
    await kept.answer()
    await asyncio.to_thread(until, lambda: sum(spared()) > before)
    assert "slice-hours on" in kept.slicewise("service", "status", SERVICE)


async def test_a_replica_that_slurm_requeues_is_a_start_again(kept: Kept) -> None:
    await kept.answer()
    before = len(await asyncio.to_thread(until, lambda: kept.ready_starts(1)))
    kept.sandbox.run("slurm", ("scontrol", "requeue", kept.task()))
    starts = await asyncio.to_thread(until, lambda: kept.ready_starts(before + 1))
    assert starts[-1]["start_class"] == "node"
    # Slurm tells whole seconds, so that a wait of less than one may not be seen.
    phases = [phase["phase"] for phase in starts[-1]["phases"] if phase["phase"] != "queue"]
    assert phases[phases.index("grant") :][:3] == ["grant", "launch", "copy"]


async def test_no_other_tenants_user_reads_it(kept: Kept) -> None:
    await kept.answer()
    model = model_of(kept.servers())
    readers = {
        user: kept.sandbox.run(user, ("cmp", model, f"{kept.models}/tiny/tiny.gguf"), check=False)
        for user in ("bob", "alice")
    }
    assert readers["bob"].returncode == 0
    assert readers["alice"].returncode != 0
    assert "Permission denied" in readers["alice"].stderr


def test_a_start_prefers_a_node_that_has_the_model(kept: Kept) -> None:
    """Slurm would give it gpu03, the first of both that are free."""
    sandbox = kept.sandbox
    sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"))
    until(lambda: SERVICE not in services(sandbox))
    node = ("scontrol", "update", "NodeName=gpu03")
    runs = ("squeue", "--noheader", "--name=kept", "--states=running,completing")
    on_gpu04 = ("squeue", "--noheader", "--nodelist=gpu04", "--states=running")

    def wake(count: int) -> str:
        """The node of a start; afterwards the service sleeps again."""
        asyncio.run(kept.answer())
        (*_, start) = until(lambda: kept.ready_starts(count))
        until(lambda: not sandbox.run("root", runs).stdout)
        return str(start["node"])

    sandbox.run("root", (*node, "State=DRAIN", "Reason=test"))
    try:
        kept.keep_alive_s = 1
        kept.apply()
        until_routed(sandbox, SERVICE)
        nodes = [wake(1)]
    finally:
        sandbox.run("root", (*node, "State=RESUME"))
    nodes.append(wake(2))
    takes = ("sbatch", "--gres=gpu:1g.18gb:1", "--nodelist=gpu04", "--output=/dev/null")
    for _ in range(3):
        sandbox.run("bob", (*takes, "--wrap=sleep 900"))
    until(lambda: len(sandbox.run("root", on_gpu04).stdout.splitlines()) == 3)
    nodes.append(wake(3))
    sandbox.run("bob", ("scancel", "--name=wrap"))
    assert nodes == ["gpu04", "gpu04", "gpu03"]


POOL = ("kept-a", "kept-b")
POOLED = """\
[service]
name = "{name}"
tenant = "nlp"
engine = "llamacpp"
pool = "kept"
model_repository = {models}
model = "{name}"
model_mib = 2000
profile = "1g.18gb"
max_replicas = 1
concurrency = 4
keep_alive_s = 600
memory_mib = 512
"""


class KeptPool(Kept):
    """Two services of bob's that share a replica at such a site."""

    def apply(self) -> None:
        for name in POOL:
            (self.models / name).mkdir()
            write_tiny_model(self.models / name / "tiny.gguf")
            file = self._home / f"{name}.toml"
            file.write_text(POOLED.format(name=name, models=json.dumps(str(self.models))))
            self.slicewise("service", "apply", str(file))
        for name in POOL:
            until_routed(self.sandbox, f"nlp/{name}")

    async def answers(self) -> list[str]:
        """What each model says, one after the other."""
        return [await self.answer(f"nlp/{name}") for name in POOL]

    def loads(self) -> set[tuple[str, str]]:
        """The models that were loaded or copied, and from where or how, by the logs."""
        logs = [self.slicewise("service", "logs", f"nlp/{name}", "--since", "1d") for name in POOL]
        lines = [line.partition(": weights=") for log in logs for line in log.splitlines()]
        return {(left.split()[-1], said.split()[0]) for left, mark, said in lines if mark}


async def test_a_pool_copies_to_the_node_what_it_has_loaded(kept: Kept) -> None:
    kept.slicewise("service", "delete", SERVICE, "--now")
    await asyncio.to_thread(until, lambda: not kept.servers())
    pool = KeptPool(kept.sandbox)
    try:
        await asyncio.to_thread(pool.apply)
        wanted = {(name, how) for name in POOL for how in ("source", "copied")}

        async def is_copied() -> bool:
            # A replica too many may go before it has copied: what is asked is loaded in the other.
            await pool.answers()
            return wanted <= await asyncio.to_thread(pool.loads)

        await until_done(is_copied, bool)
    finally:
        for name in POOL:
            pool.slicewise("service", "delete", f"nlp/{name}", "--now")
        await asyncio.to_thread(until, lambda: not pool.servers())


def model_of(servers: list[list[str]]) -> Any:
    (words,) = servers
    return words[words.index("--model") + 1]
