"""How values say what they are as JSON.

A document that a command prints is a dataclass or a message: its keys are the fields, and what
pydantic's ``computed_field`` marks.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainSerializer, computed_field

HIDDEN = Field(exclude=True)
"""``Annotated[..., HIDDEN]``: a field that the JSON does not have."""

TextOrNull = Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)]
"""A text of which "" is null in the JSON."""


def key_of(part: str, model: type[BaseModel], key: str) -> Any:
    """A key that the JSON takes from a message in the field ``part``; null where that is None."""
    value = property(lambda holder: getattr(getattr(holder, part), key, None))
    annotation: Any = model.model_fields[key].annotation
    return computed_field(return_type=annotation | None)(value)
