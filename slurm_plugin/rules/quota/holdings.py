"""The jobs of managed partitions at one moment: what runs hold, and who waits in which QOS."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_
from typing import NamedTuple

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder, is_own, qos_name


class PricedRun(NamedTuple):
    """A run with the millislices that it holds, and the account and QOS in which it holds them."""

    job: JobView
    cost_millislices: Millislices
    place: tuple[str, str]


def by_priority(jobs: Iterable[JobView]) -> list[JobView]:
    """Sort jobs in the order in which Slurm would start them."""
    return sorted(jobs, key=place_in_order)


def place_in_order(job: JobView) -> tuple[int, int]:
    """Sort key of the order in which Slurm would start jobs: by priority, then by number."""
    return -job.priority, job.job_id


@dataclass(frozen=True, eq=False)
class QosQueue:
    """The jobs of one QOS that hold nothing.

    Attributes:
        seen: the jobs in the order in which they were seen.
        costs: millislices of an instance, by GRES type.
    """

    qos: str
    seen: tuple[JobView, ...]
    costs: Mapping[str, Millislices]

    @cached_property
    def jobs(self) -> Sequence[JobView]:
        """The jobs in the order in which Slurm would start them."""
        return by_priority(self.seen)

    @cached_property
    def doubtful(self) -> Sequence[JobView]:
        """Those of them with unreadable records."""
        return [job for job in self.seen if job.is_doubtful]


@dataclass(frozen=True)
class HeldRuns:
    """Jobs that hold what they were allotted.

    Attributes:
        priced: what each of them holds.
        places: those of each account in each QOS.
    """

    jobs: tuple[JobView, ...]
    priced: tuple[PricedRun, ...]
    places: Mapping[tuple[str, str], Sequence[PricedRun]] = field(hash=False)

    @cached_property
    def ending(self) -> tuple[PricedRun, ...]:
        """Those of them that are completing: they hold their GPUs, and Slurm counts them in no
        limit any more.

        The sums here count them. What divides limits takes them off (``demand.qos_use``), else a
        tenant could hold more than its limits, or less. As demand they keep their slices from being
        lent while they end, which delays a loan by that time and never takes a guarantee.
        """
        return tuple(one for one in self.priced if one.job.state is JobState.COMPLETING)

    @cached_property
    def by_qos(self) -> Mapping[tuple[str, str], int]:
        """Millislices that runs hold, by account and QOS; 0 for those without GPUs."""
        return {
            place: sum(one.cost_millislices for one in runs) for place, runs in self.places.items()
        }

    @cached_property
    def by_tenant(self) -> Mapping[str, int]:
        """Millislices that each tenant's runs hold, or each account's without a tenant's QOS."""
        found = defaultdict[str, int](int)
        for place, cost in self.by_qos.items():
            found[holder(*place)] += cost
        return dict(found)

    @cached_property
    def in_qos(self) -> Mapping[str, int]:
        """Millislices that runs hold, by QOS."""
        found = defaultdict[str, int](int)
        for (_, qos), cost in self.by_qos.items():
            found[qos] += cost
        return found

    @cached_property
    def doubtful(self) -> Sequence[JobView]:
        """Those with unreadable records."""
        return [one.job for one in self.priced if one.job.is_doubtful]


def held_runs(jobs: tuple[JobView, ...], costs: Mapping[str, Millislices]) -> HeldRuns:
    """Say of jobs what each holds, and where."""
    priced = tuple(priced_run(job, costs) for job in jobs)
    places = defaultdict[tuple[str, str], list[PricedRun]](list)
    for one in priced:
        places[one.place].append(one)
    return HeldRuns(jobs, priced, dict(places))


def priced_run(job: JobView, costs: Mapping[str, Millislices]) -> PricedRun:
    """What one run holds."""
    return PricedRun(job, job_cost(job, costs), (job.account, job.qos))


@dataclass(frozen=True)
class Holdings:
    """Jobs of managed partitions that have not ended (``demand.holdings``).

    A round asks many times what jobs hold, and who waits in which QOS.

    Attributes:
        held: jobs that hold what they were allotted.
        others: jobs that hold nothing.
        queues: the same jobs by QOS.
        costs: millislices of an instance, by GRES type.
        models: GPU model of an instance, by GRES type; limits on models bind no others.
    """

    held: HeldRuns
    others: tuple[JobView, ...] = field(hash=False)
    queues: Mapping[str, QosQueue] = field(hash=False, compare=False)
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)

    def with_others(self, others: tuple[JobView, ...]) -> "Holdings":
        """The same runs beside other jobs."""
        return replace(self, others=others, queues=queues_of(others, self.costs, self.queues))

    @property
    def runs(self) -> tuple[JobView, ...]:
        """The jobs that hold what they were allotted."""
        return self.held.jobs

    @property
    def priced(self) -> Sequence[PricedRun]:
        """What each of the runs holds."""
        return self.held.priced

    @property
    def places(self) -> Mapping[tuple[str, str], Sequence[PricedRun]]:
        """The runs of each account in each QOS."""
        return self.held.places

    @property
    def ending(self) -> tuple[PricedRun, ...]:
        """Those of the runs that are completing, see ``HeldRuns.ending``."""
        return self.held.ending

    @property
    def by_qos(self) -> Mapping[tuple[str, str], int]:
        """Millislices that runs hold, by account and QOS; 0 for those without GPUs."""
        return self.held.by_qos

    @property
    def by_tenant(self) -> Mapping[str, int]:
        """Millislices that each tenant's runs hold, or each account's without a tenant's QOS."""
        return self.held.by_tenant

    @property
    def doubtful(self) -> tuple[JobView, ...]:
        """Jobs with unreadable records: what they hold is not known."""
        waiting = (job for queue in self.queues.values() for job in queue.doubtful)
        return (*self.held.doubtful, *waiting)

    @property
    def in_own(self) -> Iterator[JobView]:
        """Those of them that are in the own QOS of a tenant, maybe gone."""
        for qos, queue in self.queues.items():
            if is_own(qos):
                yield from queue.seen

    def own(self, tenant: str) -> int:
        """Millislices that runs hold in the tenant's own QOS.

        As in Slurm's limit, accounts without a quota below the tenant count, which have its QOS.
        """
        return self.held.in_qos.get(qos_name(tenant), 0)


def queues_of(
    others: Iterable[JobView],
    costs: Mapping[str, Millislices],
    known: Mapping[str, QosQueue] | None = None,
) -> Mapping[str, QosQueue]:
    """The jobs by QOS; a queue of the very same records as a ``known`` one is that one."""
    known, found = known or {}, defaultdict[str, list[JobView]](list)
    for job in others:
        found[job.qos].append(job)
    return {
        qos: before
        if (before := known.get(qos)) is not None
        and len(jobs) == len(before.seen)
        and all(map(is_, jobs, before.seen))
        else QosQueue(qos, tuple(jobs), costs)
        for qos, jobs in found.items()
    }
