"""Clients of services that speak OpenAI's protocol."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp


async def asked(session: aiohttp.ClientSession, url: str, body: Any) -> Any:
    """Status and what was answered."""
    async with session.post(url, json=body) as answer:
        return answer.status, await answer.json()


@asynccontextmanager
async def stream(
    session: aiohttp.ClientSession, service_url: str, model: str, tokens: int
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A completion of so many tokens that has begun."""
    body = {"model": model, "prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    async with session.post(f"{service_url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        assert (await answer.content.readline()).startswith(b"data: ")
        yield answer


def events(said: bytes) -> list[Any]:
    """What a stream said, its last word left out."""
    lines = [line.removeprefix("data: ") for line in said.decode().strip().split("\n\n")]
    assert lines.pop() == "[DONE]"
    return list(map(json.loads, lines))
