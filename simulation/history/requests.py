"""Reads traces of requests: when each came, and its tokens or how long it is worked on."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from simulation.history.csv_rows import Row, columns_of, count, moment_s, read_rows, seconds
from simulation.history.lines import Line, UnreadLines, lines_of, opened, read_each

TIME_COLUMNS = ("TIMESTAMP", "timestamp", "Timestamp", "arrived_at", "arrival_s")
_PROMPT_COLUMNS = (
    *("ContextTokens", "input_length", "Request tokens", "num_prefill_tokens", "prompt_tokens"),
)
_OUTPUT_COLUMNS = (
    *("GeneratedTokens", "output_length", "Response tokens", "num_decode_tokens", "output_tokens"),
)
_SERVICE_COLUMNS = ("service_s",)
_MOST_TOKENS = 100_000_000


class TracedRequest(NamedTuple):
    """One request.

    Attributes:
        at_s: seconds since the first one of the trace.
        service_s: seconds that a replica works on it; None if the trace has tokens instead.
        blocks: Mooncake's ``hash_ids``: which blocks of 512 tokens the prompt has.
    """

    at_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    service_s: float | None = None
    blocks: tuple[int, ...] = ()


class RequestTrace(NamedTuple):
    """The requests, ascending by time; and how many lines could not be read, with the first."""

    requests: Sequence[TracedRequest]
    unread: int
    first_unread: str


def read_requests(path: Path) -> RequestTrace:
    """Read a file, which may be compressed (.gz, .xz).

    It is CSV with names of columns, Mooncake's JSONL, or has seconds as the first number of each
    line. Raises InvalidInputError (SW-INPUT-FILE) for any other file, and for one without a
    request that can be read.
    """
    unread = UnreadLines(str(path))
    with opened(path) as file:
        lines: Iterator[Line] = lines_of(file, unread)
        first = next(lines, None)
        if first is None:
            raise unread.nothing(1, "the file is empty")
        found = sorted(_read(first[1], chain([first], lines), unread), key=lambda one: one.at_s)
    if not found:
        raise unread.nothing(first[0], "no request follows")
    begin_s = found[0].at_s
    for nth, one in enumerate(found):  # In place: a second list of millions takes as much again.
        found[nth] = one._replace(at_s=one.at_s - begin_s)
    return RequestTrace(found, unread.count, unread.first)


def _read(first: str, lines: Iterable[Line], unread: UnreadLines) -> Iterator[TracedRequest]:
    if first.startswith("{"):
        return read_each(lines, lambda line: _of_mooncake(json.loads(line[1])), unread)
    columns = columns_of(first)
    time = _first_of(TIME_COLUMNS, columns)
    if time is None:
        if not _is_number(first.partition(",")[0]):
            raise unread.error(1, f"no column with times, such as {TIME_COLUMNS[-1]}")
        return read_each(lines, _of_numbers, unread)
    prompt, output, service = (
        _first_of(names, columns) for names in (_PROMPT_COLUMNS, _OUTPUT_COLUMNS, _SERVICE_COLUMNS)
    )
    if service is None and (prompt is None or output is None):
        raise unread.error(1, "no column with tokens, such as ContextTokens and GeneratedTokens")

    def read(_: int, row: Row) -> TracedRequest:
        return TracedRequest(
            _time_s(row[time]),
            0 if prompt is None else count(row[prompt]),
            0 if output is None else count(row[output]),
            None if service is None else seconds(row[service]),
        )

    return read_rows(lines, (), read, unread)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_of(names: Sequence[str], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _time_s(text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        if _is_number(text):
            raise  # A time in milliseconds, maybe; a date it is not.
        at_s = moment_s(text)
        if at_s is None:
            raise
        return at_s


def _of_mooncake(said: Any) -> TracedRequest:
    """Read a line of Mooncake's; its times are milliseconds, in ticks of some seconds."""
    prompt, output = int(said["input_length"]), int(said["output_length"])
    if not (0 <= prompt <= _MOST_TOKENS and 0 <= output <= _MOST_TOKENS):
        raise ValueError("no number of tokens")
    blocks = tuple(map(int, said.get("hash_ids", ())))
    return TracedRequest(seconds(str(said["timestamp"])) / 1000, prompt, output, None, blocks)


def _of_numbers(line: Line) -> TracedRequest | None:
    """Read ``1723.5`` or ``1723.5,2.25``: when it came, and seconds of service."""
    at, _, service = line[1].partition(",")
    service_text = service.partition(",")[0]
    return TracedRequest(
        seconds(at), service_s=seconds(service_text) if service_text.strip() else None
    )
