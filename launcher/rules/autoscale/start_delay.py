"""How long a service's starts take: what was seen of them, and what is assumed until then."""

from dataclasses import dataclass, replace
from typing import Annotated

from slicewise.launcher.rules.autoscale.histogram import added, of_length, quantile
from slicewise.launcher.rules.autoscale.types import ReplicaStart

_EDGES_S = tuple(0.5 * 1.25**step for step in range(43))
"""Edges of bins from half a second to over an hour and a half, each a quarter more than the one
before: finer than starts repeat."""
_Weights = Annotated[tuple[float, ...], of_length(len(_EDGES_S) + 1)]
_KEEP = 0.97
"""Share of the old weights that stays with each start, so that the last 30 or so count: models and
clusters change."""
_HIGH = 0.75
"""Quantile of starts to plan with: one that takes longer than three of four, since a replica that
comes later than expected is late."""


def _assumed(about_s: float, weight: float) -> _Weights:
    """Return a distribution with a little weight in the bin of one value."""
    empty = (0.0,) * (len(_EDGES_S) + 1)
    return tuple(weight * share for share in added(empty, _EDGES_S, about_s, 1.0))


_QUEUE, _LOAD = _assumed(3.0, 0.5), _assumed(25.0, 0.5)


@dataclass(frozen=True)
class Delays:
    """Distributions of start delays, in seconds.

    Attributes:
        queue: from release to the allotment of a slice.
        load: from the allotment until the model answers.
    """

    queue: _Weights = _QUEUE
    load: _Weights = _LOAD

    @property
    def queue_s(self) -> float:
        """Seconds in Slurm's queue that three of four starts don't exceed."""
        return quantile(self.queue, _EDGES_S, _HIGH)

    @property
    def load_s(self) -> float:
        """Seconds of loading that three of four starts don't exceed."""
        return quantile(self.load, _EDGES_S, _HIGH)

    @property
    def start_s(self) -> float:
        """Seconds that most starts don't exceed, queue and load together."""
        return self.queue_s + self.load_s


def learn_starts(delays: Delays, starts: tuple[ReplicaStart, ...]) -> Delays:
    """Add starts that have come to their end."""
    for start in starts:
        delays = replace(
            delays,
            queue=added(delays.queue, _EDGES_S, start.queue_s, _KEEP),
            load=added(delays.load, _EDGES_S, start.load_s, _KEEP),
        )
    return delays
