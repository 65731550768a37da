"""The base of all sections of slicewise.toml."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of slicewise.toml: it is never changed, and a key that it lacks is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
