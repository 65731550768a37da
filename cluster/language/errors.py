"""Errors and refusals for people: each has a stable code, what happened, and what to do."""

from dataclasses import dataclass

from slicewise.cluster.language.codes import Code


@dataclass(frozen=True)
class Refusal:
    """An expected "no".

    Attributes:
        code: which kind of remedy it needs.
        message: what happened, in words and numbers.
        hint: what the reader can do about it; "" if there is nothing to suggest.
    """

    code: Code
    message: str
    hint: str = ""

    def text(self) -> str:
        """One line for a terminal: message, hint, code."""
        return " ".join(part for part in (self.message, self.hint, f"[{self.code}]") if part)


class SlicewiseError(Exception):
    """Base of every error that a command shows without a traceback."""

    def __init__(self, code: Code, message: str, hint: str = "") -> None:
        # With all three, another process can hand the error on: it is pickled by its arguments.
        super().__init__(code, message, hint)
        self.refusal = Refusal(code, message, hint)

    def __str__(self) -> str:
        return self.refusal.text()


class InvalidInputError(SlicewiseError):
    """Something that a user wrote can't be accepted; nothing was changed."""


class UnreachableError(SlicewiseError):
    """A server (slurmctld, PostgreSQL, HAProxy, the daemon) did not answer in time."""


class OutsideError(SlicewiseError):
    """A server answered, but with a failure or with something unreadable."""
