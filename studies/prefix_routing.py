"""Which replica gets a request of a conversation: what that does to prefixes and waiting times.

Replays Mooncake's trace of conversations (FAST 25), whose ``hash_ids`` name each prompt's blocks of
512 tokens, against replicas that keep the blocks of former prompts, the least recently used of
which go. A conversation is what shares its first two blocks (the first is that of all).

Policies: HAProxy's ``leastconn``; its consistent hash of the conversation, where a request waits at
its own replica, and one that has more than ``bound`` times the mean load gets none
(``hash-balance-factor``); and the hash's replica while that has free places, maybe also a bound
(times the mean load, and one), else ``leastconn``.
"""

import heapq
import math
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.simulation.history.requests import read_requests
from slicewise.simulation.rules.services.traffic import OUTPUT_TOKEN_S, PROMPT_TOKEN_S
from studies.autoscale.traces import require
from studies.command_line import traces_folder

TRACE = "mooncake_fast25_conversation_trace.jsonl.xz"
BLOCK_TOKENS = 512
SLOTS = 8
"""Requests that a replica works on at the same time."""
REPLICAS = (6, 8)
"""Of six, requests need nine tenths of the slots; of eight, two thirds."""
CACHES = (500, 2000, 8000)
"""Blocks that a replica keeps: a quarter of a million tokens, one million, four."""


@dataclass(frozen=True)
class Policy:
    """How a conversation's hash chooses.

    Attributes:
        free: how many free places its replica must have; 0: requests wait at a full one.
    """

    bound: float = math.inf
    free: int = 0

    def allows(self, loads: Sequence[int], own: int) -> bool:
        """Whether a replica gets one request more, of one conversation."""
        if self.free and SLOTS - loads[own] < self.free:
            return False
        if self.bound == math.inf:
            return True
        if self.free:
            return loads[own] < self.bound * sum(loads) / len(loads) + 1
        return loads[own] < math.ceil(self.bound * (sum(loads) + 1) / len(loads))


FREE, BOUNDED = Policy(free=1), Policy(1.25, free=1)
POLICIES: Mapping[str, Policy | None] = {
    "leastconn": None,
    "hash, no bound": Policy(),
    "hash, bound 1.5": Policy(1.5),
    "hash, bound 1.25": Policy(1.25),
    "hash if free": FREE,
    "hash if free, bound 1.25": BOUNDED,
    "hash if two free, bound 1.25": Policy(1.25, free=2),
}
"""None: least connections, without a hash."""
_POINTS = 160
"""Places of a replica in the ring (HAProxy: 16 for each of its weight's units)."""
_TICK_S = 3.0


@dataclass(frozen=True)
class Request:
    """A prompt and its answer."""

    at_s: float
    blocks: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int

    @property
    def conversation(self) -> int:
        """A hash of the prompt's first two blocks."""
        return crc32(repr(self.blocks[:2]).encode())


@dataclass
class Replica:
    """A server with slots, a queue of its own, and blocks that it keeps."""

    room: int
    kept: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    serves: int = 0
    queue: "deque[Request]" = field(default_factory=deque)

    def cached_tokens(self, request: Request) -> int:
        """Return how much of the prompt's beginning is there, and keep all of it from now on."""
        hits = 0
        while hits < len(request.blocks) and request.blocks[hits] in self.kept:
            hits += 1
        for block in request.blocks:
            self.kept[block] = None
            self.kept.move_to_end(block)
        while len(self.kept) > self.room:
            self.kept.popitem(last=False)
        return min(hits * BLOCK_TOKENS, request.prompt_tokens - 1)


