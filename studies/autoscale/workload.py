"""What is the same for every policy in a replay: requests, a replica's size, start delays."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SLO_S = 2.0
"""A request is served in time if it waits at most this long for a place in a replica.

2 s is what a person at a chat notices as a wait. 5 s was tried first and leaves less difference
between policies.
"""
MAX_REPLICAS = 40
FULL_REPLICAS = 26
"""Full replicas that the busiest minute needs, so that the largest services have about 30."""
_BUSY_S = 60.0
_HEADROOM = 1.2

_WARM_S, _WARM_SHARE = 300, 0.1
_STARTS = 20_000
_PROMPT_S = (0.5, 3.0)
"""Least and most seconds until Slurm's next turn starts a released task, if a slice is free."""
_BUSY_SHARE = 0.1
_BUSY_WAIT_S = 30.0
"""In ``_BUSY_SHARE`` of the starts a slice must become free first: exponential, of this mean."""


@dataclass(frozen=True)
class Starts:
    """Start delays by the number of the start, the same for every policy.

    Attributes:
        queue_s: seconds from release until a slice is allotted.
        load_s: seconds from then until the replica is ready.
    """

    queue_s: Floats
    load_s: Floats


@dataclass(frozen=True)
class Workload:
    """The requests of one service.

    Attributes:
        arrivals_s: arrival times, ascending, from 0 on.
        service_s: seconds that a replica works on each request.
        duration_s: when the replay ends.
        concurrency: requests that one replica works on at the same time.
        first_replicas: number of replicas that are ready when the replay begins.
        warm_s: end of the warm-up, which does not count: policies learn, windows fill.
    """

    name: str
    arrivals_s: Floats
    service_s: Floats
    duration_s: int
    concurrency: int
    starts: Starts
    first_replicas: int
    warm_s: int

    def described(self) -> Mapping[str, float]:
        """Return what a report says of it."""
        work_s = float(self.service_s.sum())
        return {
            "requests": self.arrivals_s.size,
            "duration_s": self.duration_s,
            "concurrency": self.concurrency,
            "mean_service_s": round(float(self.service_s.mean()), 3),
            "mean_replicas_full": round(work_s / self.duration_s / self.concurrency, 2),
        }


def draw_starts(load_s: Floats, rng: np.random.Generator) -> Starts:
    """Draw start delays: waits from a stated model of the queue, loads from measured ones."""
    prompt = rng.uniform(*_PROMPT_S, _STARTS)
    waits = np.where(rng.random(_STARTS) < _BUSY_SHARE, rng.exponential(_BUSY_WAIT_S, _STARTS), 0.0)
    return Starts(prompt + waits, rng.choice(load_s, _STARTS))


def fitting_concurrency(arrivals_s: Floats, service_s: Floats) -> int:
    """The requests at a time per replica with which the busiest minute needs nearly 30 replicas."""
    return max(1, round(busiest(arrivals_s, service_s) / FULL_REPLICAS))


def busiest(arrivals_s: Floats, service_s: Floats, window_s: float = _BUSY_S) -> float:
    """Places that the busiest window needs: seconds of work that arrive in a second."""
    windows = (arrivals_s / window_s).astype(int)
    return float(np.bincount(windows, weights=service_s).max() / window_s)


def warm_up_s(duration_s: int) -> int:
    """Seconds of warm-up: five minutes, or a tenth of a short trace."""
    return min(_WARM_S, int(_WARM_SHARE * duration_s))


def enough(arrivals_s: Floats, service_s: Floats, concurrency: int, until_s: int) -> int:
    """The replicas that the requests before ``until_s`` need, with some headroom."""
    places = float(service_s[arrivals_s < until_s].sum()) / max(until_s, 1)
    return min(round(_HEADROOM * places / concurrency + 0.5), MAX_REPLICAS)
