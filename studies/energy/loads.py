"""The services of a site: of two recorded loads, of one that nothing was chosen on; batch jobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from studies.autoscale import mixtures, traces
from studies.autoscale.fleets import SPAN_S, WARM_S, fleet
from studies.autoscale.workload import Workload, enough
from studies.energy.replay import Job

SERVICES = 20
"""Of the recorded loads: the first of a random order."""
_FIRST_UNSEEN = 300
"""Number of the first of the drawn loads, one of each kind: none had been replayed before."""
_UNSEEN = 7
_DAY_WARM_S = 3600
_JOB_S = (600.0, 3600.0)
"""Least and most seconds of a batch job; their logarithm is spread evenly."""


def _recorded(name: str) -> Callable[[Path, int], list[Workload]]:
    def read(folder: Path, seed: int) -> list[Workload]:
        found = fleet(name, folder, seed)
        part = replace(found, services=found.services[:SERVICES])
        return [*part.pools(1, cached=False)]

    return read


def _unseen(_: Path, seed: int) -> list[Workload]:
    numbers = range(_FIRST_UNSEEN, _FIRST_UNSEEN + _UNSEEN)
    drawn = (mixtures.drawn(number, seed, SPAN_S / 3600) for number in numbers)
    return [
        replace(
            one,
            warm_s=WARM_S,
            first_replicas=enough(one.arrivals_s, one.service_s, one.concurrency, WARM_S),
        )
        for one in drawn
    ]


def _day(folder: Path, seed: int) -> list[Workload]:
    """Two services for a day, with nights: all of GenTD26's requests, and all of ServeGen's."""
    both = [traces.stored(name, folder, seed) for name in ("gentd26", "servegen-reason")]
    return [
        replace(
            one,
            duration_s=min(other.duration_s for other in both),
            warm_s=_DAY_WARM_S,
        )
        for one in both
    ]


LOADS: Mapping[str, Callable[[Path, int], list[Workload]]] = {
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
