"""A server of language models that batches, in virtual time: a step gives each request a token.

A step takes longer the more requests run, the more tokens they hold and the more tokens of prompts
are computed in it, a chunk of them at most. A request holds its tokens in a cache; where that is
full, requests wait for their first token, and the youngest is set back to begin again.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, TokenCounts
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests


@dataclass(frozen=True)
class Server:
    """What a server's steps take, in seconds, and what it holds, in tokens.

    Attributes:
        step_s, running_s, held_s, prompt_s: seconds of a step at least, and for each request that
            runs, for each token in the cache, for each token of a prompt.
        chunk: tokens of prompts in a step at most.
        cache: tokens that fit into its cache.
        places: requests that run at the same time at most.
    """

    step_s: float
    running_s: float
    held_s: float
    prompt_s: float
    chunk: int = 512
    cache: int = 140_000
    places: int = 256

    def steady_tpot_s(self, running: int, prompt: float, answer: float) -> float:
        """Seconds from token to token while so many always run, with such lengths in the mean.

        In the ``answer`` steps of a request each other one begins once.
        """
        held = running * (prompt + answer / 2)
        step_s = self.step_s + self.running_s * running + self.held_s * held
        return step_s + self.prompt_s * prompt * running / answer

    def steady_first_s(self, running: int, prompt: float, answer: float, longest: float) -> float:
        """Seconds to the first token of a prompt of ``longest`` tokens meanwhile.

        Its chunks wait for those of other prompts: for the share of the time that these take.
        """
        step_s = self.steady_tpot_s(running, prompt, answer)
        others = self.prompt_s * prompt * running / answer / step_s
        chunk_s = step_s * (1 - others) + self.prompt_s * self.chunk
        return ceil(longest / self.chunk) * chunk_s / (1 - others)


@dataclass(eq=False)
class _Asked:
    """A request in a server; ``left`` tokens are to be computed before its next one."""

    number: int
    came_s: float
    left: int
    made: int = 0
    ends_at: int = 0


@dataclass(eq=False)
class Engine:
    """One server: what waits in it, what it computes, and what it has counted."""

    replica: RunningReplica
    waiting: deque[_Asked] = field(default_factory=deque)
    begun: deque[_Asked] = field(default_factory=deque)
    making: dict[int, _Asked] = field(default_factory=dict)
    held: int = 0
    steps: int = 0
    step_s: float = 0.0
    is_busy: bool = False
    ends: list[tuple[int, int, _Asked]] = field(default_factory=list)
    done: list[_Asked] = field(default_factory=list)
    first_s: float = 0.0
    requests: int = 0
    tokens: int = 0
    token_s: float = 0.0
    prompts: int = 0
    firsts: list[float] = field(default_factory=lambda: [0.0] * (len(FIRST_TOKEN_S) + 1))

    def said(self, cache: int) -> tuple[TokenCounts, EngineLoad]:
        """Say what vLLM's metrics say."""
        counted = (self.first_s, float(self.tokens), self.token_s, float(self.requests))
        running = float(len(self.begun) + len(self.making))
        counts = EngineCounts(prompt_tokens=float(self.prompts), output_tokens=float(self.tokens))
        load = EngineLoad(running, float(len(self.waiting)), min(1.0, self.held / cache), counts)
        return TokenCounts(*counted, tuple(self.firsts)), load


