"""The public trace that the demo replays: how its extract was cut, and how it is compressed.

Nothing is random: a row's number decides which service gets it; times are divided by a constant.
Run as a program it cuts the extract again, from the original on standard input:

    python -m sandbox.demo.trace < AzureLLMInferenceTrace_conv.csv > azure-llm-2023-conv.csv
"""

import csv
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

EXTRACT = Path(__file__).parent / "data" / "azure-llm-2023-conv.csv"
FIELDS = ("time_s", "context_tokens", "generated_tokens")
WINDOW_S = (900, 2880)
"""Seconds after the original's first request: the climb to the hour's peak and the way down."""

BUCKETS = 20

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


def bucket(number: int) -> int:
    """Return which of ``BUCKETS`` a row falls into, by the hash of its number.

    Every n-th row would smooth the load. In this extract the time between requests has a
    coefficient of variation of 1.05; of every tenth row it is 0.39, of two buckets it is 0.99.
    """
    return int.from_bytes(sha256(str(number).encode()).digest()[:8], "big") % BUCKETS


def arrivals(
    rows: Sequence[TraceRow], compression: float, shares: Mapping[str, Collection[int]]
) -> tuple[Arrival, ...]:
    """The replay: each service gets the rows in its buckets, times divided by ``compression``."""
    return tuple(
        Arrival(row.time_s / compression, service, row.context_tokens, row.generated_tokens)
        for number, row in enumerate(rows)
        for service, buckets in shares.items()
        if bucket(number) in buckets
    )


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
