"""What a policy sees of a service each second, and what it is asked."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Seen(NamedTuple):
    """One look, the same for every policy.

    Attributes:
        waiting: requests without a place in a replica.
        in_flight: replicas work on them.
        work_s: time integral of waiting and in_flight since the replay began: what a metric that
            is averaged over any window sees.
        arrived, answered: requests since the replay began.
        pending, starting, ready, draining: replicas; ``coming`` is the first three.
        busy: requests of each ready replica.
        started: (queue, load) in seconds of starts that ended since the last look.
    """

    at_s: float
    waiting: int
    in_flight: int
    work_s: float
    arrived: int
    answered: int
    pending: int
    starting: int
    ready: int
    draining: int
    busy: Sequence[int]
    started: Sequence[tuple[float, float]]

    @property
    def load(self) -> int:
        """Requests that wait or are worked on."""
        return self.waiting + self.in_flight

    @property
    def coming(self) -> int:
        """Replicas that serve or will."""
        return self.pending + self.starting + self.ready


class Policy(Protocol):
    """How many replicas."""

    def wanted(self, seen: Seen) -> int:
        """Asked each second; whoever decides less often answers as before in between."""
        ...
