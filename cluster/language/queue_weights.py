"""Weights of those who share a service's queue, and their form in a ``#SLICEWISE`` line."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

MOST_WEIGHTS, MOST_WEIGHT = 64, 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_MOST_BYTES = 1800
"""Of all in a directive, which slicewise.lua reads up to 2,048 bytes of."""
WEIGHTS = (
    f"a table of at most {MOST_WEIGHTS} NAME = weight, of tenants or persons; a weight is a whole "
    f"number from 1 to {MOST_WEIGHT}; all together at most {_MOST_BYTES} bytes"
)


def weights_text(weights: tuple[tuple[str, int], ...]) -> str:
    """The weights as a directive has them: ``law=1,physics=2``."""
    return ",".join(f"{name}={weight}" for name, weight in weights)


def _weights(value: object) -> tuple[tuple[str, int], ...]:
    """The weights of a table, or of a directive's text, sorted by name.

    ValueError for a name, a weight or a number of them that is refused.
    """
    pairs = _pairs(value)
    if len({name for name, _ in pairs}) != len(pairs) or not all(map(_is_allowed, pairs)):
        raise ValueError("a name or a weight")
    if len(pairs) > MOST_WEIGHTS or len(weights_text(tuple(pairs))) > _MOST_BYTES:
        raise ValueError("too many")
    return tuple(sorted(pairs))


def _pairs(value: Any) -> list[tuple[str, int]]:
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")] if value else []
        if not all(_NUMBER.fullmatch(weight) for _, _, weight in parts):
            raise ValueError("a weight")
        return [(name, int(weight)) for name, _, weight in parts]
    if isinstance(value, Mapping):
        return list(value.items())
    raise ValueError("not a table")


def _is_allowed(pair: tuple[object, object]) -> bool:
    name, weight = pair
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and type(weight) is int
        and 1 <= weight <= MOST_WEIGHT
    )


Weights = Annotated[
    tuple[tuple[str, int], ...],
    BeforeValidator(_weights),
    WithJsonSchema({"type": "table", "additionalProperties": {"type": "integer"}}),
]
"""Pairs of name and weight, sorted by name."""
