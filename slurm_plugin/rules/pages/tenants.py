"""Finds a tenant in the tree, and the budget that pays for it."""

from collections.abc import Iterable

from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus, TenantInTree


def tenant_of(tenants: Iterable[TenantInTree], name: str) -> TenantInTree | None:
    """The tenant of that name; None if the reader sees none."""
    return next((tenant for tenant in tenants if tenant.name == name), None)


def budget_of(budgets: Iterable[BudgetStatus], tenant: TenantInTree | None) -> BudgetStatus | None:
    """The budget of slices that pays for a tenant; None without one."""
    return _paying(budgets, SLICES.name, tenant.payer if tenant is not None else "")


def token_budget_of(
    budgets: Iterable[BudgetStatus], tenant: TenantInTree | None
) -> BudgetStatus | None:
    """The same of tokens."""
    return _paying(budgets, TOKENS.name, tenant.token_payer if tenant is not None else "")


def _paying(budgets: Iterable[BudgetStatus], meter: str, payer: str) -> BudgetStatus | None:
    paying = (
        budget for budget in budgets if (budget.budget.meter, budget.tenant) == (meter, payer)
    )
    return next(paying, None)
