"""The mixed load: services and batch jobs of several tenants on one cluster of cut GPUs.

All of it is chosen by rules that know no system (studies/headline/README.md).
"""

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from pathlib import Path

from slicewise.cluster.settings.file import Settings
from slicewise.simulation.history.formats import read_history
from slicewise.simulation.rules.history.jobs import HistoryJob
from studies.headline.loads import PHILLY, PHILLY_DAYS
from studies.headline.mixed_services import (
    BEGIN_S,
    COSTS_MILLISLICES,
    HOURS,
    PARTITION,
    SLICE,
    WHOLE,
    MixedService,
    counts_from_s,
)

NODES = 4
HALF = "3g.40gb"
NODE = {SLICE: 28, HALF: 4, WHOLE: 2}
"""Each node has eight A100: four are cut into seven, two into halves, two are whole."""
INSTANCES = {kind: NODES * count for kind, count in NODE.items()}
ALIKE = {SLICE: NODES * 56}
"""All GPUs cut into seven: instances of one type, for which all jobs ask."""
LAYOUTS = {"mixed": INSTANCES, "alike": ALIKE, "drawn": INSTANCES}
"""The instances of each load. ``mixed`` and ``alike`` have Philly's jobs, ``drawn`` those of
``mixed_drawn``, by which nothing was ever chosen."""
DRAWN = "drawn"
BATCH_TENANTS = 4
DEMAND = 1.1
"""What services and jobs ask for on average, as a share of the instances of each type."""
FASTER = 8.0
"""By what the times of Philly's jobs are divided, those of submissions as well."""
SETTINGS = Settings.model_validate(
    {
        "cluster": {"name": "headline", "partitions": [PARTITION]},
        "gpus": {"A100-80GB": {"types": [SLICE, HALF], "whole": [WHOLE]}},
    }
)
COSTS = SETTINGS.costs
CAPACITY_MILLISLICES = sum(COSTS[kind] * count for kind, count in INSTANCES.items())
_DAY_S, _HOUR_S = 86_400.0, 3600.0
_MOST_TIMES = 4.0
_MOST_OF_HALF = 4
_LEAST_RUN_S = 1.0

Shares = Mapping[str, Mapping[str, int]]
"""Instances by type, by tenant."""


