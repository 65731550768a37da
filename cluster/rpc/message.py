"""The base of every message of the wire (``messages.py`` and its siblings), and its build time."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base of all messages: frozen; an unknown key is an error on the way in."""

    # Each is built at its first use: a command uses two of some fifty.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def build(*messages: type[BaseModel]) -> None:
    """Build these and their subclasses now, for a program that should not delay its first answer.

    To be called while the program has one thread.
    """
    for message in messages:
        message.model_rebuild()
        build(*message.__subclasses__())
