"""Reads a server's answers in JSON without turning all of them into Python objects."""

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

_MOST_PARTS = 20_000
"""Parts of an answer at most: lists, objects and what is in them. A tensor's configuration has
about 15."""
_BEYOND = frozenset(
    {"too_long", "string_too_long", "int_parsing_size", "greater_than_equal", "less_than"}
)
"""Types of pydantic's errors that mean that a bound was exceeded."""


class Said(BaseModel):
    """An answer of a replica, with the keys that are needed; all others are skipped."""

    # Each is built at its first use: a command reads no answer of a server.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read an answer without turning all of it into Python objects.

        Raises TypeError if it is no answer of the engine's, ValueError with a text for users if it
        is beyond a bound.
        """
        if sum(map(text.count, (b"[", b"{", b","))) > _MOST_PARTS:
            raise ValueError(f"its {cls.__name__} has more than {_MOST_PARTS} parts")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] not in _BEYOND:
            raise TypeError("no answer of the engine")
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} of its {cls.__name__}: {first['msg']}")
