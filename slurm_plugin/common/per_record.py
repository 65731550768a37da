"""Keeps what follows from one record of Slurm's, or one queue of them, with it: neither changes.

A round asks the same of each waiting job many times, and most records stay from look to look.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

R = TypeVar("R")
T = TypeVar("T")


def per_record(decide: Callable[[R], T]) -> Callable[[R], T]:
    """Decorate a pure function of a frozen record alone: it is computed once for each record.

    A changed copy of a record (``dataclasses.replace``) is another record, and is asked anew.
    """
    name = f"{decide.__module__}.{decide.__qualname__}"

    @wraps(decide)
    def known(record: R) -> T:
        facts: dict[str, Any] = record.__dict__
        try:
            before: T = facts[name]
        except KeyError:
            found = facts[name] = decide(record)
            return found
        return before

    return known
