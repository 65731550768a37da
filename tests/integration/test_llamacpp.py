"""Services of a real llama.cpp on the sandbox, by OpenAI's API: from zero to a replica's end."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai_clients
import pytest
from llamacpp_replicas import LlamaReplica, llama_replicas
from quotas import until_in_force
from service_status import services, status, until_routed
from waiting import PATIENCE_S, until, until_done

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.integration

SERVICE, MODEL = "nlp/chat", "tiny"
REPLICAS, CONCURRENCY = 2, 4
BURST = 50
LONG_TOKENS = 6_000
"""Seconds of one slot; a context has room for twice as many."""
FEW_TOKENS = 1_500
"""Within the sandbox's KillWait of 8 s, also on a busy machine."""
WITHIN_LEASE_TOKENS = 2_500
"""Within the 55 s that a lease's end leaves, also on a busy machine; more than its signal takes."""
ENDLESS_TOKENS = 30_000
STREAMS = 5
"""Tried before a test gives up to find the replica that works on one."""
OBJECTIVE = "ttft_ms 60000, tpot_ms 60000"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
FILE = """\
[service]
name = "chat"
tenant = "nlp"
engine = "llamacpp"
model_repository = {models}
model = "tiny"
profile = "1g.18gb"
max_replicas = 2
min_replicas = {replicas}
concurrency = 4
ttft_ms = 60000
tpot_ms = 60000
keep_alive_s = {keep_alive_s}
memory_mib = 512
environment = {{ LLAMA_ARG_CTX_SIZE = "131072" }}
"""


