"""Counts what is used of the GPU types that quotas limit or guarantee."""

from collections.abc import Collection, Iterable, Mapping

from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.slurm_plugin.rules.accounting.overview import with_those_below
from slicewise.slurm_plugin.rules.quota.demand import held
from slicewise.slurm_plugin.rules.quota.nodes import instances_of
from slicewise.slurm_plugin.rules.quota.type_limits import (
    TypeOfQuota,
    own_type_limits,
    type_limits,
)
from slicewise.slurm_plugin.rules.quota.types import Policy


def types_in_use(
    policy: Policy,
    jobs: Iterable[JobView],
    nodes: Iterable[NodeView],
    partitions: frozenset[str],
    *,
    costs: Mapping[str, int],
    models: Mapping[str, str],
) -> Mapping[str, tuple[TypeOfQuota, ...]]:
    """Return the types that each tenant's quota limits or guarantees, by name; without any, none.

    A limit on a model counts for those of its types that managed nodes have.
    """
    limits = _limits(policy, instances_of(nodes, partitions), costs, models)
    guaranteed = own_type_limits(policy, costs, models)
    kinds = sorted(
        {gres_type for of in (*limits.values(), *guaranteed.values()) for gres_type in of}
    )
    if not kinds:
        return {}
    running = held(jobs, partitions)
    by_tenant: dict[str, list[TypeOfQuota]] = {}
    for gres_type in kinds:
        in_use, in_own, due = (
            with_those_below(policy, {name: own.get(gres_type, 0) for name, own in amounts.items()})
            for amounts in (
                {name: held.instances for name, held in running.items()},
                {name: held.guaranteed for name, held in running.items()},
                guaranteed,
            )
        )
        for name in policy:
            is_guaranteed = gres_type in guaranteed.get(name, ())
            if not is_guaranteed and gres_type not in limits[name]:
                continue
            by_tenant.setdefault(name, []).append(
                TypeOfQuota(
                    gres_type=gres_type,
                    limit=limits[name].get(gres_type),
                    guaranteed=due[name] if is_guaranteed else None,
                    in_use=in_use[name],
                    guaranteed_in_use=in_own[name],
                )
            )
    return {name: tuple(types) for name, types in by_tenant.items()}


def _limits(
    policy: Policy, types: Collection[str], costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the tenant's own limits by type; those of tenants above it are theirs."""
    return {
        name: {
            gres_type: most
            for gres_type, most in type_limits(tenant.quota, costs, models).items()
            if gres_type in types or gres_type in tenant.quota.type_limits
        }
        for name, tenant in policy.items()
    }
