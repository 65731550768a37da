"""A linear policy over features of jobs, whose weights CMA-ES finds."""

from collections.abc import Sequence
from dataclasses import dataclass

import cma
import numpy as np

from studies.autoscale.workload import Floats
from studies.priorities.light import judged
from studies.priorities.loads import Window
from studies.priorities.queues import Queue
from studies.priorities.rules import area

FEATURES = ("time", "gpus", "waited", "waited_days", "pool_share", "area", "held")
_MOST_HELD = 4.0
_DAY_S = 86_400.0
_GENERATIONS, _POPULATION = 12, 8
_STEP = 0.3


def features(queue: Queue) -> Floats:
    """A row for each job: logs of time, GPUs and wait; and plainly what may count beyond them.

    A log of the area is the sum of two others, so the area itself is one: as a share of the pool
    for a day.
    """
    return np.column_stack(
        (
            np.log(queue.limit_s / 3600.0),
            np.log(queue.gpus),
            np.log1p(queue.waited_s / 60.0),
            queue.waited_s / _DAY_S,
            queue.gpus / queue.pool_gpus,
            area(queue) / (queue.pool_gpus * _DAY_S),
            np.minimum(queue.held, _MOST_HELD),
        )
    )


@dataclass(frozen=True)
class LinearPolicy:
    """Scores jobs by a weighted sum of their features."""

    weights: tuple[float, ...]

    def __call__(self, queue: Queue) -> Floats:
        """The sums."""
        found: Floats = features(queue) @ np.array(self.weights)
        return found


SAF_WEIGHTS = (-1.0, -1.0, *(0.0 for _ in FEATURES[2:]))
"""With these it is smallest area first: where the search begins."""


def fitted(windows: Sequence[Window], seed: int) -> LinearPolicy:
    """Search for the weights with the least mean log of slowdowns over all windows."""
    options = {"seed": seed % 2**31, "popsize": _POPULATION, "verbose": -9}
    search = cma.CMAEvolutionStrategy(SAF_WEIGHTS, _STEP, options)
    for _ in range(_GENERATIONS):
        asked = search.ask()
        search.tell(asked, [judged(windows, LinearPolicy(tuple(one))) for one in asked])
    return LinearPolicy(tuple(float(one) for one in search.result.xfavorite))