class Chat:
    """A service of bob's, and clients of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.url = f"{sandbox.layout.gateway_url}/{SERVICE}"
        self.models = sandbox.layout.models / "llm"
        self._home = sandbox.layout.home / sandbox.state.users["bob"].name

    def slicewise(self, *words: str) -> str:
        return self.sandbox.run("bob", ("slicewise", *words)).stdout

    def apply(self, replicas: int, models: Path | None = None, keep_alive_s: int = 60) -> None:
        file = self._home / "chat.toml"
        place = json.dumps(str(models or self.models))
        text = FILE.format(models=place, replicas=replicas, keep_alive_s=keep_alive_s)
        file.write_text(text)
        self.slicewise("service", "apply", str(file))

    def status(self) -> Mapping[str, Any]:
        return status(self.sandbox, SERVICE)

    def nodes(self) -> list[str]:
        """Of the replicas that serve."""
        return [one["node"] for one in self.status()["replicas"] if one["state"] == "ready"]

    def update_node(self, node: str, *words: str) -> None:
        self.sandbox.run("slurm", ("scontrol", "update", f"NodeName={node}", *words))

    def ready(self) -> set[str]:
        """Identities of the replicas that serve."""
        return {
            f"chat.{one['array_job_id']}.{one['slot']}"
            for one in status(self.sandbox, SERVICE)["replicas"]
            if one["state"] == "ready"
        }

    def replicas(self) -> list[LlamaReplica]:
        return llama_replicas(self.sandbox.state.users["bob"].uid)

    def signal_script(self, replica: LlamaReplica, name: str) -> None:
        """As Slurm and its own watcher signal the batch script."""
        self.sandbox.run("bob", ("scancel", "--batch", f"--signal={name}", replica.task))

    def requeue(self, replica: LlamaReplica) -> None:
        """End its job as preemption by requeue does: TERM, and KILL after KillWait."""
        self.sandbox.run("slurm", ("scontrol", "requeue", replica.task))


@pytest.fixture(scope="module")
def chat(sandbox: Sandbox) -> Iterator[Chat]:
    """At zero."""
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "4"))
    until_in_force(sandbox, "nlp")
    found = Chat(sandbox)
    (found.models / MODEL).mkdir(parents=True)
    write_tiny_model(found.models / MODEL / "tiny.gguf")
    found.apply(replicas=0)
    until_routed(sandbox, SERVICE)
    yield found
    sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
    until(lambda: SERVICE not in services(sandbox))
    until(lambda: not found.replicas())


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=2 * PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as opened:
        yield opened


async def asked(session: aiohttp.ClientSession, chat: Chat, path: str, body: Any) -> Any:
    """Status and what was answered."""
    return await openai_clients.asked(session, f"{chat.url}{path}", body)


def stream(
    session: aiohttp.ClientSession, chat: Chat, tokens: int
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """A completion of so many tokens that has begun."""
    return openai_clients.stream(session, chat.url, MODEL, tokens)


async def ending(answer: aiohttp.ClientResponse) -> list[str]:
    """Why it ended, and its last words; an answer that is cut off has none of them."""
    lines = (await answer.read()).decode().split("\n\n")
    *_, last, done = [line.removeprefix("data: ") for line in lines if line]
    return [json.loads(last)["choices"][0]["finish_reason"], done]


COMPLETE = ["length", "[DONE]"]


@pytest.mark.promise("llama.cpp servers are woken like Triton.")
async def test_a_request_wakes_it_and_is_answered(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    assert chat.replicas() == []
    code, answer = await asked(session, chat, "/v1/chat/completions", CHAT)
    assert (code, answer["model"], answer["usage"]["completion_tokens"] > 0) == (200, MODEL, True)


async def test_clients_reach_inference_and_nothing_else(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    async with session.get(f"{chat.url}/v1/models") as answer:
        assert [one["id"] for one in (await answer.json())["data"]] == [MODEL]
    for path in ("/slots", "/props", "/metrics", "/lora-adapters", "/v1/stream/1"):
        async with session.get(f"{chat.url}{path}") as answer:
            assert answer.status == 403, path
    code, answer = await asked(session, chat, "/v1/chat/completions", {"messages": 1})
    assert (code, answer["error"]["type"]) == (400, "invalid_request_error")


async def test_a_stream_has_its_end(session: aiohttp.ClientSession, chat: Chat) -> None:
    async with stream(session, chat, 100) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert await ending(answer) == COMPLETE


@pytest.mark.parametrize("headers", [{}, {"X-Conversation-Id": "mine"}])
async def test_a_client_that_leaves_its_stream_frees_its_place(
    session: aiohttp.ClientSession, chat: Chat, headers: dict[str, str]
) -> None:
    """It came through unbuffered: the first word was there long before the last."""
    session.headers.update(headers)
    async with stream_and_its_replica(session, chat, ENDLESS_TOKENS) as (answer, replica):
        before = (await replica.figures())["tokens_predicted_total"]
        answer.close()
    after = await until_done(replica.figures, lambda seen: seen["requests_processing"] == 0)
    assert after["tokens_predicted_total"] - before < ENDLESS_TOKENS


async def test_a_burst_is_answered(session: aiohttp.ClientSession, chat: Chat) -> None:
    """Far beyond its slots: the rest waits at the gateway."""
    found = await asyncio.gather(
        *(asked(session, chat, "/v1/chat/completions", CHAT) for _ in range(BURST))
    )
    assert [code for code, _ in found] == [200] * BURST


@asynccontextmanager
async def steadily(session: aiohttp.ClientSession, chat: Chat) -> AsyncIterator[list[str]]:
    """Two clients, one request after the other; what failed."""
    failed: list[str] = []
    ended = asyncio.Event()

    async def ask_on() -> None:
        while not ended.is_set():
            try:
                code, answer = await asked(session, chat, "/v1/chat/completions", CHAT)
            except aiohttp.ClientError as error:
                failed.append(repr(error))
            else:
                failed.extend([f"{code} {answer}"] * (code != 200))
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as clients:
        for _ in range(2):
            clients.create_task(ask_on())
        yield failed
        ended.set()


async def test_its_tokens_are_timed_by_its_own_counters(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    async with steadily(session, chat) as failed:
        # llama-server does not count requests: the time to the first token is known with the first
        # answer that ends, the time between tokens before.
        found = await asyncio.to_thread(
            until,
            lambda: (
                (told := (one := status(chat.sandbox, SERVICE))["report"])
                and told["tpot_ms"]
                and told["ttft_ms"]
                and one
            ),
        )
    assert failed == []
    report = found["report"]
    assert (report["ttft_ms"] > 0, found["token_objective"]) == (True, OBJECTIVE)
    # It has no histogram of the former, and says nothing of its cache.
    assert report["ttft_p95_ms"] is None
    said = report["engine_load"]
    assert 0 <= said["running"] + said["waiting"] <= 2
    assert [said[one] for one in ("kv_cache_share", "preemptions", "prefix_cache_hit_share")] == [
        None
    ] * 3


@pytest.fixture
async def two_replicas(chat: Chat) -> None:
    """Two replicas serve, also where a test runs alone."""
    if len(await asyncio.to_thread(chat.ready)) < REPLICAS:
        await asyncio.to_thread(chat.apply, REPLICAS)
        await until_ready(chat)


async def until_ready(chat: Chat, *, after: int = 0) -> None:
    """Until two replicas serve, all of arrays that came after this one."""
    await asyncio.to_thread(
        until, lambda: len(now := chat.ready()) == REPLICAS and min(map(array_of, now)) > after
    )


def array_of(identity: str) -> int:
    return int(identity.split(".")[1])


async def test_it_rolls_over_without_a_failed_request(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    old = max(map(array_of, await asyncio.to_thread(chat.ready)))
    async with steadily(session, chat) as failed, stream(session, chat, LONG_TOKENS) as answer:
        await asyncio.to_thread(chat.apply, REPLICAS)
        await until_ready(chat, after=old)
        assert await ending(answer) == COMPLETE
    assert failed == []


async def _busy(chat: Chat) -> list[LlamaReplica]:
    """Those that work on a request; one that begins or ends can't be asked."""
    found = []
    for one in chat.replicas():
        with suppress(aiohttp.ClientError):
            found += [one] * ((await one.figures())["requests_processing"] > 0)
    return found


