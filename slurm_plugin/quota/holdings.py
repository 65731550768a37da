"""The jobs of managed partitions at one moment: what runs hold, and who waits in which QOS."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import NamedTuple

from cluster.language.jobs import JobState, JobView
from cluster.language.units import Millislices
from slurm_plugin.common.costs import job_cost
from slurm_plugin.common.qos_names import holder, is_own, qos_name

_OF_RUNS = frozenset({"by_id", "places", "ending", "by_qos", "by_tenant", "_in_qos"})
"""What is computed once and follows from the runs alone."""


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

    What follows from it alone is kept with it (``per_record``): most queues are the same from look
    to look.

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
class Holdings:
    """Jobs of managed partitions that have not ended (``demand.holdings``).

    A round asks many times what jobs hold, and few of them change between two rounds.

    Attributes:
        runs: jobs that hold what they were allotted.
        others: jobs that hold nothing.
        costs: millislices of an instance, by GRES type.
        models: GPU model of an instance, by GRES type; limits on models bind no others.
    """

    runs: tuple[JobView, ...] = field(hash=False)
    others: tuple[JobView, ...] = field(hash=False)
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)

    def with_others(self, others: tuple[JobView, ...]) -> "Holdings":
        """The same runs beside other jobs; what is known of runs and same queues is kept."""
        found = Holdings(self.runs, others, self.costs, self.models)
        for name in _OF_RUNS & vars(self).keys():
            vars(found)[name] = vars(self)[name]
        vars(found)["queues"] = _queues(others, self.costs, self.queues)
        return found

    def knowing(self, before: "Holdings") -> "Holdings":
        """The same jobs; what an earlier look found of the very same records is kept.

        Both looks have the same costs and models. Few jobs change between two looks.
        """
        if len(self.runs) == len(before.runs) and all(map(is_, self.runs, before.runs)):
            return before.with_others(self.others)
        found, known = Holdings(self.runs, self.others, self.costs, self.models), before.by_id
        there = {id(job): job for job in self.runs}
        new = {key: found.price(there[key]) for key in there.keys() - known.keys()}
        priced = {**known, **new}
        by_id = {key: priced[key] for key in there}
        come = list(new.values())
        gone = [known[key] for key in known.keys() - by_id.keys()]
        others = {one.place for one in (*come, *gone)}
        places = {place: runs for place, runs in before.places.items() if place not in others}
        sums = {place: amount for place, amount in before.by_qos.items() if place not in others}
        for place in others:
            stay = (one for one in before.places.get(place, ()) if id(one.job) in by_id)
            if runs := (*stay, *(one for one in come if one.place == place)):
                places[place], sums[place] = runs, _sum(runs)
        queues = _queues(self.others, self.costs, before.queues)
        vars(found).update(by_id=by_id, places=places, by_qos=sums, queues=queues)
        return found

    def price(self, job: JobView) -> PricedRun:
        """What one of the runs holds."""
        return PricedRun(job, job_cost(job, self.costs), (job.account, job.qos))

    @cached_property
    def by_id(self) -> Mapping[int, PricedRun]:
        """What each of the runs holds, by the record itself, in the order of the runs."""
        return {id(job): self.price(job) for job in self.runs}

    @property
    def priced(self) -> Iterable[PricedRun]:
        """What each of the runs holds."""
        return self.by_id.values()

    @cached_property
    def places(self) -> Mapping[tuple[str, str], Sequence[PricedRun]]:
        """The runs of each account in each QOS."""
        found = defaultdict[tuple[str, str], list[PricedRun]](list)
        for one in self.priced:
            found[one.place].append(one)
        return dict(found)

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
        return {place: _sum(runs) for place, runs in self.places.items()}

    @cached_property
    def by_tenant(self) -> Mapping[str, int]:
        """Millislices that each tenant's runs hold, or each account's without a tenant's QOS."""
        found = defaultdict[str, int](int)
        for place, cost in self.by_qos.items():
            found[holder(*place)] += cost
        return dict(found)

    @cached_property
    def doubtful(self) -> tuple[JobView, ...]:
        """Jobs with unreadable records: what they hold is not known."""
        runs = [job for job in self.runs if job.is_doubtful]
        return (*runs, *(job for queue in self.queues.values() for job in queue.doubtful))

    @cached_property
    def queues(self) -> Mapping[str, QosQueue]:
        """The jobs that hold nothing, by QOS."""
        return _queues(self.others, self.costs, {})

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
        return self._in_qos.get(qos_name(tenant), 0)

    @cached_property
    def _in_qos(self) -> Mapping[str, int]:
        found = defaultdict[str, int](int)
        for (_, qos), cost in self.by_qos.items():
            found[qos] += cost
        return found


def _queues(
    others: Iterable[JobView], costs: Mapping[str, Millislices], known: Mapping[str, QosQueue]
) -> Mapping[str, QosQueue]:
    """The jobs by QOS; a queue of the very same records as a ``known`` one is that one."""
    found = defaultdict[str, list[JobView]](list)
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


def _sum(runs: Iterable[PricedRun]) -> int:
    return sum(one.cost_millislices for one in runs)
