"""Services of vLLM and SGLang on the sandbox, from zero to a replica's end.

vLLM is the real one, by night (SLICEWISE_VLLM names its command; docs/how-to/testing.md). SGLang is
a stand-in that was written from its source, in the network of its own that the real one would get.
"""

import asyncio
import json
import os
import shlex
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import sglang_stand_in
from builders import tiny_safetensors
from openai_clients import asked, events, stream
from quotas import until_in_force
from service_status import services, status, until_routed
from waiting import until, until_done

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

MODEL = "tiny"
TOKENS = 300
ENDLESS_TOKENS = {"sglang": 30_000, "vllm": 3 * TOKENS}
"""vLLM's context has room for no more."""
PORT = 30000
FILE = """\
[service]
name = "{engine}"
tenant = "nlp"
engine = "{engine}"
model_repository = {models}
model = "tiny"
profile = "1g.18gb"
max_replicas = 1
min_replicas = 0
concurrency = 4
keep_alive_s = 600
memory_mib = 6000
adapters = {{ {adapters} }}
environment = {{ {environment} }}
"""
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
VLLM_OPTIONS = "enforce-eager: true\nmax-model-len: 1024\n"


@dataclass(frozen=True)
class Backlog:
    """Names of an engine's own figures of requests."""

    running: str
    waiting: str


