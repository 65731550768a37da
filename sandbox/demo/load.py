"""An open-loop client: it sends every request at its time, whether or not others were answered."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from tritonclient.http.aio import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from slicewise.sandbox.demo.record import RequestRecord
from slicewise.sandbox.demo.trace import Arrival

MODEL = "tokens"
MAX_REQUESTS = 20_000
"""Most requests of one replay: each is a task and may be a connection."""


class Load:
    """Clients of some services behind one gateway; an async context manager.

    Every request is tried once. A request that gets no answer within ``timeout_s``, or a wrong one,
    is recorded as failed.

    Attributes:
        gateway_url: the gateway's address.
        timeout_s: how long a request may take.
    """

    def __init__(self, gateway_url: str, services: Sequence[str], timeout_s: float) -> None:
        self.gateway_url = gateway_url
        self.timeout_s = timeout_s
        self._services = services
        self._clients: Mapping[str, InferenceServerClient] = {}
        self._stack = AsyncExitStack()
        self._begin_s = 0.0
        self._records: list[RequestRecord] = []
        self._due: list[Arrival] = []

    async def __aenter__(self) -> Self:
        self._begin_s = time.monotonic()
        base = urlsplit(self.gateway_url).netloc
        self._clients = {
            service: await self._stack.enter_async_context(
                InferenceServerClient(
                    f"{base}/{service}",
                    conn_limit=MAX_REQUESTS,
                    conn_timeout=self.timeout_s,
                )
            )
            for service in self._services
        }
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the load began; the time axis of every record."""
        return time.monotonic() - self._begin_s

    @property
    def records(self) -> Sequence[RequestRecord]:
        """The requests that have ended so far, in the order in which they ended."""
        return self._records

    @property
    def due(self) -> Sequence[Arrival]:
        """Requests that have come due so far, in order; ``at_s`` is on this load's time axis."""
        return self._due

    async def replay(self, arrivals: Sequence[Arrival]) -> None:
        """Send all arrivals at their times, counted from now; return when all have ended.

        Raises ValueError for more than ``MAX_REQUESTS``.
        """
        if len(arrivals) > MAX_REQUESTS:
            raise ValueError(f"{len(arrivals)} arrivals; a replay has at most {MAX_REQUESTS}")
        begin_s = self.elapsed_s
        async with asyncio.TaskGroup() as requests:
            for arrival in arrivals:
                due_s = begin_s + arrival.at_s
                await asyncio.sleep(due_s - self.elapsed_s)
                requests.create_task(self.request(arrival, due_s))

    async def request(self, arrival: Arrival, due_s: float | None = None) -> RequestRecord:
        """Send one request that is due at ``due_s``, or now, and record how it ended."""
        return await self.recorded(arrival, self._error(arrival), due_s)

    async def recorded(
        self, arrival: Arrival, answered: Awaitable[str], due_s: float | None = None
    ) -> RequestRecord:
        """Record how a request ends; ``answered`` sends it and returns its error, or ""."""
        sent_s = self.elapsed_s
        due_s = sent_s if due_s is None else due_s
        self._due.append(
            Arrival(due_s, arrival.service, arrival.context_tokens, arrival.generated_tokens)
        )
        error = await answered
        record = RequestRecord(
            arrival.service, due_s, sent_s, max(self.elapsed_s - due_s, 0.0), error
        )
        self._records.append(record)
        return record

    async def _error(self, arrival: Arrival) -> str:
        """Send a request; return "" if the answer is right, else a short, countable error."""
        inputs = [
            _number("CONTEXT_TOKENS", arrival.context_tokens),
            _number("GENERATED_TOKENS", arrival.generated_tokens),
        ]
        try:
            answer = await self._clients[arrival.service].infer(MODEL, inputs)
        except TimeoutError:
            return f"no answer in {self.timeout_s:g} s"
        except InferenceServerException as error:
            return f"status {error.status()}" if error.status() else error.message()
        except aiohttp.ClientError as error:
            return type(error).__name__
        tokens = answer.as_numpy("TOKENS")
        right = tokens is not None and tokens.shape == (arrival.generated_tokens,)
        return "" if right else "wrong number of tokens"


def _number(name: str, value: int) -> InferInput:
    tensor = InferInput(name, [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], dtype=np.int32))
    return tensor
