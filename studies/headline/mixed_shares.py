"""Where the capacity of a system goes under the mixed load: to work, to what is beside it, or idle.

Idle instances are those that nothing held. Of them so many could have served a waiting job as jobs
wait for their type; of the rest as many slices could have served jobs that wait for other types, if
GPUs had been cut for them. Where GPUs are cut again during a run all that is idle counts so. A
service's slot that waits does not count as waiting: the record of a run does not have it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import inf

from slicewise.simulation.rules.services.request_figures import ServiceRecord
from slicewise.simulation.rules.site.records import ReplayedJob
from studies.headline.changes import Change, changes_of
from studies.headline.mixed_load import COSTS, MixedLoad
from studies.headline.mixed_systems import MixedRecord


@dataclass(frozen=True)
class Idle:
    """Slice-seconds of instances that nothing held.

    Attributes:
        wanted_s: while jobs waited for just their type.
        other_type_s: while jobs waited for other types only.
        unwanted_s: while no job waited that they could have served, however they were cut.
    """

    wanted_s: float
    other_type_s: float
    unwanted_s: float


def idle(record: MixedRecord, load: MixedLoad) -> Idle:
    """Sum up what was idle while figures count, event by event."""
    there = record.instances or load.instances
    find = _idle_now if record.site.repartitions is None else _idle_of_any_type
    held, waiting = Counter[str](), Counter[str]()
    sums, at_s = [0.0, 0.0, 0.0], load.warm_s
    changes = (*_of_jobs(record.site.jobs), *of_services(record.services))
    ordered = sorted((*changes, Change(load.end_s, "", 0, 0)), key=lambda one: one.at_s)
    for when_s, together in groupby(ordered, key=lambda one: one.at_s):
        if (until_s := min(when_s, load.end_s)) > at_s:
            for nth, slices in enumerate(find(there, held, waiting)):
                sums[nth] += slices * (until_s - at_s)
            at_s = until_s
        for one in together:
            held[one.name] += one.held
            waiting[one.name] += one.waiting
    return Idle(*sums)


def _idle_now(
    there: Mapping[str, int], held: Mapping[str, int], waiting: Mapping[str, int]
) -> tuple[float, float, float]:
    """Slices that are idle now: wanted by type, by jobs of other types, not at all."""
    wanted = left = asked = 0.0
    for kind, count in there.items():
        slices = COSTS[kind] / 1000
        free = max(0, count - held[kind])
        served = min(free, waiting[kind])
        wanted += served * slices
        left += (free - served) * slices
        asked += (waiting[kind] - served) * slices
    other = min(left, asked)
    return wanted, other, left - other


def _idle_of_any_type(
    there: Mapping[str, int], held: Mapping[str, int], waiting: Mapping[str, int]
) -> tuple[float, float, float]:
    """The same where nobody knows what the idle slices are cut into."""
    left = max(0.0, _slices(there) - _slices(held))
    other = min(left, _slices(waiting))
    return 0.0, other, left - other


def _slices(instances: Mapping[str, int]) -> float:
    return sum(COSTS[kind] * count for kind, count in instances.items() if kind) / 1000


def _of_jobs(jobs: Iterable[ReplayedJob]) -> Iterator[Change]:
    for job in jobs:
        for kind, count in job.gpus.items():
            yield from changes_of(job, kind, count)


def of_services(services: Iterable[ServiceRecord]) -> Iterator[Change]:
    """Yield when replicas hold an instance more or less, by the instances' type."""
    for one in services:
        kind = one.service.spec.profile or ""
        for begin_s, end_s in one.runs:
            yield Change(begin_s, kind, 1, 0)
            if end_s < inf:
                yield Change(end_s, kind, -1, 0)


def loading_s(services: Iterable[ServiceRecord], load: MixedLoad) -> float:
    """Slice-seconds in which replicas loaded their models: the n-th start takes the n-th time."""
    return sum(
        max(0.0, min(end_s, begin_s + load_s, load.end_s) - max(begin_s, load.warm_s))
        * one.cost_millislices
        / 1000
        for one in services
        for (begin_s, end_s), load_s in zip(sorted(one.runs), _loads(one), strict=False)
    )


def _loads(of: ServiceRecord) -> Iterator[float]:
    loads = of.service.engine.loads_s
    return (loads[nth % len(loads)] for nth in range(len(of.runs)))
