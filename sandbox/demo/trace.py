"""The public trace that the demo replays: how its extract was cut, and how it is compressed.

Nothing is random: a row's number and the services' schedules decide which service gets the row;
times are divided by a constant.
Run as a program it cuts the extract again, from the original on standard input:

    python -m slicewise.sandbox.demo.trace < AzureLLMInferenceTrace_conv.csv > data/...
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from slicewise.sandbox.demo.scenario import Schedule

EXTRACT = Path(__file__).parent / "data" / "azure-llm-2023-conv.csv"
FIELDS = ("time_s", "context_tokens", "generated_tokens")
WINDOW_S = (900, 2880)
"""Seconds after the original's first request: the climb to the hour's peak and the way down."""

_HASH_BYTES = 8

_TIMESTAMP_CHARACTERS = len("2023-11-16 18:15:46.680590")


@dataclass(frozen=True)
class TraceRow:
    """One request of the trace; ``time_s`` counts from the beginning of the extract."""

    time_s: float
    context_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class Arrival:
    """One request to send ``at_s`` after the replay begins."""

    at_s: float
    service: str
    context_tokens: int
    generated_tokens: int


def read_extract(path: Path = EXTRACT) -> tuple[TraceRow, ...]:
    """The rows of the extract in order of time."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            TraceRow(float(row["time_s"]), int(row["context_tokens"]), int(row["generated_tokens"]))
            for row in csv.DictReader(file)
        )


def draw(number: int) -> float:
    """Return a number from 0 to below 1 for a row: the hash of the row's number.

    Every n-th row would smooth the load. In this extract the time between requests has a
    coefficient of variation of 1.05; of every tenth row it is 0.39, of a tenth by hash it is 0.99.
    """
    digest = sha256(str(number).encode()).digest()[:_HASH_BYTES]
    return int.from_bytes(digest, "big") / (1 << 8 * _HASH_BYTES)


def share_at(schedule: Schedule, at_s: float) -> float:
    """Return the share that a schedule has at this time; 0 without any point."""
    if not schedule:
        return 0.0
    before = schedule[0]
    for point in schedule:
        if at_s < point[0]:
            into = (at_s - before[0]) / (point[0] - before[0]) if point != before else 0.0
            return before[1] + into * (point[1] - before[1])
        before = point
    return before[1]


def arrivals(
    rows: Sequence[TraceRow], compression: float, schedules: Mapping[str, Schedule]
) -> tuple[Arrival, ...]:
    """The replay: times are divided by ``compression``, and each row goes to one service or none.

    The services' shares at the row's time lie one after the other from 0 on; the row goes to the
    service in whose share its draw falls. So each service's load rises and falls as its schedule
    says, and keeps the bursts of the trace.
    """
    return tuple(_arrivals(rows, compression, schedules))


def _arrivals(
    rows: Sequence[TraceRow], compression: float, schedules: Mapping[str, Schedule]
) -> Iterator[Arrival]:
    for number, row in enumerate(rows):
        at_s, left = row.time_s / compression, draw(number)
        for service, schedule in schedules.items():
            share = share_at(schedule, at_s)
            if left < share:
                yield Arrival(at_s, service, row.context_tokens, row.generated_tokens)
                break
            left -= share


def cut(lines: Iterable[str]) -> Iterator[str]:
    """Make the extract, line by line, from the original's lines that lie in ``WINDOW_S``."""
    original = csv.DictReader(lines)
    begin: datetime | None = None
    yield ",".join(FIELDS)
    for row in original:
        # The original has seven decimals of a second; datetime reads six.
        at = datetime.fromisoformat(row["TIMESTAMP"][:_TIMESTAMP_CHARACTERS])
        begin = begin or at + timedelta(seconds=WINDOW_S[0])
        offset_s = (at - begin).total_seconds()
        if 0 <= offset_s < WINDOW_S[1] - WINDOW_S[0]:
            yield f"{offset_s:.2f},{row['ContextTokens']},{row['GeneratedTokens']}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in cut(sys.stdin))
