"""When what jobs hold and wait for becomes more or less, from the record of a run."""

from collections.abc import Iterator
from typing import NamedTuple

from slicewise.simulation.rules.site.records import ReplayedJob


class Change(NamedTuple):
    """Amounts that are held or waited for become more or fewer.

    Attributes:
        name: whose amounts these are, a tenant's or a GPU type's.
    """

    at_s: float
    name: str
    held: int
    waiting: int


def changes_of(job: ReplayedJob, name: str, amount: int) -> Iterator[Change]:
    """Yield how a job waits for its ``amount``, holds it, and waits again after each requeue."""
    wait_s: float | None = job.submit_s
    for run in job.runs:
        if wait_s is not None:
            yield Change(wait_s, name, 0, amount)
            yield Change(run.start_s, name, 0, -amount)
        yield Change(run.start_s, name, amount, 0)
        wait_s = run.end_s
        if run.end_s is not None:
            yield Change(run.end_s, name, -amount, 0)
    if wait_s is not None and (not job.runs or job.waits_again):
        yield Change(wait_s, name, 0, amount)
        if job.given_up_s is not None:
            yield Change(job.given_up_s, name, 0, -amount)
