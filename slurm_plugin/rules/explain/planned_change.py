"""Computes what the updates of a file of quotas would do together, and whom that would harm."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.periods import next_start_s, period_start_s
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.explain.change_report import (
    ChangeReport,
    Impact,
)
from slicewise.slurm_plugin.rules.explain.quota_impact import impacts
from slicewise.slurm_plugin.rules.explain.quota_plan import QuotaPlan, in_order, quota_plan
from slicewise.slurm_plugin.rules.limits.warnings import place_warning
from slicewise.slurm_plugin.rules.quota.accounts import (
    Accounts,
    depth,
    place_in_slurm,
    tenant_parent,
)
from slicewise.slurm_plugin.rules.quota.nodes import instances_of
from slicewise.slurm_plugin.rules.quota.quota_file import FileFaults
from slicewise.slurm_plugin.rules.quota.quota_texts import change_words
from slicewise.slurm_plugin.rules.quota.tenants import (
    ancestors,
    changed_together,
    newly_overcommitted_types,
    overcommitted_millislices,
)
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant, TenantUpdate
from slicewise.slurm_plugin.rules.round.world import World


@dataclass(frozen=True)
class PlannedChange:
    """A file's changes and their effects.

    Attributes:
        before, policy: as set and as it would be set, whatever the calendar says now.
        instances: those of managed GPUs by GRES type, as they are cut now.
        ended_windows: ids of calendar windows that end because their tenants are removed.
    """

    updates: tuple[TenantUpdate, ...]
    before: Policy = field(hash=False)
    policy: Policy = field(hash=False)
    plan: QuotaPlan
    impacts: tuple[Impact, ...]
    capacity_millislices: int | None
    instances: Mapping[str, int] = field(hash=False)
    accounts: Accounts = field(hash=False)
    ended_windows: tuple[int, ...]

    @property
    def named(self) -> frozenset[str]:
        """The tenants that the file names."""
        return frozenset(update.tenant for update in self.updates)

    @property
    def needs_overcommit(self) -> bool:
        """Whether the quotas at the top would exceed the cluster by more than they do, in slices or
        of a type.

        The plan may not show that: a window of the calendar may hide it now.
        """
        whole = self.capacity_millislices
        if whole is None:
            return False
        was, then = (
            overcommitted_millislices(policy, whole) for policy in (self.before, self.policy)
        )
        return then > was or bool(
            newly_overcommitted_types(self.before, self.policy, self.instances)
        )

    @property
    def words(self) -> Iterator[str]:
        """What would be set, a line for each tenant that the file names."""
        for name in sorted(self.named):
            yield change_words(name, self.before.get(name), self.policy.get(name))

    @property
    def touched(self) -> frozenset[str]:
        """Tenants that the file names or that change otherwise, and the tenants above them."""
        every, policy = self.plan.tenants, self.plan.after.policy
        changed = {
            tenant_plan.tenant for tenant_plan in every if tenant_plan.before != tenant_plan.after
        } | self.named
        above = {other for name in changed & policy.keys() for other in ancestors(policy, name)}
        return frozenset(changed | above)

    def report(self, cluster: str) -> ChangeReport:
        """What people are told; ``cluster`` is the cluster's name in Slurm."""
        every, touched = self.plan.tenants, self.touched
        tenants = tuple(plan for plan in every if plan.tenant in touched)
        return ChangeReport(
            changes=tuple(self.words),
            warnings=tuple(self.place_warnings(cluster)),
            tenants=tenants,
            unchanged=len(every) - len(tenants),
            loans=self.plan.loans,
            harms=self.impacts,
            hidden=tuple(self.hidden),
            ended_windows=self.ended_windows,
            needs_overcommit=self.needs_overcommit,
        )

    @property
    def hidden(self) -> list[str]:
        """Tenants for which the calendar has other quotas in force now than the file sets."""
        now = self.plan.after.policy
        return sorted(name for name in self.named if now.get(name) != self.policy.get(name))

    def place_warnings(self, cluster: str) -> Iterator[str]:
        """Warn of tenants that are elsewhere in Slurm: limits bind along Slurm's own tree."""
        for update in self.updates:
            name, place = update.tenant, update.parent
            if place is None or name not in self.policy:
                continue
            if (slurms := tenant_parent(name, self.accounts, self.policy)) != place:
                yield place_warning(name, place, slurms, cluster)


