"""GRES and TRES text of every Slurm version, to and from values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.errors import InvalidInputError

_GPU = re.compile(r"^(?:gres[:/])?gpu(?::(?P<a>[^:=]+))?(?:[:=](?P<b>\d+))?$")


@dataclass(frozen=True)
class GpuRequest:
    """GPUs that a job asks for: how many of which type; None is "any type"."""

    gres_type: str | None
    count: int


def parse_gpu_requests(text: str) -> tuple[GpuRequest, ...]:
    """The GPU parts of a tres_per_* or --gres text; other GRES are left out.

    Slurm 22.05 writes ``gres:gpu:1g.10gb:1``, newer ones ``gres/gpu:1g.10gb:1`` and, per task,
    ``gres/gpu:1g.10gb=1``; users write ``gpu:1g.10gb:1``, ``gpu:2`` or ``gpu``.
    """
    parts = (part.strip() for part in text.split(",") if part.strip())
    return tuple(_gpu_request(part) for part in parts if _is_gpu(part))


def _is_gpu(part: str) -> bool:
    return re.match(r"^(?:gres[:/])?gpu(?:[:=]|$)", part) is not None


def _gpu_request(part: str) -> GpuRequest:
    match = _GPU.match(part)
    if match is None:
        raise InvalidInputError(
            "SW-GRES",
            f"GRES {part!r} can't be read.",
            "Write gpu:TYPE:COUNT, such as gpu:1g.10gb:1.",
        )
    first, count = match["a"], match["b"]
    if first is not None and count is None and first.isdigit():
        return GpuRequest(None, int(first))
    return GpuRequest(first, int(count) if count else 1)


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
