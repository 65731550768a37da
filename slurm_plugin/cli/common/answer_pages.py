"""Asks the daemon for answers that come in pages."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar


class Page(Protocol):
    """One page of an answer."""

    @property
    def more(self) -> Any:
        """Where the next page begins; None after the last one."""


Paged = TypeVar("Paged", bound=Page)


def pages(ask: Callable[[Any], Paged]) -> Iterator[Paged]:
    """Yield the pages, each asked for as it is wanted.

    ``ask`` returns the page that begins at a place; of None, the first one. Raises what it does.
    """
    answer = ask(None)
    yield answer
    while answer.more is not None:
        answer = ask(answer.more)
        yield answer
