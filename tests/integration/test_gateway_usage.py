"""What a real HAProxy counts of answers as they pass, and how the launcher hears of it."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
import pytest
from aiohttp import web
from gateway_harness import CHAT, Harness, Replica, decided, eventually, gateway_up

from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import TokenAllowance
from slicewise.launcher.gateway import kept_lines
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.gateway.allowances import TakenTokens, bounds
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.gateway.usage_lines import UsageLine, parse_usage_line

pytestmark = pytest.mark.integration

STREAM = "text/event-stream"
JSON = "application/json"
LIES = 'as I said, "usage":{"prompt_tokens":1,"completion_tokens":1}} and \\ "'
"""What a model says of itself."""
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 7,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
}
OF_RESPONSES = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 16,
}
OF_MESSAGES = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}
TOOL = {"usage": USAGE | {"prompt_tokens": 1}, "timings": {"prompt_n": 1, "predicted_n": 1}}
"""What a tool gets: a model chooses its keys."""


def chunk(text: str | None, **more: object) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "c", "choices": [choice], **more}


def events(*said: object) -> bytes:
    lines = [
        one if isinstance(one, str) else json.dumps(one, separators=(",", ":")) for one in said
    ]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def compact(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


@dataclass
class Said:
    """An answer of the engine, in pieces. It ends after that, or goes on, or is killed."""

    pieces: Sequence[bytes]
    kind: str = JSON
    status: int = 200
    then: Literal["ends", "goes on", "is killed"] = "ends"


class Engine(Replica):
    """Answers what it is told to."""

    said = Said([b"{}"])

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers = {key.lower(): value for key, value in request.headers.items()}
        answer = web.StreamResponse(status=self.said.status)
        answer.content_type = self.said.kind
        await answer.prepare(request)
        for piece in self.said.pieces:
            await answer.write(piece)
            await asyncio.sleep(0.01)
        if self.said.then == "goes on":
            self.pause()
            await self._goes_on.wait()
        if self.said.then == "is killed" and request.transport is not None:
            # As the kernel closes a killed process's connection: what was sent still arrives.
            request.transport.close()
        return answer


@dataclass
class Metered:
    """A gateway, its only replica, and what the launcher hears."""

    gateway: Harness
    engine: Engine
    lines: list[str]

    @property
    def heard(self) -> list[UsageLine]:
        # Who hears again hears first what the ring still has.
        texts = dict.fromkeys(self.lines)
        return [line for text in texts if (line := parse_usage_line(text)) is not None]

    async def route(self, group: str = "llamacpp") -> None:
        targets = {self.engine.endpoint: ServerMode.READY}
        await self.gateway.route(Route("t/chat", 4, targets, group))

    async def ask(self, said: Said, **more: object) -> bytes:
        self.engine.said = said
        url = f"{self.gateway.settings.url}/t/chat{CHAT}"
        async with self.gateway.session.post(url, json={**more, "model": "chat"}) as answer:
            return await answer.read()

    async def line(self, count: int = 1) -> UsageLine:
        """The last of so many."""

        async def is_heard() -> bool:
            return len(self.heard) == count

        await eventually(is_heard)
        return self.heard[-1]

    async def counted(self, said: Said) -> tuple[int, int, int]:
        """Prompt, cached and output tokens of an answer that the client gets as it is."""
        assert await self.ask(said) == b"".join(said.pieces)
        line = await self.line()
        assert (line.outcome, line.is_exact) == ("whole", True)
        return line.prompt_tokens, line.cached_tokens, line.output_tokens


@pytest.fixture
async def metered(tmp_path: Path) -> AsyncIterator[Metered]:
    async with gateway_up(tmp_path, services=2, backends=1) as gateway:
        engine = Engine()
        await engine.start()
        lines: list[str] = []
        hearing = asyncio.create_task(gateway.hear(lines.append))
        metered = Metered(gateway, engine, lines)
        await metered.route()
        try:
            yield metered
        finally:
            hearing.cancel()
            await engine.stop()


CHATS = (
    compact({"choices": [{"message": {"content": LIES}}], "usage": USAGE, "id": "x"}),
    json.dumps(
        {"choices": [{"message": {"content": LIES * 500}}], "usage": USAGE}, indent=2
    ).encode(),
    # llama.cpp: timings behind usage.
    compact({"choices": [], "usage": USAGE, "timings": {"prompt_n": 5, "cache_n": 4}}),
    compact({"usage": USAGE, "results": [{"document": {"text": "x" * 50_000}}]}),
    compact({"choices": [{"message": {"tool_calls": [TOOL]}}], "usage": USAGE, "x": TOOL}),
    compact({"data": [{"embedding": [0.125] * 9000}], "usage": USAGE}),
    compact({"output": [{"text": LIES}], "tools": [TOOL], "usage": OF_RESPONSES, "metadata": TOOL}),
    compact(
        {
            "content": [{"type": "tool_use", "input": TOOL}],
            "usage": OF_MESSAGES | {"output_tokens": 7},
        }
    ),
)


@pytest.mark.parametrize("body", CHATS)
@pytest.mark.parametrize("size", [7, 100_000])
async def test_what_the_engine_says_at_the_end_of_a_whole_answer_counts(
    metered: Metered, body: bytes, size: int
):
    size = max(size, len(body) // 100)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert await metered.counted(Said(pieces)) == (9, 4, 7)
    assert "accept-encoding" not in metered.engine.headers


BODY = compact({"choices": [], "usage": USAGE})
STREAMS = {
    "counts-in-the-last-chunk": events(
        chunk(""), chunk("a"), chunk(LIES), chunk(None, usage=USAGE), "[DONE]"
    ),
    # vLLM: the sum so far in each chunk.
    "running-sums": events(
        *(chunk("a", usage={"prompt_tokens": 9, "completion_tokens": n}) for n in range(8)),
        {"choices": [], "usage": USAGE},
        "[DONE]",
    ),
    # llama.cpp, whose client has not asked for usage.
    "timings-alone": events(
        chunk(LIES),
        chunk(None, timings={"cache_n": 4, "prompt_n": 5, "predicted_n": 7}),
        "[DONE]",
    ),
    "response-completed": events(
        {"type": "response.created", "response": {"usage": None, "tools": [TOOL]}},
        {"type": "response.output_text.delta", "delta": LIES},
        {"type": "response.completed", "response": {"text": LIES * 500, "usage": OF_RESPONSES}},
    ),
    "response-incomplete-envoy-2184": events(
        {"type": "response.created", "response": {}},
        {"type": "response.incomplete", "response": {"usage": OF_RESPONSES}, "sequence_number": 7},
    ),
    "response-failed-envoy-2184": events(
        {"type": "response.failed", "response": {"output": [TOOL], "usage": OF_RESPONSES}},
    ),
    "message-envoy-2236-2239": events(
        {"type": "message_start", "message": {"usage": OF_MESSAGES | {"output_tokens": 1}}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "input": TOOL}},
        {
            "type": "content_block_delta",
            "delta": {"type": "input_json_delta", "partial_json": LIES},
        },
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ),
}
"""By what each shows; some would show a fault of Envoy's AI gateway, with its number."""


