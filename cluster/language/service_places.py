"""Decides whether the gateway has a place for one more service of a tenant.

A service keeps its place while it is idle, because requests must find it to wake it. So no tenant
may take all places, and some are kept for tenants that have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ServicePlaces:
    """The gateway's places for services.

    Attributes:
        total: services that the gateway can carry at the same time.
        per_tenant: services of one tenant at most.
    """

    total: int
    per_tenant: int

    @property
    def reserved(self) -> int:
        """Places kept for tenants that have no service: a quarter."""
        return self.total // 4

    def part(self, total: int) -> "ServicePlaces":
        """Return the bounds of ``total`` of these places.

        A tenant gets half of them, or a larger share if it may have one of all.
        """
        share = min(total, total * self.per_tenant // self.total)
        return ServicePlaces(total, max(1, total // 2, share))

    def why_none(self, tenant: str, held: Mapping[str, int]) -> str:
        """Why one more service of this tenant gets no place; "" if it gets one.

        ``held`` is the number of services by tenant.
        """
        own, taken = held.get(tenant, 0), sum(held.values())
        if own >= self.per_tenant:
            return f"{tenant!r} has {own} services and may have at most {self.per_tenant}"
        if taken >= self.total:
            return f"all {self.total} places of the gateway are taken"
        if own and taken >= self.total - self.reserved:
            return (
                f"the last {self.reserved} of the gateway's {self.total} places are kept for"
                " tenants that have no service"
            )
        return ""