def planned_change(
    updates: Sequence[TenantUpdate],
    faults: FileFaults,
    accounts: Accounts,
    inputs: World,
    zone: str,
) -> PlannedChange:
    """Compute the effects of a file's updates; ``zone`` is the time zone of budgets' periods.

    ``accounts`` are those of Slurm now. Raises InvalidInputError (SW-INPUT-FILE) with all that is
    refused of the file, and what it would set without that.
    """
    policy, now_s = inputs.ledger_view.tenants, inputs.ledger_view.now_s
    updates = in_order(policy, _placed(updates, policy, accounts, faults))
    updates, after = _changed(policy, updates, faults)
    named = (update.tenant for update in updates)
    faults.check([change_words(name, policy.get(name), after.get(name)) for name in named])
    plan = quota_plan(inputs, after, _periods(after, now_s, zone))
    return PlannedChange(
        updates=updates,
        before=policy,
        policy=after,
        plan=plan,
        impacts=impacts(inputs, plan, _period_ends(after, now_s, zone)),
        capacity_millislices=inputs.capacity_millislices,
        instances=instances_of(inputs.slurm_view.nodes, inputs.rules.partitions),
        accounts=accounts,
        ended_windows=tuple(
            window.window_id
            for window in inputs.ledger_view.windows
            if window.tenant in policy.keys() - after.keys()
        ),
    )


def _changed(
    policy: Policy, updates: Sequence[TenantUpdate], faults: FileFaults
) -> tuple[tuple[TenantUpdate, ...], Policy]:
    """Return the updates that can be made together without the faulty ones, and what they make.

    What is refused is noted. Others may depend on it, so these are tried again without it.
    """
    right = tuple(update for update in updates if update.tenant not in faults.tenants)
    while True:
        after, refused = changed_together(policy, right)
        for tenant, error in refused.items():
            faults.add(tenant, error)
        left = tuple(update for update in right if update.tenant not in faults.tenants)
        if len(left) == len(right):
            return right, after
        right = left


def _placed(
    updates: Sequence[TenantUpdate], policy: Policy, accounts: Accounts, faults: FileFaults
) -> tuple[TenantUpdate, ...]:
    """Return the updates, with a parent for new tenants if the file names none.

    That is the nearest tenant above in Slurm. New tenants that are refused are left out and noted.
    """
    removed = {update.tenant for update in updates if update.removed}
    placed = {name: tenant for name, tenant in policy.items() if name not in removed}
    in_place = []
    for update in sorted(updates, key=lambda update: depth(update.tenant, accounts)):
        if update.tenant in policy or update.removed:
            in_place.append(update)
            continue
        place = faults.tried(update.tenant, place_in_slurm, placed, update.tenant, accounts)
        if place is not None:
            in_place.append(update if update.parent is not None else replace(update, parent=place))
            placed[update.tenant] = Tenant(update.tenant, place, Quota(Millislices(0)))
    return tuple(in_place)


def _periods(policy: Policy, now_s: int, zone: str) -> Mapping[str, int]:
    return {
        name: period_start_s(tenant.budget.period, now_s, zone)
        for name, tenant in policy.items()
        if tenant.budget is not None
    }


def _period_ends(policy: Policy, now_s: int, zone: str) -> Mapping[str, int]:
    ends_s = {
        name: next_start_s(tenant.budget.period, now_s, zone)
        for name, tenant in policy.items()
        if tenant.budget is not None
    }
    return {name: end_s for name, end_s in ends_s.items() if end_s is not None}
