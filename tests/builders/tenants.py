"""Tenants of the quota policy."""

from typing import Any

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Policy,
    Quota,
    Tenant,
)


def tenant(
    name: str, nominal: int = 0, parent: str = "", budget: Budget | None = None, **quota: Any
) -> Tenant:
    """A tenant of so many millislices, which neither lends nor borrows, but for these fields."""
    return Tenant(name, parent, Quota(Millislices(nominal), **quota), budget)


def free_tenant(name: str, nominal: int = 0, parent: str = "", **quota: Any) -> Tenant:
    """A tenant that lends and borrows without a limit, but for these fields of its quota."""
    limits = ("borrowing_limit_millislices", "lending_limit_millislices")
    return tenant(name, nominal, parent, **(dict.fromkeys(limits, MAX_NOMINAL_MILLISLICES) | quota))


def policy_of(*tenants: Tenant) -> Policy:
    return {tenant.name: tenant for tenant in tenants}
