"""What a program hands to a thread, done where it stands.

A test that lets it die at each of its calls hands over thousands, and the way there and back took
longer than the calls.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def no_threads() -> Iterator[None]:
    """Meanwhile ``asyncio.to_thread`` calls at once."""
    with patch("asyncio.to_thread", _called):
        yield


async def _called(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return call(*args, **options)
