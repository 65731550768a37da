"""How long requests and tokens take by the number of them at a replica, as it is passed on.

Replicas of the same model, engine and shape take about the same times, so what one service has
learnt, or ``slicewise profile`` has measured, is where another one begins.
"""

from dataclasses import dataclass, replace

Points = tuple[tuple[float, float], ...]
"""Requests at a replica and the seconds that something takes then, ascending in both."""


@dataclass(frozen=True)
class Curve:
    """What replicas do with so many requests at the same time.

    Attributes:
        service, token: what a request takes, and each of its tokens; () is not known.
        steps: times as long as a token that a request takes; None is not known.
        first_steps: the same of the slowest of 20 first tokens.
    """

    service: Points = ()
    token: Points = ()
    steps: float | None = None
    first_steps: float | None = None

    def slower(self, service: float, token: float) -> "Curve":
        """Return it with times that are so many times as long."""
        found = _times(self.service, service), _times(self.token, token)
        return replace(self, service=found[0], token=found[1])


@dataclass(frozen=True)
class Prior:
    """A curve that was measured elsewhere; ``source`` says where, for people."""

    curve: Curve
    source: str


def _times(points: Points, factor: float) -> Points:
    return tuple((at, factor * each_s) for at, each_s in points)
