"""Tracks what running jobs leave of tenants' guaranteed quotas and of what tenants may borrow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slicewise.slurm_plugin.rules.common.qos_names import holder, qos_name
from slicewise.slurm_plugin.rules.quota.demand import take_types, types_left
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder
from slicewise.slurm_plugin.rules.quota.standings import Standing, beyond_loans
from slicewise.slurm_plugin.rules.quota.tenants import (
    effective_nominal,
    guaranteed_quota,
    subtree,
    upward,
)
from slicewise.slurm_plugin.rules.quota.types import Policy

_UNKNOWN: Mapping[str, Standing] = {}


class Room(NamedTuple):
    """What is left of a tenant's guaranteed quota, and of its types there."""

    own: int
    types: Mapping[str, int]


class QuotaRoom:
    """Room left in the guaranteed quota of every tenant, and in every subtree.

    What a tenant's runs outside its own QOS hold ``beyond_loans`` is no room.

    Completing jobs count. What waits in the place of one keeps its QOS until that has ended, and
    may start there: a borrowed QOS gets what its tenant's own one leaves unused.
    """

    def __init__(
        self, policy: Policy, by_holder: JobsByHolder, standings: Mapping[str, Standing] = _UNKNOWN
    ) -> None:
        """``standings`` are the limits in force; none if they are not known."""
        self._policy = policy
        nominal = effective_nominal(policy)
        self._above = upward(policy)
        self._own_qos = {name: qos_name(name) for name in policy}
        self._borrows = {
            name for name in policy if policy[name].quota.borrowing_limit_millislices > 0
        }
        self._own = Counter(guaranteed_quota(policy))
        elsewhere = {
            name: held - by_holder.in_own(name) for name, held in by_holder.held.by_tenant.items()
        }
        self._own.subtract(beyond_loans(policy, standings, elsewhere))
        self._types = types_left(policy, by_holder)
        self._subtree = {
            name: nominal[name] + tenant.quota.borrowing_limit_millislices
            for name, tenant in policy.items()
        }
        for (account, qos), cost in by_holder.held.by_qos.items():
            tenant = holder(account, qos)
            if tenant in policy:
                self.take(tenant, qos, cost, {})

    def take(self, tenant: str, qos: str, cost: int, gpus: Mapping[str, int]) -> None:
        """Count a cost and GPU instances that run, or are to run, in that QOS."""
        if qos == self._own_qos[tenant]:
            self._own[tenant] -= cost
            take_types(self._types.get(tenant), gpus)
        for name in self._above[tenant]:
            self._subtree[name] -= cost

    def most(self, tenant: str, qos: str) -> int:
        """Millislices that may still start in that QOS, of whatever type.

        In the own QOS this is what is left of the guaranteed quota, in any other QOS what is left
        of all that the tenant and the tenants above it may hold.
        """
        if qos == self._own_qos[tenant]:
            return max(0, self._own[tenant])
        # A round asks for each waiting job: a generator would take twice as long.
        return max(0, min([self._subtree[name] for name in self._above[tenant]]))

    def borrows(self, tenant: str) -> bool:
        """Whether the tenant may borrow, so that jobs may wait in its borrowed QOS."""
        return tenant in self._borrows

    def left(self, top: str) -> Sequence[Room]:
        """The room of all tenants of a tree, as it is now."""
        return [
            Room(self._own[name], dict(self._types.get(name, {})))
            for name in subtree(self._policy, top)
        ]

    def tasks(self, tenant: str, qos: str, cost: int, gpus: Mapping[str, int]) -> int:
        """The number of tasks of that cost and these GPU instances that may still start there."""
        most = self.most(tenant, qos) // cost
        if qos == self._own_qos[tenant]:
            left = self._types.get(tenant, {})
            bounds = (
                max(0, left[gres_type]) // n
                for gres_type, n in gpus.items()
                if n and gres_type in left
            )
            most = min((most, *bounds))
        return most
