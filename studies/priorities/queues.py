"""What a policy sees of the waiting jobs, and how its scores become places in Slurm's queue."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from studies.autoscale.workload import Floats


@dataclass(frozen=True)
class Queue:
    """The jobs that wait; each array has one place for each job.

    Attributes:
        gpus: of each job, on all nodes together.
        limit_s: seconds that it asked for. No policy knows how long it will run.
        came_s: seconds since the load began, at its submission.
        waited_s: seconds since then.
        held: GPUs that its tenant holds, as a share of those that the tenant owns.
        share: the share term of Slicewise's formula for its tenant; 1 while nothing is known.
        pool_gpus: GPUs of the whole pool.
        free: share of them that no job holds.
    """

    gpus: Floats
    limit_s: Floats
    came_s: Floats
    waited_s: Floats
    held: Floats
    share: Floats
    pool_gpus: int
    free: float


Policy = Callable[[Queue], Floats]
"""Gives each waiting job a score; the highest goes first, and of equal ones the oldest."""

_SIGN = 2**31
"""So that no site_factor is below 0."""


def site_factors(scores: Floats) -> list[int]:
    """Whole numbers from 0 on in the order of the scores, to seven digits of them.

    The bits of a float, read as a whole number, have the order of its amount.
    """
    bits = scores.astype(np.float32).view(np.int32).astype(np.int64)
    ordered = np.where(bits >= 0, bits, -(bits & (_SIGN - 1)))
    return [int(one) for one in ordered + _SIGN]
