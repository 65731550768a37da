"""Keeps what follows from one record of Slurm's with that record, which never changes.

A round asks the same of each waiting job many times, and most records stay from look to look.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

from cluster.language.jobs import JobView

T = TypeVar("T")


def per_record(decide: Callable[[JobView], T]) -> Callable[[JobView], T]:
    """Decorate a pure function of a record alone: it is computed once for each record.

    A changed copy of a record (``dataclasses.replace``) is another record, and is asked anew.
    """
    name = f"{decide.__module__}.{decide.__qualname__}"

    @wraps(decide)
    def known(job: JobView) -> T:
        facts = job.__dict__
        if name in facts:
            return cast("T", facts[name])
        found = facts[name] = decide(job)
        return found

    return known
