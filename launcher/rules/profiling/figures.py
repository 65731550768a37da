"""Decides what to measure of a model on a slice, when a figure is steady, and what it is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slicewise.cluster.language.measurements import TokenFigures

MARK = "slicewise-profile: "
"""Prefix of each message in a job's output, into which the server and the model write, too."""

WINDOWS = 4
"""Windows of a load at most, after one that warms up; all are equally long."""
LOADS = (1, 2)
"""Loads of a point, as inferences in flight for each process; ``measured`` says why these."""
LOAD_DEADLINE_S = 300
"""Seconds within which the server or a model must start."""
_STEADY_PERCENT = 5
LATENCY_PERCENT = 95
US_PER_S = 1_000_000


class ProfileTask(BaseModel):
    """What one job measures. A point is one batch size with one number of processes.

    Attributes:
        batches: batch sizes, the smallest first; all are measured for each number of processes.
        processes: numbers of processes that serve the model in the slice; () is the one that its
            configuration says.
        seconds: time of each point at most.
        data: a file with a request's inputs; None makes zeros.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    batches: tuple[int, ...]
    processes: tuple[int, ...] = ()
    seconds: float
    data: str | None = None

    @property
    def points(self) -> int:
        """How many points there are."""
        return len(self.batches) * max(1, len(self.processes))

    @property
    def window_s(self) -> float:
        """Seconds of one window."""
        return self.seconds / (len(LOADS) * (1 + WINDOWS))

    @property
    def time_limit_min(self) -> int:
        """Slurm's time limit in minutes: twice each point's time, and each loading's deadline."""
        loads = 1 + max(1, len(self.processes))
        return ceil((2 * self.seconds * self.points + LOAD_DEADLINE_S * loads) / 60)


class Begun(BaseModel):
    """Message about a point that is being measured; ``number`` counts from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: int
    batch: int
    processes: int


class Point(BaseModel):
    """Message about a point that was measured.

    Attributes:
        throughput_mrps: thousandths of a request per second, with ``batch`` requests in each
            inference; 0 if the point can't be served.
        latency_us: microseconds within which 95 % of the inferences were answered.
        samples: inferences that count.
        steady: whether the last two windows agreed.
        reason: why the point can't be served; "" if it can.
        tokens: None of a model that makes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    batch: int = Field(ge=1)
    processes: int = Field(ge=1)
    throughput_mrps: int = Field(0, ge=0)
    latency_us: int = Field(0, ge=0)
    samples: int = Field(0, ge=0)
    steady: bool = False
    reason: str = Field("", max_length=1000)
    tokens: TokenFigures | None = None


Message = Begun | Point


def message_text(message: Message) -> str:
    """Return a message as a line of its own.

    It is one also after a line that another program has left unfinished.
    """
    return f"\n{MARK}{message.model_dump_json()}\n"


def messages(output: str) -> Iterator[Message]:
    """Yield the messages in whole lines of a job's output; what only looks like one is left out."""
    for line in output.split("\n")[:-1]:
        before, mark, text = line.partition(MARK)
        if mark and not before:
            yield from _read(text)


def _read(text: str) -> Iterator[Message]:
    for kind in (Begun, Point):
        try:
            yield kind.model_validate_json(text)
        except ValidationError:
            continue
        return


@dataclass(frozen=True)
class MeasuredWindow:
    """Inferences that were answered one after another, and how long all of them took together."""

    latencies_us: Sequence[int]
    duration_us: int

    def throughput_mrps(self, batch: int) -> int:
        """Return the throughput in thousandths of a request per second."""
        return 1000 * US_PER_S * batch * len(self.latencies_us) // self.duration_us


def is_steady(windows: Sequence[MeasuredWindow]) -> bool:
    """Whether the throughputs of the last two windows differ by at most 5 % of the larger one."""
    return have_settled([window.throughput_mrps(1) for window in windows])


def have_settled(rates: Sequence[int]) -> bool:
    """Whether the last two rates differ by at most 5 % of the larger one."""
    if len(rates) < 2:  # noqa: PLR2004
        return False
    small, large = sorted(rates[-2:])
    return 100 * (large - small) <= _STEADY_PERCENT * large


def measured(
    batch: int, processes: int, alone: Sequence[MeasuredWindow], busy: Sequence[MeasuredWindow]
) -> Point:
    """Compute a point from the last two windows of each load.

    ``alone``: one inference in flight for each process, from which the latency comes; ``busy``:
    two, so that one waits while one is worked on, from which the throughput comes.
    """
    unhurried, hurried = _joined(alone[-2:]), _joined(busy[-2:])
    return Point(
        batch=batch,
        processes=processes,
        throughput_mrps=hurried.throughput_mrps(batch),
        latency_us=percentile(unhurried.latencies_us, LATENCY_PERCENT),
        samples=len(unhurried.latencies_us) + len(hurried.latencies_us),
        steady=is_steady(alone) and is_steady(busy),
    )


def _joined(windows: Sequence[MeasuredWindow]) -> MeasuredWindow:
    latencies_us = chain.from_iterable(window.latencies_us for window in windows)
    return MeasuredWindow(tuple(latencies_us), sum(window.duration_us for window in windows))


def percentile(values: Sequence[int], percent: int) -> int:
    """Return the least value that so many percent of them do not exceed; there is at least one."""
    rank = -(-percent * len(values) // 100)
    return sorted(values)[rank - 1]


def failed(batch: int, processes: int, reason: str, tokens: TokenFigures | None = None) -> Point:
    """Return a point that can't be served, with the reason."""
    plain = " ".join("".join(sign if sign.isprintable() else " " for sign in reason).split())
    return Point(batch=batch, processes=processes, reason=plain[:1000], tokens=tokens)


def numbers(points: Iterable[Point]) -> tuple[int, int]:
    """Return how many points were measured, and how many of them can't be served."""
    all_points = tuple(points)
    return len(all_points), sum(not point.throughput_mrps for point in all_points)
