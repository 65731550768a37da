"""The jobs of managed partitions at one moment, and what those that run hold, summed up once."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import NamedTuple

from cluster.language.jobs import JobState, JobView
from cluster.language.units import Millislices
from slurm_plugin.common.costs import run_cost
from slurm_plugin.common.qos_names import qos_name


_OF_RUNS = frozenset({"priced", "ending", "by_qos", "by_account"})
"""What is computed once and follows from the runs alone."""


class PricedRun(NamedTuple):
    """A run with the millislices that it holds, and the account and QOS in which it holds them."""

    job: JobView
    cost_millislices: Millislices
    place: tuple[str, str]


@dataclass(frozen=True)
class Holdings:
    """Jobs of managed partitions that have not ended (``demand.holdings``).

    A round asks many times what jobs hold, and few of them change between two rounds.

    Attributes:
        runs: jobs that hold what they were allotted.
        others: jobs that hold nothing.
        costs: millislices of an instance, by GRES type.
    """

    runs: tuple[JobView, ...] = field(hash=False)
    others: tuple[JobView, ...] = field(hash=False)
    costs: Mapping[str, Millislices] = field(hash=False)

    def with_others(self, others: tuple[JobView, ...]) -> "Holdings":
        """The same runs beside other jobs; what is known of the runs is kept."""
        found = Holdings(self.runs, others, self.costs)
        for name in _OF_RUNS & vars(self).keys():
            vars(found)[name] = vars(self)[name]
        return found

    def knowing(self, before: "Holdings") -> "Holdings":
        """The same jobs; what an earlier look found of the very same records is kept.

        Both looks have the same costs. Few jobs change between two looks.
        """
        if len(self.runs) == len(before.runs) and all(map(is_, self.runs, before.runs)):
            return before.with_others(self.others)
        known = {id(one.job): one for one in before.priced}
        found = Holdings(self.runs, self.others, self.costs)
        vars(found)["priced"] = tuple(known.get(id(job)) or found.price(job) for job in self.runs)
        return found

    def price(self, job: JobView) -> PricedRun:
        """What one of the runs holds."""
        return PricedRun(job, run_cost(job.gpus, self.costs), (job.account, job.qos))

    @cached_property
    def priced(self) -> tuple[PricedRun, ...]:
        """What each of the runs holds."""
        return tuple(map(self.price, self.runs))

    @cached_property
    def ending(self) -> tuple[PricedRun, ...]:
        """Those of them that are completing: they hold their GPUs, and Slurm counts them in no
        limit any more.
        """
        return tuple(one for one in self.priced if one.job.state is JobState.COMPLETING)

    @cached_property
    def by_qos(self) -> Mapping[tuple[str, str], int]:
        """Millislices that runs hold, by account and QOS; 0 for those without GPUs."""
        found = defaultdict[tuple[str, str], int](int)
        for _, cost, place in self.priced:
            found[place] += cost
        return dict(found)

    @cached_property
    def by_account(self) -> Mapping[str, int]:
        """Millislices that each account's runs hold."""
        found = defaultdict[str, int](int)
        for (account, _), cost in self.by_qos.items():
            found[account] += cost
        return dict(found)

    @cached_property
    def doubtful(self) -> tuple[JobView, ...]:
        """Jobs with unreadable records: what they hold is not known."""
        return tuple(job for job in (*self.runs, *self.others) if job.is_doubtful)

    def own(self, account: str) -> int:
        """Millislices that the account's runs hold in its own QOS."""
        return self.by_qos.get((account, qos_name(account)), 0)
