"""Measures a model that makes tokens: sends requests, reads the streams of their answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from itertools import count, cycle
from random import Random

from aiohttp import ClientSession

from slicewise.launcher.profiling.server import (
    POLL_S,
    BrokenError,
    CannotError,
    JobServer,
    NoServerError,
    now_us,
    open_session,
    refusal,
    requested,
    within,
)
from slicewise.launcher.rules.engines.engine import PromptedEngine, Request, TokenUsage
from slicewise.launcher.rules.profiling.figures import WINDOWS, Begun, Message, Point
from slicewise.launcher.rules.profiling.token_figures import (
    LOAD_DEADLINE_S,
    NOT_STARTED,
    SLOTS_FILE,
    Stream,
    TokenTask,
    TokenWindow,
    cannot,
    is_steady,
    measured,
)

_TAIL_BYTES = 8192
"""Bytes of a stream that are kept: events at its end say how many tokens it took."""
_ANSWER_S = 60.0
"""Seconds for the answer of one token by which the length of prompts is found."""
_SIGNS = (b"abcdefghijklmnopqrstuvwxyz      " * 8)[:256]
"""Letters and spaces, by the random byte that becomes one."""
_OK = 200


class _Prompts:
    """Requests that have no beginning in common, or those of the user in turn.

    A server keeps what it has computed of prompts: one that begins like an earlier one would be
    answered sooner than clients' own.
    """

    def __init__(self, work: TokenTask, engine: PromptedEngine, data: str | None) -> None:
        self._work = work
        self._users = None if data is None else cycle(engine.parse_prompts(data))
        self._numbers = count(1)
        self._signs_per_token: float | None = None if data is None else 1.0

    async def fit(self, client: "_Client") -> None:
        """Find how long a random text of so many tokens is, by one request, unless it is known."""
        if self._signs_per_token is None:
            signs = self._work.prompt_tokens
            body = {"prompt": self._text(signs), "max_tokens": 1, "ignore_eos": True}
            stream = await client.stream(body)
            self._signs_per_token = signs / max(1, stream.prompt_tokens)

    def _text(self, signs: int) -> str:
        """Return a random text that no other request has."""
        return Random(next(self._numbers)).randbytes(signs).translate(_SIGNS).decode()  # noqa: S311

    def bodies(self) -> Iterator[Mapping[str, object]]:
        """Yield requests without end."""
        usual = {"max_tokens": self._work.output_tokens}
        signs = round(self._work.prompt_tokens * (self._signs_per_token or 1))
        while True:
            if self._users is not None:
                yield {**usual, **next(self._users)}
            else:
                yield {**usual, "prompt": self._text(max(1, signs)), "ignore_eos": True}


class _Client:
    """Sends requests to the job's server, and reads the answers."""

    def __init__(self, work: TokenTask, engine: PromptedEngine, session: ClientSession) -> None:
        self._model, self._engine, self._session = work.model, engine, session

    async def stream(self, body: Mapping[str, object]) -> Stream:
        """Return an answer's figures; raises CannotError.

        Only its first and last events are read: a server makes thousands a second.
        """
        engine = self._engine
        request = engine.streamed_request(self._model, body)
        began_us = now_us()
        first_us, tail = 0, b""
        async with requested(self._session, request) as answer:
            if answer.status != _OK:
                raise refusal(answer.status, engine.failure(await answer.read()))
            async for chunk in answer.content.iter_any():
                tail = (tail + chunk)[-_TAIL_BYTES:]
                if not first_us and self._has_text(tail):
                    first_us = now_us()
        all_us = now_us() - began_us
        usage = self._usage(tail)
        # Without any text there was no first one before the end.
        until_us = first_us - began_us if first_us else all_us
        return Stream(until_us, all_us, usage.prompt_tokens, usage.output_tokens)

    def _has_text(self, tail: bytes) -> bool:
        try:
            return self._engine.has_text(tail)
        except (TypeError, ValueError) as error:
            raise self._stranger(error) from None

    def _usage(self, tail: bytes) -> TokenUsage:
        try:
            usage = self._engine.usage(tail)
        except (TypeError, ValueError) as error:
            raise self._stranger(error) from None
        if usage is None:
            why = self._engine.stream_failure(tail) or "it does not say how many tokens it took"
            raise BrokenError(f"{self._engine.title} ended an answer early: {why}")
        return usage

    def _stranger(self, error: Exception) -> CannotError:
        return CannotError(f"{self._engine.title} answers with no stream of tokens: {error}")


