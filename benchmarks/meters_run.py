"""Streams whose clients leave at random, and what each client saw."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

CLUSTER, SERVICE, MODEL = "bench", "bench/chat", "tiny"
RUN = (814, 0, 1_764_000_000)
PORT = 28280
PLACES = 8
"""Requests that the engine works on at the same time."""
_CLIENTS = 16
_TOO_MANY = 429
_PROMPT_BYTES, _MOST_TOKENS = (5, 200), (1, 120)
MOST_REQUEST_TOKENS = 400
"""No request takes more: bytes of the prompt, what its template adds, and what is asked for."""
_LEAVES, _STREAMS, _ASKS = 0.3, 0.8, 0.5
"""Shares of clients that leave within their stream, that ask for a stream, and for its usage."""


@dataclass
class Seen:
    """What clients have seen.

    Attributes:
        outcomes: how many got the whole answer, left, or lost it.
        prompt_tokens, output_tokens: of those that were told all of it.
        told: how many those were.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    told: int = 0

    def take(self, usage: dict[str, int] | None) -> None:
        """Add what an answer has said of itself."""
        self.outcomes["whole"] += 1
        if usage is not None:
            self.told += 1
            self.prompt_tokens += usage["prompt_tokens"]
            self.output_tokens += usage["completion_tokens"]


async def ask_all(gateway: str, requests: int, chance: random.Random) -> Seen:
    """Let clients ask so often; each request is drawn before any is sent."""
    asked = [_body(chance) for _ in range(requests)]
    seen = Seen()
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def client() -> None:
            while asked:
                body, leaves_after = asked.pop()
                try:
                    await _ask(session, gateway, body, leaves_after, seen)
                except aiohttp.ClientResponseError as error:
                    is_refused = error.status == _TOO_MANY
                    seen.outcomes["refused" if is_refused else "lost"] += 1
                    await asyncio.sleep(0.2)
                except aiohttp.ClientConnectorError:
                    # No gateway is there: nobody has had the request.
                    asked.append((body, leaves_after))
                    await asyncio.sleep(0.2)
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                    seen.outcomes["lost"] += 1
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    return seen


def _body(chance: random.Random) -> tuple[dict[str, object], int | None]:
    """Return a body, and after how many events its client leaves."""
    text = "".join(chance.choices('abc "{}:\\\n', k=chance.randint(*_PROMPT_BYTES)))
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": chance.randint(*_MOST_TOKENS),
        "ignore_eos": True,
        "seed": chance.randrange(1 << 30),
    }
    leaves_after = None
    if chance.random() < _STREAMS:
        body["stream"] = True
        if chance.random() < _ASKS:
            body["stream_options"] = {"include_usage": True}
        if chance.random() < _LEAVES:
            leaves_after = chance.randint(0, 60)
    return body, leaves_after


async def _ask(
    session: aiohttp.ClientSession,
    gateway: str,
    body: dict[str, object],
    leaves_after: int | None,
    seen: Seen,
) -> None:
    url = f"http://{gateway}/{SERVICE}/v1/chat/completions"
    usage, events = None, 0
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        if "stream" not in body:
            seen.take((await answer.json())["usage"])
            return
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            events += 1
            usage = json.loads(line[6:]).get("usage") or usage
            if leaves_after is not None and events > leaves_after:
                seen.outcomes["left"] += 1
                answer.close()
                return
    seen.take(usage)
