"""Gathers what operators' commands show of tenants, from the ledger, the clock and Slurm."""

from typing import TYPE_CHECKING

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.tenant_messages import TypeOfQuota
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.cli.common.options import require_tenant, resets_s
from slicewise.slurm_plugin.cli.common.slurm_look import (
    SlurmLook,
    jobs_and_nodes,
    try_to_look_at_slurm,
)
from slicewise.slurm_plugin.ledger.summaries import left_millislice_s
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.overview import Details, OverviewInput, tenant_statuses
from slicewise.slurm_plugin.rules.overview.types_in_use import types_in_use
from slicewise.slurm_plugin.rules.quota.tenants import children
from slicewise.slurm_plugin.rules.quota.types import Policy

if TYPE_CHECKING:
    from slicewise.slurm_plugin.ledger.store import Ledger


def gathered(ledger_view: LedgerView, policy: Policy, look: SlurmLook | None) -> OverviewInput:
    """Join what the ledger has of these tenants with Slurm's answer; None if there was none."""
    return OverviewInput(
        policy=policy,
        loans=ledger_view.loans,
        recalls=ledger_view.recalls,
        reservations=ledger_view.reservations,
        left_millislice_s=left_millislice_s(ledger_view),
        accounts=frozenset(look.accounts) if look else None,
    )


def details(
    ledger: "Ledger", ledger_view: LedgerView, policy: Policy, settings: Settings, name: str
) -> Details:
    """Return everything about one tenant of ``policy``.

    Raises InvalidInputError (SW-TENANT-UNKNOWN) if ``policy`` does not have it.
    """
    tenant = require_tenant(policy, name)
    found = gathered(ledger_view, policy, try_to_look_at_slurm(settings))
    last = ledger.tenants.history(name)[0]
    return Details(
        status=next(one for one in tenant_statuses(found) if one.tenant.name == name),
        children=children(found.policy, name),
        loans=tuple(loan for loan in found.loans if name in {loan.lender, loan.borrower}),
        resets_s=resets_s(tenant.budget, settings),
        last=last,
        in_force=ledger_view.compiled_id >= last.change_id,
        types=_types(policy, settings, name) if found.accounts is not None else None,
    )


def _types(policy: Policy, settings: Settings, name: str) -> tuple[TypeOfQuota, ...] | None:
    """What is used of limits and guarantees by type; None if Slurm is silent."""
    quotas = [one.quota for one in policy.values()]
    if not any(one.type_limits or one.model_limits or one.type_nominals for one in quotas):
        return ()
    try:
        jobs, nodes = jobs_and_nodes(settings)
    except SlicewiseError:
        return None
    partitions, costs = frozenset(settings.cluster.partitions), settings.costs
    found = types_in_use(policy, jobs, nodes, partitions, costs=costs, models=settings.models)
    return found.get(name, ())
