"""Chats of the demo, by OpenAI's client, with a server that speaks just enough of its protocol."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from slicewise.sandbox.demo import chat as chat_module
from slicewise.sandbox.demo.chat import ChatPerformance
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.scenario import CHAT, CHAT_TOKENS, CHATS


@dataclass
class Server:
    """Answers each chat as it is told to, and remembers what it got."""

    status: int = 200
    tokens: int = CHAT_TOKENS
    is_cut_off: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
        await stream.write(event([choice]))
        if self.is_cut_off:
            assert request.transport is not None
            request.transport.abort()
            return stream
        await stream.write(event([], {"completion_tokens": self.tokens}))
        await stream.write(b"data: [DONE]\n\n")
        return stream


def event(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
    full = None if usage is None else {"prompt_tokens": 1, "total_tokens": 1, **usage}
    said = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "talk"}
    return f"data: {json.dumps({**said, 'choices': choices, 'usage': full})}\n\n".encode()


class Stage:
    def __init__(self) -> None:
        self.told: list[str] = []

    def costing(self, service: str) -> int:
        assert service == CHAT.service
        return len(self.told) - 1

    def tell(self, news: str) -> None:
        self.told.append(news)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "CHAT_AT_S", 0.0)
    monkeypatch.setattr(chat_module, "CHAT_PAUSE_S", 0.0)


Running = tuple[Server, str]


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    server, app = Server(), web.Application()
    app.router.add_post(f"/{CHAT.tenant}/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def performed(url: str) -> tuple[ChatPerformance, Load, Stage]:
    stage = Stage()
    async with Load(url, [], 5.0) as load:
        performance = ChatPerformance(load, stage)
        await performance.perform()
    return performance, load, stage


async def test_chats_go_to_the_tenant_s_one_address_and_are_among_the_requests(
    server: Running,
) -> None:
    there, url = server
    performance, load, stage = await performed(url)
    assert [(one["model"], one["stream"]) for one in there.asked] == [("talk", True)] * CHATS
    assert [one.request for one in performance.chats] == list(load.records)
    assert {(one.request.service, one.request.error) for one in performance.chats} == {
        (CHAT.service, "")
    }
    for one in performance.chats:
        assert one.tokens == CHAT_TOKENS
        assert one.first_token_s is not None
        assert 0 < one.first_token_s <= one.request.latency_s
    assert performance.chats[0].replicas_before == 0
    assert len(stage.told) == 2


@pytest.mark.parametrize(
    ("change", "error", "has_begun"),
    [
        ({"status": 503}, "status 503", False),
        ({"tokens": 99}, "wrong number of tokens", True),
        ({"is_cut_off": True}, "APIConnectionError", True),
    ],
)
async def test_what_fails_is_recorded_and_never_retried(
    server: Running, change: dict[str, Any], error: str, has_begun: bool
) -> None:
    there, url = server
    for name, value in change.items():
        setattr(there, name, value)
    performance, load, _ = await performed(url)
    assert [one.error for one in load.records] == [error] * CHATS
    assert len(there.asked) == CHATS
    assert {one.first_token_s is not None for one in performance.chats} == {has_begun}


async def test_without_a_server_each_chat_fails(unused_tcp_port: int) -> None:
    performance, _, _ = await performed(f"http://127.0.0.1:{unused_tcp_port}")
    assert {one.request.error for one in performance.chats} == {"APIConnectionError"}
