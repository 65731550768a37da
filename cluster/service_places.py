"""How many services the gateway carries, and how many of them one tenant's.

A service holds its place while it is idle, too: requests must find it to wake it. So no tenant may
take all places, and some are kept for tenants that have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Places:
    """Attributes:
    total: services that the gateway carries at once.
    per_tenant: of one tenant at most.
    """

    total: int
    per_tenant: int

    @property
    def reserved(self) -> int:
        """Kept for tenants that have no service: a quarter."""
        return self.total // 4

    def why_none(self, tenant: str, held: Mapping[str, int]) -> str:
        """Why one more service of that tenant gets no place; "" if it gets one.

        ``held`` is how many each tenant has.
        """
        own, taken = held.get(tenant, 0), sum(held.values())
        if own >= self.per_tenant:
            return f"{tenant!r} has {own} services, and may have {self.per_tenant}"
        if taken >= self.total:
            return f"the gateway carries {self.total} services, and has as many"
        if own and taken >= self.total - self.reserved:
            return (
                f"the last {self.reserved} of the gateway's {self.total} places are kept for"
                " tenants that have no service"
            )
        return ""