@asynccontextmanager
async def stream_and_its_replica(
    session: aiohttp.ClientSession, chat: Chat, tokens: int
) -> AsyncIterator[tuple[aiohttp.ClientResponse, LlamaReplica]]:
    """A completion that has begun, and who works on it.

    Another one where it was over before that was known: a busy machine stalls for as long as few
    tokens take.
    """
    for _ in range(STREAMS):
        async with stream(session, chat, tokens) as answer:
            if busy := await _busy(chat):
                (replica,) = busy
                yield answer, replica
                return
    pytest.fail(f"each of {STREAMS} streams was over before its replica was found")


@pytest.mark.usefixtures("two_replicas")
async def test_a_replica_whose_lease_ends_finishes_its_streams(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    """llama-server would cut them off, in a way that looks like their end."""
    async with (
        stream_and_its_replica(session, chat, WITHIN_LEASE_TOKENS) as (answer, busy),
        steadily(session, chat) as failed,
    ):
        await asyncio.to_thread(chat.signal_script, busy, "USR1")
        assert await ending(answer) == COMPLETE
        await until_ready(chat)
        await asyncio.to_thread(until, lambda: busy not in chat.replicas())
    assert failed == []


@pytest.mark.usefixtures("two_replicas")
async def test_a_preempted_replica_finishes_its_streams(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    """Slurm gives it KillWait; the launcher takes it out, and its slot comes back."""
    async with (
        stream_and_its_replica(session, chat, FEW_TOKENS) as (answer, busy),
        steadily(session, chat) as failed,
    ):
        await asyncio.to_thread(chat.requeue, busy)
        assert await ending(answer) == COMPLETE
        await asyncio.to_thread(until, lambda: busy not in chat.replicas())
        await until_ready(chat)
    assert failed == []


@pytest.mark.usefixtures("two_replicas")
async def test_a_drained_node_is_left_without_a_failed_request(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    (node, *_) = await asyncio.to_thread(chat.nodes)

    def is_left() -> bool:
        nodes = chat.nodes()
        return len(nodes) == REPLICAS and node not in nodes

    try:
        async with steadily(session, chat) as failed, stream(session, chat, LONG_TOKENS) as answer:
            await asyncio.to_thread(chat.update_node, node, "State=DRAIN", "Reason=test")
            await asyncio.to_thread(until, is_left)
            assert await ending(answer) == COMPLETE
    finally:
        await asyncio.to_thread(chat.update_node, node, "State=RESUME")
    assert failed == []


@pytest.mark.usefixtures("two_replicas")
async def test_a_broken_version_takes_nothing_from_the_one_before(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    broken = chat.models.with_name("llm-broken")
    (broken / MODEL).mkdir(parents=True)
    (broken / MODEL / "tiny.gguf").write_text("no model")
    before = await asyncio.to_thread(chat.ready)
    async with steadily(session, chat) as failed, stream(session, chat, LONG_TOKENS) as answer:
        await asyncio.to_thread(chat.apply, REPLICAS, broken)
        await asyncio.to_thread(
            until, lambda: "the generation before it still serves" in chat.status()["note"]
        )
        assert await ending(answer) == COMPLETE
    assert failed == []
    assert await asyncio.to_thread(chat.ready) == before
    await asyncio.to_thread(chat.apply, REPLICAS)
    await until_ready(chat, after=max(map(array_of, before)))


async def test_only_what_a_killed_replica_had_in_flight_fails(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    await until_ready(chat)
    async with (
        stream_and_its_replica(session, chat, ENDLESS_TOKENS) as (answer, busy),
        steadily(session, chat) as failed,
    ):
        os.kill(busy.pid, signal.SIGKILL)
        with suppress(aiohttp.ClientError):
            assert b"[DONE]" not in await answer.read()
        await asyncio.to_thread(until, lambda: _is_replaced(busy, chat.replicas()))
        await until_ready(chat)
    assert len(failed) <= CONCURRENCY


def _is_replaced(replica: LlamaReplica, there: list[LlamaReplica]) -> bool:
    """Whether its slot has another process."""
    return any(one.identity == replica.identity and one.pid != replica.pid for one in there)


async def test_it_goes_back_to_zero_and_wakes_again(
    session: aiohttp.ClientSession, chat: Chat
) -> None:
    await asyncio.to_thread(chat.apply, 0, None, 1)
    await asyncio.to_thread(until, lambda: not chat.replicas())
    found = await asyncio.gather(
        *(asked(session, chat, "/v1/chat/completions", CHAT) for _ in range(BURST))
    )
    assert [code for code, _ in found] == [200] * BURST
