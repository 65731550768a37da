"""``slicewise tenant-quota plan FILE``: shows what a change of quotas would do, and makes it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from cluster.language.periods import next_start_s
from cluster.language.units import Millislices
from cluster.rpc.messages import ServiceView
from cluster.runtime.console import console, print_json
from cluster.settings.file import Settings, load_settings
from cluster.slurm_client.open import open_slurm
from slurm_plugin.accounting.budgets import Amend
from slurm_plugin.accounting.ledger_view import LedgerView
from slurm_plugin.cli.budget import amend_of, period_begun_s
from slurm_plugin.cli.tenant import place_in_slurm, place_warning
from slurm_plugin.cli.tenant_quota import check_capacity
from slurm_plugin.cli_common.in_force import force_text
from slurm_plugin.cli_common.options import (
    author_name,
    opened_ledger,
    require_in_force,
    wait_until_compiled,
)
from slurm_plugin.cli_common.quota_file import FileFaults, read_quota_file
from slurm_plugin.cli_common.slurm_look import SlurmLook
from slurm_plugin.cli_views import quota_plan as present
from slurm_plugin.cli_views.limits import differences_json, differences_table
from slurm_plugin.explain.quota_impact import impacts
from slurm_plugin.explain.quota_plan import Impact, QuotaPlan, in_order, quota_plan
from slurm_plugin.ledger.summaries import held_lately, ledger_view_now
from slurm_plugin.limits.changes import stages
from slurm_plugin.limits.desired import Difference, desired_limits, differences
from slurm_plugin.quota.accounts import Accounts, tenant_parent
from slurm_plugin.quota.tenants import changed_together, overcommitted_millislices
from slurm_plugin.quota.types import Budget, Policy, Quota, Tenant, TenantUpdate
from slurm_plugin.quota_cycle.compile import LimitComparison, compared, slurm_now
from slurm_plugin.quota_cycle.gather import inputs_of
from slurm_plugin.quota_cycle.inputs import QuotaInputs, SlurmView
from slurm_plugin.services.orders import Ordered, ServiceKey, arrays_of
from slurm_plugin.services.state import Observation, services
from slurm_plugin.state.observer import SlurmObserver

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


@dataclass(frozen=True)
class _Planned:
    """A file's changes and their effects.

    Attributes:
        before, policy: as set and as it would be set, whatever the calendar says now.
        ended_windows: ids of calendar windows that end because their tenants are removed.
    """

    updates: tuple[TenantUpdate, ...]
    before: Policy = field(hash=False)
    policy: Policy = field(hash=False)
    plan: QuotaPlan
    impacts: tuple[Impact, ...]
    differences: tuple[Difference, ...]
    commands: tuple[tuple[str, ...], ...]
    capacity_millislices: int | None
    accounts: Accounts = field(hash=False)
    ended_windows: tuple[int, ...]


def plan(
    file: Path, *, apply: bool, overcommit: bool, reason: str, wait_s: int | None, as_json: bool
) -> None:
    """Run ``slicewise tenant-quota plan``: print what the file would do, and apply it if asked."""
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        planned = _planned(file, ledger, settings)
        if not as_json:
            _print_plan(planned, settings.cluster.name)
        if apply and not overcommit and planned.capacity_millislices is not None:
            check_capacity(planned.before, planned.policy, planned.capacity_millislices)
        changed_s = time.monotonic()
        change_id = _apply(planned.updates, ledger, settings, reason) if apply else None
        took_s = (
            wait_until_compiled(ledger, settings, change_id, changed_s, wait_s)
            if change_id is not None
            else None
        )
        force = force_text(ledger, settings, took_s) if apply else ""
    if as_json:
        print_json({**_planned_json(planned), "applied": apply, "in_force_after_s": took_s})
    elif apply:
        console().print(Text(f"Changed: {force}."))
    else:
        console().print(
            Text(f"Nothing was changed. To set it: the same with {_apply_words(planned)}")
        )
    if apply:
        require_in_force(took_s, wait_s)


def _apply_words(planned: _Planned) -> str:
    """Return the options that apply the plan, with --overcommit if they need it.

    The plan may not show that they do: a window of the calendar may hide it now.
    """
    whole = planned.capacity_millislices
    was, then = (
        0 if whole is None else overcommitted_millislices(policy, whole)
        for policy in (planned.before, planned.policy)
    )
    return f"--apply {'--overcommit ' if then > was else ''}--reason 'WHY'"


def _planned(file: Path, ledger: "Ledger", settings: Settings) -> _Planned:
    """Read the file and compute its effects.

    Raises InvalidInputError (SW-QUOTA-FILE), and what Slurm and ledger raise.
    """
    ledger_view = ledger_view_now(ledger, settings)
    policy = ledger_view.tenants
    updates = read_quota_file(file, policy, settings)
    seen, observed = asyncio.run(_look(ledger_view, settings))
    accounts = {name: row.parent for name, row in seen.found.accounts.items()}
    faults = FileFaults(file)
    updates = in_order(policy, _placed(updates, policy, accounts, faults))
    after, refused = changed_together(policy, updates)
    for tenant, error in refused.items():
        faults.add(tenant, error)
    faults.check()
    inputs = _world(ledger, settings, ledger_view, observed)
    plan = quota_plan(inputs, after, _periods(after, settings))
    limits = desired_limits(plan.allowed, seen.found, ledger_view.known)
    differing = differences(limits, seen.found)
    return _Planned(
        updates=updates,
        before=policy,
        policy=after,
        plan=plan,
        impacts=impacts(inputs, plan, _period_ends(after, settings, ledger_view.now_s)),
        differences=differing,
        commands=tuple(one for stage in stages(differing, seen.found) for one in stage),
        capacity_millislices=inputs.capacity_millislices,
        accounts=accounts,
        ended_windows=tuple(
            one.window_id
            for one in ledger_view.windows
            if one.tenant in policy.keys() - after.keys()
        ),
    )


async def _look(ledger_view: LedgerView, settings: Settings) -> tuple[LimitComparison, Observation]:
    slurm = open_slurm(settings)
    observed = await SlurmObserver(slurm).look()
    shown = await slurm_now(slurm, observed.jobs, observed.nodes)
    return compared(ledger_view, shown, settings), observed


def _placed(
    updates: Sequence[TenantUpdate], policy: Policy, accounts: Accounts, faults: FileFaults
) -> tuple[TenantUpdate, ...]:
    """Return the updates, with a parent for new tenants if the file names none.

    That is the nearest tenant above in Slurm. New tenants that are refused are left out and noted.
    """
    removed = {update.tenant for update in updates if update.removed}
    placed = {name: tenant for name, tenant in policy.items() if name not in removed}
    found = []
    for update in sorted(updates, key=lambda one: _depth(one.tenant, accounts)):
        if update.tenant in policy or update.removed:
            found.append(update)
            continue
        look = SlurmLook(accounts, 0)
        place = faults.tried(update.tenant, place_in_slurm, placed, update.tenant, look)
        if place is not None:
            found.append(update if update.parent is not None else replace(update, parent=place))
            placed[update.tenant] = Tenant(update.tenant, place, Quota(Millislices(0)))
    return tuple(found)


def _depth(account: str, accounts: Accounts) -> int:
    depth = 0
    while account := accounts.get(account, ""):
        depth += 1
    return depth


def _world(
    ledger: "Ledger", settings: Settings, ledger_view: LedgerView, observed: Observation
) -> QuotaInputs:
    found = _ordered(services(observed, settings.costs), ledger.orders.standing())
    lately = held_lately(ledger, settings, ledger_view.now_s)
    return inputs_of(
        ledger_view, settings, SlurmView(observed.jobs, observed.nodes, found, lately=lately)
    )


def _ordered(
    found: Sequence[ServiceView], orders: Mapping[ServiceKey, Ordered]
) -> tuple[ServiceView, ...]:
    """Return the services with their owners' orders, if these are for arrays that still exist."""
    arrays = arrays_of(found)
    living = {
        key: one.order for key, one in orders.items() if one.array_job_id in arrays.get(key, ())
    }
    return tuple(
        one.model_copy(update={"order": living.get((one.tenant, one.name), one.order)})
        for one in found
    )


