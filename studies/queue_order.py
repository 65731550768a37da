"""Compares orders of a full service's queue: first come first served, and fair between payers.

A model of HAProxy's queue, in which a request's moment is fixed when it comes, before replicas with
a number of places; the launcher's rule looks once a second. Three payers share the service: one
floods it with short prompts, one with long ones, one asks seldom. A flood is a number of clients,
each of which asks again as soon as it is answered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, product
from math import inf
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.launcher.rules.gateway.fair_queue import (
    FairQueue,
    Position,
    SubjectUse,
    tokens_of,
    with_pace,
    with_uses,
)
from slicewise.simulation.rules.runs.summary import percentile

SEED = 20_261_129
PLACES = 8
ANSWER_WEIGHT = 4
"""What a token of an answer weighs beside one of a prompt."""
FIRST_S, PROMPT_S, ANSWER_S = 0.03, 0.0002, 0.01
"""Seconds of a request at a replica: until its first token, for each of its prompt, for each of its
answer."""
SIGMAS = (0.1, 0.5)
"""How much lengths vary: the standard deviation of their logarithm."""
NAMES = ("short", "long", "seldom")
WARM_S, MINUTE_S = 60.0, 60.0
_LOOK_S = 1.0
FAR_MS, BACK_MS = 300_000, 200_000
"""How far from the clock a moment may be."""


@dataclass(frozen=True)
class Payer:
    """Who asks, and for what.

    Attributes:
        clients: how many ask again as soon as they are answered; 0: one asks every ``every_s``.
        prompt: mean tokens of a prompt; ``answer`` of an answer.
    """

    name: str
    prompt: int
    answer: int
    clients: int = 0
    every_s: float = 0.0
    weight: float = 1.0


SHORT, LONG = Payer("short", 100, 60, clients=120), Payer("long", 3_000, 150, clients=30)
SELDOM = Payer("seldom", 200, 60, every_s=2.0)
CASES: Mapping[str, Sequence[Payer]] = {
    "equal weights": (SHORT, LONG, SELDOM),
    "the short one weighs 3": (Payer("short", 100, 60, clients=120, weight=3.0), LONG, SELDOM),
    "all three flood": (SHORT, LONG, Payer("seldom", 200, 60, clients=20)),
}


@dataclass(frozen=True)
class Request:
    """One request; ``key_ms`` is its moment in the queue."""

    payer: Payer
    came_s: float
    prompt: int
    answer: int
    key_ms: float = 0.0

    @property
    def first_s(self) -> float:
        """Seconds until its first token, once it has a place."""
        return FIRST_S + self.prompt * PROMPT_S

    @property
    def took_s(self) -> float:
        """Seconds for which it has a place."""
        return self.first_s + self.answer * ANSWER_S

    @property
    def tokens(self) -> float:
        """Its tokens, each at its weight."""
        return self.prompt + ANSWER_WEIGHT * self.answer


@dataclass
class Service:
    """The queue, the places, and what the launcher knows.

    Attributes:
        here: how many requests each payer has, waiting or at a replica.
        uses: what has ended since the launcher's last look.
        begun: requests that got a place, and when.
    """

    payers: Sequence[Payer]
    sigma: float
    fair: bool
    random: Random
    now_s: float = 0.0
    free: int = PLACES
    waiting: list[tuple[float, int, Request]] = field(default_factory=list)
    here: Counter[str] = field(default_factory=Counter)
    uses: dict[str, SubjectUse] = field(default_factory=dict)
    queue: FairQueue = field(default_factory=FairQueue)
    turn_ms: float = -inf
    counters_ms: dict[str, float] = field(default_factory=dict)
    begun: list[tuple[Request, float]] = field(default_factory=list)
    events: list[tuple[float, int, str, Request | Payer | None]] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)

    @property
    def weights(self) -> Mapping[str, float]:
        """By payer."""
        return {payer.name: payer.weight for payer in self.payers}

    def run(self, until_s: float) -> None:
        """Serve everybody until then."""
        for payer in self.payers:
            for number in range(payer.clients or 1):
                self._at(number * 0.01 if payer.clients else payer.every_s, "ask", payer)
        self._at(_LOOK_S, "look", None)
        while self.events and self.events[0][0] <= until_s:
            self.now_s, _, what, who = heappop(self.events)
            if isinstance(who, Payer):
                self._ask(who)
                if not who.clients:
                    self._at(self.now_s + self.random.expovariate(1 / who.every_s), "ask", who)
            elif isinstance(who, Request):
                self.turn_ms = max(self.turn_ms, who.key_ms)
                if what == "end":
                    self._end(who)
            else:
                self._look()
                self._at(self.now_s + _LOOK_S, what, None)

    def _at(self, at_s: float, what: str, who: Request | Payer | None) -> None:
        heappush(self.events, (at_s, next(self.numbers), what, who))

    def _ask(self, payer: Payer) -> None:
        prompt, answer = self._length(payer.prompt), self._length(payer.answer)
        request = Request(payer, self.now_s, prompt, answer, self._key_ms(payer.name))
        self.here[payer.name] += 1
        heappush(self.waiting, (request.key_ms, next(self.numbers), request))
        self._begin()

    def _key_ms(self, name: str) -> float:
        """Its moment, as HAProxy's configuration works it out."""
        now_ms = 1000 * self.now_s
        if not self.fair:
            return now_ms
        others, tokens = tokens_of(self.queue, self.weights)
        if self.turn_ms < now_ms - BACK_MS:
            self.turn_ms = now_ms
        turn_ms = self.turn_ms
        key_ms = max(turn_ms, self.counters_ms.get(name, -inf))
        pace = self.queue.pace
        step_ms = tokens.get(name, others) * (pace.before if key_ms < pace.from_ms else pace.then)
        key_ms = min(key_ms, turn_ms + self.here[name] * step_ms, now_ms + FAR_MS)
        self.counters_ms[name] = key_ms + step_ms
        return key_ms

    def _begin(self) -> None:
        while self.free and self.waiting:
            _, _, request = heappop(self.waiting)
            self.free -= 1
            self.begun.append((request, self.now_s))
            self._at(self.now_s + request.first_s, "first", request)
            self._at(self.now_s + request.took_s, "end", request)

    def _end(self, request: Request) -> None:
        name = request.payer.name
        self.free += 1
        self.here[name] -= 1
        used = self.uses.get(name, SubjectUse(0, 0.0))
        self.uses[name] = SubjectUse(used.requests + 1, used.tokens + request.tokens)
        if request.payer.clients:
            self._ask(request.payer)
        self._begin()

    def _look(self) -> None:
        now_ms = 1000 * self.now_s
        position = Position(self.turn_ms, max(self.counters_ms.values(), default=now_ms))
        self.queue = with_uses(self.queue, now_ms, self.uses)
        self.queue = with_pace(self.queue, now_ms, position if self.waiting else None)
        self.uses = {}

    def _length(self, mean: int) -> int:
        return max(1, int(mean * self.random.lognormvariate(-(self.sigma**2) / 2, self.sigma)))


