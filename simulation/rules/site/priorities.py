"""Priorities on the model: follows what tenants have used, and sets waiting jobs' site_factor."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.slurm.interface import JobChange, Target, target_of
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.decayed_use import (
    DecayedUse,
    Holding,
    averages,
    folded,
    recorded,
    shares,
)
from slicewise.slurm_plugin.rules.admission.priority import Formula
from slicewise.slurm_plugin.rules.admission.priority_changes import PriorityInput, changes, ranked
from slicewise.slurm_plugin.rules.quota.tenants import effective_nominal
from slicewise.slurm_plugin.rules.quota.types import Policy

_AT_FIRST_S, _SAVED_S = 10.0, 60.0
"""Seconds' worth of changes at the beginning, as the daemon's after a rest, and at most: all
waiting jobs are looked at once a minute here, and the daemon makes their changes all along.
"""


@dataclass(frozen=True)
class PriorityRules:
    """The site's settings for priorities.

    Attributes:
        costs: of an instance, by GPU type.
        updates_per_s: changes in Slurm a second, on average.
        counts_past: whether loans depend on past use.
    """

    formula: Formula
    costs: Mapping[str, Millislices]
    half_life_s: float
    updates_per_s: float
    counts_past: bool


class SitePriorities:
    """Tenants' recent use, and the site_factor that each job has in Slurm."""

    def __init__(self, rules: PriorityRules, use: DecayedUse) -> None:
        """``use`` is that of the beginning."""
        self._rules = rules
        self._use = use
        self._factors: dict[int, int] = {}
        self._moved_s = use.at_s
        self._allowance = rules.updates_per_s * _AT_FIRST_S
        self.shares: Mapping[str, float] = {}

    @property
    def since_s(self) -> float:
        """Up to when use is counted, in Unix seconds."""
        return self._use.at_s

    @property
    def lately(self) -> Mapping[str, float]:
        """Millislices that each tenant has held on average; {} where loans do not ask."""
        return averages(self._use, self._rules.half_life_s) if self._rules.counts_past else {}

    def follow(
        self, policy: Policy, held: Mapping[str, int], holdings: Iterable[Holding], now_s: float
    ) -> None:
        """Let the time pass since the last call, at ``since_s``.

        ``held`` are millislices of each tenant that were held all the time since, ``holdings`` all
        others that held something: rounds may be far apart, so it is not enough to know what is
        held at each.
        """
        half_life_s, since_s = self._rules.half_life_s, self.since_s
        since = (replace(holding, start_s=max(holding.start_s, since_s)) for holding in holdings)
        gained = recorded(since, now_s, half_life_s).millislice_s
        before = folded(self._use, held, now_s, half_life_s).millislice_s
        names = sorted({*before, *gained})
        self._use = DecayedUse(
            now_s, {name: before.get(name, 0.0) + gained.get(name, 0.0) for name in names}
        )
        self.shares = shares(self._use, effective_nominal(policy), half_life_s)

    def note(self, job_id: int, site_factor: int) -> None:
        """Note what a job was submitted with."""
        self._factors[job_id] = site_factor

    def note_slot(self, job_id: int, site_factor: int) -> None:
        """Note what a service's slot was submitted with, unless it has got another one since."""
        self._factors.setdefault(job_id, site_factor)

    def forget(self, jobs: Iterable[JobView]) -> None:
        """Forget all others than these jobs."""
        ids = {job.job_id for job in jobs}
        self._factors = {key: value for key, value in self._factors.items() if key in ids}

    def due(
        self,
        jobs: Iterable[JobView],
        now_s: float,
        over: frozenset[int] = frozenset(),
        urgencies: Mapping[int, float] | None = None,
    ) -> Mapping[Target, JobChange]:
        """The changes that are due, as many as the daemon would make since the last time.

        ``over`` are the ids of jobs that Slurm passes over, ``urgencies`` those of
        services' backlogs, by array.
        """
        rules, passed_s = self._rules, now_s - self._moved_s
        self._moved_s = now_s
        self._allowance += rules.updates_per_s * passed_s
        self._allowance = min(self._allowance, rules.updates_per_s * _SAVED_S)
        standing = PriorityInput(self.shares, urgencies or {}, rules.costs, rules.formula, over)
        rankeds = changes(
            ranked(jobs, now_s, standing), self._factors, rules.formula, int(self._allowance)
        )
        self._allowance -= len(rankeds)
        self._factors |= {each.job.job_id: each.site_factor for each in rankeds}
        return {target_of(each.job): JobChange(site_factor=each.site_factor) for each in rankeds}
