"""Waiting for something to come about; a wait that fails says what it saw last."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Slurm's cycles and the daemon's loops, on a machine that has much else to do."""
_PAUSE_S = 0.05


def until(look: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """What was seen, once that is true."""
    deadline_s = time.monotonic() + timeout_s
    while not (seen := look()):
        late = time.monotonic() > deadline_s
        assert not late, f"it did not come about within {timeout_s:g} s; seen last: {seen!r}"
        time.sleep(_PAUSE_S)
    return seen


def until_is(look: Callable[[], T], wanted: T, timeout_s: float = PATIENCE_S) -> None:
    """Until that is seen which is wanted."""
    deadline_s = time.monotonic() + timeout_s
    while (seen := look()) != wanted:
        late = time.monotonic() > deadline_s
        assert not late, f"not {wanted!r} within {timeout_s:g} s; seen last: {seen!r}"
        time.sleep(_PAUSE_S)


def seconds_until(look: Callable[[], object], timeout_s: float = PATIENCE_S) -> float:
    """How long it took."""
    began_s = time.monotonic()
    until(look, timeout_s)
    return time.monotonic() - began_s
