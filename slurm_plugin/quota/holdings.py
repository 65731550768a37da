"""The jobs of managed partitions at one moment, and what those that run hold, summed up once."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cluster.language.jobs import JobState, JobView
from cluster.language.units import Millislices
from slurm_plugin.common.costs import run_cost
from slurm_plugin.common.qos_names import qos_name


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
        for name in {"priced", "ending", "by_qos", "by_account"} & vars(self).keys():
            vars(found)[name] = vars(self)[name]
        return found

    @cached_property
    def priced(self) -> tuple[tuple[JobView, Millislices], ...]:
        """The runs, each with the millislices that it holds."""
        costs = self.costs
        return tuple((job, run_cost(job.gpus, costs)) for job in self.runs)

    @cached_property
    def ending(self) -> tuple[tuple[JobView, Millislices], ...]:
        """Those of them that are completing: they hold their GPUs, and Slurm counts them in no
        limit any more.
        """
        return tuple(one for one in self.priced if one[0].state is JobState.COMPLETING)

    @cached_property
    def by_qos(self) -> Mapping[tuple[str, str], int]:
        """Millislices that runs hold, by account and QOS; 0 for those without GPUs."""
        found = defaultdict[tuple[str, str], int](int)
        for job, cost in self.priced:
            found[job.account, job.qos] += cost
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
