"""Gathers the tree of tenants with loans and budgets: amounts from memory, the rest from the
ledger.
"""

from slicewise.cluster.language.periods import period_start_s
from slicewise.cluster.rpc.tenant_messages import PayingBudget, TenantsAnswer, TenantsRequest
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import budget_statuses, ledger_view_now
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
from slicewise.slurm_plugin.rules.overview.facts import OverviewFacts
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
    budgets = budget_statuses(ledger, ledger_view, zone, None, names)
    return TenantsAnswer(
        now_s=ledger_view.now_s,
        tenants=page,
        others=other_tenants(facts, principal),
        loans=loan_flows(lines, principal, names),
        budgets=tuple(_budget(budget, ledger_view.now_s, zone) for budget in budgets),
        more=until if until < len(found) else None,
    )


def _budget(status: BudgetStatus, now_s: int, zone: str) -> PayingBudget:
    budget = status.budget
    return PayingBudget(
        payer=status.tenant,
        period=budget.period,
        amount_millislice_s=budget.amount_millislice_s,
        carry_over_millislice_s=budget.carry_over_millislice_s,
        overdraft_millislice_s=budget.overdraft_millislice_s,
        left_millislice_s=status.left_millislice_s,
        reserved_millislice_s=status.reserved_millislice_s,
        rate_millislices=status.rate_millislices,
        ends_s=status.ends_s,
        period_start_s=period_start_s(budget.period, now_s, zone) or None,
        resets_s=status.resets_s,
    )
