"""How long a replica works on a request, by Little's law."""

from dataclasses import dataclass

_FADE_ANSWERS = 500.0
"""So many requests count, the newest most: what users ask changes within minutes."""
_LEAST_S = 0.001


@dataclass(frozen=True)
class Work:
    """What replicas have done, of which old parts fade away.

    Attributes:
        busy_s: seconds that requests spent in replicas.
        answers: requests answered meanwhile. A second each is assumed at first.
    """

    busy_s: float = 1.0
    answers: float = 1.0

    @property
    def service_s(self) -> float:
        """Mean seconds that a request spends in a replica."""
        return max(self.busy_s / self.answers, _LEAST_S)


def learn_work(known: Work, busy_s: float, answered: int) -> Work:
    """With what was seen since the last look: the time integral of what was in flight."""
    keep = _FADE_ANSWERS / (_FADE_ANSWERS + answered)
    return Work(keep * known.busy_s + busy_s, keep * known.answers + answered)