def _periods(policy: Policy, settings: Settings) -> Mapping[str, int]:
    return {
        name: period_begun_s(tenant.budget, settings)
        for name, tenant in policy.items()
        if tenant.budget is not None
    }


def _period_ends(policy: Policy, settings: Settings, now_s: int) -> Mapping[str, int]:
    ends_s = {
        name: next_start_s(tenant.budget.period, now_s, settings.ledger.time_zone)
        for name, tenant in policy.items()
        if tenant.budget is not None
    }
    return {name: end_s for name, end_s in ends_s.items() if end_s is not None}


def _apply(
    updates: Sequence[TenantUpdate], ledger: "Ledger", settings: Settings, reason: str
) -> int:
    """Apply all updates or none; return the newest change's id."""

    def amend(tenant: str, budget: Budget) -> Amend:
        return amend_of(tenant, budget, settings, reason)

    return ledger.tenants.change_together(updates, author_name(), reason, amend)[-1].change_id


def _print_plan(planned: _Planned, cluster: str) -> None:
    named = {update.tenant for update in planned.updates}
    for name in sorted(named):
        before, after = planned.before.get(name), planned.policy.get(name)
        console().print(Text(present.change_words(name, before, after)))
    _print_places(planned, cluster)
    shown = present.changed_tenants(planned.plan, named)
    console().print(present.tenants_table(shown))
    if others := len(planned.plan.tenants) - len(shown):
        words = "other tenant stays as it is" if others == 1 else "other tenants stay as they are"
        console().print(Text(f"{others} {words}."))
    _print_calendar(planned, named)
    if planned.plan.loans:
        console().print("\nLoans:")
        console().print(present.loan_changes_table(planned.plan.loans))
    if planned.impacts:
        console().print("\nJobs and tenants that it would harm:")
        console().print(present.impacts_table(planned.impacts))
    else:
        console().print("\nIt would harm no job or tenant.")
    if planned.differences:
        console().print("\nIn Slurm:")
        console().print(differences_table(planned.differences))