class _Load:
    """A closed loop: each sender has one request in flight, followed by its next."""

    def __init__(self, client: _Client, bodies: Iterator[Mapping[str, object]]) -> None:
        self._client, self._bodies = client, bodies
        self._streams: list[Stream] = []
        self._last_us = 0
        self._ended = asyncio.Event()

    async def windows(self, concurrency: int, work: TokenTask) -> list[TokenWindow]:
        """Return the windows after one that warms up: until steady, ``WINDOWS`` at most.

        Ends after twice ``seconds``, with those that there are then; the requests in flight are
        given up.
        """
        token_windows: list[TokenWindow] = []
        try:
            async with asyncio.TaskGroup() as group:
                senders = [group.create_task(self._send()) for _ in range(concurrency)]
                with suppress(TimeoutError):
                    async with asyncio.timeout(2 * work.seconds):
                        await self._window(work.window_s, concurrency)
                        while len(token_windows) < WINDOWS and not is_steady(token_windows):
                            token_windows.append(await self._window(work.window_s, concurrency))
                for sender in senders:
                    sender.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return token_windows

    async def _window(self, seconds: float, answers: int) -> TokenWindow:
        """Measure from one answer to another: of so many ``seconds`` and ``answers`` at least."""
        start, began_us = len(self._streams), self._last_us or now_us()
        await asyncio.sleep(seconds)
        while True:
            self._ended.clear()
            await self._ended.wait()
            if len(self._streams) - start >= answers:
                return TokenWindow(tuple(self._streams[start:]), self._last_us - began_us)

    async def _send(self) -> None:
        for body in self._bodies:
            stream = await self._client.stream(body)
            self._last_us = now_us()
            self._streams.append(stream)
            self._ended.set()


class _Job:
    """What the job measures, and the server, which is started again where it must be."""

    def __init__(
        self, work: TokenTask, engine: PromptedEngine, data: str | None, server: JobServer
    ) -> None:
        self._work, self._engine, self._server = work, engine, server
        self._prompts = _Prompts(work, engine, data)
        self._load = work.load(data)
        self._was_ready = False

    async def points(self) -> AsyncIterator[Message]:
        """Yield the messages of all points; after one that can't be served the next is tried.

        If the server never starts, all points say so, and NoServerError is raised.
        """
        for number, concurrency in enumerate(self._work.concurrencies, 1):
            yield Begun(number=number, batch=concurrency, processes=1)
            try:
                yield await self._point(concurrency)
            except CannotError as error:
                if not self._was_ready:
                    break
                if isinstance(error, BrokenError):
                    self._server.end()
                yield cannot(self._load, concurrency, str(error))
        if not self._was_ready:
            for concurrency in self._work.concurrencies:
                yield cannot(self._load, concurrency, NOT_STARTED)
            raise NoServerError

    async def _point(self, concurrency: int) -> Point:
        work, title = self._work, self._engine.title
        async with within(LOAD_DEADLINE_S, f"{title} did not start", title):
            await self._until_ready(concurrency)
        async with open_session(self._server.socket, self._engine) as session:
            client = _Client(work, self._engine, session)
            async with within(_ANSWER_S, "no answer", title):
                await self._prompts.fit(client)
            async with within(3 * work.seconds + _ANSWER_S, "no end", title):
                windows = await _Load(client, self._prompts.bodies()).windows(concurrency, work)
        if not windows:
            raise CannotError(
                f"fewer than {2 * concurrency} answers within {2 * work.seconds:g} s; "
                "give it more --seconds"
            )
        return measured(self._load, concurrency, windows)

    async def _until_ready(self, concurrency: int) -> None:
        self._write_slots(self._work.slots(concurrency, each=self._engine.has_slot_memory))
        async with open_session(self._server.socket, self._engine) as session:
            await self._server.wait_until_there(session, starts=1)
            for path in self._engine.ready_paths(self._work.model):
                await self._until_answered(session, Request("GET", path))
        self._was_ready = True

    def _write_slots(self, slots: int) -> None:
        """Have the server started with so many slots, unless it was."""
        file, text = self._server.file.with_name(SLOTS_FILE), f"{slots}\n"
        if file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            self._server.end()

    async def _until_answered(self, session: ClientSession, request: Request) -> None:
        while True:
            with suppress(CannotError):
                await self._server.answer(session, request)
                return
            await asyncio.sleep(POLL_S)


def token_points(
    work: TokenTask, engine: PromptedEngine, data: str | None, server: JobServer
) -> AsyncIterator[Message]:
    """Yield the messages of all points; raises NoServerError if the server never starts."""
    return _Job(work, engine, data, server).points()
