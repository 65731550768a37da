"""Finds limits on types that would no longer hold, for what is guaranteed of the type.

Slurm does not look at an account's limit on a type for jobs of a QOS that limits the type itself,
as tenants' own QOS do for guaranteed types. Nor could the borrowed QOS have the limit: it would
hide those of the accounts above.
"""

from collections.abc import Iterator, Mapping

from slicewise.slurm_plugin.rules.accounting.overview import with_those_below
from slicewise.slurm_plugin.rules.explain.change_report import Impact, ImpactKind
from slicewise.slurm_plugin.rules.explain.quota_plan import QuotaPlan
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits, type_limits
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.round.world import World


def beyond_type_limits(inputs: World, plan: QuotaPlan) -> Iterator[Impact]:
    """Tenants that could come to hold more of a type than their limit, by more than before."""
    costs, models = inputs.rules.costs, plan.allowed.models
    was, then = (
        _reach(policy, costs, models) for policy in (plan.before.policy, plan.after.policy)
    )
    for (name, gres_type), (limit, most) in sorted(then.items()):
        limit_before, most_before = was.get((name, gres_type), (0, 0))
        if most - limit > max(0, most_before - limit_before):
            words = (
                f"it and those below it may come to hold {most} × {gres_type}, {limit} at most by"
                " its limit: what is guaranteed of the type starts whatever runs on loan"
            )
            yield Impact(ImpactKind.BEYOND_TYPE_LIMIT, name, "", 0, words)


def _reach(
    policy: Policy, costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[tuple[str, str], tuple[int, int]]:
    """By tenant and type: the limit, and how many could run beside each other despite it.

    That is the limit on loan, where somebody may borrow, and then what is guaranteed.
    """
    own = own_type_limits(policy, costs, models)
    borrows = {
        name: tenant.quota.borrowing_limit_millislices > 0 for name, tenant in policy.items()
    }
    borrowers = with_those_below(policy, borrows)
    limits: dict[tuple[str, str], tuple[int, int]] = {}
    for gres_type in {gres_type for of in own.values() for gres_type in of}:
        due = with_those_below(policy, {name: of.get(gres_type, 0) for name, of in own.items()})
        for name, tenant in policy.items():
            limit = type_limits(tenant.quota, costs, models).get(gres_type)
            if limit is not None and due[name]:
                limits[name, gres_type] = limit, due[name] + (limit if borrowers[name] else 0)
    return limits
