"""What is measured of a model on a slice, when a figure is steady, what it is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MARK = "slicewise-profile: "
"""Before each message in a job's output, where Triton and the model write, too."""

WINDOWS = 4
"""Of a load at most, after one that warms up; all are equally long."""
LOADS = (1, 2)
"""Of a point: inferences in flight for each process; ``measured`` says why."""
LOAD_DEADLINE_S = 300
"""Of a Triton or a model that starts."""
_STEADY_PERCENT = 5
_LATENCY_PERCENT = 95
_US_PER_S = 1_000_000


class Work(BaseModel):
    """What one job measures.

    Attributes:
        batches: for each number of processes, all of these, the smallest first.
        processes: that serve the model in the slice; () is as many as its configuration says.
        seconds: of each point at most.
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
        """How many there are."""
        return len(self.batches) * max(1, len(self.processes))

    @property
    def window_s(self) -> float:
        """Of one window."""
        return self.seconds / (len(LOADS) * (1 + WINDOWS))

    @property
    def time_limit_min(self) -> int:
        """Slurm's time limit: each point twice its time, each loading once its deadline."""
        loads = 1 + max(1, len(self.processes))
        return ceil((2 * self.seconds * self.points + LOAD_DEADLINE_S * loads) / 60)


class Begun(BaseModel):
    """A point that is being measured; ``number`` counts from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: int
    batch: int
    processes: int


class Point(BaseModel):
    """A point that was measured.

    Attributes:
        throughput_mrps: thousandths of a request per second, ``batch`` of them in each inference;
            0 if it can't.
        latency_us: in which 95 % of the inferences were answered.
        samples: inferences that count.
        steady: whether the last two windows agreed.
        reason: why it can't; "" if it can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    batch: int = Field(ge=1)
    processes: int = Field(ge=1)
    throughput_mrps: int = Field(0, ge=0)
    latency_us: int = Field(0, ge=0)
    samples: int = Field(0, ge=0)
    steady: bool = False
    reason: str = Field("", max_length=1000)


Message = Begun | Point


def message_text(message: Message) -> str:
    """As a job prints it: a line of its own, also behind a line that somebody left unfinished."""
    return f"\n{MARK}{message.model_dump_json()}\n"


def messages(output: str) -> Iterator[Message]:
    """Those in the whole lines of a job's output; what only looks like one is left out."""
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
class Window:
    """Inferences that were answered one after the other's answer, and in how long all of them."""

    latencies_us: Sequence[int]
    duration_us: int

    def throughput_mrps(self, batch: int) -> int:
        """Thousandths of a request per second."""
        return 1000 * _US_PER_S * batch * len(self.latencies_us) // self.duration_us


def is_steady(windows: Sequence[Window]) -> bool:
    """Whether the throughputs of the last two differ by 5 % of the larger one at most."""
    if len(windows) < 2:  # noqa: PLR2004
        return False
    small, large = sorted(window.throughput_mrps(1) for window in windows[-2:])
    return 100 * (large - small) <= _STEADY_PERCENT * large


def measured(batch: int, processes: int, alone: Sequence[Window], busy: Sequence[Window]) -> Point:
    """The figure, of the last two windows of each.

    ``alone``: one inference at a time for each process, which is where latencies come from;
    ``busy``: two, so that one waits while one is worked on, which is where throughput comes from.
    """
    unhurried, hurried = _joined(alone[-2:]), _joined(busy[-2:])
    return Point(
        batch=batch,
        processes=processes,
        throughput_mrps=hurried.throughput_mrps(batch),
        latency_us=_percentile(unhurried.latencies_us),
        samples=len(unhurried.latencies_us) + len(hurried.latencies_us),
        steady=is_steady(alone) and is_steady(busy),
    )


def _joined(windows: Sequence[Window]) -> Window:
    latencies_us = chain.from_iterable(window.latencies_us for window in windows)
    return Window(tuple(latencies_us), sum(window.duration_us for window in windows))


def _percentile(latencies_us: Sequence[int]) -> int:
    rank = -(-_LATENCY_PERCENT * len(latencies_us) // 100)
    return sorted(latencies_us)[rank - 1]


def failed(batch: int, processes: int, reason: str) -> Point:
    """A point that can't be served so."""
    plain = " ".join("".join(sign if sign.isprintable() else " " for sign in reason).split())
    return Point(batch=batch, processes=processes, reason=plain[:1000])


def configured(config: Mapping[str, Any], processes: int | None) -> Mapping[str, Any]:
    """A model's configuration with so many processes (None: as they are) and no dynamic batching.

    Each inference carries a whole batch already; a batcher would wait for more, or join two.
    """
    kept = {key: value for key, value in config.items() if key != "dynamic_batching"}
    if processes is None:
        return kept
    groups = config.get("instance_group") or [{}]
    return {**kept, "instance_group": [{**groups[0], "count": processes}]}


def processes_of(config: Mapping[str, Any]) -> int:
    """How many serve the model by its configuration."""
    return sum(group.get("count", 1) for group in config.get("instance_group", ())) or 1


def takes_batch(config: Mapping[str, Any], batch: int) -> str:
    """Why a model can't take such a batch; "" if it can."""
    largest = config.get("max_batch_size", 0)
    if batch <= max(1, largest):
        return ""
    return f"max_batch_size of its configuration is {largest}"


def numbers(points: Iterable[Point]) -> tuple[int, int]:
    """How many were measured, and how many of them can't be served."""
    found = tuple(points)
    return len(found), sum(not point.throughput_mrps for point in found)