@dataclass(frozen=True)
class MixedLoad:
    """Services and jobs, and what of the hardware belongs to whom.

    Attributes:
        jobs: of the batch tenants, each for one instance.
        owned: what each batch tenant owns, where services own the fewest slices that keep their aim
            at all times.
        begin_s, warm_s, end_s: the simulation begins, figures begin, no more jobs come.
        instances: of the whole cluster, by type.
    """

    seed: int
    services: tuple[MixedService, ...] = field(hash=False)
    jobs: tuple[HistoryJob, ...] = field(hash=False)
    owned: Shares = field(hash=False)
    begin_s: float
    warm_s: float
    end_s: float
    instances: Mapping[str, int] = field(default_factory=lambda: INSTANCES, hash=False)

    @property
    def quotas(self) -> Mapping[str, Mapping[str, int]]:
        """What is guaranteed to each tenant, in millislices, by type."""
        services = {
            one.slices.spec.tenant: {SLICE: one.replicas * COSTS_MILLISLICES[SLICE]}
            for one in self.services
        }
        batch = {
            name: {kind: count * COSTS[kind] for kind, count in owned.items()}
            for name, owned in self.owned.items()
        }
        return {**services, **batch}

    @property
    def guarantees(self) -> Mapping[str, int]:
        """What is guaranteed to each tenant, in millislices of any type."""
        return {name: sum(of.values()) for name, of in self.quotas.items()}

    @property
    def guaranteed_types(self) -> Shares:
        """How many instances of each type are guaranteed to each tenant."""
        return {
            name: {kind: of.get(kind, 0) // COSTS[kind] for kind in self.instances}
            for name, of in self.quotas.items()
        }

    @property
    def seconds(self) -> float:
        """How long is measured."""
        return self.end_s - self.warm_s


def mixed(
    services: Sequence[MixedService],
    jobs: Path,
    seed: int,
    instances: Mapping[str, int],
    hours: float = HOURS,
) -> MixedLoad:
    """Build the load of these services, and of jobs of the trace in that folder."""
    asked = wanted(services, instances, hours * _HOUR_S)
    found = batch(read_history(jobs / PHILLY, seed).jobs, asked, seed, hours)
    return load_of(services, found, seed, instances, hours)


def load_of(
    services: Sequence[MixedService],
    jobs: tuple[HistoryJob, ...],
    seed: int,
    instances: Mapping[str, int],
    hours: float = HOURS,
) -> MixedLoad:
    """Build the load of these services and jobs; each tenant owns by what it asks for."""
    end_s = BEGIN_S + hours * _HOUR_S
    reserved = sum(one.replicas for one in services)
    left = {**instances, SLICE: instances[SLICE] - reserved}
    return MixedLoad(
        seed=seed,
        services=tuple(services),
        jobs=jobs,
        owned=divided(left, demand_s(jobs, end_s)),
        begin_s=BEGIN_S,
        warm_s=counts_from_s(end_s),
        end_s=end_s,
        instances=instances,
    )


def wanted(
    services: Iterable[MixedService], instances: Mapping[str, int], seconds: float
) -> Mapping[str, float]:
    """Instances that jobs shall ask for on average, by type: what services leave of the demand."""
    served = sum(
        len(one.slices.arrivals_s) * one.work_millislice_s / COSTS_MILLISLICES[SLICE]
        for one in services
    )
    return {
        kind: DEMAND * count - (served / seconds if kind == SLICE else 0.0)
        for kind, count in instances.items()
    }


def kind_of(gpus: int, kinds: Collection[str]) -> str:
    """A GPU of Philly is a slice: one is one, up to four are a half, more are a whole GPU.

    Where there is no such type, a job gets a slice.
    """
    kind = WHOLE if gpus > _MOST_OF_HALF else HALF if gpus > 1 else SLICE
    return kind if kind in kinds else SLICE


def batch(
    jobs: Sequence[HistoryJob], asked: Mapping[str, float], seed: int, hours: float = HOURS
) -> tuple[HistoryJob, ...]:
    """Jobs of some days of Philly, faster by one factor, so many that ``asked`` is asked for.

    Which days they are, which jobs stay or come several times, whose they are and their time limits
    are drawn.
    """
    rng = random.Random(seed)  # noqa: S311 -- not for secrets
    first, last = (jobs[0].submit_s + day * _DAY_S for day in PHILLY_DAYS)
    since_s = rng.uniform(first, last - hours * _HOUR_S * FASTER)
    scaled = [
        one
        for job in jobs
        if sum(job.gpus.values()) and since_s <= job.submit_s
        if (one := _scaled(job, since_s, asked)).submit_s < BEGIN_S + hours * _HOUR_S
    ]
    owners = _owners(scaled, rng)
    end_s = BEGIN_S + hours * _HOUR_S
    there: defaultdict[str, float] = defaultdict(float)
    for job in scaled:
        there[_kind(job)] += min(job.run_s, end_s - job.submit_s)
    found = []
    for job in scaled:
        kind = _kind(job)
        times = asked[kind] * hours * _HOUR_S / there[kind]
        for nth in range(floor(times + rng.random())):
            # A copy comes at another time of the same hour.
            later_s = rng.uniform(0, _HOUR_S) if nth else 0.0
            limit_s = 60 * ceil(job.run_s * rng.uniform(1.0, _MOST_TIMES) / 60)
            at_s, name = job.submit_s + later_s, owners[job.account]
            if at_s < end_s:
                found.append(
                    replace(job, submit_s=at_s, time_limit_s=limit_s, account=name, user=name)
                )
    return tuple(sorted(found, key=lambda job: job.submit_s))


def _scaled(job: HistoryJob, since_s: float, kinds: Collection[str]) -> HistoryJob:
    return replace(
        job,
        submit_s=BEGIN_S + (job.submit_s - since_s) / FASTER,
        run_s=max(_LEAST_RUN_S, job.run_s / FASTER),
        gpus={kind_of(sum(job.gpus.values()), kinds): 1},
        nodes=1,
        partition=PARTITION,
    )


def _kind(job: HistoryJob) -> str:
    (kind,) = job.gpus
    return kind


def _owners(jobs: Iterable[HistoryJob], rng: random.Random) -> Mapping[str, str]:
    """Philly's virtual clusters, dealt to the batch tenants in a drawn order."""
    names = sorted({job.account for job in jobs})
    rng.shuffle(names)
    return {name: f"batch{nth % BATCH_TENANTS + 1}" for nth, name in enumerate(names)}


def demand_s(jobs: Iterable[HistoryJob], end_s: float) -> Mapping[str, Mapping[str, float]]:
    """Seconds of instances that jobs ask for until then, by type and tenant."""
    found: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        found[_kind(job)][job.account] += min(job.run_s, end_s - job.submit_s)
    return found


def divided(
    instances: Mapping[str, int], asked: Mapping[str, Mapping[str, float]]
) -> Mapping[str, Mapping[str, int]]:
    """Give every instance to a tenant: by what each asks for of its type, and to each at least one.

    Nobody else has what jobs of static partitions could run on.
    """
    owned: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for kind, count in instances.items():
        by = asked.get(kind, {})
        spare, total = count - len(by), sum(by.values())
        exact = {name: spare * amount / total for name, amount in by.items()}
        rest = spare - sum(map(floor, exact.values()))
        first = sorted(exact, key=lambda name: (floor(exact[name]) - exact[name], name))[:rest]
        for name, amount in exact.items():
            owned[name][kind] = 1 + floor(amount) + (name in first)
    return owned
