"""How long a replica works on a request, by Little's law."""

from dataclasses import dataclass

_FADE_ANSWERS, _LATELY_ANSWERS = 500.0, 50.0
"""Number of answers that count, the newest most: what users ask changes within minutes; and of
those that count alone once it has changed."""
_ENOUGH_ANSWERS = 25.0
"""Answers lately that say something."""
_CHANGED = 1.5
"""How many times as long, or as short, requests lately took if what users ask has changed."""
_LEAST_S = 0.001


@dataclass(frozen=True)
class WorkDone:
    """What replicas have done; old parts fade away.

    Attributes:
        busy_s: seconds that requests spent in replicas.
        answers: requests answered meanwhile. One second each is assumed at first.
        lately_busy_s, lately_answers: the same of the last few requests.
    """

    busy_s: float = 1.0
    answers: float = 1.0
    lately_busy_s: float = 0.0
    lately_answers: float = 0.0

    @property
    def mean_s(self) -> float:
        """The mean of all that count, which other means of hundreds of requests stand beside."""
        return max(self.busy_s / self.answers, _LEAST_S)

    @property
    def service_s(self) -> float:
        """Mean seconds that a request spends in a replica, also where that has just changed."""
        mean_s = self.mean_s
        if self.lately_answers < _ENOUGH_ANSWERS:
            return mean_s
        lately_s = max(self.lately_busy_s / self.lately_answers, _LEAST_S)
        return mean_s if mean_s / _CHANGED <= lately_s <= mean_s * _CHANGED else lately_s


def learn_work(known: WorkDone, busy_s: float, answered: int) -> WorkDone:
    """Learn from a look: ``busy_s`` is the time integral of requests in flight since the last."""
    keep = _FADE_ANSWERS / (_FADE_ANSWERS + answered)
    keep_lately = _LATELY_ANSWERS / (_LATELY_ANSWERS + answered)
    return WorkDone(
        keep * known.busy_s + busy_s,
        keep * known.answers + answered,
        keep_lately * known.lately_busy_s + busy_s,
        keep_lately * known.lately_answers + answered,
    )
