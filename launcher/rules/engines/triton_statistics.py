"""Triton's statistics of models: read from its JSON, written as JSON and as gRPC's protobuf.

The protocol is Triton's "Statistics Extension"; the numbers of fields are those of its
grpc_service.proto. What a newer Triton counts beside that is left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Annotated

from pydantic import Field

from slicewise.launcher.rules.engines.said import Said
from slicewise.launcher.rules.engines.statistics import (
    MOST,
    Answered,
    Counts,
    StatisticsAnswer,
    bounded,
)

ALL = "/v2/models/stats"
"""Path of the statistics of all models."""
_ONE = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/stats")
_OK, _BAD_REQUEST = 200, 400
_GRPC_OK, _INVALID_ARGUMENT, _UNIMPLEMENTED = 0, 3, 12

_TIMES: Mapping[str, Mapping[str, int]] = {
    "inference_stats": {
        "success": 1,
        "fail": 2,
        "queue": 3,
        "compute_input": 4,
        "compute_infer": 5,
        "compute_output": 6,
        "cache_hit": 7,
        "cache_miss": 8,
    },
    "batch_stats": {"compute_input": 2, "compute_infer": 3, "compute_output": 4},
    "response_stats": {
        "compute_infer": 1,
        "compute_output": 2,
        "success": 3,
        "fail": 4,
        "empty_response": 5,
        "cancel": 6,
    },
}
"""Numbers of the durations in each part of a model's statistics."""
_COUNTS = {"last_inference": 3, "inference_count": 4, "execution_count": 5}
_PARTS = {"inference_stats": 6, "batch_stats": 7, "memory_usage": 8, "response_stats": 9}
_DURATION = {"count": 1, "ns": 2}
_NAME, _VERSION, _PART = range(3)
"""What the words of a key are: a model's name and version, a part of its statistics, and there the
size of a batch, the number of a response, or the kind of a memory. Durations of 0 have none."""
_MORE, _TEXT = 0x80, 2
"""In protobuf: the bit that says that a number goes on, and the type of fields that have bytes."""
_MOST_MODELS = 500
"""Models of one replica at most."""


class TritonCounts:
    """Which of Triton's counts are added up."""

    def is_of(self, key: tuple[str, ...], model: str) -> bool:
        """Its first word is the model's name."""
        return key[_NAME] == model

    def is_latest(self, key: tuple[str, ...]) -> bool:
        """The time of the last inference."""
        return key[_PART] == "last_inference"

    def is_current(self, key: tuple[str, ...]) -> bool:
        """Memory in use."""
        return key[_PART] == "memory_usage"


_Count = Annotated[int, Field(ge=0, le=MOST)]
_Word = Annotated[str, Field(max_length=1024)]


class _Duration(Said):
    count: _Count = 0
    ns: _Count = 0


class _Batch(Said):
    batch_size: _Count
    compute_input: _Duration = _Duration()
    compute_infer: _Duration = _Duration()
    compute_output: _Duration = _Duration()


class _Memory(Said):
    type: _Word
    id: _Count
    byte_size: _Count


class _Model(Said):
    name: _Word
    version: _Word
    last_inference: _Count = 0
    inference_count: _Count = 0
    execution_count: _Count = 0
    inference_stats: dict[str, _Duration] = Field(default_factory=dict)
    response_stats: dict[_Word, dict[str, _Duration]] = Field(default_factory=dict)
    batch_stats: list[_Batch] = Field(default_factory=list)
    memory_usage: list[_Memory] = Field(default_factory=list)


class _Statistics(Said):
    model_stats: list[_Model] = Field(max_length=_MOST_MODELS)


def counted(body: bytes) -> Counts:
    """Read Triton's statistics; raises TypeError or ValueError for what is none."""
    models = _Statistics.parse(body).model_stats
    return bounded(
        ((model.name, model.version, *rest), count)
        for model in models
        for rest, count in _counts(model)
    )


def answered(counts: Counts) -> Mapping[str, Answered]:
    """Return how many inferences each model has answered and failed, all versions together."""
    of_model: dict[str, Answered] = {}
    for (name, _, *what), count in counts.items():
        before = of_model.get(name, Answered())
        match what:
            case ["inference_stats", "", "success", "count"]:
                of_model[name] = before._replace(succeeded=before.succeeded + count)
            case ["inference_stats", "", "fail", "count"]:
                of_model[name] = before._replace(failed=before.failed + count)
    return of_model


def _counts(model: _Model) -> Iterator[tuple[tuple[str, ...], int]]:
    yield ("last_inference",), model.last_inference
    yield ("inference_count",), model.inference_count
    yield ("execution_count",), model.execution_count
    yield from _durations("inference_stats", "", model.inference_stats)
    for number, times in model.response_stats.items():
        yield from _durations("response_stats", number, times)
    for batch in model.batch_stats:
        times = {name: getattr(batch, name) for name in _TIMES["batch_stats"]}
        yield from _durations("batch_stats", str(batch.batch_size), times)
    for used in model.memory_usage:
        yield ("memory_usage", used.type, str(used.id)), used.byte_size


def _durations(
    part: str, of: str, times: Mapping[str, _Duration]
) -> Iterator[tuple[tuple[str, ...], int]]:
    for name in times.keys() & _TIMES[part].keys():
        for value in _DURATION:
            if count := getattr(times[name], value):
                yield (part, of, name, value), count


