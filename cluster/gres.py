"""GRES and TRES text of every Slurm version, to and from values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import whitespace

from cluster.errors import InvalidInputError

_PREFIX = r"(?:gres[:/])?gpu"
_COUNT = r"[:=](?P<count>[0-9]{1,8})"
_UNTYPED = re.compile(rf"{_PREFIX}(?:{_COUNT})?")
_TYPED = re.compile(
    rf"{_PREFIX}:(?P<type>(?=[^:=]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_.+-]*)(?:{_COUNT})?"
)
_NUMBER = re.compile(r"[0-9]+[kmgtp]", re.IGNORECASE)


@dataclass(frozen=True)
class GpuRequest:
    """GPUs that a job asks for: how many of which type; None is "any type"."""

    gres_type: str | None
    count: int


def parse_gpu_requests(text: str) -> tuple[GpuRequest, ...]:
    """The GPU parts of a tres_per_* or --gres text; other GRES are left out.

    Slurm 22.05 writes ``gres:gpu:1g.10gb:1``, newer ones ``gres/gpu:1g.10gb:1`` and, per task,
    ``gres/gpu:1g.10gb=1``; users write ``gpu:1g.10gb:1``, ``gpu:2`` or ``gpu``. Raises
    InvalidInputError (SW-GRES) for every other form: some, such as ``gpu:+1``, Slurm reads as a
    number of any GPUs. slicewise.lua reads the same as typed.
    """
    parts = (part.strip(whitespace) for part in text.split(","))
    return tuple(_gpu_request(part) for part in parts if _is_gpu(part))


def _is_gpu(part: str) -> bool:
    return re.match(r"^(?:gres[:/])?gpu(?:[:=]|$)", part) is not None


def _gpu_request(part: str) -> GpuRequest:
    match = _UNTYPED.fullmatch(part) or _TYPED.fullmatch(part)
    found = match.groupdict() if match is not None else {}
    gres_type, count = found.get("type"), found.get("count")
    # Slurm takes gpu:1k for 1024 GPUs.
    is_number = gres_type is not None and count is None and _NUMBER.fullmatch(gres_type)
    if match is None or is_number:
        raise InvalidInputError(
            "SW-GRES",
            f"GRES {part!r} can't be read.",
            "Write gpu:TYPE:COUNT, such as gpu:1g.10gb:1.",
        )
    return GpuRequest(gres_type, int(count) if count else 1)


def gres_text(request: GpuRequest) -> str:
    """As every Slurm version takes it in ``gres``: ``gpu:1g.10gb:1``."""
    kind = f":{request.gres_type}" if request.gres_type else ""
    return f"gpu{kind}:{request.count}"


def parse_tres(text: str) -> Mapping[str, str]:
    """``cpu=1,billing=1000,gres/gpu:1g.10gb=1`` as a mapping; empty text is empty."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: value for name, _, value in pairs}


def gpu_types_of_tres(tres: Mapping[str, str]) -> Mapping[str, int]:
    """Counts by GPU type of an allocation's TRES: ``{"1g.10gb": 1}``; untyped sums are left out."""
    prefix = "gres/gpu:"
    return {
        name.removeprefix(prefix): int(value)
        for name, value in tres.items()
        if name.startswith(prefix)
    }