def served(service: Service, name: str, begin_s: float, end_s: float) -> float:
    """Return the tokens of a payer that were served between two moments, evenly in each request."""
    return sum(
        request.tokens
        * max(0.0, min(end_s, begun_s + request.took_s) - max(begin_s, begun_s))
        / request.took_s
        for request, begun_s in service.begun
        if request.payer.name == name
    )


def first_tokens_s(service: Service, name: str, begin_s: float, end_s: float) -> Sequence[float]:
    """Return a payer's waits for the first token, sorted, of requests that came between them."""
    return sorted(
        begun_s + request.first_s - request.came_s
        for request, begun_s in service.begun
        if request.payer.name == name and begin_s <= request.came_s < end_s
    )


def due_shares(payers: Sequence[Payer], shares: Mapping[str, float]) -> Mapping[str, float]:
    """Return what each payer is due: who asks for less has that, the others divide the rest."""
    floods = [payer for payer in payers if payer.clients]
    rest = 1 - sum(shares[payer.name] for payer in payers if not payer.clients)
    weights = sum(payer.weight for payer in floods)
    return {payer.name: rest * payer.weight / weights for payer in floods}


def measured(payers: Sequence[Payer], sigma: float, seed: int, *, fair: bool) -> Mapping[str, Any]:
    """Serve a case for its minute, and return shares and first tokens."""
    service = Service(payers, sigma, fair, Random(seed))  # noqa: S311 -- seeded on purpose
    begin_s, end_s = WARM_S, WARM_S + MINUTE_S
    service.run(end_s + MINUTE_S)
    tokens = {payer.name: served(service, payer.name, begin_s, end_s) for payer in payers}
    shares = {name: used / sum(tokens.values()) for name, used in tokens.items()}
    due = due_shares(payers, shares)
    off = [abs(shares[name] / due_share - 1) for name, due_share in due.items()]
    firsts_s = first_tokens_s(service, "seldom", begin_s, end_s)
    return {
        "shares": {name: round(share, 4) for name, share in shares.items()},
        "off": round(max(off, default=0.0), 4),
        "first_p95_s": round(percentile(firsts_s, 95), 3) if firsts_s else None,
        "longest_s": round(max(request.took_s for request, _ in service.begun), 3),
    }


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Measure every case with several seeds in both orders, and the seldom payer alone."""
    seeds = [SEED + number for number in range(2 if is_quick else 20)]
    runs = [
        {
            "case": case,
            "sigma": sigma,
            "seed": seed,
            "fair": fair,
            **measured(payers, sigma, seed, fair=fair),
        }
        for case, payers in CASES.items()
        for sigma in SIGMAS
        for fair in (False, True)
        for seed in seeds
    ]
    alone = [measured((SELDOM,), SIGMAS[0], seed, fair=True)["first_p95_s"] for seed in seeds]
    return {"runs": runs, "alone_first_p95_s": alone, "seeds": seeds, "machine": machine()}


def show(report: Mapping[str, Any]) -> None:
    """Print a line for each case and order: the median of the seeds, and the worst."""
    table = Table(box=None, header_style="bold")
    for column in ("case", "lengths", "order", "shares", "off (worst)", "first p95"):
        table.add_column(column)
    for case, sigma, fair in product(CASES, SIGMAS, (False, True)):
        wanted = (case, sigma, fair)
        runs = [run for run in report["runs"] if (run["case"], run["sigma"], run["fair"]) == wanted]
        shares = [_median(run["shares"][name] for run in runs) for name in NAMES]
        off = [run["off"] for run in runs]
        table.add_row(
            case,
            f"{sigma:g}",
            "fair" if fair else "as they came",
            ", ".join(f"{share:.1%}" for share in shares),
            f"{_median(off):.1%} ({max(off):.1%})",
            f"{_median(run['first_p95_s'] for run in runs):.2f} s",
        )
    console = Console()
    console.print(table)
    console.print(f"The seldom one alone: {_median(report['alone_first_p95_s']):.2f} s")


def _median(figures: Iterable[float]) -> float:
    return percentile(sorted(figures), 50)


if __name__ == "__main__":
    reporting.run("queue_order", __doc__, "two seeds in place of 20", measure, show)
