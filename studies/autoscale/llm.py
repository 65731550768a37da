"""Replays conversations with replicas that batch: learning of concurrency and autoscaling together.

The launcher's decision sees the gateway each second and what servers say every two. It learns how
many requests a replica gets (``learnt``), or is told a number (``fixed``): the best one by
hindsight, or the one that ``knows`` the server and the load's lengths. A replica counts as one
slice.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.launcher.rules.autoscale.begin import with_other_replicas
from slicewise.launcher.rules.autoscale.curve import Prior
from slicewise.launcher.rules.autoscale.histogram import added_bins
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.engines.engine import TokenCounts
from slicewise.launcher.rules.engines.load import (
    CountsSeen,
    EngineCounts,
    ServersLoad,
    servers_load,
)
from slicewise.launcher.rules.gateway.types import Load
from studies.autoscale import traces
from studies.autoscale.batching import BatchingRequests, Server
from studies.autoscale.workload import Floats, Starts, Workload, draw_starts
from studies.autoscale.world import World
from studies.command_line import side_by_side, traces_folder

SEED = 20_261_121
TTFT_S, TPOT_S = 3.0, 0.15
SERVER = Server(0.030, 0.0001, 1e-7, 0.00023)
"""A slice of three sevenths."""
TIMES, FIRST_REPLICAS, MAX_REPLICAS = 2, 6, 60
FIXED = (8, 12, 16, 24, 32, 40, 48)
_ASKED_S = 2
_TTFT_SHARE, _TPOT_SHARE = 2 / 3, 0.9
"""Of the objectives, as the product plans with; the rest is for waiting."""


@dataclass(frozen=True)
class Talks:
    """Conversations: when each request comes, and the tokens of its prompt and its answer."""

    arrivals_s: Floats
    tokens: Floats
    starts: Starts


def talks(name: str, folder: Path, seed: int, change: Callable[[Floats, Floats], Floats]) -> Talks:
    """Read a trace; each request comes ``TIMES`` times, within two seconds."""
    rng = np.random.default_rng(seed)
    file, read = traces.TOKENS[name]
    arrivals, tokens = read(folder / file, rng)
    tokens = change(arrivals, tokens)
    arrivals = np.repeat(arrivals, TIMES) + rng.uniform(0, 2, arrivals.size * TIMES)
    order = np.argsort(arrivals, kind="stable")
    starts = draw_starts(traces.loads_s(folder), rng)
    return Talks(arrivals[order], np.repeat(tokens, TIMES, axis=0)[order], starts)


class Talk:
    """A service under such a load, its launcher's decision, and what became of its requests."""

    def __init__(
        self,
        load: Talks,
        concurrency: int | None,
        server: Server = SERVER,
        prior: Prior | None = None,
        first_replicas: int = FIRST_REPLICAS,
    ) -> None:
        """``concurrency``: requests that a replica gets; None: that is learnt, after ``prior``."""
        is_learnt = concurrency is None
        self.server = server
        self._scaling = Scaling(
            *(1, MAX_REPLICAS, SERVER.places if concurrency is None else concurrency),
            learns=is_learnt,
            ttft_s=TTFT_S,
            tpot_s=TPOT_S,
        )
        tokens = [(max(1, int(prompt)), max(1, int(answer))) for prompt, answer in load.tokens]
        self.answers = np.array([answer for _, answer in tokens])
        self.requests = BatchingRequests(
            load.arrivals_s.tolist(), tokens, server, self._scaling.concurrency
        )
        nothing = np.zeros(0)
        self.workload = Workload(
            *("llm", load.arrivals_s, nothing, int(load.arrivals_s[-1]) + 1),
            concurrency=self._scaling.concurrency,
            starts=load.starts,
            first_replicas=first_replicas,
            warm_s=0,
        )
        self.world = World(self.workload, self.requests)
        self.memory: Memory = initial(Supply(ready=first_replicas), 0.0)
        if prior is not None:
            self.memory = with_other_replicas(self.memory, self._scaling, prior)
        self.seconds: list[tuple[int, int, int]] = []
        self._seen = CountsSeen()
        self._counted: dict[int, EngineCounts] = {}
        self._said: tuple[TokenCounts | None, ServersLoad | None] = (None, None)

    def run(self) -> "Talk":
        """Replay all of it."""
        self._set()
        for second in range(1, self.workload.duration_s):
            self.world.pass_until(second)
            if second % _ASKED_S == 0:
                self._said = self._asked()
            self._decide()
        self.world.pass_until(self.workload.duration_s)
        return self

    def _set(self) -> None:
        limit = self._scaling.concurrency
        if self._scaling.learns:
            limit = min(limit, self.memory.capacity.limit)
        if limit != self.requests.concurrency:
            self.requests.set_concurrency(limit)

    def _asked(self) -> tuple[TokenCounts | None, ServersLoad | None]:
        ready = set(self.world.ready)
        firsts: tuple[float, ...] = ()
        sums, loads = np.zeros(4), []
        for number, (replica, engine) in enumerate(self.requests.engines.items()):
            tokens, load = engine.said(self.server.cache)
            sums += (tokens.first_s, tokens.tokens, tokens.token_s, tokens.requests or 0.0)
            firsts = added_bins(firsts, tokens.firsts)
            before = self._counted.get(number, EngineCounts())
            self._counted[number] = load.counts
            self._seen = self._seen.later(before, load.counts)
            if replica in ready:
                loads.append(load)
        return TokenCounts(*map(float, sums), firsts), servers_load(loads, self._seen)

    def _decide(self) -> None:
        seen = self.world.look()
        tokens, servers = self._said
        queued, held = (seen.waiting, 0) if seen.ready else (0, seen.waiting)
        supply = Supply(seen.pending, seen.starting, seen.ready, seen.draining)
        look = ServiceLook(
            at_s=seen.at_s,
            load=Load(seen.in_flight, queued, held, seen.arrived, seen.answered),
            supply=supply,
            starts=tuple(seen.started),
            serving=0 if seen.draining else seen.ready,
            tokens=tokens,
            servers=servers,
        )
        self.memory, decision = autoscale(self._scaling, self.memory, look)
        self.world.want(decision.wanted)
        self.requests.in_time = decision.in_time
        self._set()
        self.seconds.append((self.requests.concurrency, seen.coming, seen.waiting))

    def figures(self) -> Mapping[str, Any]:
        """Slice-hours, and how many requests kept which objective."""
        slice_s = self.world.outcome().slice_s
        ended = self.workload.duration_s
        counted = self.workload.arrivals_s < ended - TTFT_S
        first_s = np.minimum(self.requests.first_s, ended) - self.workload.arrivals_s
        made = np.isfinite(self.requests.end_s) & (self.answers > 1)
        spans = np.array(self.requests.end_s)[made] - np.array(self.requests.first_s)[made]
        tpot_s = spans / (self.answers[made] - 1)
        each = max(1, len(self.seconds) // 30)
        return {
            "slice_hours": round(slice_s / 3600, 2),
            "ttft_attainment": round(float((first_s[counted] <= TTFT_S).mean()), 4),
            "tpot_attainment": round(float((tpot_s <= TPOT_S).mean()), 4),
            "ttft_p95_s": round(float(np.percentile(first_s[counted], 95)), 2),
            "tpot_p95_s": round(float(np.percentile(tpot_s, 95)), 4),
            "concurrency_replicas_waiting": self.seconds[::each],
        }


def known(load: Talks) -> int:
    """The most requests with which both objectives are kept, as the server's steps say.

    Tokens are so with the load's mean lengths, and the first ones of the longest of 20 prompts, if
    they are with one request. If not, they may take twice as long as with that.
    """
    prompt, answer = load.tokens.mean(axis=0)
    longest = float(np.percentile(load.tokens[:, 0], 95))

    alone_s = SERVER.steady_first_s(1, prompt, answer, longest)
    within_s = max(_TTFT_SHARE * TTFT_S, 2 * alone_s)

    def keeps(running: int) -> bool:
        tpot_s = SERVER.steady_tpot_s(running, prompt, answer)
        first_s = SERVER.steady_first_s(running, prompt, answer, longest)
        return tpot_s <= _TPOT_SHARE * TPOT_S and first_s <= within_s

    return max((running for running in range(1, 257) if keeps(running)), default=1)


def as_they_are(_: Floats, tokens: Floats) -> Floats:
    """Leave the lengths."""
    return tokens


def longer_prompts(arrivals: Floats, tokens: Floats) -> Floats:
    """Let prompts grow threefold over the hour, as conversations do."""
    found = tokens.astype(float)
    found[:, 0] = np.maximum(1, found[:, 0] * (1 + 2 * arrivals / arrivals[-1]))
    return found


CASES: Mapping[str, tuple[str, Callable[[Floats, Floats], Floats]]] = {
    "azure": ("azure", as_they_are),
    "azure, prompts that grow": ("azure", longer_prompts),
}


def _row(cell: tuple[str, Path, int, str, int | None]) -> Mapping[str, Any]:
    case, folder, seed, row, concurrency = cell
    load = talks(CASES[case][0], folder, seed, CASES[case][1])
    if row == "knows":
        concurrency = known(load)
    figures = Talk(load, concurrency).run().figures()
    return {"case": case, "row": row, "concurrency": concurrency, **figures}


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Replay all cases with the usual seed."""
    return replayed(traces_folder(), SEED, is_quick=is_quick)


def replayed(folder: Path, seed: int, *, is_quick: bool = False) -> Mapping[str, Any]:
    """Replay all cases."""
    fixed = (32,) if is_quick else FIXED
    cells = [
        (case, folder, seed, row, concurrency)
        for case in CASES
        for row, concurrency in (
            *(("learnt", None), ("knows", None)),
            *(("fixed", one) for one in fixed),
        )
    ]
    rows = side_by_side(_row, cells, "Replaying conversations")
    objectives = {"ttft_s": TTFT_S, "tpot_s": TPOT_S}
    return {"rows": rows, **objectives, "seed": seed, "machine": machine()}


def show(report: Mapping[str, Any]) -> None:
    """Print a line for each row."""
    for line in _lines(report):
        print(line)  # noqa: T201


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    for row in report["rows"]:
        number = "" if row["concurrency"] is None else f" {row['concurrency']}"
        yield (
            f"{row['case']}: {row['row']}{number}: {row['slice_hours']:.1f} slice-hours,"
            f" first tokens {row['ttft_attainment']:.1%} in time, p95 {row['ttft_p95_s']:.1f} s,"
            f" tokens {row['tpot_attainment']:.1%}, p95 {1000 * row['tpot_p95_s']:.0f} ms"
        )


if __name__ == "__main__":
    reporting.run("autoscale_llm", __doc__, "one fixed number", measure, show)
