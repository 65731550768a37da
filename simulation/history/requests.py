"""Reads traces of requests: when each came, and its tokens or how long it is worked on."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from slicewise.simulation.history.csv_rows import (
    Row,
    columns_of,
    count,
    moment_s,
    read_rows,
    seconds,
)
from slicewise.simulation.history.lines import (
    MOST_JOBS,
    Line,
    UnreadLines,
    lines_of,
    opened,
    read_each,
)
from slicewise.simulation.rules.history.traced_request import TracedRequest

_IN_SECONDS_COLUMNS = ("arrival_s", "arrived_at")
"""Columns of which the unit is known; numbers in one of another name might be milliseconds."""
TIME_COLUMNS = (*_IN_SECONDS_COLUMNS, "TIMESTAMP", "timestamp", "Timestamp")
_PROMPT_COLUMNS = (
    *("ContextTokens", "input_length", "Request tokens", "num_prefill_tokens", "prompt_tokens"),
)
_OUTPUT_COLUMNS = (
    *("GeneratedTokens", "output_length", "Response tokens", "num_decode_tokens", "output_tokens"),
)
_SERVICE_COLUMNS = ("service_s",)
_COUNT_COLUMN = "requests"
_MOST_COUNT = 1_000_000
"""Requests that one line may count."""
_STEP_S = 60.0
"""Length of the step that a line counts, if it is the only one."""
_MOST_TOKENS = 100_000_000
_MOST_BLOCK = 1 << 64
"""Numbers of blocks are hashes in some traces."""


class RequestTrace(NamedTuple):
    """What was read of a file.

    Attributes:
        requests: ascending by time.
        unread: lines that could not be read.
        first_unread: file, line and why, of the first of them; "" if there is none.
        assumed: what had to be assumed since the file does not say it, as sentences.
        block_tokens: tokens of a block of a prompt; 0 in a form that names no blocks.
        begin_s: when the first came, by the file's clock; the requests count from there.
    """

    requests: Sequence[TracedRequest]
    unread: int
    first_unread: str
    assumed: tuple[str, ...] = ()
    block_tokens: int = 0
    begin_s: float = 0.0


class _JsonForm(NamedTuple):
    """One form of JSONL, in which a line has ``timestamp``, ``input_length``, ``output_length``.

    Attributes:
        ticks: of ``timestamp``, in a second.
        own_keys: keys of which it has some that no other form has.
    """

    ticks: int
    block_tokens: int
    own_keys: frozenset[str]


_BAILIAN = _JsonForm(1, 16, frozenset({"chat_id", "parent_chat_id", "turn", "type"}))
_MOONCAKE = _JsonForm(1000, 512, frozenset())
_JSON_KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
_IN_SECONDS = "Its times are taken for seconds."
_OF_BAILIAN = (
    "Its times are taken for seconds, as those of Bailian's traces are: its prompts have so many"
    " blocks."
)
_IN_MS = "Its times are taken for milliseconds, as those of Mooncake's traces are."
_SPREAD = (
    "Its requests are counts, and spread evenly over the time since the count before: really they"
    " come closer together, wait longer and keep more replicas."
)
_MOST_NUMBERS = 2


class _JsonLines:
    """Reads JSONL: the first line that can be read says which form all have.

    Attributes:
        form: None before that.
    """

    def __init__(self, unread: UnreadLines) -> None:
        self.form: _JsonForm | None = None
        self._has_own_keys = False
        self._unread = unread

    def read(self, line: Line) -> TracedRequest:
        """Read one line."""
        fields = json.loads(line[1])
        if not isinstance(fields, dict):
            raise TypeError("no JSON object")
        has_own_keys = not _BAILIAN.own_keys.isdisjoint(fields)
        form = _BAILIAN if has_own_keys else _form_by_blocks(fields, self.form or _MOONCAKE)
        if unknown := fields.keys() - _JSON_KEYS - form.own_keys:
            raise ValueError(f"no form of traces has a key {min(unknown)}")
        if self.form is not None and (form, has_own_keys) != (self.form, self._has_own_keys):
            raise ValueError("a form other than that of the lines before")
        request = _of_json(fields, form)
        if self.form is None:
            self.form, self._has_own_keys = form, has_own_keys
            if form is _BAILIAN and not has_own_keys:
                self._unread.assume(_OF_BAILIAN)
            elif form is _MOONCAKE and not _is_surely_mooncake(fields):
                self._unread.assume(_IN_MS)
        return request


def _form_by_blocks(fields: Mapping[str, Any], before: _JsonForm) -> _JsonForm:
    """The form of whose blocks the prompt has so many; ``before`` if that says nothing."""
    forms = (before, _MOONCAKE, _BAILIAN)
    return next((form for form in forms if _has_blocks_of(fields, form)), before)


def _is_surely_mooncake(fields: Mapping[str, Any]) -> bool:
    return _has_blocks_of(fields, _MOONCAKE) and not _has_blocks_of(fields, _BAILIAN)


def _has_blocks_of(fields: Mapping[str, Any], form: _JsonForm) -> bool:
    """Whether the prompt may have so many blocks of that form; any has none in a trace without."""
    blocks = len(fields.get("hash_ids") or ())
    return not blocks or blocks == -(-_tokens(str(fields["input_length"])) // form.block_tokens)


def read_requests(path: Path) -> RequestTrace:
    """Read a file, which may be compressed (.gz, .xz).

    It is CSV with names of columns, JSONL of Mooncake's or Bailian's form, or has seconds as the
    first number of each line. Raises InvalidInputError (SW-INPUT-FILE) for any other file, and for
    one without a request that can be read.
    """
    unread = UnreadLines(str(path))
    json_lines = _JsonLines(unread)
    with opened(path) as file:
        lines: Iterator[Line] = lines_of(file, unread)
        first = next(lines, None)
        if first is None:
            raise unread.nothing(1, "the file is empty")
        rows = _read(first[1], chain([first], lines), unread, json_lines)
        requests = sorted(rows, key=lambda row: row.at_s)
    if not requests:
        raise unread.nothing(first[0], "no request follows")
    begin_s = requests[0].at_s
    for nth, request in enumerate(
        requests
    ):  # In place: a second list of millions takes as much again.
        requests[nth] = request._replace(at_s=request.at_s - begin_s)
    return RequestTrace(
        requests=requests,
        unread=unread.count,
        first_unread=unread.first,
        assumed=tuple(unread.assumed),
        block_tokens=json_lines.form.block_tokens if json_lines.form else 0,
        begin_s=begin_s,
    )


def _read(
    first: str, lines: Iterable[Line], unread: UnreadLines, json_lines: _JsonLines
) -> Iterator[TracedRequest]:
    if first.lstrip().startswith("{"):
        return read_each(lines, json_lines.read, unread)
    if first.lstrip().startswith("["):
        raise unread.error(1, "it is JSON, but not one object in each line")
    columns = columns_of(first)
    time = _first_of(TIME_COLUMNS, columns)
    if time is None:
        if not _is_number(first.partition(",")[0]):
            raise unread.error(1, f"no column with times, such as {TIME_COLUMNS[0]}")
        if len(columns) > _MOST_NUMBERS:
            raise unread.error(1, f"{len(columns)} numbers in a line, and no names of columns")
        unread.assume(_IN_SECONDS)
        return read_each(lines, _of_numbers, unread)
    prompt, output, service = (
        _first_of(names, columns) for names in (_PROMPT_COLUMNS, _OUTPUT_COLUMNS, _SERVICE_COLUMNS)
    )
    if service is None and _COUNT_COLUMN in columns:
        return _read_counts(time, lines, unread)
    if service is None and (prompt is None or output is None):
        raise unread.error(1, "no column with tokens, such as ContextTokens and GeneratedTokens")

    def read(_: int, row: Row) -> TracedRequest:
        return TracedRequest(
            _time_s(row[time], unread, is_sure=time in _IN_SECONDS_COLUMNS),
            0 if prompt is None else _tokens(row[prompt]),
            0 if output is None else _tokens(row[output]),
            None if service is None else seconds(row[service]),
        )

    return read_rows(lines, (), read, unread)


def _read_counts(time: str, lines: Iterable[Line], unread: UnreadLines) -> Iterator[TracedRequest]:
    unread.assume(_SPREAD)

    def read(_: int, row: Row) -> tuple[float, float]:
        came = seconds(row[_COUNT_COLUMN])
        if came > _MOST_COUNT:
            raise ValueError(f"more than {_MOST_COUNT} requests")
        return _time_s(row[time], unread, is_sure=time in _IN_SECONDS_COLUMNS), came

    return _spread_counts(sorted(read_rows(lines, (), read, unread)), unread)


def _spread_counts(
    counts: Sequence[tuple[float, float]], unread: UnreadLines
) -> Iterator[TracedRequest]:
    """Yield requests that came between counts; what is left of one by rounding goes to the next.

    Each is of the time since the one before; that of the first is as long as that of the second.
    """
    if sum(came for _, came in counts) > MOST_JOBS:
        raise unread.error(1, f"more than {MOST_JOBS} requests")
    step_s = counts[1][0] - counts[0][0] if len(counts) > 1 else _STEP_S
    before_s, left = (counts[0][0] - step_s if counts else 0.0), 0.0
    for at_s, came in counts:
        whole = int(left + came)
        left += came - whole
        for nth in range(whole):
            yield TracedRequest(before_s + (nth + 0.5) * (at_s - before_s) / whole)
        before_s = at_s


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_of(names: Sequence[str], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _time_s(text: str, unread: UnreadLines, *, is_sure: bool) -> float:
    if _is_number(text):
        if not is_sure:
            unread.assume(_IN_SECONDS)
        return seconds(text)
    at_s = moment_s(text, unread)
    if at_s is None:
        raise ValueError(f"no time: {text}")
    return at_s


def _of_json(fields: Any, form: _JsonForm) -> TracedRequest:
    prompt, output = (_tokens(str(fields[key])) for key in ("input_length", "output_length"))
    blocks = tuple(map(int, fields.get("hash_ids") or ()))
    if any(abs(block) >= _MOST_BLOCK for block in blocks):
        raise ValueError("no number of a block")
    return TracedRequest(
        seconds(str(fields["timestamp"])) / form.ticks, prompt, output, None, blocks
    )


def _tokens(text: str) -> int:
    return count(text, most=_MOST_TOKENS)


def _of_numbers(line: Line) -> TracedRequest | None:
    """Read ``1723.5`` or ``1723.5,2.25``: when it came, and seconds of service."""
    at, _, service = line[1].partition(",")
    service_text = service.partition(",")[0]
    return TracedRequest(
        seconds(at), service_s=seconds(service_text) if service_text.strip() else None
    )
