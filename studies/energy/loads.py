"""The services of a site: of two recorded loads, of one that nothing was chosen on; batch jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from studies.autoscale import mixtures, traces
from studies.autoscale.fleets import SPAN_S, WARM_S, fleet
from studies.autoscale.shared import SharedLoad
from studies.autoscale.workload import Workload, enough
from studies.energy.replay import Job

POOLS = (8, 0)
"""Services of a pool, where services are alike enough to share replicas; 0: all."""
SERVICES = 20
"""Of the recorded loads: the first of a random order."""
_FIRST_UNSEEN = 300
"""Number of the first of the drawn loads, one of each kind: none had been replayed before."""
_UNSEEN = 7
_DAY_WARM_S = 3600
_JOB_S = (600.0, 3600.0)
"""Least and most seconds of a batch job; their logarithm is spread evenly."""


Sized = Mapping[int, Sequence[SharedLoad]]
"""The same requests, by the services that a pool has; 1: each has replicas of its own."""


def _recorded(name: str) -> Callable[[Path, int], Sized]:
    def read(folder: Path, seed: int) -> Sized:
        found = fleet(name, folder, seed)
        part = replace(found, services=found.services[:SERVICES])
        return {size: part.pools(size, cached=False) for size in (1, *POOLS)}

    return read


def alone(services: Iterable[Workload]) -> Sized:
    """Services that are too unlike to share replicas."""
    return {
        1: [
            SharedLoad(
                **vars(service),
                models=np.zeros(service.arrivals_s.size, int),
                count=1,
                nodes=np.zeros(service.starts.load_s.size, int),
                cached=False,
            )
            for service in services
        ]
    }


def _unseen(_: Path, seed: int) -> Sized:
    numbers = range(_FIRST_UNSEEN, _FIRST_UNSEEN + _UNSEEN)
    drawn = (mixtures.drawn(number, seed, SPAN_S / 3600) for number in numbers)
    return alone(
        replace(
            one,
            warm_s=WARM_S,
            first_replicas=enough(one.arrivals_s, one.service_s, one.concurrency, WARM_S),
        )
        for one in drawn
    )


def _day(folder: Path, seed: int) -> Sized:
    """Two services for a day, with nights: all of GenTD26's requests, and all of ServeGen's."""
    both = [traces.stored(name, folder, seed) for name in ("gentd26", "servegen-reason")]
    duration_s = min(one.duration_s for one in both)
    return alone(replace(one, duration_s=duration_s, warm_s=_DAY_WARM_S) for one in both)


LOADS: Mapping[str, Callable[[Path, int], Sized]] = {
    "gentd26": _recorded("gentd26"),
    "servegen-reason": _recorded("servegen-reason"),
    "unseen": _unseen,
    "day": _day,
}


def batch(slices: float, seed: int) -> Sequence[Job]:
    """Jobs of one slice that come at random and keep so many slices in use, in the mean."""
    rng = np.random.default_rng([seed, 7])
    least, most = np.log(_JOB_S)
    lasts_s = np.exp(rng.uniform(least, most, 2000))
    gaps_s = rng.exponential(lasts_s.mean() / slices, 2000)
    at_s = np.cumsum(gaps_s)
    return [
        Job(float(at), float(lasts)) for at, lasts in zip(at_s, lasts_s, strict=True) if at < SPAN_S
    ]
