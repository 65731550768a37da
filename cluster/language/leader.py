"""Says whether this process may act, where several could."""

from typing import Protocol


class Leader(Protocol):
    """Says whether this process may act."""

    def leads(self) -> bool:
        """Whether this process may act now."""
        ...

    def require(self) -> None:
        """Raise UnreachableError unless this process may act now."""
        ...


class Alone:
    """The leader where there is no other process."""

    def leads(self) -> bool:
        """Always True."""
        return True

    def require(self) -> None:
        """Raise nothing."""


ALONE = Alone()
