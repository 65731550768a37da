"""What a replay gives every policy alike: requests, a replica's size, and how starts go."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SLO_S = 2.0
"""A request is served in time if it waits at most that long for a place in a replica.

What a person at a chat notices as a wait; 5 s was tried first, and leaves less between
policies.
"""
MAX_REPLICAS = 40
FULL_REPLICAS = 26
"""What the busiest minute needs when each replica is full: the largest services of 30 replicas."""
_BUSY_S = 60.0
_HEADROOM = 1.2

_WARM_S, _WARM_SHARE = 300, 0.1
_STARTS = 20_000
_PROMPT_S = (0.5, 3.0)
"""Where a slice is free: Slurm's scheduler starts a released task at its next turn."""
_BUSY_SHARE = 0.1
_BUSY_WAIT_S = 30.0
"""In this share of starts a slice must become free first: exponential, with that mean."""


@dataclass(frozen=True)
class Starts:
    """How long starts take, by the number of the start: the same for every policy.

    Attributes:
        queue_s: released until allotted a slice.
        load_s: allotted until ready.
    """

    queue_s: Floats
    load_s: Floats


@dataclass(frozen=True)
class Workload:
    """The requests of one service.

    Attributes:
        arrivals_s: ascending, from 0 on.
        service_s: how long a replica works on each.
        duration_s: when the replay ends.
        concurrency: requests that one replica works on at once.
        first_replicas: ready when the replay begins.
        warm_s: what is before does not count: policies learn, windows fill.
    """

    name: str
    arrivals_s: Floats
    service_s: Floats
    duration_s: int
    concurrency: int
    starts: Starts
    first_replicas: int
    warm_s: int


def draw_starts(load_s: Floats, rng: np.random.Generator) -> Starts:
    """Start delays: a stated model of the queue, loads drawn from those measured."""
    prompt = rng.uniform(*_PROMPT_S, _STARTS)
    waits = np.where(rng.random(_STARTS) < _BUSY_SHARE, rng.exponential(_BUSY_WAIT_S, _STARTS), 0.0)
    return Starts(prompt + waits, rng.choice(load_s, _STARTS))


def fitting_concurrency(arrivals_s: Floats, service_s: Floats) -> int:
    """So many requests at once per replica that the busiest minute needs nearly 30 replicas."""
    return max(1, round(busiest(arrivals_s, service_s) / FULL_REPLICAS))


def busiest(arrivals_s: Floats, service_s: Floats, window_s: float = _BUSY_S) -> float:
    """Places that the busiest minute needs: seconds of work that arrive in a second."""
    windows = (arrivals_s / window_s).astype(int)
    return float(np.bincount(windows, weights=service_s).max() / window_s)


def warm_up_s(duration_s: int) -> int:
    """Five minutes, or a tenth of a short trace."""
    return min(_WARM_S, int(_WARM_SHARE * duration_s))


def enough(arrivals_s: Floats, service_s: Floats, concurrency: int, until_s: int) -> int:
    """Replicas for the requests until then."""
    places = float(service_s[arrivals_s < until_s].sum()) / max(until_s, 1)
    return min(round(_HEADROOM * places / concurrency + 0.5), MAX_REPLICAS)
