"""Measures how long it takes to compute Slurm's changes, without IO, if every setting is new."""

import time

from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.interface import Association
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.limits.changes import stages
from slicewise.slurm_plugin.rules.limits.desired import (
    Allowed,
    desired_limits,
    differences,
    found_of,
)
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Policy, Quota, Tenant

_GROUPS = 20
_COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
_BUDGET = Budget(Period.MONTH, MillisliceSeconds(10**12))


def compile_s(tenants: int) -> float:
    """Seconds to compile ``tenants`` tenants: each lends or borrows, each group has a budget."""
    policy = _policy(tenants)
    names = sorted(name for name, tenant in policy.items() if tenant.parent)
    pairs = zip(names[::2], names[1::2], strict=False)
    loans = tuple(Loan(lender, borrower, Millislices(1000)) for lender, borrower in pairs)
    associations = [_association(tenant) for tenant in policy.values()]
    begin_s = time.perf_counter()
    found = found_of("bench", associations, (), {"AccountingStorageTRES": "billing"})
    allowed = Allowed(
        policy=policy,
        standings=standings(policy, loans),
        run_minutes={name: 10**9 for name, tenant in policy.items() if tenant.budget},
        costs=_COSTS,
        models=dict.fromkeys(_COSTS, "H200-141GB"),
    )
    if not stages(differences(desired_limits(allowed, found, {}), found), found):
        raise AssertionError("nothing to change")
    return time.perf_counter() - begin_s


def _policy(tenants: int) -> Policy:
    policy: dict[str, Tenant] = {}
    for number in range(_GROUPS):
        name = f"group{number}"
        policy[name] = Tenant(name, "", Quota(Millislices(0)), _BUDGET)
    quota = Quota(Millislices(3500), Millislices(2000), Millislices(2000))
    for number in range(tenants - _GROUPS):
        name = f"tenant{number}"
        policy[name] = Tenant(name, f"group{number % _GROUPS}", quota)
    return policy


def _association(tenant: Tenant) -> Association:
    return Association(
        "bench", tenant.name, "", tenant.parent or "root", frozenset({"normal"}), "", {}
    )