class Pool:
    """Replicas behind a gateway with one policy of ``POLICIES``."""

    def __init__(self, replicas: int, room: int, policy: Policy | None) -> None:
        self.replicas = [Replica(room) for _ in range(replicas)]
        self.queue: deque[Request] = deque()
        self._policy = policy
        ring = ((crc32(f"{n} {p}".encode()), n) for n in range(replicas) for p in range(_POINTS))
        self._ring = sorted(ring)
        self.first_token_s: list[float] = []
        self.cached = self.asked = 0
        self._ends: list[tuple[float, int]] = []

    def run(self, requests: Iterable[Request]) -> None:
        """Work on all requests, which come in order."""
        for request in requests:
            self._until(request.at_s)
            self._arrives(request)
        self._until(math.inf)

    def _until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            at_s, index = heapq.heappop(self._ends)
            replica = self.replicas[index]
            replica.serves -= 1
            waiting = replica.queue or self.queue
            if waiting:
                self._begins(index, waiting.popleft(), at_s)

    def _arrives(self, request: Request) -> None:
        index = self._chosen(request)
        if self.replicas[index].serves < SLOTS:
            self._begins(index, request, request.at_s)
        elif self._policy is None or self._policy.free:
            self.queue.append(request)
        else:
            self.replicas[index].queue.append(request)

    def _chosen(self, request: Request) -> int:
        loads = [one.serves + len(one.queue) for one in self.replicas]
        least = loads.index(min(loads))
        if self._policy is None:
            return least
        at = bisect(self._ring, (request.conversation, -1))
        around = (self._ring[(at + step) % len(self._ring)][1] for step in range(len(self._ring)))
        if self._policy.free:
            own = next(around)
            return own if self._policy.allows(loads, own) else least
        return next(index for index in around if self._policy.allows(loads, index))

    def _begins(self, index: int, request: Request, now_s: float) -> None:
        replica = self.replicas[index]
        replica.serves += 1
        cached = replica.cached_tokens(request)
        self.cached += cached
        self.asked += request.prompt_tokens
        prompt_s = (request.prompt_tokens - cached) * PROMPT_TOKEN_S
        self.first_token_s.append(now_s - request.at_s + prompt_s)
        ends_s = now_s + prompt_s + request.output_tokens * OUTPUT_TOKEN_S
        heapq.heappush(self._ends, (ends_s, index))


def read(path: Path) -> Sequence[Request]:
    """Return the trace's requests, spread evenly over the ticks of its clock.

    Raises TraceError if it is not there.
    """
    require(path)
    rows = read_requests(path).requests
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(rows), 1) if a.at_s != b.at_s)]
    ends = [*starts[1:], len(rows)]
    offsets = [
        _TICK_S * (n - start) / (end - start)
        for start, end in zip(starts, ends, strict=True)
        for n in range(start, end)
    ]
    return [
        Request(row.at_s + offset_s, row.blocks, row.prompt_tokens, row.output_tokens)
        for row, offset_s in zip(rows, offsets, strict=True)
    ]


def measured(requests: Sequence[Request], replicas: int, room: int, name: str) -> dict[str, Any]:
    """Replay the requests with one policy."""
    pool = Pool(replicas, room, POLICIES[name])
    pool.run(requests)
    p50_s, p95_s = np.percentile(pool.first_token_s, [50, 95])
    return {
        "replicas": replicas,
        "kept_blocks": room,
        "policy": name,
        "prefix_hits": round(pool.cached / pool.asked, 4),
        "first_token_p50_s": round(float(p50_s), 3),
        "first_token_p95_s": round(float(p95_s), 3),
    }


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Replay with all policies."""
    requests = read(traces_folder() / TRACE)
    if is_quick:
        requests = requests[: len(requests) // 6]
    best = Pool(1, 10**9, None)
    hits = sum(best.replicas[0].cached_tokens(one) for one in requests)
    return {
        "machine": machine(),
        "requests": len(requests),
        "slots": SLOTS,
        "most_prefix_hits": round(hits / sum(one.prompt_tokens for one in requests), 4),
        "runs": [
            measured(requests, replicas, room, name)
            for replicas in REPLICAS
            for room in CACHES
            for name in POLICIES
        ],
    }


def show(report: Mapping[str, Any]) -> None:
    """Print a table."""
    table = Table("replicas", "kept blocks", "policy", "prefix hits", "first token p50", "p95")
    for run in report["runs"]:
        table.add_row(
            str(run["replicas"]),
            str(run["kept_blocks"]),
            run["policy"],
            f"{run['prefix_hits']:.1%}",
            f"{run['first_token_p50_s']:.2f} s",
            f"{run['first_token_p95_s']:.2f} s",
        )
    Console(width=90).print(
        table, f"At most {report['most_prefix_hits']:.1%} of prompts could be hits."
    )


if __name__ == "__main__":
    reporting.run("prefix_routing", __doc__, "a sixth of the trace", measure, show)