def by_http(path: str, counts: Counts) -> StatisticsAnswer:
    """Answer a client that asks for ``path``."""
    match = _ONE.fullmatch(path)
    name, version = match.groups() if match is not None and path != ALL else (None, None)
    models = dict(_models(counts, name or "", version or ""))
    if name and not models:
        return StatisticsAnswer(_BAD_REQUEST, json.dumps({"error": _unknown(name)}).encode())
    shown = [_shown(place, of) for place, of in models.items()]
    return StatisticsAnswer(_OK, json.dumps({"model_stats": shown}).encode())


def by_grpc(frame: bytes, counts: Counts) -> StatisticsAnswer:
    """Answer ModelStatistics, asked with ``frame``: gRPC's message with the five bytes before."""
    if frame[:1] not in {b"", b"\0"}:
        return StatisticsAnswer(_UNIMPLEMENTED, b"", "a compressed ModelStatisticsRequest")
    try:
        asked = _texts(frame[5:])
    except (ValueError, IndexError):
        return StatisticsAnswer(_INVALID_ARGUMENT, b"", "no ModelStatisticsRequest")
    name, version = asked.get(1, ""), asked.get(2, "")
    models = dict(_models(counts, name, version))
    if name and not models:
        return StatisticsAnswer(_INVALID_ARGUMENT, b"", _unknown(name))
    message = b"".join(_bytes(1, _message(place, of)) for place, of in models.items())
    return StatisticsAnswer(_GRPC_OK, b"\0" + len(message).to_bytes(4, "big") + message)


def _unknown(name: str) -> str:
    return f"Request for unknown model: '{name}' is not found"


def _models(
    counts: Counts, name: str, version: str
) -> Iterator[tuple[tuple[str, str], Mapping[tuple[str, ...], int]]]:
    """Yield the models that are asked for, with their counts; name and version "" are all."""
    for place, keys in groupby(sorted(counts), key=lambda key: (key[_NAME], key[_VERSION])):
        if name in {"", place[0]} and version in {"", place[1]}:
            yield place, {key[_PART:]: counts[key] for key in keys}


_Places = Mapping[str, Counts]
"""What a part has of each batch, response or memory, in order of their numbers."""


def _by_part(of: Counts) -> Mapping[str, _Places]:
    """Return what each part has, in one pass over all counts: a tenant chooses how many."""
    parts: dict[str, dict[str, dict[tuple[str, ...], int]]] = {part: {} for part in _PARTS}
    for (part, *rest), count in of.items():
        if part in parts:
            place, *inner = rest
            parts[part].setdefault(place, {})[tuple(inner)] = count
    return {part: dict(sorted(rows.items(), key=_number_of)) for part, rows in parts.items()}


def _number_of(place: tuple[str, Counts]) -> tuple[int, str]:
    return len(place[0]), place[0]


def _shown(place: tuple[str, str], of: Counts) -> Mapping[str, object]:
    name, version = place
    parts = _by_part(of)
    return {
        "name": name,
        "version": version,
        **{name: of.get((name,), 0) for name in _COUNTS},
        "inference_stats": _times("inference_stats", parts["inference_stats"].get("", {})),
        "response_stats": {
            number: _times("response_stats", part)
            for number, part in parts["response_stats"].items()
        },
        "batch_stats": [
            {"batch_size": int(size), **_times("batch_stats", part)}
            for size, part in parts["batch_stats"].items()
        ],
        "memory_usage": [
            {"type": kind, "id": int(number), "byte_size": size}
            for kind, part in parts["memory_usage"].items()
            for (number,), size in part.items()
        ],
    }


def _times(part: str, counts: Counts) -> Mapping[str, Mapping[str, int]]:
    return {
        name: {value: counts.get((name, value), 0) for value in _DURATION} for name in _TIMES[part]
    }


def _message(place: tuple[str, str], of: Counts) -> bytes:
    """Write a ModelStatistics."""
    name, version = place
    parts = _by_part(of)
    found = [_bytes(1, name.encode()), _bytes(2, version.encode())]
    found += [_number(number, of.get((name,), 0)) for name, number in _COUNTS.items()]
    counts = parts["inference_stats"].get("", {})
    found.append(_bytes(_PARTS["inference_stats"], _time_message("inference_stats", counts)))
    for size, counts in parts["batch_stats"].items():
        inner = _number(1, int(size)) + _time_message("batch_stats", counts)
        found.append(_bytes(_PARTS["batch_stats"], inner))
    for kind, used in parts["memory_usage"].items():
        for (gpu,), used_bytes in used.items():
            inner = _bytes(1, kind.encode()) + _number(2, int(gpu)) + _number(3, used_bytes)
            found.append(_bytes(_PARTS["memory_usage"], inner))
    for response, counts in parts["response_stats"].items():
        # An entry of a map: its key and its value.
        value = _time_message("response_stats", counts)
        inner = _bytes(1, response.encode()) + _bytes(2, value)
        found.append(_bytes(_PARTS["response_stats"], inner))
    return b"".join(found)


def _time_message(part: str, counts: Counts) -> bytes:
    """Write the durations of a part: messages of a count and of nanoseconds."""
    return b"".join(
        _bytes(
            _TIMES[part][name],
            b"".join(_number(_DURATION[name], value) for name, value in duration.items()),
        )
        for name, duration in _times(part, counts).items()
    )


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _TEXT) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value >= _MORE:
        octets.append(value % _MORE | _MORE)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _texts(message: bytes) -> Mapping[int, str]:
    """Read the fields of a message that has texts only; raises ValueError or IndexError."""
    fields: dict[int, str] = {}
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        length, at = _read_varint(message, at)
        if tag & 7 != _TEXT or at + length > len(message):
            raise ValueError("no text")
        fields[tag >> 3] = message[at : at + length].decode()
        at += length
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= byte % _MORE << shift
        at, shift = at + 1, shift + 7
        if byte < _MORE:
            return value, at