class BatchingRequests(ServiceRequests):
    """The requests of a service whose replicas are such servers.

    Attributes:
        first_s, end_s: when each request had its first token, and its last one; ``inf``: not yet.
        engines: the servers of all replicas so far.
    """

    def __init__(
        self,
        arrivals_s: Sequence[float],
        tokens: Sequence[tuple[int, int]],
        server: Server,
        concurrency: int,
    ) -> None:
        """``tokens``: of each request's prompt, and of its answer."""
        super().__init__(arrivals_s, [0.0] * len(tokens), concurrency)
        self.server = server
        self.first_s = [inf] * len(tokens)
        self.end_s = [inf] * len(tokens)
        self.engines: dict[RunningReplica, Engine] = {}
        self._tokens = tokens
        self._steps: list[tuple[float, int, Engine]] = []

    def pass_until(self, until_s: float) -> None:
        """Let requests come, and servers work, up to that time, in order."""
        steps, arrivals = self._steps, self.arrivals
        while True:
            at_s = arrivals[self.arrived]
            if steps and steps[0][0] <= at_s:
                if steps[0][0] > until_s:
                    break
                at_s, _, engine = heappop(steps)
                self._ended(engine, at_s)
            elif at_s <= until_s:
                self._arrive(at_s)
            else:
                break
        self.now_s = until_s

    def open(self, replica: RunningReplica) -> None:
        """Let a replica get requests from now on."""
        self.engines.setdefault(replica, Engine(replica))
        super().open(replica)

    def _serve(self, request: int, replica: RunningReplica, at_s: float) -> None:
        self.waits[request] = at_s - self.arrivals[request]
        replica.in_flight += 1
        self.in_flight += 1
        engine = self.engines[replica]
        engine.waiting.append(_Asked(request, at_s, self._tokens[request][0]))
        if not engine.is_busy:
            self._begin(engine, at_s)

    def _begin(self, engine: Engine, at_s: float) -> None:
        """Begin a step, if there is anything to work on."""
        server = self.server
        while engine.waiting and len(engine.begun) + len(engine.making) < server.places:
            needs = engine.waiting[0].left
            is_full = engine.held + needs > server.cache and bool(engine.begun or engine.making)
            if is_full or sum(one.left for one in engine.begun) >= server.chunk:
                break
            engine.held += needs
            engine.begun.append(engine.waiting.popleft())
        running = len(engine.begun) + len(engine.making)
        engine.is_busy = bool(running)
        if not running:
            return
        room = server.chunk
        while room and engine.begun:
            part = min(room, engine.begun[0].left)
            engine.begun[0].left -= part
            engine.prompts += part
            room -= part
            if engine.begun[0].left:
                break
            engine.done.append(engine.begun.popleft())
        engine.step_s = (
            server.step_s
            + server.running_s * running
            + server.held_s * engine.held
            + server.prompt_s * (server.chunk - room)
        )
        self._order += 1
        heappush(self._steps, (at_s + engine.step_s, self._order, engine))

    def _ended(self, engine: Engine, at_s: float) -> None:
        engine.steps += 1
        engine.tokens += len(engine.making)
        engine.token_s += len(engine.making) * engine.step_s
        engine.held += len(engine.making) + len(engine.done)
        for one in engine.done:
            self._first(engine, one, at_s)
        engine.done.clear()
        while engine.ends and engine.ends[0][0] <= engine.steps:
            _, number, one = heappop(engine.ends)
            if engine.making.get(number) is one and one.ends_at <= engine.steps:
                del engine.making[number]
                engine.held -= sum(self._tokens[number])
                self.end_s[number] = self.answers[number] = at_s
                self._answer(engine.replica, at_s)
        while engine.held > self.server.cache and len(engine.making) > 1:
            number, one = engine.making.popitem()
            one.made = self._tokens[number][1] - (one.ends_at - engine.steps)
            one.left = self._tokens[number][0] + one.made
            engine.held -= one.left
            engine.waiting.appendleft(one)
        if engine.replica.in_flight:
            # What has come while it answered has begun a step only if it was idle.
            self._begin(engine, at_s)
        else:
            engine.is_busy = False

    def _first(self, engine: Engine, one: _Asked, at_s: float) -> None:
        """Give a request its first token, or one that was set back its next."""
        one.made += 1
        if self.first_s[one.number] == inf:
            self.first_s[one.number] = at_s
            took_s = at_s - one.came_s
            engine.first_s += took_s
            engine.requests += 1
            engine.firsts[bisect_left(FIRST_TOKEN_S, took_s)] += 1
        one.ends_at = engine.steps + self._tokens[one.number][1] - one.made
        engine.making[one.number] = one
        heappush(engine.ends, (one.ends_at, one.number, one))
