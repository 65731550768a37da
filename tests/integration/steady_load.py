"""A client that goes on whatever happens: requests at a steady rate, every one of them counted."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

TIMEOUT_S = 240.0
RAMP_S = 3.0
"""So long it takes until the full rate is reached."""
_CONTEXT_TOKENS = 500
_GENERATED_TOKENS = 200
"""A replica takes 0.27 s for one request."""
_BODY = {
    "inputs": [
        {"name": name, "shape": [1], "datatype": "INT32", "data": [value]}
        for name, value in (
            ("CONTEXT_TOKENS", _CONTEXT_TOKENS),
            ("GENERATED_TOKENS", _GENERATED_TOKENS),
        )
    ]
}


@dataclass(frozen=True)
class Answer:
    """What became of one request.

    Attributes:
        sent_s, ended_s: by the monotonic clock.
        error: status and body of a wrong answer, or what went wrong without one; "" if it is right.
    """

    sent_s: float
    ended_s: float
    error: str


class SteadyLoad:
    """Sends while its context lasts, then waits for what is under way; an open loop.

    Each request is sent once. With ``retries_refused`` one whose connection was refused, so that
    nobody has seen it, is sent again, as clients do that know of the gateway's restart. Each has a
    connection of its own then: nothing is sent to a gateway that has ended.

    Attributes:
        answers: in the order of ending.
    """

    def __init__(self, url: str, rate_per_s: float, *, retries_refused: bool = False) -> None:
        self._url = f"{url}/v2/models/tokens/infer"
        self._rate_per_s = rate_per_s
        self._retries_refused = retries_refused
        self._ended = asyncio.Event()
        self.answers: list[Answer] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=self._retries_refused),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        )
        self._sending = asyncio.create_task(self._send_on())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        await self._sending
        await self._session.close()

    @property
    def failed(self) -> list[Answer]:
        """Those that were not answered, or wrongly."""
        return [answer for answer in self.answers if answer.error]

    async def _send_on(self) -> None:
        began_s = due_s = time.monotonic()
        async with asyncio.TaskGroup() as requests:
            while not self._ended.is_set():
                requests.create_task(self._request())
                share = min(1.0, max(0.2, (due_s - began_s) / RAMP_S))
                due_s += 1 / (share * self._rate_per_s)
                await asyncio.sleep(due_s - time.monotonic())

    async def _request(self) -> None:
        sent_s = time.monotonic()
        error = await self._error(sent_s)
        self.answers.append(Answer(sent_s, time.monotonic(), error))

    async def _error(self, sent_s: float) -> str:
        try:
            return await self._asked()
        except aiohttp.ClientConnectorError as error:
            if not self._retries_refused or time.monotonic() > sent_s + TIMEOUT_S:
                return repr(error)
            await asyncio.sleep(0.05)
            return await self._error(sent_s)
        except (aiohttp.ClientError, TimeoutError) as error:
            return repr(error)

    async def _asked(self) -> str:
        async with self._session.post(self._url, json=_BODY) as response:
            text = await response.text()
            if response.status != 200:
                return f"{response.status} {text[:200]}"
            (tokens,) = (await response.json())["outputs"]
            return "" if len(tokens["data"]) == _GENERATED_TOKENS else f"200 {text[:200]}"
