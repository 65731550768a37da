"""Variables of a service's server, and their form as one word of a ``#SLICEWISE`` line."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from pydantic import BeforeValidator, WithJsonSchema

from slicewise.cluster.language.gpus.vendors import ACCELERATORS

ENCODED_BYTES = 1900
"""Bytes of all variables together at most: slicewise.lua reads lines of up to 2048 bytes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OURS = re.compile(
    r"(SLURM|SBATCH|SLICEWISE|SPANK)_.*|PMIX?_.*|GPU_DEVICE_ORDINAL|"
    + "|".join(name for accelerator in ACCELERATORS for name in accelerator.variables)
)
"""Variables by which Slurm tells a replica its slice, ports and node."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

ENVIRONMENT = (
    "a table of NAME = text, without control characters, all together at most "
    f"{ENCODED_BYTES} bytes when percent-encoded; not SLURM_*, SLICEWISE_*, "
    "CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES"
)


def encoded(variables: Iterable[tuple[str, str]]) -> str:
    """The variables as a directive has them: ``A=1&B=two%20words``."""
    return "&".join(f"{name}={quote(value, safe='/:,@')}" for name, value in variables)


def _variables(value: object) -> tuple[tuple[str, str], ...]:
    """The variables of a table, or of a directive's text, sorted by name.

    ValueError for a name, a value or a length that is refused.
    """
    return sorted_pairs(value, _is_allowed)


def sorted_pairs(
    value: object, is_allowed: Callable[[tuple[object, object]], bool]
) -> tuple[tuple[str, str], ...]:
    """The pairs of a table of texts, or of a directive's text, sorted by name.

    ValueError for a name that comes twice, a pair that is not allowed, or too many.
    """
    pairs = _pairs(value)
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name twice")
    if not all(map(is_allowed, pairs)):
        raise ValueError("a name or a value")
    if len(encoded(pairs)) > ENCODED_BYTES:
        raise ValueError("too long")
    return tuple(sorted(pairs))


def _pairs(value: Any) -> list[tuple[str, str]]:
    if isinstance(value, str):
        return parse_qsl(value, keep_blank_values=True, strict_parsing=True, errors="strict")
    if isinstance(value, Mapping):
        return list(value.items())
    raise ValueError("not a table")


def _is_allowed(pair: tuple[object, object]) -> bool:
    name, value = pair
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and _NAME.fullmatch(name) is not None
        and _OURS.fullmatch(name) is None
        and _CONTROL.search(value) is None
    )


Environment = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_variables),
    WithJsonSchema({"type": "table", "additionalProperties": {"type": "string"}}),
]
"""Pairs sorted by name, so that a spec stays hashable."""
