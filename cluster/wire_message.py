"""What every message of the wire is (``wire.py`` and its siblings), and when it is built."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base: frozen; an unknown key is an error on the way in."""

    # Built at its first use: a command uses two of some fifty.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def build(*messages: type[BaseModel]) -> None:
    """Build these and those that derive from them now, in a program whose first answer is awaited.

    To be called while the program has one thread.
    """
    for message in messages:
        message.model_rebuild()
        build(*message.__subclasses__())
