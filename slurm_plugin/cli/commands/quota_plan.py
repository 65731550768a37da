"""``slicewise tenant-quota apply FILE``: shows what a change of quotas does, and makes it."""

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from slicewise.cluster.language.periods import period_start_s
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.common.in_force import until_in_force
from slicewise.slurm_plugin.cli.common.options import (
    author_name,
    opened_ledger,
    require_in_force,
)
from slicewise.slurm_plugin.cli.common.quota_file import read_quota_file
from slicewise.slurm_plugin.cli.views import quota_plan as present
from slicewise.slurm_plugin.cli.views.limits import differences_table
from slicewise.slurm_plugin.ledger.summaries import held_lately, ledger_view_now
from slicewise.slurm_plugin.quota_cycle.compile import LimitComparison, compared, slurm_now
from slicewise.slurm_plugin.rules.accounting.budgets import Amend, amend_of
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.explain.planned_change import PlannedChange, planned_change
from slicewise.slurm_plugin.rules.explain.quota_plan import Impact, LoanPlan, TenantPlan
from slicewise.slurm_plugin.rules.limits.changes import stages
from slicewise.slurm_plugin.rules.limits.desired import Difference, desired_limits, differences
from slicewise.slurm_plugin.rules.quota.capacity import require_capacity
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate
from slicewise.slurm_plugin.rules.round.world import SlurmView, World, world_of
from slicewise.slurm_plugin.rules.services.orders import Ordered, ServiceKey, arrays_of
from slicewise.slurm_plugin.rules.services.state import Observation, services
from slicewise.slurm_plugin.state.observer import SlurmObserver

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


@dataclass(frozen=True)
class ShownQuotaPlan:
    """What a file of quotas would do, or did."""

    tenants: Sequence[TenantPlan]
    loans: Sequence[LoanPlan]
    harms: Sequence[Impact]
    ended_windows: Sequence[int]
    differences: Sequence[Difference]
    commands: Sequence[Sequence[str]]
    applied: bool
    in_force_after_s: float | None


@dataclass(frozen=True)
class _Planned:
    """What the file would do, in the ledger and in Slurm."""

    change: PlannedChange
    differences: tuple[Difference, ...]
    commands: tuple[tuple[str, ...], ...]


def apply(
    file: Path,
    *,
    dry_run: bool,
    overcommit: bool,
    reason: str,
    timeout_s: int | None,
    as_json: bool,
) -> None:
    """Run ``slicewise tenant-quota apply``: print what the file does; do it unless ``dry_run``."""
    settings = load_settings()
    with opened_ledger(settings) as ledger:
        planned = _planned(file, ledger, settings)
        if not as_json:
            _print_plan(planned, settings.cluster.name)
        change = planned.change
        if not dry_run and not overcommit and change.capacity_millislices is not None:
            require_capacity(
                change.before, change.policy, change.capacity_millislices, change.instances
            )
        changed_s = time.monotonic()
        change_id = None if dry_run else _apply(change.updates, ledger, settings, reason)
    took_s, force = None, ""
    if change_id is not None:
        daemon = DaemonClient(settings.daemon)
        took_s, force = until_in_force(daemon, change_id, changed_s, timeout_s)
    if as_json:
        print_json(_shown(planned, applied=not dry_run, took_s=took_s))
    elif not dry_run:
        console().print(Text(f"Changed: {force}."))
    else:
        console().print(Text(f"Nothing was changed. To set it: the same {_apply_words(change)}"))
        console().print(Text(_last_month_words(file)))
    if not dry_run:
        require_in_force(took_s, timeout_s)


def _apply_words(change: PlannedChange) -> str:
    """Say with which options the plan is applied; --overcommit if it needs that."""
    overcommit = "--overcommit " if change.needs_overcommit else ""
    return f"without --dry-run, with {overcommit}--reason 'WHY'"


def _last_month_words(file: Path) -> str:
    """Say which commands simulate the change."""
    return (
        "What it would have done to last month: slicewise snapshot site.zip --days 31, then"
        f" slicewise simulate site.zip --change {shlex.quote(str(file))}"
    )


def _planned(file: Path, ledger: "Ledger", settings: Settings) -> _Planned:
    """Read the file and compute its effects.

    Raises InvalidInputError (SW-INPUT-FILE), and what Slurm and ledger raise.
    """
    ledger_view = ledger_view_now(ledger, settings)
    updates, faults = read_quota_file(file, ledger_view.tenants, settings)
    seen, observed = asyncio.run(_look(ledger_view, settings))
    accounts = {name: row.parent for name, row in seen.found.accounts.items()}
    inputs = _world(ledger, settings, ledger_view, observed)
    change = planned_change(updates, faults, accounts, inputs, settings.ledger.time_zone)
    limits = desired_limits(change.plan.allowed, seen.found, ledger_view.known)
    differing = differences(limits, seen.found)
    commands = tuple(one for stage in stages(differing, seen.found) for one in stage)
    return _Planned(change, differing, commands)


async def _look(ledger_view: LedgerView, settings: Settings) -> tuple[LimitComparison, Observation]:
    slurm = open_slurm(settings)
    observed = await SlurmObserver(slurm).look()
    shown = await slurm_now(slurm, observed.jobs, observed.nodes)
    return compared(ledger_view, shown, settings), observed


def _world(
    ledger: "Ledger", settings: Settings, ledger_view: LedgerView, observed: Observation
) -> World:
    found = _ordered(services(observed, settings.costs), ledger.orders.standing())
    lately = held_lately(ledger, settings, ledger_view.now_s)
    return world_of(
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
        service.model_copy(
            update={"order": living.get((service.tenant, service.name), service.order)}
        )
        for service in found
    )


def _apply(
    updates: Sequence[TenantUpdate], ledger: "Ledger", settings: Settings, reason: str
) -> int:
    """Apply all updates or none; return the newest change's id."""

    def amend(tenant: str, budget: Budget) -> Amend:
        begun_s = period_start_s(budget.period, int(wall_s()), settings.ledger.time_zone)
        return amend_of(tenant, budget, begun_s, author_name(), reason)

    return ledger.tenants.change_together(updates, author_name(), reason, amend)[-1].change_id


def _print_plan(planned: _Planned, cluster: str) -> None:
    for shown in present.change_shown(planned.change, cluster):
        console().print(shown)
    if not planned.change.impacts:
        console().print("\nIt would harm no job or tenant.")
    if planned.differences:
        console().print("\nIn Slurm:")
        console().print(differences_table(planned.differences))


def _shown(planned: _Planned, *, applied: bool, took_s: float | None) -> ShownQuotaPlan:
    return ShownQuotaPlan(
        tenants=planned.change.plan.tenants,
        loans=planned.change.plan.loans,
        harms=planned.change.impacts,
        ended_windows=planned.change.ended_windows,
        differences=planned.differences,
        commands=planned.commands,
        applied=applied,
        in_force_after_s=took_s,
    )
