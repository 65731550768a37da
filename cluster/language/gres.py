"""Reads and writes the GRES and TRES text of every Slurm version."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import whitespace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

AUTO = "auto"
"""Used as a GPU type: the cheapest type that fits."""

SHARED = ("shard", "mps")
"""Slurm's GRES of a GPU that several jobs use at a time.

Wherever counts, costs and limits are by GPU type, these names stand beside the types. Slurm does
not count such a GPU among the ``gpu`` that a job has.
"""

ALL_GPUS = "gres/gpu"
"""The TRES that counts all GPUs of a job, whatever their type."""

_TEXT_LIMIT = 4096
_PREFIX = r"(?:gres[:/])?gpu"
_COUNT = r"[:=](?P<count>[0-9]{1,8})"
_UNTYPED = re.compile(rf"{_PREFIX}(?:{_COUNT})?")
_TYPED = re.compile(
    rf"{_PREFIX}:(?P<type>(?=[^:=]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_.+-]*)(?:{_COUNT})?"
)
_NUMBER = re.compile(r"[0-9]+[kmgtp]", re.IGNORECASE)
_SHARED = re.compile(r"(?:gres[:/])*(?P<name>shard|mps)(?![^:=])")
_SHARED_COUNT = re.compile(rf"(?:gres[:/])?(?P<name>shard|mps)(?:{_COUNT})?")
_OPEN = re.compile(rf"(?P<head>\s*{_PREFIX})(?::{AUTO})?(?P<count>[:=][0-9]{{1,8}})?(?P<end>\s*)")
"""GPUs with no type, or with type auto."""


@dataclass(frozen=True)
class GpuRequest:
    """GPUs that a job asks for: a type and a count; None is "any type"."""

    gres_type: str | None
    count: int

    @property
    def is_open(self) -> bool:
        """Whether the type has still to be chosen."""
        return self.gres_type in {None, AUTO}


def parse_gpu_requests(text: str) -> tuple[GpuRequest, ...]:
    """The GPU parts of a tres_per_* or --gres text; other GRES are left out.

    Slurm 22.05 writes ``gres:gpu:1g.10gb:1``, newer ones ``gres/gpu:1g.10gb:1`` and, per task,
    ``gres/gpu:1g.10gb=1``; users write ``gpu:1g.10gb:1``, ``gpu:2`` or ``gpu``. Raises
    InvalidInputError (SW-GRES) for every other form, because Slurm reads some, such as ``gpu:+1``,
    as a number of GPUs of any type. slicewise.lua accepts the same forms for GPUs with a type.
    """
    if len(text) > _TEXT_LIMIT:
        raise _unreadable(f"GRES of more than {_TEXT_LIMIT} characters")
    parts = (part.strip(whitespace) for part in text.split(","))
    return tuple(_gpu_request(part) for part in parts if _is_gpu(part))


def shared_gpus(text: str) -> str:
    """``shard`` or ``mps`` if the text has such a part, else ""."""
    if "shard" not in text and "mps" not in text:
        return ""
    matches = (_SHARED.match(part.strip(whitespace)) for part in text.split(","))
    return next((match["name"] for match in matches if match is not None), "")


def parse_shared(text: str) -> tuple[GpuRequest, ...]:
    """The parts ``shard:N`` and ``mps:N`` of a --gres text; the name stands in ``gres_type``.

    Raises InvalidInputError (SW-GRES) for every other form, such as ``shard:a100:1`` or
    ``shard:1k``.
    """
    parts = (part.strip(whitespace) for part in text.split(","))
    return tuple(_shared_request(part) for part in parts if _SHARED.match(part))


def _shared_request(part: str) -> GpuRequest:
    match = _SHARED_COUNT.fullmatch(part)
    if match is None:
        raise InvalidInputError(Code.GRES, f"GRES {part!r} can't be read.", "Write shard:N.")
    return GpuRequest(match["name"], int(match["count"] or 1))


def with_type(text: str, gres_type: str) -> str:
    """The text with this type for GPUs that have no type or type auto; the rest is unchanged."""
    return ",".join(_typed(part, gres_type) for part in text.split(","))


def counted(text: str) -> str:
    """The text with a count for every GPU type: Slurm 22.05 accepts no type without a count."""
    return ",".join(f"{part}:1" if _has_no_count(part) else part for part in text.split(","))


def _has_no_count(part: str) -> bool:
    match = _TYPED.fullmatch(part.strip(whitespace))
    return match is not None and match["count"] is None


def _typed(part: str, gres_type: str) -> str:
    match = _OPEN.fullmatch(part)
    if match is None:
        return part
    return f"{match['head']}:{gres_type}{match['count'] or ':1'}{match['end']}"


def plain_gres(text: str) -> str:
    """The text as ``gres`` takes it in every Slurm version, without ``gres:`` or ``gres/``."""
    return ",".join(re.sub(r"^\s*gres[:/]", "", part) for part in text.split(","))


def _is_gpu(part: str) -> bool:
    # Slurm refuses "gres:gres:gpu", which must not be turned into a text that Slurm accepts.
    return re.match(r"^(?:gres[:/])*gpu(?:[:=]|$)", part) is not None


def _gpu_request(part: str) -> GpuRequest:
    match = _UNTYPED.fullmatch(part) or _TYPED.fullmatch(part)
    groups = match.groupdict() if match is not None else {}
    gres_type, count = groups.get("type"), groups.get("count")
    # Slurm takes gpu:1k for 1024 GPUs.
    is_number = gres_type is not None and count is None and _NUMBER.fullmatch(gres_type)
    if match is None or is_number:
        raise _unreadable(f"GRES {part!r}")
    return GpuRequest(gres_type, int(count) if count else 1)


def _unreadable(what: str) -> InvalidInputError:
    return InvalidInputError(
        Code.GRES, f"{what} can't be read.", "Write gpu:TYPE:COUNT, such as gpu:1g.10gb:1."
    )


def gres_text(request: GpuRequest) -> str:
    """The request as every Slurm version takes it in ``gres``: ``gpu:1g.10gb:1``."""
    if request.gres_type in SHARED:
        return f"{request.gres_type}:{request.count}"
    kind = f":{request.gres_type}" if request.gres_type else ""
    return f"gpu{kind}:{request.count}"


def tres_name(gres_type: str) -> str:
    """The TRES by which Slurm counts a type: ``gres/gpu:1g.10gb``, or ``gres/shard``."""
    return f"gres/{gres_type}" if gres_type in SHARED else f"gres/gpu:{gres_type}"


def parse_tres(text: str) -> Mapping[str, str]:
    """Split ``cpu=1,billing=1000,gres/gpu:1g.10gb=1`` into a mapping; {} for empty text."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: value for name, _, value in pairs}


def gpu_types_of_tres(tres: Mapping[str, str]) -> Mapping[str, int]:
    """Counts by GPU type of an allocation's TRES: ``{"1g.10gb": 1}``, without the untyped total."""
    prefix = "gres/gpu:"
    counts = {
        name.removeprefix(prefix): int(value)
        for name, value in tres.items()
        if name.startswith(prefix)
    }
    return {**counts, **shared_of_tres(tres)}


def shared_of_tres(tres: Mapping[str, str]) -> Mapping[str, int]:
    """Counts of ``SHARED`` in an allocation's TRES: ``{"shard": 3}``."""
    return {name: int(tres[f"gres/{name}"]) for name in SHARED if f"gres/{name}" in tres}


def untyped_of(tres: Mapping[str, str], gpus: Mapping[str, int]) -> int:
    """How many GPUs of an allocation's TRES are none of the ``gpus``, which are by type."""
    typed = sum(count for kind, count in gpus.items() if kind not in SHARED)
    return max(0, int(tres.get(ALL_GPUS, "0")) - typed)
