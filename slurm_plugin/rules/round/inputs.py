"""The input of all quota decisions: the ledger, Slurm and the settings at one moment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import JobView, NodeView, RunOfJob
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.limits.budget_parts import as_budgets_let
from slicewise.slurm_plugin.rules.limits.desired import Allowed
from slicewise.slurm_plugin.rules.quota.demand import (
    capacity,
    free_by_node,
    free_on_nodes,
    holdings,
    qos_use,
)
from slicewise.slurm_plugin.rules.quota.holdings import Holdings
from slicewise.slurm_plugin.rules.quota.standings import QosUse, Standing, by_use, standings
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.reclaim.busy import busy_tasks
from slicewise.slurm_plugin.rules.round.fitted import fitted


@dataclass(frozen=True)
class SlurmView:
    """One complete look at Slurm. Nothing is decided on an incomplete one.

    Attributes:
        evicting: runs that have been told to end, whether the look shows it or not.
        lately: millislices that each tenant's jobs have held on average; empty if past use does
            not count.
        stuck: job ids of jobs that had quota and GPUs, and did not start (``standstill``).
        may_requeue: runs of batch jobs on borrowed quota that may be requeued (``requeueable``).
        kill_wait_s: KillWait: within so many seconds these end once they are told to.
    """

    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    evicting: frozenset[RunOfJob] = frozenset()
    lately: Mapping[str, float] = field(default_factory=dict, hash=False)
    stuck: frozenset[int] = frozenset()
    may_requeue: frozenset[RunOfJob] = frozenset()
    kill_wait_s: float = 0

    def holdings(self, rules: "QuotaRules") -> Holdings:
        """The jobs of managed partitions as they were seen."""
        return holdings(self.jobs, rules.partitions, rules.costs, rules.models)

    def free(self, partitions: frozenset[str]) -> Mapping[str, Counter[str]]:
        """The instances that are free on nodes of the partitions, see ``demand.free_on_nodes``."""
        return free_on_nodes(self.nodes, partitions)


@dataclass(frozen=True)
class QuotaRules:
    """The site's settings for quota decisions.

    Attributes:
        partitions: the managed partitions.
        costs: millislices of an instance, by GRES type.
        whole_boards: the board that an instance is a part of, by GRES type.
        models: GPU model of an instance, by GRES type.
        grace_s, term_s, turn_s: settings of [lending], in seconds.
    """

    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    whole_boards: Mapping[str, WholeBoard] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    grace_s: int
    term_s: int
    turn_s: int


@dataclass(frozen=True)
class QuotaInputs:
    """Everything that quota decisions take into account.

    Attributes:
        fitted_before: nominals that an earlier decision on the same policy was made by; None if
            they are to be fitted to what is there now.
    """

    ledger_view: LedgerView
    seen: SlurmView
    rules: QuotaRules
    fitted_before: Policy | None = field(default=None, hash=False)

    def after(self, loans: tuple[Loan, ...], recalls: tuple[Recall, ...]) -> "QuotaInputs":
        """The inputs at the same moment with other loans and recalls in the ledger."""
        ledger_view = replace(self.ledger_view, loans=loans, recalls=recalls)
        return replace(self, ledger_view=ledger_view, fitted_before=self.fitted)

    @property
    def policy(self) -> Policy:
        """The policy in force at the moment of the ledger's view."""
        return self.ledger_view.policy

    @cached_property
    def fitted(self) -> Policy:
        """The same policy with nominals that the cluster's capacity covers: by it loans and limits
        are decided.
        """
        if self.fitted_before is not None:
            return self.fitted_before
        there = self.holdings
        free = free_by_node((one.job for one in there.ending), self.free)
        return fitted(self.policy, there, free, self.capacity_millislices)

    def fitted_as(self, before: "QuotaInputs") -> "QuotaInputs":
        """The same inputs, with nominals that are fitted as they were ``before``.

        Of another policy, with a tenant more for example, these say nothing.
        """
        if before.fitted == before.policy or self.policy != before.policy:
            return self
        return replace(self, fitted_before=before.fitted)

    @cached_property
    def seen_holdings(self) -> Holdings:
        """The jobs of managed partitions as they were seen."""
        return self.seen.holdings(self.rules)

    @cached_property
    def free(self) -> Mapping[str, Counter[str]]:
        """The instances that are free on the nodes that were seen."""
        return self.seen.free(self.rules.partitions)

    @cached_property
    def holdings(self) -> Holdings:
        """The jobs of managed partitions as their budgets let them start."""
        seen, changed = self.seen_holdings, self.judged
        if not changed:
            return seen
        return seen.with_others(tuple(changed.get(job.job_id, job) for job in seen.others))

    @cached_property
    def startable(self) -> Holdings:
        """The holdings without jobs that guaranteed quotas pay for, and whose GPUs are busy.

        What they need of their tenants' quotas is theirs again as soon as they find GPUs.
        """
        return _without(self._busy_tasks, self.holdings)

    @property
    def busy(self) -> Mapping[str, int]:
        """Millislices of these jobs, by tenant."""
        found = Counter[str]()
        for job in self.holdings.others if self._busy_tasks else ():
            if tasks := self._busy_tasks.get(job.job_id):
                found[holder_of(job)] += tasks * job_cost(job, self.rules.costs)
        return found

    @cached_property
    def _busy_tasks(self) -> Mapping[int, int]:
        """How many tasks of each job these are, by its id.

        There are none where Slurm leaves runs on loan alone for longer than the grace: what is lent
        could keep a job out for longer than that.
        """
        if self.rules.term_s > self.rules.grace_s:
            return {}
        return busy_tasks(self.fitted, self.holdings, self.free)

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """All jobs that were seen; those of managed partitions as their budgets let them start."""
        jobs, changed = self.seen.jobs, self.judged
        return tuple(changed.get(job.job_id, job) for job in jobs) if changed else jobs

    @cached_property
    def judged(self) -> Mapping[int, JobView]:
        """The jobs that their budgets let start otherwise than Slurm's reason says, by job id."""
        ledger_view, there = self.ledger_view, self.seen_holdings
        return as_budgets_let(self.policy, ledger_view.run_minutes, there, ledger_view.when.at_s)

    @property
    def held(self) -> Mapping[str, int]:
        """Millislices that each tenant's jobs hold."""
        return self.holdings.by_tenant

    @cached_property
    def use(self) -> QosUse:
        """How much of the limits of tenants' QOS jobs use and wait for."""
        return qos_use(self.fitted, _without(self._busy_tasks, self.seen_holdings))

    @cached_property
    def standings(self) -> Mapping[str, Standing]:
        """What each tenant may hold, given the ledger's loans and recalls."""
        ledger_view = self.ledger_view
        return standings(self.fitted, ledger_view.loans, ledger_view.recalls)

    def allowed(self, use: QosUse | None = None) -> Allowed:
        """The state that Slurm's limits should have.

        ``use`` is what jobs used at the caller's own look at Slurm; None means ``self.use``.
        """
        rules = self.rules
        return Allowed(
            policy=self.policy,
            standings=by_use(self.standings, use or self.use),
            run_minutes=self.ledger_view.run_minutes,
            costs=rules.costs,
            models=rules.models,
            term_s=rules.term_s,
            capacity_millislices=self.capacity_millislices,
        )

    @cached_property
    def capacity_millislices(self) -> int | None:
        """Millislices of all managed GPUs. None if there are none: something is wrong then, and
        no new loans are made.
        """
        rules = self.rules
        whole = capacity(self.seen.nodes, rules.partitions, rules.costs, rules.whole_boards)
        return whole or None


def _without(tasks: Mapping[int, int], there: Holdings) -> Holdings:
    """The holdings without so many waiting tasks of each job."""
    if not tasks:
        return there
    left = ((job, max(1, len(job.untouched)) - tasks.get(job.job_id, 0)) for job in there.others)
    others = (_first(job, count) for job, count in left if count > 0)
    return there.with_others(tuple(others))


def _first(job: JobView, count: int) -> JobView:
    """The job, an array with so many of its waiting tasks."""
    if count >= len(job.untouched):
        return job
    return replace(job, untouched=frozenset(sorted(job.untouched)[:count]))
