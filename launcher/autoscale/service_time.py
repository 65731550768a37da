"""How long a replica works on a request, by Little's law."""

from dataclasses import dataclass

_FADE_ANSWERS = 500.0
"""Number of answers that count, the newest most: what users ask changes within minutes."""
_LEAST_S = 0.001


@dataclass(frozen=True)
class WorkDone:
    """What replicas have done; old parts fade away.

    Attributes:
        busy_s: seconds that requests spent in replicas.
        answers: requests answered meanwhile. One second each is assumed at first.
    """

    busy_s: float = 1.0
    answers: float = 1.0

    @property
    def service_s(self) -> float:
        """Mean seconds that a request spends in a replica."""
        return max(self.busy_s / self.answers, _LEAST_S)


def learn_work(known: WorkDone, busy_s: float, answered: int) -> WorkDone:
    """Learn from a look: ``busy_s`` is the time integral of requests in flight since the last."""
    keep = _FADE_ANSWERS / (_FADE_ANSWERS + answered)
    return WorkDone(keep * known.busy_s + busy_s, keep * known.answers + answered)
