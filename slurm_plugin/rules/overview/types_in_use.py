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
    kinds = sorted({kind for of in (*limits.values(), *guaranteed.values()) for kind in of})
    if not kinds:
        return {}
    running = held(jobs, partitions)
    found: dict[str, list[TypeOfQuota]] = {}
    for kind in kinds:
        in_use, in_own, due = (
            with_those_below(policy, {name: own.get(kind, 0) for name, own in amounts.items()})
            for amounts in (
                {name: one.instances for name, one in running.items()},
                {name: one.guaranteed for name, one in running.items()},
                guaranteed,
            )
        )
        for name in policy:
            is_guaranteed = kind in guaranteed.get(name, ())
            if not is_guaranteed and kind not in limits[name]:
                continue
            found.setdefault(name, []).append(
                TypeOfQuota(
                    gres_type=kind,
                    limit=limits[name].get(kind),
                    guaranteed=due[name] if is_guaranteed else None,
                    in_use=in_use[name],
                    guaranteed_in_use=in_own[name],
                )
            )
    return {name: tuple(types) for name, types in found.items()}


def _limits(
    policy: Policy, there: Collection[str], costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the tenant's own limits by type; those of tenants above it are theirs."""
    return {
        name: {
            kind: most
            for kind, most in type_limits(tenant.quota, costs, models).items()
            if kind in there or kind in tenant.quota.type_limits
        }
        for name, tenant in policy.items()
    }
