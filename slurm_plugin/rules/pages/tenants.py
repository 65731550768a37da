"""Puts pages of the tree of tenants together, and finds the budget that pays for a tenant."""

from slicewise.cluster.rpc.tenant_messages import PayingBudget, TenantInTree, TenantsAnswer


def joined(one: TenantsAnswer, after: TenantsAnswer) -> TenantsAnswer:
    """Two pages as one that follow each other."""
    return after.model_copy(
        update={
            "tenants": one.tenants + after.tenants,
            "loans": one.loans + after.loans,
            # The tenants of both pages may share a budget.
            "budgets": tuple({own.payer: own for own in one.budgets + after.budgets}.values()),
        }
    )


def tenant_of(tree: TenantsAnswer, name: str) -> TenantInTree | None:
    """The tenant of that name; None if the reader sees none."""
    return next((tenant for tenant in tree.tenants if tenant.name == name), None)


def budget_of(tree: TenantsAnswer, tenant: TenantInTree | None) -> PayingBudget | None:
    """The budget that pays for a tenant; None without one."""
    payer = tenant.payer if tenant is not None else ""
    return next((budget for budget in tree.budgets if payer and budget.payer == payer), None)
