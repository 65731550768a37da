"""What the slots of tenants' services may take, as quotas are in force."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.attainable import Attainable
from slicewise.slurm_plugin.rules.quota.demand import Held, held
from slicewise.slurm_plugin.rules.quota.standings import Standing, less_elsewhere
from slicewise.slurm_plugin.rules.services.slot_actions import TenantCapacity, released_millislices
from slicewise.slurm_plugin.rules.services.state import used_by_tenant

_NOTHING = Standing(*[Millislices(0)] * 4)
"""What a tenant has before limits were compiled."""


@dataclass(frozen=True)
class SlotQuotas:
    """Quotas, as far as slots are released within them.

    Attributes:
        guaranteed: the guaranteed quota of each tenant that has one, in millislices.
        bounds: the most that tenants could ever have.
        standings: what each tenant may hold now, as compiled last; empty before that.
        partitions: the partitions whose jobs count.
        types: most instances by type that the guaranteed quota covers, by tenant.
    """

    guaranteed: Mapping[str, int] = field(hash=False)
    bounds: Attainable
    standings: Mapping[str, Standing] = field(hash=False)
    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    types: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)

    def room(
        self,
        service: ServiceView,
        jobs: Sequence[JobView],
        services: Sequence[ServiceView],
        *,
        borrows: bool,
    ) -> TenantCapacity | None:
        """The room of the service's tenant in its own QOS, and with what it may borrow, if it
        ``borrows`` now.

        None if it has no quota. Completing jobs count, though in none of Slurm's limits: a slot
        that Slurm requeues waits again once it has ended, beside what was let go in its place.
        Where the guarantee has less of the replicas' type left than of slices, the rest of the
        slices counts as held: these replicas could not start on it.
        """
        tenant = service.tenant
        if tenant not in self.guaranteed:
            return None
        own = self.guaranteed[tenant]
        in_own = self._used(tenant, (job for job in jobs if job.qos == qos_name(tenant)))
        released = released_millislices(tenant, services, borrowed=False)
        on_loan = released_millislices(tenant, services, borrowed=True)
        in_all = self._used(tenant, jobs) + released + on_loan
        may = borrows and self.bounds.borrowing_limits.get(tenant, 0) > 0
        most = self.bounds.highest_limits[tenant] if may else own
        own_held = in_own + self._taken_elsewhere(tenant, jobs) + released
        left = self._left_of_type(service, jobs, services)
        own_held = own_held if left is None else max(own_held, own - left)
        all_held = in_all if may else max(in_all, own_held)
        return TenantCapacity(own, own_held, most, all_held, lacks_type=all_held > in_all)

    def _left_of_type(
        self, service: ServiceView, jobs: Iterable[JobView], services: Iterable[ServiceView]
    ) -> int | None:
        """Millislices of the service's type that the guarantee has left, less than 0 if more wait.

        None if the guarantee has no bound on the type.
        """
        tenant, gres_type = service.tenant, service.profile
        most, each = self.types.get(tenant, {}).get(gres_type), self.costs.get(gres_type)
        if most is None or each is None:
            return None
        alike = (service for service in services if service.profile == gres_type)
        its_own = held(jobs, self.partitions).get(tenant, Held()).guaranteed
        return (most - its_own.get(gres_type, 0)) * each - released_millislices(
            tenant, alike, borrowed=False
        )

    def _taken_elsewhere(self, tenant: str, jobs: Iterable[JobView]) -> int:
        """Millislices by which jobs in other QOS, in which they ran before, reduce Slurm's limit on
        the tenant's own QOS.
        """
        its_own = {qos_name(tenant), borrowed_qos(tenant)}
        elsewhere = self._used(tenant, (job for job in jobs if job.qos not in its_own))
        own = Millislices(self.guaranteed[tenant])
        standing = replace(self.standings.get(tenant, _NOTHING), own_qos_limit_millislices=own)
        less = less_elsewhere({tenant: standing}, {tenant: elsewhere})[tenant]
        return own - less.own_qos_limit_millislices

    def _used(self, tenant: str, jobs: Iterable[JobView]) -> int:
        """Millislices that the tenant's jobs hold."""
        return used_by_tenant(jobs, self.partitions, self.costs).get(tenant, 0)
