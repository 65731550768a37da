"""Calls what a program hands to a thread directly, without a thread.

A test that lets a program die at each of its calls makes thousands of calls, and handing them to a
thread and back took longer than the calls themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def no_threads() -> Iterator[None]:
    """Meanwhile ``asyncio.to_thread`` calls directly."""
    with patch("asyncio.to_thread", _called):
        yield


async def _called(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return call(*args, **options)