BACKLOGS = {
    "sglang": Backlog("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    "vllm": Backlog("vllm:num_requests_running", "vllm:num_requests_waiting"),
}


def _leads(word: str) -> bool:
    return word.endswith("/loopback.py") or word == "unshare"


def _is_door(words: list[str]) -> bool:
    return any(word.endswith("/door.py") for word in words)


class Served:
    """A service of bob's with one replica at most."""

    def __init__(self, sandbox: Sandbox, engine: str, command: Path) -> None:
        self.sandbox, self.engine = sandbox, engine
        self.name = f"nlp/{engine}"
        self.url = f"{sandbox.layout.gateway_url}/{self.name}"
        self._command = command
        self._uid = sandbox.state.users["bob"].uid
        self._models = sandbox.layout.models / engine

    def write_models(self) -> None:
        tiny_safetensors.write_tiny_model(self._models / MODEL)
        (self._models / MODEL / "vllm.yaml").write_text(VLLM_OPTIONS)
        for name, rank in (("legal", 8), ("tax", 16), ("wide", 64)):
            tiny_safetensors.write_tiny_adapter(self._models / "lora" / name, rank)

    def submit(self, **adapters: str) -> None:
        """Submit its script, in which the command of this site stands."""
        home = self.sandbox.layout.home / self.sandbox.state.users["bob"].name
        file = home / f"{self.engine}.toml"
        models = json.dumps(str(self._models))
        said = ", ".join(f'{name} = "lora/{path}"' for name, path in adapters.items())
        environment = ", ".join(f'{name} = "{value}"' for name, value in VARIABLES.items())
        values = {
            "engine": self.engine,
            "models": models,
            "environment": environment,
            "adapters": said,
        }
        file.write_text(FILE.format(**values))
        script = self.sandbox.run("bob", ("slicewise", "service", "render", str(file))).stdout
        usual = f"/opt/{self.engine}/bin/{self.engine}"
        assert usual in script
        script = script.replace(usual, shlex.quote(str(self._command)))
        self.sandbox.run("bob", ("sbatch",), input=script)

    def processes(self) -> list[int]:
        """The servers that run, without what leads to them."""
        return [
            process
            for process, words in self._words().items()
            if "--served-model-name" in words and not any(map(_leads, words))
        ]

    def socket(self) -> str:
        """The server's, as the door has it."""
        (found,) = {
            f"{words[-2]}/{words[-1]}" for words in self._words().values() if _is_door(words)
        }
        return found

    def _words(self) -> dict[int, list[str]]:
        """Of the command lines of the user's processes."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if process.stat().st_uid == self._uid:
                    text = (process / "cmdline").read_text()
                    found[int(process.name)] = text.removesuffix("\0").split("\0")
        return found

    async def backlog(self) -> tuple[float, float]:
        """Requests that it works on and that wait in it, as it counts them."""
        connector = aiohttp.UnixConnector(self.socket())
        opened = aiohttp.ClientSession(connector=connector)
        async with opened as session, session.get("http://here/metrics") as answer:
            lines = (await answer.text()).splitlines()
        names = BACKLOGS[self.engine]
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        by_name = {key.partition("{")[0]: float(value) for key, value in found.items()}
        return by_name[names.running], by_name[names.waiting]

    def profile(self) -> list[dict[str, Any]]:
        """Measure its model with the command of this site."""
        home = self.sandbox.layout.home / self.sandbox.state.users["bob"].name
        settings = home / f"{self.engine}.slicewise.toml"
        command = json.dumps(str(self._command))
        text = self.sandbox.layout.settings_file.read_text()
        settings.write_text(f"{text}\n[engines.{self.engine}]\ncommand = {command}\n")
        settings.chmod(0o644)
        words = (
            *("env", f"SLICEWISE_CONFIG={settings}"),
            *("slicewise", "profile", "measure", MODEL, "--json"),
            *("--model-repository", str(self._models), "--engine", self.engine),
            *("--account", "nlp", "--types", "1g.18gb", "--memory-mib", "6000"),
            *("--concurrency", "1,4", "--prompt-tokens", "30", "--output-tokens", "8"),
            *("--seconds", "2", "--output", f"{self.engine}.profile.json"),
            *(word for pair in VARIABLES.items() for word in ("--environment", "=".join(pair))),
        )
        done = self.sandbox.run("bob", words, timeout_s=900)
        found: list[dict[str, Any]] = json.loads(done.stdout)["measurements"]
        return found

    def end_lease(self) -> None:
        (replica,) = status(self.sandbox, self.name)["replicas"]
        task = f"{replica['array_job_id']}_{replica['slot']}"
        self.sandbox.run("bob", ("scancel", "--batch", "--signal=USR1", task))

    def delete(self) -> None:
        words = ("slicewise", "service", "delete", self.name, "--now")
        self.sandbox.run("bob", words, check=False)
        until(lambda: self.name not in services(self.sandbox))
        until(lambda: not self.processes())


def _command(sandbox: Sandbox, engine: str) -> Path:
    if engine == "vllm":
        if (named := os.environ.get("SLICEWISE_VLLM")) is None:
            pytest.skip("SLICEWISE_VLLM names no vLLM")
        return Path(named)
    program = sandbox.layout.bin / "sglang_stand_in.py"
    shutil.copyfile(sglang_stand_in.__file__, program)
    program.chmod(0o644)
    command = sandbox.layout.bin / "sglang"
    command.write_text(f'#!/bin/sh\nexec /usr/bin/env python3 {program} "$@"\n')
    command.chmod(0o755)
    return command


@pytest.fixture(scope="module", params=["sglang", pytest.param("vllm", marks=pytest.mark.nightly)])
def served(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Served]:
    """At zero."""
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "4"))
    until_in_force(sandbox, "nlp")
    found = Served(sandbox, request.param, _command(sandbox, request.param))
    found.write_models()
    found.submit(legal="legal", wide="wide")
    until_routed(sandbox, found.name)
    yield found
    found.delete()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=500)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as opened:
        yield opened


async def test_a_burst_wakes_it_and_waits_at_the_gateway(
    session: aiohttp.ClientSession, served: Served
) -> None:
    assert served.processes() == []
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 8}
    url = f"{served.url}/v1/completions"
    found = await asyncio.gather(*(asked(session, url, body) for _ in range(20)))
    assert [code for code, _ in found] == [200] * 20
    assert {answer["usage"]["completion_tokens"] for _, answer in found} <= set(range(1, 9))


async def test_clients_reach_inference_and_nothing_else(
    session: aiohttp.ClientSession, served: Served
) -> None:
    async with session.get(f"{served.url}/v1/models") as answer:
        assert MODEL in [one["id"] for one in (await answer.json())["data"]]
    for path in ("/metrics", "/model_info", "/v1/load_lora_adapter", "/docs", "/v1/responses/1"):
        async with session.get(f"{served.url}{path}") as answer:
            assert answer.status == 403, path
    code, _ = await asked(session, f"{served.url}/v1/completions", {"model": MODEL, "prompt": {}})
    assert code == 400
    if served.engine == "sglang":
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT))


async def test_adapters_are_models_that_come_and_go_while_a_replica_serves(
    session: aiohttp.ClientSession, served: Served
) -> None:
    """One of too large a rank costs only itself."""
    url = f"{served.sandbox.layout.gateway_url}/nlp/v1/completions"

    async def said(model: str) -> tuple[int, str]:
        body = {"model": model, "prompt": "hello", "max_tokens": 8, "temperature": 0}
        code, answer = await asked(session, url, body)
        return code, answer["choices"][0]["text"] if code == 200 else ""

    def adapters() -> dict[str, tuple[int, bool, int]]:
        """Replicas that have loaded each, whether one has refused it, and its requests."""
        return {
            one["model"].partition(":")[2]: (one["loaded"], bool(one["why"]), one["requests"])
            for one in (status(served.sandbox, served.name)["report"] or {}).get("adapters", ())
        }

    (before,) = served.processes()
    name = served.engine
    base, legal = await said(name), await said(f"{name}:legal")
    assert (base[0], legal[0]) == (200, 200)
    assert (base == legal) == (name == "sglang")  # The stand-in says the same whatever it is asked.
    assert (await said(f"{name}:wide"))[0] in {400, 404}
    assert (await said(f"{name}:tax"))[0] == 404
    wanted = {"legal": (1, False, 1), "wide": (0, True, 1)}
    await asyncio.to_thread(until, lambda: adapters() == wanted)
    await asyncio.to_thread(served.submit, legal="tax", tax="tax")
    await asyncio.to_thread(
        until, lambda: adapters() == {"legal": (1, False, 1), "tax": (1, False, 0)}
    )
    await until_done(lambda: said(f"{name}:tax"), lambda one: one[0] == 200)
    tax = await said(f"{name}:tax")
    assert await said(f"{name}:legal") == tax
    assert (tax == legal) == (name == "sglang")
    assert (await said(f"{name}:wide"))[0] == 404
    shown = await asyncio.to_thread(status, served.sandbox, served.name)
    assert (shown["state"], served.processes()) == ("ready", [before])
    assert not any(one["is_outdated"] for one in shown["replicas"])


async def test_each_stream_ends_with_what_it_used(
    session: aiohttp.ClientSession, served: Served
) -> None:
    async with stream(session, served.url, MODEL, 20) as answer:
        *_, last = events(await answer.read())
    assert last["usage"]["completion_tokens"] == 20


async def test_a_client_that_leaves_its_stream_frees_its_place(
    session: aiohttp.ClientSession, served: Served
) -> None:
    async with stream(session, served.url, MODEL, ENDLESS_TOKENS[served.engine]) as answer:
        assert await served.backlog() == (1, 0)
        answer.close()
    await until_done(served.backlog, lambda seen: seen == (0, 0))


async def test_a_replica_whose_lease_ends_finishes_its_streams(
    session: aiohttp.ClientSession, served: Served
) -> None:
    """The door lets in no more and waits; then the server gets its signal, and ends soon."""
    (before,) = served.processes()
    async with stream(session, served.url, MODEL, TOKENS) as answer:
        await asyncio.to_thread(served.end_lease)
        *_, finish, _ = events(await answer.read())
        assert finish["choices"][0]["finish_reason"] == "length"
    await asyncio.to_thread(until, lambda: before not in served.processes())


def test_its_models_are_measured(served: Served) -> None:
    rows = served.profile()
    assert [(row["batch"], row["reason"]) for row in rows] == [(1, ""), (4, "")]
    for row in rows:
        figures = row["tokens"]
        assert figures["output_tokens"] == 8
        assert figures["prompt_tokens"] >= 1
        # In whole thousandths, and of the same answers.
        assert abs(figures["output_mtps"] - 8 * row["throughput_mrps"]) <= 8
        assert 0 < figures["ttft_p50_us"] <= figures["ttft_p99_us"]
        assert figures["tpot_p50_us"] > 0
