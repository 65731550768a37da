"""Keeps orders of services' owners, as they hold now."""

from collections.abc import Mapping
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.tables import service_orders
from slicewise.slurm_plugin.rules.services.orders import Ordered, ServiceKey

What = Literal["scale", "restart", "end", "over"]
"""``over`` means that nothing is ordered any more."""


class Orders(LedgerPart):
    """Orders. Each is a row of its own; the newest of a service holds."""

    def standing(self) -> Mapping[ServiceKey, Ordered]:
        """The order that holds now, by service."""
        of = service_orders.c
        mine = of.cluster == self._cluster
        ids = select(func.max(of.id)).where(mine).group_by(of.tenant, of.name)
        newest = select(service_orders).where(mine, of.id.in_(ids))
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            found = connection.execute(newest).all()
        return {(row.tenant, row.name): _ordered(row) for row in found if row.what != "over"}

    def newest_id(self) -> int:
        """Id of the newest order; while it stays the same, so does ``standing``."""
        of = service_orders.c
        # max() would read every order here, by the index by service.
        newest = select(of.id).where(of.cluster == self._cluster).order_by(of.id.desc()).limit(1)
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            return connection.execute(newest).scalar() or 0

    def write(self, key: ServiceKey, what: What, ordered: Ordered, author: str) -> None:
        """Write an order, which holds from now on."""
        values = {
            "cluster": self._cluster,
            "tenant": key[0],
            "name": key[1],
            "array_job_id": ordered.array_job_id,
            "what": what,
            **(ordered.order if what != "over" else NO_ORDER).model_dump(),
            "author": author,
        }
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(insert(service_orders).values(values))


def _ordered(row: object) -> Ordered:
    order = {name: getattr(row, name) for name in ServiceOrder.model_fields}
    return Ordered(ServiceOrder(**order), getattr(row, "array_job_id", 0))
