"""Remembers how much a model of a pool is asked: what decides where it is loaded and kept."""

from dataclasses import dataclass
from math import exp

from slicewise.launcher.rules.gateway.types import Load

WORK_S = 10.0
"""Seconds over which work is averaged. A look sees what is in progress at one moment."""
CHANCE_S = 3600.0
"""Seconds over which requests are counted for the chance that a model is asked again."""


@dataclass(frozen=True)
class ModelWork:
    """How much a model is asked.

    Attributes:
        at_s: Unix seconds of the last look; 0 before the first.
        work: how many replicas its requests keep busy, on average.
        requests_per_s: how often it is asked, on average.
        is_asked: whether it has requests.
        waits_since_s: Unix seconds since when it has requests and none is in progress; 0 if one is.
        arrived: requests that the gateway had counted, in its backend ``counter``.
    """

    at_s: float = 0.0
    work: float = 0.0
    requests_per_s: float = 0.0
    waits_since_s: float = 0.0
    is_asked: bool = False
    arrived: int = 0
    counter: str = ""

    @property
    def waited_s(self) -> float:
        """Seconds for which all its requests have waited."""
        return self.at_s - self.waits_since_s if self.waits_since_s else 0.0


def model_work(before: ModelWork, load: Load, concurrency: int, now_s: float) -> ModelWork:
    """Take in one look at a model's requests; a replica works on ``concurrency`` of them at once.

    What waits counts as work: a model without a replica is asked, too. One that nobody asks any
    more has none after some ``WORK_S``, and gives way to others.
    """
    elapsed_s = max(0.0, now_s - before.at_s) if before.at_s else WORK_S
    work = load.total / concurrency
    kept = exp(-elapsed_s / WORK_S)
    is_same = before.at_s > 0 and before.counter == load.counter and before.arrived <= load.arrived
    came = load.arrived - before.arrived if is_same else 0
    faded = exp(-elapsed_s / CHANCE_S)
    return ModelWork(
        now_s,
        0.0 if not load.total and before.work < _NONE else before.work * kept + work * (1 - kept),
        before.requests_per_s * faded + came / CHANCE_S,
        (before.waits_since_s or now_s) if load.waiting and not load.in_flight else 0.0,
        load.total > 0,
        load.arrived,
        load.counter,
    )


_NONE = 0.02
"""Work that counts as none once there is no request: the average would never come to 0."""
