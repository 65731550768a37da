"""Decides what to measure of a model that makes tokens, and computes the figures."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from math import ceil

from pydantic import BaseModel, ConfigDict

from slicewise.cluster.language.measurements import TokenFigures
from slicewise.launcher.rules.profiling.figures import (
    LATENCY_PERCENT,
    US_PER_S,
    WINDOWS,
    Point,
    failed,
    have_settled,
    percentile,
)

LOAD_DEADLINE_S = 900
"""Seconds within which the server must answer; engines read and compile a model meanwhile."""
SLOTS_FILE = "slots"
"""File beside the server's sockets, as ``MEASURED_SLOTS`` reads it."""
_RESTART_S = 60
"""Seconds of a further start, in the time limit."""
NOT_STARTED = "the server did not start"
"""Reason of all points of a server that never answered."""
_DIGEST_LENGTH = 12
_MEMORY = re.compile(
    r"out of (\w+ )?memory|OutOfMemory|No available memory|Not enough memory"
    r"|(failed|unable) to allocate",
    re.IGNORECASE,
)


class TokenTask(BaseModel):
    """What one job measures of a model that makes tokens. A point is one number of requests.

    Attributes:
        concurrencies: numbers of requests at a time, the smallest first.
        prompt_tokens, output_tokens: of each request; with ``data``, ``output_tokens`` of those
            that do not say how many.
        seconds: time of each point; twice as much if a window takes longer than planned.
        data: a file with requests; None makes random prompts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    concurrencies: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    seconds: float
    data: str | None = None

    @property
    def points(self) -> int:
        """How many points there are."""
        return len(self.concurrencies)

    def slots(self, concurrency: int, *, each: bool) -> int:
        """Return how many slots the server has for a point: the most, or ``each`` point its own."""
        return concurrency if each else self.concurrencies[-1]

    @property
    def window_s(self) -> float:
        """Seconds of one window at least; one warms up."""
        return self.seconds / (1 + WINDOWS)

    @property
    def time_limit_min(self) -> int:
        """Slurm's time limit in minutes: a first start, and each point with a further start."""
        return ceil((LOAD_DEADLINE_S + (2 * self.seconds + _RESTART_S) * self.points) / 60)

    def load(self, data: str | None) -> str:
        """Return how ``TokenFigures`` names what is asked; ``data`` is the requests' text."""
        if data is None:
            return f"{self.prompt_tokens}+{self.output_tokens}"
        return f"{sha256(data.encode()).hexdigest()[:_DIGEST_LENGTH]}+{self.output_tokens}"


@dataclass(frozen=True)
class Stream:
    """An answer that was streamed.

    Attributes:
        first_us: microseconds from the request to the first text; to the end, if there was none.
        all_us: the same to the end.
    """

    first_us: int
    all_us: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class TokenWindow:
    """Answers that ended one after another, and how long all of them took together."""

    streams: Sequence[Stream]
    duration_us: int

    @property
    def output_mtps(self) -> int:
        """Thousandths of an output token per second."""
        tokens = sum(stream.output_tokens for stream in self.streams)
        return 1000 * US_PER_S * tokens // self.duration_us


def is_steady(windows: Sequence[TokenWindow]) -> bool:
    """Whether the tokens per second of the last two windows differ by at most 5 %."""
    return have_settled([window.output_mtps for window in windows])


def measured(load: str, concurrency: int, windows: Sequence[TokenWindow]) -> Point:
    """Compute a point from the last two windows, of which there is at least one with an answer."""
    last = windows[-2:]
    streams = tuple(chain.from_iterable(window.streams for window in last))
    whole = TokenWindow(streams, sum(window.duration_us for window in last))
    first_us = [stream.first_us for stream in streams]
    between_us = [
        (stream.all_us - stream.first_us) // (stream.output_tokens - 1)
        for stream in streams
        if stream.output_tokens > 1 and stream.first_us < stream.all_us
    ] or [0]
    return Point(
        batch=concurrency,
        processes=1,
        throughput_mrps=1000 * US_PER_S * len(streams) // whole.duration_us,
        latency_us=percentile([stream.all_us for stream in streams], LATENCY_PERCENT),
        samples=len(streams),
        steady=is_steady(windows),
        tokens=TokenFigures(
            load=load,
            prompt_tokens=round(sum(stream.prompt_tokens for stream in streams) / len(streams)),
            output_tokens=round(sum(stream.output_tokens for stream in streams) / len(streams)),
            output_mtps=whole.output_mtps,
            ttft_p50_us=percentile(first_us, 50),
            ttft_p99_us=percentile(first_us, 99),
            tpot_p50_us=percentile(between_us, 50),
            tpot_p99_us=percentile(between_us, 99),
        ),
    )


def cannot(load: str, concurrency: int, reason: str) -> Point:
    """Return a point that can't be served, with the reason."""
    return failed(concurrency, 1, reason, TokenFigures(load=load))


def explained(points: Sequence[Point], output: str) -> Iterator[Point]:
    """Yield the points without those of a server that never started.

    If the job's output says that memory did not suffice, they are kept, with that reason: a wrong
    command or image says nothing of the instance, too little memory does.
    """
    why = next((line.strip() for line in output.split("\n") if _MEMORY.search(line)), "")
    for point in points:
        if point.reason != NOT_STARTED:
            yield point
        elif why:
            yield failed(point.batch, point.processes, why, point.tokens)
