"""How long starts take: what is known of a service, and what is assumed until then."""

from dataclasses import dataclass, replace

from launcher.decide.scaling import Start
from launcher.decide.sketch import added, quantile

_EDGES_S = tuple(0.5 * 1.25**step for step in range(43))
"""From half a second to over an hour and a half, each a quarter more: finer than starts repeat."""
_KEEP = 0.97
"""The last 30 starts or so count: models and clusters change."""
_HIGH = 0.75
"""A start is reckoned with that takes longer than three of four: later than expected is late."""


def _assumed(about_s: float, weight: float) -> tuple[float, ...]:
    """A little weight at the bin of a value."""
    empty = (0.0,) * (len(_EDGES_S) + 1)
    return tuple(weight * share for share in added(empty, _EDGES_S, about_s, 1.0))


@dataclass(frozen=True)
class Delays:
    """Distributions of start delays, in seconds.

    Attributes:
        queue: released until allotted a slice.
        load: allotted until the model answers.
    """

    queue: tuple[float, ...] = _assumed(3.0, 0.5)
    load: tuple[float, ...] = _assumed(25.0, 0.5)

    @property
    def queue_s(self) -> float:
        """Most starts wait no longer in Slurm's queue."""
        return quantile(self.queue, _EDGES_S, _HIGH)

    @property
    def load_s(self) -> float:
        """Most starts load no longer."""
        return quantile(self.load, _EDGES_S, _HIGH)

    @property
    def start_s(self) -> float:
        """Most starts take no longer."""
        return self.queue_s + self.load_s


def learn_starts(delays: Delays, starts: tuple[Start, ...]) -> Delays:
    """With starts that have come to their end."""
    for start in starts:
        delays = replace(
            delays,
            queue=added(delays.queue, _EDGES_S, start.queue_s, _KEEP),
            load=added(delays.load, _EDGES_S, start.load_s, _KEEP),
        )
    return delays
