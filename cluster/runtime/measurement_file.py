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

from pydantic import BaseModel, ConfigDict, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.measurements import Measurement, merged

_CSV_BOARD = "A100-80GB"
_CSV_TYPES = {"1": "1g.10gb", "2": "2g.20gb", "3": "3g.40gb", "4": "4g.40gb", "7": "7g.80gb"}
_CSV_PARTS = ("Mig instance", "Batch size", "Workload Number", "Throughput", "Latency")


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1]
    measurements: list[Measurement]


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