@pytest.mark.parametrize("body", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("size", [11, 100_000])
async def test_what_the_engine_says_in_a_stream_counts(metered: Metered, body: bytes, size: int):
    size = max(size, len(body) // 100)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert await metered.counted(Said(pieces, STREAM)) == (9, 4, 7)


async def test_of_a_stream_whose_client_hangs_up_its_chunks_are_counted(metered: Metered):
    """LiteLLM #14457: a client that is gone before the last chunk, which has the counts."""
    body = events(chunk(""), chunk("a"), chunk("b"), chunk("c"))
    metered.engine.said = Said([body], STREAM, then="goes on")
    url = f"{metered.gateway.settings.url}/t/chat{CHAT}"
    async with metered.gateway.session.post(url, json={"model": "chat"}) as answer:
        await answer.content.readexactly(len(body))
        answer.close()
    line = await metered.line()
    assert (line.prompt_tokens, line.output_tokens) == (0, 3)
    assert (line.outcome, line.is_exact) == ("cut", False)
    assert line.replica == metered.engine.endpoint.digest


async def test_of_a_stream_that_says_its_sums_the_last_one_counts_when_it_is_cut(metered: Metered):
    sums = [{"prompt_tokens": 9, "completion_tokens": number} for number in range(8)]
    body = events(*(chunk("a", usage=said) for said in sums))
    with suppress(aiohttp.ClientError):
        await metered.ask(Said([body], STREAM, then="is killed"))
    line = await metered.line()
    assert (line.prompt_tokens, line.output_tokens, line.is_exact) == (9, 7, True)
    assert line.outcome == "cut"


def running(*texts: str, **more: object) -> list[dict[str, object]]:
    """Chunks that say the sums so far, as vLLM does."""
    sums = (
        {"prompt_tokens": 9, "total_tokens": 9 + count, "completion_tokens": count}
        for count in range(1, len(texts) + 1)
    )
    return [chunk(text, usage=said, **more) for text, said in zip(texts, sums, strict=True)]


TEXTS = ("a", LIES, "", "é\n", "b")
LAST = {"id": "c", "choices": [], "usage": USAGE}
ALL = {"include_usage": True, "continuous_usage_stats": True}
PLAIN = [chunk(text) for text in TEXTS]
ASKED = [
    ({}, [*PLAIN]),
    ({"stream_options": {"include_usage": True}}, [*PLAIN, LAST]),
    ({"stream_options": ALL}, [*running(*TEXTS), LAST]),
]


@pytest.mark.parametrize(("asked", "wanted"), ASKED)
@pytest.mark.parametrize("group", ["vllm", "sglang"])
@pytest.mark.parametrize("long", [0, 100_000])
async def test_an_engine_is_asked_for_running_sums_and_a_client_gets_what_it_asked_for(
    metered: Metered, asked: dict[str, object], wanted: list[object], group: str, long: int
):
    await metered.route(group)
    body = events(*running(*TEXTS), LAST, "[DONE]")
    for number, size in enumerate((len(body) // 100, 300, 100_000), 1):
        said = Said([body[at : at + size] for at in range(0, len(body), size)], STREAM)
        more = {"messages": "x" * long, "stream": True, **asked}
        assert await metered.ask(said, **more) == events(*wanted, "[DONE]")
        got = json.loads(metered.engine.bodies[-1])
        assert got == {**more, "model": "chat", "stream_options": ALL}
        line = await metered.line(number)
        assert (line.prompt_tokens, line.output_tokens, line.is_exact) == (9, 7, True)


async def test_a_client_that_leaves_an_unasked_stream_pays_for_what_it_got(metered: Metered):
    await metered.route("vllm")
    body = events(*running(*TEXTS))
    metered.engine.said = Said([body], STREAM, then="goes on")
    url = f"{metered.gateway.settings.url}/t/chat{CHAT}"
    async with metered.gateway.session.post(url, json={"stream": True}) as answer:
        assert await answer.content.readexactly(len(events(*PLAIN))) == events(*PLAIN)
        answer.close()
    line = await metered.line()
    assert (line.prompt_tokens, line.output_tokens, line.is_exact) == (9, 5, True)
    assert line.outcome == "cut"


async def test_llama_cpp_is_asked_for_its_timings(metered: Metered):
    timings = [{"cache_n": 4, "prompt_n": 5, "predicted_n": count} for count in range(1, 6)]
    chunks = [chunk(text, timings=said) for text, said in zip(TEXTS, timings, strict=True)]
    last = {"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}], "timings": timings[-1]}
    body = events(*chunks, last, "[DONE]")
    assert await metered.ask(Said([body], STREAM), stream=True) == events(*PLAIN, last, "[DONE]")
    assert json.loads(metered.engine.bodies[-1])["timings_per_token"] is True
    line = await metered.line()
    assert (line.prompt_tokens, line.cached_tokens, line.output_tokens) == (9, 4, 5)
    with suppress(aiohttp.ClientError):
        await metered.ask(Said([events(*chunks)], STREAM, then="is killed"), stream=True)
    line = await metered.line(2)
    assert (line.prompt_tokens, line.output_tokens, line.is_exact) == (9, 5, True)


async def test_a_client_that_leaves_before_the_answer_is_told_of_too(metered: Metered):
    metered.engine.said = Said([], STREAM, then="goes on")
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await metered.ask(metered.engine.said)
    line = await metered.line()
    assert (line.service, line.output_tokens, line.outcome) == ("t/chat", 0, "cut")


async def test_an_error_is_a_request_that_failed(metered: Metered):
    await metered.ask(Said([compact({"error": {"message": "no"}})], status=400))
    line = await metered.line()
    assert (line.outcome, line.prompt_tokens, line.output_tokens) == ("failed", 0, 0)
    assert line.end_ms >= line.start_ms


HOSTILE = (
    b'"' * 300_000,
    b"\\" * 300_000,
    b"{" * 300_000,
    b'{"usage":{"prompt_tokens":' + b"9" * 300 + b',"completion_tokens":1}}',
    b'{"usage":' * 10_000,
    b"}" * 300_000 + b'"usage":{}',
    b'\\"usage":{"prompt_tokens":5,"completion_tokens":5}}',
    b"\n" * 100_000,
    b"data: \n" * 50_000,
    b"data: " + b"x" * 300_000 + b"\n\n",
    b'data: {"usage":{"prompt_tokens":1e9}}\n\n',
)


@pytest.mark.parametrize("kind", [JSON, STREAM])
async def test_whatever_a_replica_answers_passes_and_is_bounded(metered: Metered, kind: str):
    for number, body in enumerate(HOSTILE, 1):
        assert await metered.ask(Said([body], kind)) == body
        line = await metered.line(number)
        assert line.outcome == "whole"
        assert max(line.prompt_tokens, line.cached_tokens, line.output_tokens) <= 1_000_000_000


async def test_a_reload_loses_no_line(metered: Metered):
    body = events(chunk("a"), {"choices": [], "usage": USAGE}, "[DONE]")
    goes_on = [events(chunk("a"))] * 400 + [body]
    asked = asyncio.create_task(metered.ask(Said(goes_on, STREAM)))
    await asyncio.sleep(0.3)
    await metered.gateway.reload()
    await metered.route()
    await metered.ask(Said([body], STREAM))
    await asked
    await metered.line(2)
    assert {line.prompt_tokens for line in metered.heard} == {9}
    assert len({line.boot for line in metered.heard}) == 2


async def test_times_are_those_of_the_host_though_haproxy_stood_still(metered: Metered):
    """On a busy host it stands still again and again, and its own clock falls behind."""
    worker = int(await metered.gateway.worker())
    os.kill(worker, signal.SIGSTOP)
    await asyncio.sleep(2.0)
    os.kill(worker, signal.SIGCONT)
    began_s = time.time()
    await metered.ask(Said([BODY]))
    line = await metered.line()
    assert int(1000 * began_s) <= line.start_ms <= line.end_ms <= 1000 * time.time()


def allowance(tokens: int, **more: object) -> TokenAllowance:
    said = {"tenant": "t", "tokens": tokens, "is_exact": True} | more
    return TokenAllowance.model_validate(said)


async def allow(metered: Metered, *allowances: TokenAllowance, for_s: int = 600) -> None:
    """As the launcher does, which has posted all that has ended."""
    process, taken = await metered.gateway.runtime.taken()
    until_s = int(time.time()) + for_s
    await metered.gateway.runtime.set_allowances(bounds(allowances, taken, {}, until_s, process))


async def asked(metered: Metered, body: bytes = BODY) -> tuple[int, str, Mapping[str, str]]:
    metered.engine.said = Said([body])
    url = f"{metered.gateway.settings.url}/t/chat{CHAT}"
    sent = {"model": "chat", "max_tokens": 50}
    async with metered.gateway.session.post(url, json=sent) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_a_limit_of_tokens_is_taken_from_and_ends(metered: Metered):
    assert "x-slicewise-token-limit" not in (await asked(metered))[2]
    await allow(metered, allowance(16 + 5))
    status, _, headers = await asked(metered)
    assert (status, headers["x-slicewise-token-limit"]) == (200, "taken")

    async def is_given_back() -> bool:
        _, taken = await metered.gateway.runtime.taken()
        return taken["t"] == TakenTokens(16, 0)

    await eventually(is_given_back)
    # 5 are left, so one more may begin.
    assert (await asked(metered))[0] == 200
    assert (await asked(metered))[0] == 429
    await metered.line(3)


A_MONTH = "the limit of tokens a month of tenant t"
A_BUDGET = "tenant lab's budget of tokens"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "the limit of tokens of tenant t leaves none now"),
        ({"limit": "tokens_per_month"}, f"{A_MONTH} leaves none now"),
        (
            {"limit": "tokens_per_month", "used_up_until": "2025-12-01"},
            f"{A_MONTH} is used up until 2025-12-01",
        ),
        ({"limit": "token_budget", "payer": "lab"}, f"{A_BUDGET} leaves none now"),
        (
            {"limit": "token_budget", "payer": "lab", "used_up_until": "2025-12-01"},
            f"{A_BUDGET} is used up until 2025-12-01",
        ),
        (
            {"limit": "token_budget", "payer": "lab", "used_up_until": ""},
            f"{A_BUDGET} is used up",
        ),
    ],
)
async def test_who_is_refused_is_told_which_limit_it_was(
    metered: Metered, said: dict[str, str], message: str
):
    await allow(metered, allowance(0, retry_s=77, **said))
    status, text, headers = await asked(metered)
    assert (status, headers["retry-after"]) == (429, "77")
    error = json.loads(text)["error"]
    assert error["code"] == "SW-GATEWAY-TOKENS"
    assert error["message"] == f"SW-GATEWAY-TOKENS: {message}. Try again after Retry-After."
    assert metered.engine.bodies == []


CROWD_ASKS = json.dumps({"model": "chat", "max_tokens": 50, "stream": True})
HOLD = len(CROWD_ASKS) + 50
"""Tokens that such a request takes until it ends."""
MORE = (os.cpu_count() or 1) - 1
"""Requests that may be let in beyond a limit: in the same moment each other thread may take what is
left, too."""


@asynccontextmanager
async def crowd(metered: Metered, count: int) -> AsyncIterator[int]:
    """So many requests at once, whose clients wait for the end of answers that have none.

    Yields how many were let in, once each was let in or refused.
    """
    metered.engine.said = Said([], STREAM, then="goes on")
    url = f"{metered.gateway.settings.url}/t/chat{CHAT}"

    async def ask() -> int:
        async with metered.gateway.session.post(url, data=CROWD_ASKS) as answer:
            await answer.read()
            return answer.status

    async with decided([metered.gateway], "t/chat", (ask() for _ in range(count))) as let_in:
        yield len(let_in)


async def test_requests_at_once_take_no_token_twice(metered: Metered):
    """Of 200 tokens the first two take 101 and 99."""
    await allow(metered, allowance(200))
    async with crowd(metered, 20) as let_in:
        _, taken = await metered.gateway.runtime.taken()
        assert 2 <= let_in <= 2 + MORE
        assert 200 <= taken["t"].held <= 200 + MORE * HOLD


@pytest.mark.parametrize(("is_exact", "status"), [(True, 429), (False, 200)])
async def test_without_a_ledger_exact_limits_close_and_others_open(
    metered: Metered, is_exact: bool, status: int
):
    await allow(metered, allowance(1000, is_exact=is_exact), for_s=-5)
    said, text, headers = await asked(metered)
    assert said == status
    assert ("SW-GATEWAY-TOKENS" in text) == is_exact
    assert headers.get("x-slicewise-token-limit") == (None if is_exact else "open")


async def test_haproxy_that_starts_again_begins_with_closed_limits(metered: Metered):
    await allow(metered, allowance(1000))
    file = metered.gateway.settings.directory / "allowances.map"
    assert file.read_text() == "t 0/0/exact/1/tokens/-/-/-\n"


async def test_what_was_allowed_to_the_process_before_a_reload_allows_the_next_one_nothing(
    metered: Metered,
):
    """The launcher may have asked before the reload, and tell after it."""
    before, taken = await metered.gateway.runtime.taken()
    entries = bounds([allowance(1000)], taken, {}, int(time.time()) + 60, before)
    await metered.gateway.runtime.set_allowances(entries)
    assert (await asked(metered))[0] == 200
    await metered.gateway.reload()
    await metered.route()
    await metered.gateway.runtime.set_allowances(entries)
    # The connection that is still open leads to the process before, for one answer.
    assert (await asked(metered))[0] == 200
    assert (await asked(metered))[0] == 429
    await allow(metered, allowance(1000))
    assert (await asked(metered))[0] == 200


async def has_taken(metered: Metered, ended: int, held: int) -> bool:
    _, taken = await metered.gateway.runtime.taken()
    return taken.get("t") == TakenTokens(ended, held)


async def test_a_hundred_requests_at_once_take_what_ten_may_and_aborts_give_it_back(
    metered: Metered,
):
    """Four have a place at the replica, the others wait."""
    await allow(metered, allowance(10 * HOLD))
    async with crowd(metered, 100) as let_in:
        assert 10 <= let_in <= 10 + MORE
        assert await has_taken(metered, 0, let_in * HOLD)
    await eventually(lambda: has_taken(metered, 0, 0))


async def test_a_request_that_another_limit_refuses_holds_nothing(metered: Metered):
    await allow(metered, allowance(1000))
    limits = SubjectLimits(tenant="t", limits=RequestLimits(requests_per_minute=0))
    await metered.gateway.set_keys({}, limits=(limits,))
    for size in (0, 1_000_000):
        url = f"{metered.gateway.settings.url}/t/chat{CHAT}"
        sent = json.dumps({"model": "chat", "x": " " * size})
        async with metered.gateway.session.post(url, data=sent) as answer:
            assert "SW-GATEWAY-RATE" in await answer.text()
    await metered.gateway.set_keys({})
    assert (await asked(metered))[0] == 200
    await eventually(lambda: has_taken(metered, 16, 0))


async def test_what_ended_while_nobody_heard_outlives_haproxy_and_counts_as_not_booked(
    metered: Metered,
):
    """The next launcher reads it before it asks for tokens."""
    directory, file = metered.gateway.settings.directory, metered.gateway.settings.kept_lines
    kept = KeptLines(file)
    body = events(*(chunk("a") for _ in range(50)), {"choices": [], "usage": USAGE}, "[DONE]")
    metered.engine.said = Said([body], STREAM)
    url = f"{metered.gateway.settings.url}/t/chat{CHAT}"

    async def ask() -> int:
        async with metered.gateway.session.post(url, json={"model": "chat"}) as answer:
            return len(await answer.read())

    assert set(await asyncio.gather(*(ask() for _ in range(40)))) == {len(body)}
    process, _ = await metered.gateway.runtime.taken()
    found: list[str] = []

    async def are_kept() -> bool:
        found.extend(kept.news())
        return len(found) == 40

    await eventually(are_kept)
    await metered.gateway.kill()
    lines = [parse_usage_line(text) for text in found]
    assert {(line.boot, line.prompt_tokens) for line in lines if line} == {(process, 9)}
    assert len({line.number for line in lines if line}) == 40
    usage = UsageWatch(None, UsageJournal(directory), KeptLines(file))
    assert usage.unposted(process) == {"t": 40 * 16}
    assert usage.missed == 0


async def test_haproxy_goes_on_in_the_file_that_takes_the_place_of_one_that_was_moved(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_lines, "_LET_GO_BYTES", 1)
    monkeypatch.setattr(kept_lines, "_WRITTEN_S", 1.5)
    file = metered.gateway.settings.kept_lines
    kept, found = KeptLines(file), list[str]()
    body = json.dumps({"choices": [], "usage": USAGE}).encode()

    async def are_kept() -> bool:
        """While it asks on and on, files come and go."""
        await metered.ask(Said([body]))
        asked.append(1)
        found.extend(kept.news())
        is_moved = file.with_suffix(".moved").exists()
        kept.let_go(time.monotonic())
        turns.update({(is_moved, file.with_suffix(".moved").exists())})
        return turns[True, False] >= 2

    asked, turns = list[int](), Counter[tuple[bool, bool]]()
    await eventually(are_kept)

    async def are_all() -> bool:
        found.extend(kept.news())
        return len(found) == len(asked)

    await eventually(are_all)
    places = [line.place for text in found if (line := parse_usage_line(text))]
    assert len(places) == len(set(found)) == len(asked)
