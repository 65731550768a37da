"""Gathers the tree of tenants with loans and budgets: amounts from memory, the rest from the
ledger.
"""

from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.common.ledger_requests import TenantsAnswer, TenantsRequest
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import (
    budget_statuses,
    ledger_view_now,
    token_budget_statuses,
)
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts
from slicewise.slurm_plugin.rules.overview.slices import other_tenants
from slicewise.slurm_plugin.rules.overview.tenant_tree import loan_flows, tenant_tree
from slicewise.slurm_plugin.rules.quota.loan_lines import loan_lines

_PAGE_TENANTS = 500


def tenants(
    request: TenantsRequest,
    principal: Principal,
    ledger: Ledger,
    settings: Settings,
    *,
    facts: OverviewFacts,
    at_s: float,
) -> TenantsAnswer:
    """Return one page of the tree for who may see it; the ledger's part is of ``at_s``."""
    found, until = tenant_tree(facts, principal), request.after + _PAGE_TENANTS
    page = found[request.after : until]
    names = {tree.name for tree in page}
    ledger_view, zone = ledger_view_now(ledger, settings, at_s), settings.ledger.time_zone
    lines = loan_lines(
        ledger.loans.terms(),
        ledger_view.recalls,
        now_s=ledger_view.now_s,
        grace_s=settings.lending.grace_s,
        term_s=settings.lending.term_s,
    )
    return TenantsAnswer(
        now_s=ledger_view.now_s,
        tenants=page,
        others=other_tenants(facts, principal),
        loans=loan_flows(lines, principal, names),
        budgets=(
            *budget_statuses(ledger, ledger_view, zone, None, names),
            *token_budget_statuses(ledger, ledger_view, zone, None, names),
        ),
        more=until if until < len(found) else None,
    )
