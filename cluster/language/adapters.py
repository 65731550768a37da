"""LoRA adapters of a service's model, and their form as one word of a ``#SLICEWISE`` line.

An adapter is a model of its own name, ``SERVICE:ADAPTER``. No service's name has a colon, so an
adapter never takes the name of a service, nor of another service's adapter.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from slicewise.cluster.language.environment import ENCODED_BYTES, sorted_pairs

MOST_ADAPTERS = 32
"""Adapters of one service at most."""
DEFAULT_RANK = 16
"""The largest rank of an adapter unless a service says another."""
MOST_RANK = 512
"""The largest rank that an engine loads."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_PATH = re.compile(r"[A-Za-z0-9_.@+-]+(/[A-Za-z0-9_.@+-]+)*")
_MOST_PATH = 255
ADAPTERS = (
    f"a table of at most {MOST_ADAPTERS} NAME = path; a name has 1 to 63 letters, digits and "
    "_ . -, the first a letter or digit; a path is relative to model_repository, of letters, "
    "digits and _ . @ + - /, with no part '.' or '..'; all together at most "
    f"{ENCODED_BYTES} bytes"
)


def model_name(service: str, adapter: str) -> str:
    """Return the name of an adapter as a model; ``service`` without its tenant."""
    return f"{service}:{adapter}"


def adapters_of(directives: Mapping[str, str]) -> Mapping[str, str]:
    """Return the paths of the adapters in a service's directives, by name; {} if unreadable."""
    try:
        return dict(_adapters(directives.get("adapters", "")))
    except ValueError:
        return {}


def _adapters(value: object) -> tuple[tuple[str, str], ...]:
    """The adapters of a table, or of a directive's text, sorted by name.

    ValueError for a name, a path or a number of them that is refused.
    """
    adapters = sorted_pairs(value, _is_allowed)
    if len(adapters) > MOST_ADAPTERS:
        raise ValueError("too many")
    return adapters


def _is_allowed(pair: tuple[object, object]) -> bool:
    name, path = pair
    return (
        isinstance(name, str)
        and isinstance(path, str)
        and _NAME.fullmatch(name) is not None
        and len(path) <= _MOST_PATH
        and _PATH.fullmatch(path) is not None
        and not {".", ".."} & set(path.split("/"))
    )


Adapters = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_adapters),
    WithJsonSchema({"type": "table", "additionalProperties": {"type": "string"}}),
]
"""Pairs of name and path, sorted by name."""
