"""How values say what they are as JSON.

A document that a command prints is a dataclass or a message: its keys are the fields, and what
pydantic's ``computed_field`` marks.
"""

from operator import attrgetter
from typing import Annotated, Any, get_type_hints

from pydantic import Field, PlainSerializer, computed_field

HIDDEN = Field(exclude=True)
"""``Annotated[..., HIDDEN]``: a field that the JSON does not have."""

TextOrNull = Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)]
"""A text of which "" is null in the JSON."""


def key_of(part: str, model: type, key: str) -> Any:
    """A key that the JSON takes from a value in the field ``part``, or in ``part.of_it``."""
    return computed_field(return_type=get_type_hints(model)[key])(
        property(attrgetter(f"{part}.{key}"))
    )


def key_or_null(part: str, model: type, key: str) -> Any:
    """The same where the field may be None: then the key is null."""
    value = property(lambda holder: getattr(getattr(holder, part), key, None))
    return computed_field(return_type=get_type_hints(model)[key] | None)(value)
