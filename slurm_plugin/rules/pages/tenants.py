"""Finds a tenant in the tree, and the budget that pays for it."""

from collections.abc import Iterable

from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus, TenantInTree


def tenant_of(tenants: Iterable[TenantInTree], name: str) -> TenantInTree | None:
    """The tenant of that name; None if the reader sees none."""
    return next((tenant for tenant in tenants if tenant.name == name), None)


def budget_of(budgets: Iterable[BudgetStatus], tenant: TenantInTree | None) -> BudgetStatus | None:
    """The budget that pays for a tenant; None without one."""
    payer = tenant.payer if tenant is not None else ""
    return next((budget for budget in budgets if payer and budget.tenant == payer), None)
