"""The most instances of a GPU type: by limits on it or its model, and of what is guaranteed."""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.slurm_plugin.rules.quota.tenants import (
    downward,
    guaranteed_types,
    lesser,
    limits_models,
    parent,
)
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota


@dataclass(frozen=True, kw_only=True)
class TypeOfQuota:
    """A GPU type that a quota limits or guarantees, in instances, with those of tenants below.

    Attributes:
        gres_type: such as ``1g.10gb``.
        limit: most that may be held in any QOS, by a limit on the type or its model; None without.
        guaranteed: most that the nominals guarantee; None if only slices bound that.
        in_use: what running jobs hold.
        guaranteed_in_use: what of that is held within guarantees, in the tenants' own QOS.
    """

    gres_type: str
    limit: int | None = None
    guaranteed: int | None = None
    in_use: int
    guaranteed_in_use: int


def type_limits(
    quota: Quota, costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, int]:
    """Return the most instances by type. A limit on a model bounds each of its types separately."""
    bounds = dict(quota.type_limits)
    for gres_type, model in models.items():
        if model in quota.model_limits:
            most = quota.model_limits[model] // costs[gres_type]
            bounds[gres_type] = min(most, bounds.get(gres_type, most))
    return bounds


def binding_type_limits(
    policy: Policy, costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the most instances by type that each tenant may have, given the tenants above it."""
    bounds: dict[str, Mapping[str, int]] = {}
    for name in downward(policy):
        own = type_limits(policy[name].quota, costs, models)
        bounds[name] = lesser(bounds.get(parent(policy, name), {}), own)
    return bounds


def own_type_limits(
    policy: Policy, costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the most instances by type in each tenant's own QOS; tenants without any are left out.

    That is what is guaranteed of the type, and no more than limits on it or on its model allow: a
    QOS' limit on a type hides those of accounts, which would bind its jobs, too.
    """
    types = guaranteed_types(policy)
    # Limits on the types themselves bound them already.
    if not types or not limits_models(policy):
        return types
    limits = binding_type_limits(policy, costs, models)
    return {
        name: {
            gres_type: min(count, limits[name].get(gres_type, count))
            for gres_type, count in of.items()
        }
        for name, of in types.items()
    }
