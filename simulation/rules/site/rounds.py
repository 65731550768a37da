"""Rounds of quotas on the model: loans and recalls, then the limits that follow from them.

A round is planned each time, and made when the daemon would make it (``round/due.py``). The
ledger is a value: each round that is made replaces its loans and recalls.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from slicewise.cluster.language.billing import MILLISLICES
from slicewise.cluster.language.jobs import JobView, NodeView, RunOfJob
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.site.budgets import SiteBudgets
from slicewise.simulation.rules.site.index import NodeIndex
from slicewise.simulation.rules.site.limits_of_round import (
    account_limits,
    associations,
    conf_of,
    qos_limits,
)
from slicewise.simulation.rules.site.plans import SlicewisePlan
from slicewise.simulation.rules.site.spare_budgets import SpareBudgets
from slicewise.simulation.rules.slurm_model.job_records import EndedRun
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.simulation.rules.snapshot.site import untouched_ledger
from slicewise.slurm_plugin.rules.accounting.charging import Rates
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.quota.calendar import in_force
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Policy, Recall
from slicewise.slurm_plugin.rules.round.due import REGULAR_S, LastRound, granted, is_due, needs
from slicewise.slurm_plugin.rules.round.round import RoundPlan, plan
from slicewise.slurm_plugin.rules.round.wanted import SlurmNow, wanted_limits
from slicewise.slurm_plugin.rules.round.world import SlurmView, World, world_of


@dataclass(frozen=True)
class SiteRound:
    """What a round changes.

    Attributes:
        plan: as of now, also where the round was not made: then ``standings`` are those in force.
        spare: what budgets have left beside all jobs.
        qos, accounts: limits that are to be set in Slurm, by name.
    """

    plan: RoundPlan
    policy: Policy
    standings: Mapping[str, Standing]
    spare: SpareBudgets
    qos: Mapping[str, QosLimits] = field(default_factory=dict, hash=False)
    accounts: Mapping[str, AccountLimits] = field(default_factory=dict, hash=False)


class QuotaRounds:
    """The ledger of a simulated site, and what Slurm was last told."""

    def __init__(self, by: SlicewisePlan, cluster: SimulatedCluster, now_s: float) -> None:
        self._settings = by.settings
        self._zone = by.settings.ledger.time_zone
        self._partitions = frozenset(by.settings.cluster.partitions)
        self._nodes = NodeIndex(self._partitions)
        rates = Rates(
            cluster.name,
            self._partitions,
            by.settings.costs,
            payers(by.tenants),
            by.settings.ledger.node_failure,
        )
        self._budgets = SiteBudgets(by.tenants, rates, self._zone, now_s, by.spent)
        self._ledger = replace(
            untouched_ledger(by.tenants, moment(now_s, self._zone)),
            change_id=1,
            compiled_id=1,
            windows=by.windows,
        )
        self._associations = associations(cluster, by.tenants)
        self._conf = conf_of(cluster, by.settings.cluster.partitions)
        self._cluster_name = cluster.name
        self._base = {
            name: AccountLimits(parent, share=cluster.shares.get(name, 1))
            for name, parent in cluster.accounts.items()
        } | dict(by.accounts)
        self._own_qos = by.qos
        self._qos: Mapping[str, QosLimits] = {}
        self._accounts: Mapping[str, AccountLimits] = {}
        self._last = LastRound(-inf, 0.0)
        self._made: SiteRound | None = None
        self._is_left = False

    @property
    def regular_due_s(self) -> float:
        """When what the last plan left undone is due at the latest; inf if it was carried out."""
        return self._last.ended_s + REGULAR_S if self._is_left else inf

    @property
    def ledger(self) -> LedgerView:
        """The ledger as of the last round."""
        return self._ledger

    @property
    def recalls(self) -> tuple[Recall, ...]:
        """What lenders take back at present."""
        return self._ledger.recalls

    def policy_at(self, now_s: float) -> Policy:
        """The policy that the calendar gives at this moment."""
        return in_force(self._ledger.tenants, self._ledger.windows, moment(now_s, self._zone))

    def round(
        self,
        now_s: float,
        jobs: tuple[JobView, ...],
        nodes: tuple[NodeView, ...],
        services: tuple[ServiceView, ...] = (),
        ended: Iterable[EndedRun] = (),
        *,
        by_holder: JobsByHolder,
        evicting: frozenset[RunOfJob] = frozenset(),
        stuck: frozenset[int] = frozenset(),
        may_requeue: frozenset[RunOfJob] = frozenset(),
        kill_wait_s: float = 0,
        lately: Mapping[str, float],
    ) -> SiteRound:
        """Lend and recall, if the daemon would now, and find which of Slurm's limits change.

        ``there`` are the jobs of managed partitions among all ``jobs``, and ``ended`` the runs that
        have ended since the last round.
        """
        self._budgets.follow(jobs, ended, now_s)
        seen = SlurmView(
            jobs,
            nodes,
            services,
            evicting=evicting,
            lately=lately,
            stuck=stuck,
            may_requeue=may_requeue,
            kill_wait_s=kill_wait_s,
            by_holder=by_holder,
            free=self._nodes.look(nodes),
        )
        before = replace(
            self._ledger,
            when=moment(now_s, self._zone),
            balances=self._budgets.balances,
            rollovers=dict(self._budgets.rollovers),
            reservations=self._budgets.reservations,
        )
        asked = world_of(before, self._settings, seen)
        round_plan, made = plan(asked), self._made
        unserved: frozenset[tuple[str, int]] = frozenset()
        self._is_left = False
        if made is not None and not self._is_another(before):
            wanted = needs(asked, round_plan, made.standings)
            self._is_left = not is_due(self._last, wanted, now_s)
            if self._is_left:
                return replace(made, plan=round_plan, qos={}, accounts={})
            unserved = wanted.limits
        self._made = made = self._make(asked, round_plan, jobs, nodes)
        self._last = LastRound(now_s, 0.0, frozenset() if made.qos or made.accounts else unserved)
        return made

    def _is_another(self, now: LedgerView) -> bool:
        """Whether the policy or what is granted to budgets is not as the last round had it."""
        before, policy = self._ledger, now.policy
        return policy != before.policy or granted(policy, now.balances) != granted(
            policy, before.balances
        )

    def _make(
        self,
        asked: World,
        round_plan: RoundPlan,
        jobs: tuple[JobView, ...],
        nodes: tuple[NodeView, ...],
    ) -> SiteRound:
        """Carry a plan out."""
        inputs = asked.after(round_plan.loans, round_plan.recalls)
        self._ledger = inputs.ledger_view
        shown = SlurmNow(self._associations, (), self._conf, jobs, nodes)
        wanted = wanted_limits(inputs, shown, self._cluster_name, MILLISLICES)
        settings = wanted.limits.settings
        qos = qos_limits(settings, self._own_qos)
        accounts = account_limits(settings, self._base)
        changed = SiteRound(
            plan=round_plan,
            policy=inputs.policy,
            standings=wanted.allowed.standings,
            spare=SpareBudgets(
                inputs.policy,
                wanted.allowed.run_minutes,
                wanted.found.in_use.runs,
                inputs.capacity_millislices,
            ),
            qos={name: limits for name, limits in qos.items() if self._qos.get(name) != limits},
            accounts={
                name: account
                for name, account in accounts.items()
                if self._accounts.get(name) != account
            },
        )
        self._qos, self._accounts = qos, accounts
        return changed
