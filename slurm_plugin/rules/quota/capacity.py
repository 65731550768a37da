"""Compares quotas with what the cluster has."""

from collections.abc import Mapping

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.slurm_plugin.rules.quota.quota_texts import types_beyond_text
from slicewise.slurm_plugin.rules.quota.tenants import (
    newly_overcommitted_types,
    overcommitted_millislices,
    overcommitted_types,
)
from slicewise.slurm_plugin.rules.quota.types import Policy


def require_capacity(
    before: Policy, after: Policy, capacity_millislices: int, instances: Mapping[str, int]
) -> None:
    """Refuse a policy that exceeds the cluster by more than the one before, in slices or of a type.

    One wrong number would let tenants' jobs contend. ``instances`` are by GRES type. Raises
    InvalidInputError (SW-QUOTA-CAPACITY).
    """
    above = overcommitted_millislices(after, capacity_millislices)
    if above > overcommitted_millislices(before, capacity_millislices):
        raise InvalidInputError(
            Code.QUOTA_CAPACITY,
            f"The quotas at the top would be {slices_words(above)} above the cluster's"
            f" {slices_text(capacity_millislices)}: jobs within their guarantee may wait for each"
            " other.",
            "Give less, or say --overcommit.",
        )
    if types := newly_overcommitted_types(before, after, instances):
        raise InvalidInputError(
            Code.QUOTA_CAPACITY,
            f"Quotas would guarantee {types_beyond_text(types, instances)}: jobs within their"
            " guarantee may wait for each other.",
            "Guarantee fewer, have GPUs cut into more of them, or say --overcommit.",
        )


def overcommitment_warnings(
    policy: Policy, capacity_millislices: int, instances: Mapping[str, int]
) -> tuple[str, ...]:
    """Say by how much quotas exceed the cluster, in slices and of types; () if they do not."""
    warnings = []
    if above := overcommitted_millislices(policy, capacity_millislices):
        warnings.append(
            f"Overcommitted: the quotas at the top are {slices_words(above)} above the cluster's"
            f" {slices_text(capacity_millislices)}; jobs within their guarantee may wait for each"
            " other."
        )
    if types := overcommitted_types(policy, instances):
        warnings.append(
            f"Overcommitted: quotas guarantee {types_beyond_text(types, instances)}; jobs within"
            " their guarantee may wait for each other."
        )
    return tuple(warnings)
