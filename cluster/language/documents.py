"""How values say what they are as JSON.

A document that a command prints is a dataclass or a message: its keys are the fields, and what
pydantic's ``computed_field`` marks.
"""

from typing import Annotated

from pydantic import Field, PlainSerializer

HIDDEN = Field(exclude=True)
"""``Annotated[..., HIDDEN]``: a field that the JSON does not have."""

TextOrNull = Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)]
"""A text of which "" is null in the JSON."""