def _print_places(planned: _Planned, cluster: str) -> None:
    """Warn of tenants that are elsewhere in Slurm: limits bind along Slurm's own tree."""
    for update in planned.updates:
        name, policy = update.tenant, planned.policy
        if update.parent is None or name not in policy:
            continue
        if (slurms := tenant_parent(name, planned.accounts, policy)) != update.parent:
            warned = place_warning(name, update.parent, slurms, cluster)
            console().print(Text(warned, style="yellow"))


def _print_calendar(planned: _Planned, named: set[str]) -> None:
    """Say where the calendar's windows hide what the file sets now, and which windows end."""
    now = planned.plan.after.policy
    if hidden := sorted(name for name in named if now.get(name) != planned.policy.get(name)):
        names = ", ".join(hidden)
        console().print(Text(f"By the calendar other quotas are in force now for: {names}."))
    if planned.ended_windows:
        ids = ", ".join(map(str, planned.ended_windows))
        console().print(Text(f"Windows of the calendar that end with their tenants: {ids}."))


def _planned_json(planned: _Planned) -> Mapping[str, object]:
    return {
        **present.plan_json(planned.plan, planned.impacts),
        "ended_windows": planned.ended_windows,
        "differences": differences_json(planned.differences),
        "commands": [list(command) for command in planned.commands],
    }
