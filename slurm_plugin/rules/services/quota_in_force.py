"""Holds the policy that is in force in Slurm, and all limits that follow from it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.cluster.language.periods import next_start_s
from slicewise.cluster.rpc.messages import BudgetView, ServiceView, TenantView
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.accounting.overview import with_those_below
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.snapshot import AdmissionRules, Snapshot
from slicewise.slurm_plugin.rules.common.qos_names import is_own
from slicewise.slurm_plugin.rules.quota.attainable import Attainable, attainable, period_budgets
from slicewise.slurm_plugin.rules.quota.demand import (
    guaranteed_instances,
    guaranteed_use,
    waiting_instances,
)
from slicewise.slurm_plugin.rules.quota.nodes import capacity, has_gpus, node_costs, shared_costs
from slicewise.slurm_plugin.rules.quota.overcommitment import Overcommitment, followed
from slicewise.slurm_plugin.rules.quota.standings import Standing, beyond_loans, limits_by_qos
from slicewise.slurm_plugin.rules.quota.tenants import (
    downward,
    effective_nominal,
    guaranteed_quota,
    parent,
    payers,
)
from slicewise.slurm_plugin.rules.quota.type_limits import binding_type_limits, own_type_limits
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.services.slot_actions import TenantCapacity
from slicewise.slurm_plugin.rules.services.slot_quotas import SlotQuotas
from slicewise.slurm_plugin.rules.services.state import (
    Observation,
    gpu_types,
    living,
    tenant_views,
    tokens,
    used_by_tenant,
)

_NEWEST_S = 10.0
"""Seconds for which a snapshot lists a new job's token: longer than admission counts what it has
admitted."""


class QuotaInForce:
    """What tenants may hold now, and the most they could ever hold.

    Attributes:
        policy: the policy as compiled last.
        standings: what each tenant may hold now, as compiled last; empty before that.
        accounts_by_uid: accounts that each user may submit to, as in ``Snapshot``.
        run_minutes: millislice-minutes that jobs may still run, by tenant with a budget.
        left_millislice_s: what was left of each budget that has begun, at the last look.
        left_tokens: what was left of each budget of tokens, as the daemon that leads booked last.
        loans, recalls: as the ledger had them at the last round.
        changed_by_hand: settings in Slurm that were changed outside Slicewise, since the start.
        overcommitment: how quotas exceed the cluster; None if they do not.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._partitions = frozenset(settings.cluster.partitions)
        self._memory_mib = settings.memory_mib
        self._highest: Policy | None = None
        self._nominal: Mapping[str, int] = {}
        self._guaranteed: Mapping[str, int] = {}
        self._type_limits: Mapping[str, Mapping[str, int]] = {}
        self._types: Mapping[str, Mapping[str, int]] = {}
        self._budgets: Mapping[str, int] = {}
        self._payers: Mapping[str, str] = {}
        self._bounds = Attainable({}, {}, {})
        self._capacity: int | None = None
        self.policy: Policy = {}
        self.standings: Mapping[str, Standing] = {}
        self.accounts_by_uid: Mapping[int, Mapping[str, frozenset[str]]] = {}
        self.run_minutes: Mapping[str, int] = {}
        self.left_millislice_s: Mapping[str, int] = {}
        self.left_tokens: Mapping[str, int] = {}
        self.loans: tuple[Loan, ...] = ()
        self.recalls: tuple[Recall, ...] = ()
        self.changed_by_hand = 0
        self.overcommitment: Overcommitment | None = None
        self._nodes: frozenset[str] = frozenset()

    def set_policy(
        self,
        policy: Policy,
        accounts_by_uid: Mapping[int, Mapping[str, frozenset[str]]],
        highest: Policy | None,
    ) -> None:
        """Take the policy in force, and ``highest``, the most that the calendar ever gives."""
        self.policy, self._highest, self.accounts_by_uid = policy, highest, accounts_by_uid
        self._nominal = effective_nominal(policy)
        self._guaranteed = guaranteed_quota(policy)
        costs, models = self._settings.costs, self._settings.models
        self._types = own_type_limits(policy, costs, models)
        self._budgets, self._payers = period_budgets(policy), payers(policy)
        self._bounds = attainable(policy, highest, self._capacity)
        self._type_limits = binding_type_limits(policy, costs, models)

    def set_standings(
        self, standings: Mapping[str, Standing], run_minutes: Mapping[str, int]
    ) -> None:
        """Take each tenant's limits in Slurm, and the millislice-minutes that jobs of tenants
        with a budget may still run.
        """
        self.standings, self.run_minutes = standings, run_minutes

    @property
    def limits(self) -> Mapping[str, int]:
        """Millislices that jobs may hold now in Slurm in each tenant's QOS."""
        return limits_by_qos(self.standings)

    def used(self, jobs: Iterable[JobView]) -> Mapping[str, int]:
        """Millislices that each tenant's jobs hold."""
        return used_by_tenant(jobs, self._partitions, self._settings.costs)

    def views(self, used: Mapping[str, int], at_s: float) -> tuple[TenantView, ...]:
        """Each tenant as the launcher sees it at ``at_s``; ``used`` is what its own jobs hold."""
        most = {name: standing.limit_millislices for name, standing in self.standings.items()}
        together, budgets = with_those_below(self.policy, used), self._binding_budgets(int(at_s))
        return tenant_views(self._nominal, used, together, most, budgets)

    def _binding_budgets(self, at_s: int) -> Mapping[str, BudgetView]:
        """Return the budget that leaves the jobs of each tenant the least, its own or one above."""
        budgets: dict[str, BudgetView] = {}
        for name in downward(self.policy):
            budget = self.policy[name].budget
            bounds = [budgets[above]] if (above := parent(self.policy, name)) in budgets else []
            if budget is not None and name in self.run_minutes:
                resets_s = next_start_s(budget.period, at_s, self._settings.ledger.time_zone)
                left = self.run_minutes[name]
                bounds += [BudgetView(payer=name, run_millislice_min=left, resets_s=resets_s)]
            if bounds:
                budgets[name] = min(bounds, key=lambda budget: budget.run_millislice_min)
        return budgets

    @property
    def highest_limits(self) -> Mapping[str, int]:
        """The most millislices that each tenant's jobs could ever hold, with all that may be
        borrowed.
        """
        return self._bounds.highest_limits

    def room(
        self,
        service: ServiceView,
        jobs: Sequence[JobView],
        services: Sequence[ServiceView],
        *,
        borrows: bool,
    ) -> TenantCapacity | None:
        """The room of the service's tenant in its own QOS, and with what it may borrow, if it
        ``borrows`` now.

        None if it has no quota.
        """
        quotas = SlotQuotas(
            self._guaranteed,
            self._bounds,
            self.standings,
            self._partitions,
            self._settings.costs,
            self._types,
        )
        return quotas.room(service, jobs, services, borrows=borrows)

    def _follow_capacity(self, nodes: Iterable[NodeView], whole: int | None, now_s: float) -> None:
        """Note whether quotas exceed the capacity, and which nodes are no longer in Slurm."""
        with_gpus = frozenset(node.name for node in nodes if has_gpus(node, self._partitions))
        self._nodes |= with_gpus
        before, gone = self.overcommitment, self._nodes - with_gpus
        self.overcommitment = followed(before, self.policy, whole, gone, now_s)

    def snapshot(
        self,
        seen: Observation,
        services: tuple[ServiceView, ...],
        used: Mapping[str, int],
        shares: Mapping[str, float],
    ) -> Snapshot:
        """Build admission's snapshot from a look at Slurm and the services ``found`` in it."""
        settings, costs, partitions = self._settings, self._settings.costs, self._partitions
        jobs, nodes = seen.jobs, seen.nodes
        waiting = waiting_instances(jobs, partitions)
        whole = capacity(nodes, partitions, costs, settings.whole_boards) or None
        self._follow_capacity(nodes, whole, seen.at_s)
        if whole != self._capacity:
            self._capacity, self._bounds = whole, attainable(self.policy, self._highest, whole)
        return Snapshot(
            partitions=partitions,
            quotas=self._guaranteed,
            borrowing_limits=self._bounds.borrowing_limits,
            highest_limits=self._bounds.highest_limits,
            type_limits=self._type_limits,
            budgets={
                # More after a grant to the payer.
                tenant: max(most, self.run_minutes.get(self._payers[tenant], 0) * 60)
                for tenant, most in self._budgets.items()
            },
            used=used,
            guaranteed_used=self._guaranteed_used(jobs),
            shares=shares,
            gpu_types=gpu_types(nodes, costs, self._memory_mib, waiting),
            node_costs=node_costs(nodes, partitions, costs),
            shared=shared_costs(nodes, partitions, costs),
            services=living(services, jobs),
            accounts_by_uid=self.accounts_by_uid,
            formula=formula_of(settings.priority),
            rules=AdmissionRules(
                settings.admission.untyped,
                frozenset(settings.priority.high_class_for),
                settings.qos,
                settings.gateway.places,
            ),
            newest=tokens(jobs, seen.at_s - _NEWEST_S),
            highest_quotas=self._bounds.quotas,
            guaranteed_types=self._types,
            guaranteed_instances=guaranteed_instances(jobs, partitions) if self._types else {},
        )

    def _guaranteed_used(self, jobs: Sequence[JobView]) -> Mapping[str, int]:
        """Millislices of guaranteed quotas that jobs hold or wait for.

        A job that comes goes where ``QuotaRoom`` has room for it.
        """
        partitions, costs = self._partitions, self._settings.costs
        elsewhere = used_by_tenant((job for job in jobs if not is_own(job.qos)), partitions, costs)
        beyond = beyond_loans(self.policy, self.standings, elsewhere)
        return Counter(guaranteed_use(jobs, partitions, costs)) + Counter(beyond)
