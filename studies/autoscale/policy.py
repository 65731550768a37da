"""The interface of the policies: what they see of a service each second, and what they decide."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from slicewise.launcher.rules.autoscale.types import ReplicaStart


class Seen(NamedTuple):
    """One look, the same for every policy.

    Attributes:
        waiting: requests without a place in a replica.
        in_flight: requests that replicas work on.
        work_s: time integral of waiting and in_flight since the replay began, from which follows
            a metric that is averaged over any window.
        arrived, answered: requests since the replay began.
        pending, starting, ready, draining: replicas by stage; ``coming`` is the first three.
        busy: requests in flight of each ready replica.
        started: starts that ended since the last look.
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
    started: Sequence[ReplicaStart]

    @property
    def load(self) -> int:
        """Requests that wait or are worked on."""
        return self.waiting + self.in_flight

    @property
    def coming(self) -> int:
        """Replicas that serve or will serve."""
        return self.pending + self.starting + self.ready


class Policy(Protocol):
    """Decides how many replicas to run."""

    def wanted(self, seen: Seen) -> int:
        """How many replicas are wanted, asked each second.

        A policy that decides less often repeats its last answer in between.
        """
        ...
