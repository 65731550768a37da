"""Reads and writes what models do on slices: the file of ``slicewise profile``.

Files of ParvaGPU's authors are read, too.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.language.codes import Code
from cluster.language.errors import InvalidInputError

_CSV_BOARD = "A100-80GB"
_CSV_TYPES = {"1": "1g.10gb", "2": "2g.20gb", "3": "3g.40gb", "4": "4g.40gb", "7": "7g.80gb"}
_CSV_PARTS = ("Mig instance", "Batch size", "Workload Number", "Throughput", "Latency")


class TokenFigures(BaseModel):
    """How an instance makes tokens, with as many requests at a time as its measurement says.

    Attributes:
        load: what was asked: tokens of prompt and answer as ``1024+128``, or the requests' digest.
        prompt_tokens, output_tokens: of a request, on average.
        output_mtps: thousandths of an output token per second, of the whole instance.
        ttft_p50_us, ttft_p99_us: microseconds until a request's first token.
        tpot_p50_us, tpot_p99_us: microseconds from one token of an answer to the next, on average
            over the answer; 0 if no answer has two.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    load: str = Field(max_length=100)
    prompt_tokens: int = Field(0, ge=0)
    output_tokens: int = Field(0, ge=0)
    output_mtps: int = Field(0, ge=0)
    ttft_p50_us: int = Field(0, ge=0)
    ttft_p99_us: int = Field(0, ge=0)
    tpot_p50_us: int = Field(0, ge=0)
    tpot_p99_us: int = Field(0, ge=0)


class Measurement(BaseModel):
    """What one instance does that serves a model in one configuration.

    Attributes:
        model: name in the model repository.
        board: the GPU model, as in the table of MIG profiles.
        type: the GRES type.
        batch: requests in an inference; of a model that makes tokens, requests at a time.
        processes: processes that serve the model in the instance.
        throughput_mrps: thousandths of a request per second, of the whole instance; 0 if the
            instance can't serve the model.
        latency_us: microseconds within which 95 % of the inferences were answered.
        samples: inferences that count.
        steady: whether the figure had settled.
        reason: why the instance can't serve the model; "" if it can.
        tokens: None of a model that makes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str
    board: str
    type: str
    batch: int = Field(ge=1)
    processes: int = Field(ge=1)
    throughput_mrps: int = Field(ge=0)
    latency_us: int = Field(ge=0)
    samples: int = Field(ge=0)
    steady: bool
    reason: str
    tokens: TokenFigures | None = None

    @property
    def load(self) -> str:
        """What was asked of the model; figures of different loads can't be compared."""
        return self.tokens.load if self.tokens is not None else ""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """The values that identify a measurement: a file has one measurement of each key."""
        return self.model, self.board, self.type, self.processes, self.batch


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1]
    measurements: list[Measurement]


def merged(old: Iterable[Measurement], new: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Both, sorted; if something was measured again, only the new measurement."""
    found = {one.key: one for one in (*old, *new)}
    return tuple(found[key] for key in sorted(found))


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """Read a file: JSON as ``slicewise profile`` writes it, or MODEL.csv of ParvaGPU's authors.

    Raises InvalidInputError (SW-INPUT-FILE) for what can't be read.
    """
    try:
        if path.suffix == ".csv":
            return tuple(_csv(path))
        return tuple(_File.model_validate_json(path.read_bytes()).measurements)
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"{where}: {first['msg']}".removeprefix(": ")) from None
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not UTF-8 text") from None


def require_one_load(rows: Iterable[Measurement]) -> None:
    """Raise InvalidInputError (SW-INPUT-FILE) if figures of a model are of different requests."""
    loads: dict[str, set[str]] = {}
    for row in rows:
        loads.setdefault(row.model, set()).add(row.load)
    for found in loads.values():
        if len(found) > 1:
            raise InvalidInputError(
                Code.INPUT_FILE,
                f"The measurements are of different requests: {shown_loads(found)}.",
                "Give files that were measured with the same ones.",
            )


def shown_loads(loads: Iterable[str]) -> str:
    """Name loads in a message; "" is that of a model that makes no tokens."""
    return f"{', '.join(one or 'no' for one in sorted(loads))} tokens"


def update_measurements(path: Path, new: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Write these into the file, in one step, and keep its other measurements; return all of them.

    Raises InvalidInputError (SW-INPUT-FILE) if the file exists and is no such file, or if it
    can't be written: then it stays as it is.
    """
    path = path.resolve()
    rows = merged(read_measurements(path) if path.exists() else (), new)
    text = _File(version=1, measurements=list(rows)).model_dump_json(indent=2)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _unreadable(path, str(error.strerror)) from None
    return rows


def _unreadable(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.INPUT_FILE,
        f"{path}: {why}.",
        "Name a file that slicewise profile has written, or a MODEL.csv of ParvaGPU.",
    )


def _csv(path: Path) -> Iterator[Measurement]:
    """Read a file of ParvaGPU: its latencies are means, of an A100 with 80 GB."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        for line, row in enumerate(csv.DictReader(lines), 2):
            try:
                yield _csv_row(path.stem, [row[part] for part in _CSV_PARTS])
            except (ArithmeticError, KeyError, TypeError, ValueError):
                raise _unreadable(path, f"line {line}: {row} is not a measurement") from None


def _csv_row(model: str, cells: Sequence[str]) -> Measurement:
    size, batch, processes, throughput, latency = cells
    return Measurement(
        model=model,
        board=_CSV_BOARD,
        type=_CSV_TYPES[size],
        batch=int(batch),
        processes=int(processes),
        throughput_mrps=math.floor(Decimal(throughput) * 1000),
        latency_us=math.ceil(Decimal(latency) * 1_000_000),
        samples=0,
        steady=True,
        reason="" if Decimal(throughput) else "not measured",
    )
