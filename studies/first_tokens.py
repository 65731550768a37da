"""Measures whether ``ttft_ms`` is kept with ``concurrency = "auto"``, behind a model of an engine.

The model is of vLLM's scheduler: a step gives each running request one token, and takes longer the
more run and the more tokens of prompts begin in it. A request holds its tokens in the cache. Where
that is full requests wait for their first token, and one that runs is set back to begin again,
which computes its tokens anew. More requests always wait at the gateway. The launcher's decision
sees what such a replica says: sums and counts only (``sums``, as llama.cpp has), or its histogram
and its queue as well (``servers``, as with vLLM and SGLang).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.launcher.rules.autoscale.policy import autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, TokenCounts
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load

SEED = 5
STEP_S, RUNNING_S, PROMPT_S = 0.012, 0.0002, 0.0001
"""Seconds of a step: at least, for each running request, and for each token of a prompt."""
BUDGET = 2048
"""Tokens of prompts that begin in a step, unless one alone has more."""
PLACES = 256
PROMPT_SIGMA, ANSWER_SIGMA = 0.6, 0.8
TTFT_S = (1.0, 3.0)
ASKED_S = 2
_WAITING = 50


@dataclass(frozen=True)
class Case:
    """Tokens of a replica's cache, and in the mean of a prompt and of an answer."""

    cache: int
    prompt: int
    answer: int


CASES = (
    Case(16_000, 300, 300),
    Case(6_000, 300, 300),
    Case(100_000, 300, 300),
    Case(60_000, 4_000, 200),
    Case(40_000, 200, 1_500),
)
TELLS = ("sums", "servers")


@dataclass(eq=False)
class Asked:
    """A request in a replica: its tokens, those made so far, and when it came."""

    prompt: int
    answer: int
    came_s: float
    made: int = 0
    first_s: float = 0.0

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return self.prompt + self.made


@dataclass
class Engine:
    """A replica that always has as many requests as the gateway gives it.

    Attributes:
        held: tokens in its cache.
        answered: requests that have ended, and their sums as the engine counts them.
    """

    case: Case
    random: Random
    limit: int = 1
    now_s: float = 0.0
    held: int = 0
    running: list[Asked] = field(default_factory=list)
    waiting: deque[Asked] = field(default_factory=deque)
    answered: list[Asked] = field(default_factory=list)
    token_s: float = 0.0

    def until(self, at_s: float) -> None:
        """Work until then."""
        while self.now_s < at_s:
            self._step()

    def _step(self) -> None:
        while len(self.running) + len(self.waiting) < self.limit:
            self.waiting.append(self._new())
        began = self._admit()
        took_s = STEP_S + RUNNING_S * len(self.running) + PROMPT_S * began
        while self.held + len(self.running) > self.case.cache and len(self.running) > 1:
            set_back = self.running.pop()
            self.held -= set_back.held
            self.waiting.appendleft(set_back)
        self.now_s += took_s
        for one in self.running:
            one.made += 1
            one.first_s = one.first_s or self.now_s - one.came_s
        self.held += len(self.running)
        ended = [one for one in self.running if one.made >= one.answer]
        self.held -= sum(one.held for one in ended)
        self.token_s += sum(self.now_s - one.came_s - one.first_s for one in ended)
        self.answered += ended
        self.running = [one for one in self.running if one.made < one.answer]

    def _admit(self) -> int:
        began = 0
        while self.waiting and len(self.running) < PLACES:
            needs = self.waiting[0].held
            if self.held + needs > self.case.cache or (began and began + needs > BUDGET):
                break
            self.running.append(self.waiting.popleft())
            self.held += needs
            began += needs
        return began

    def _new(self) -> Asked:
        return Asked(
            self._length(self.case.prompt, PROMPT_SIGMA),
            self._length(self.case.answer, ANSWER_SIGMA),
            self.now_s,
        )

    def _length(self, mean: int, sigma: float) -> int:
        return max(1, int(mean * self.random.lognormvariate(-(sigma**2) / 2, sigma)))


@dataclass
class Counters:
    """What has been counted of answers so far, as an engine's metrics have it."""

    seen: int = 0
    first_s: float = 0.0
    tokens: int = 0
    firsts: list[float] = field(default_factory=lambda: [0.0] * (len(FIRST_TOKEN_S) + 1))

    def said(self, engine: Engine, tells: str) -> TokenCounts:
        """Count what has ended since, and say it."""
        for one in engine.answered[self.seen :]:
            self.first_s += one.first_s
            self.tokens += one.answer
            self.firsts[bisect_left(FIRST_TOKEN_S, one.first_s)] += 1
        self.seen = len(engine.answered)
        firsts = () if tells == "sums" else tuple(self.firsts)
        counted = (self.first_s, float(self.tokens), engine.token_s, float(self.seen))
        return TokenCounts(*counted, firsts)


def measured(case: Case, ttft_s: float, tells: str, seconds: int) -> Mapping[str, Any]:
    """Let the launcher learn from nothing how many requests the replica gets."""
    engine = Engine(case, Random(SEED))  # noqa: S311 -- seeded on purpose
    scaling = Scaling(1, 1, PLACES, ttft_s=ttft_s, learns=True)
    memory, counters, tokens, servers = initial(Supply(ready=1), 0.0), Counters(), None, None
    limits = []
    for second in range(1, seconds + 1):
        engine.limit = min(memory.capacity.limit, PLACES)
        engine.until(second)
        running, waiting, answered = map(len, (engine.running, engine.waiting, engine.answered))
        if second % ASKED_S == 0:
            tokens = counters.said(engine, tells)
            cache = min(1.0, engine.held / case.cache)
            servers = ServersLoad(running, waiting, cache) if tells == "servers" else None
        inside = running + waiting
        load = Load(inside, _WAITING, 0, answered + inside + _WAITING, answered)
        look = ServiceLook(
            *(float(second), load, Supply(ready=1)), serving=1, tokens=tokens, servers=servers
        )
        memory, _ = autoscale(scaling, memory, look)
        limits.append(memory.capacity.limit)
    late = sum(one.first_s > ttft_s for one in engine.answered)
    return {
        "cache": case.cache,
        "prompt": case.prompt,
        "answer": case.answer,
        "ttft_s": ttft_s,
        "tells": tells,
        "answers_per_s": round(len(engine.answered) / seconds, 3),
        "late": round(late / max(1, len(engine.answered)), 4),
        "limits": limits[:: max(1, seconds // 12)],
    }


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Measure all."""
    seconds = 600 if is_quick else 2400
    runs = [
        measured(case, ttft_s, tells, seconds)
        for case in CASES
        for ttft_s in TTFT_S
        for tells in TELLS
    ]
    return {"runs": runs, "seconds": seconds, "seed": SEED, "machine": machine()}


def show(report: Mapping[str, Any]) -> None:
    """Print a line for each run."""
    for run in report["runs"]:
        sizes = f"{run['cache']}; {run['prompt']}, {run['answer']}"
        kept = f"{run['answers_per_s']:.2f}/s, {run['late']:.1%} late"
        print(f"{sizes}: ttft {run['ttft_s']:.0f} s, {run['tells']}: {kept}")  # noqa: T201


if __name__ == "__main__":
    reporting.run("first_tokens", __doc__, "ten minutes in place of 40", measure, show)
