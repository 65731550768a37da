"""Orders of a service's owner besides its script: which are valid, and when they are over."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.order_messages import OrderRequest, ServiceOrder

if TYPE_CHECKING:
    # The ledger, which commands open, has no use for the other messages.
    from slicewise.cluster.rpc.messages import ServiceView

ServiceKey = tuple[str, str]
"""Tenant and name of a service."""


@dataclass(frozen=True)
class Ordered:
    """An order, and the array that it applies to: the service's newest one."""

    order: ServiceOrder
    array_job_id: int


@dataclass(frozen=True)
class ReplicaBounds:
    """Bounds of the number of replicas in the service's script; the most is the number of slots."""

    min_replicas: int
    max_replicas: int


def ordered(
    service_order: ServiceOrder, request: OrderRequest, script: ReplicaBounds, now_s: float
) -> ServiceOrder:
    """The order that holds after the request.

    Raises InvalidInputError (SW-VALUE) for impossible bounds.
    """
    if request.what == "restart":
        return service_order.model_copy(update={"restart_s": now_s})
    if request.what == "end":
        return service_order.model_copy(update={"delete_s": service_order.delete_s or now_s})
    _check(request, script)
    bounds = {"min_replicas": request.min_replicas, "max_replicas": request.max_replicas}
    return service_order.model_copy(update=bounds)


def _check(request: OrderRequest, script: ReplicaBounds) -> None:
    least = script.min_replicas if request.min_replicas is None else request.min_replicas
    most = script.max_replicas if request.max_replicas is None else request.max_replicas
    if most > script.max_replicas:
        raise InvalidInputError(
            Code.VALUE,
            f"The service has {script.max_replicas} slots, not {most}.",
            "For more, raise max_replicas in its file and apply it again.",
        )
    if least > most:
        raise InvalidInputError(
            Code.VALUE,
            f"At least {least} and at most {most} replicas: the least is above the most.",
            "Give both --min and --max.",
        )


def arrays_of(services: Iterable["ServiceView"]) -> Mapping[ServiceKey, frozenset[int]]:
    """Array job ids of all generations of each service."""
    arrays: dict[ServiceKey, frozenset[int]] = {}
    for service in services:
        key = (service.tenant, service.name)
        arrays[key] = arrays.get(key, frozenset()) | {service.array_job_id}
    return arrays


def rolled_over(
    orders: Mapping[ServiceKey, Ordered], arrays: Mapping[ServiceKey, frozenset[int]]
) -> Mapping[ServiceKey, Ordered]:
    """Orders that pass to another generation of a service that goes on.

    They pass to a newer one while the ordered one still lives, and to the one before it if that has
    outlived the ordered one. Orders to end a service do not pass on.
    """
    return {
        key: Ordered(order.order, newest)
        for key, order in orders.items()
        if order.order.delete_s is None and (lives := arrays.get(key))
        if order.array_job_id != (newest := max(lives))
        if order.array_job_id in lives or newest < order.array_job_id
    }


def over(
    orders: Mapping[ServiceKey, Ordered], arrays: Mapping[ServiceKey, frozenset[int]]
) -> frozenset[ServiceKey]:
    """Services with an order that is over.

    The ordered array has ended, or it was ordered to end and the service was applied again since.
    """
    return frozenset(
        key
        for key, order in orders.items()
        if order.array_job_id not in (lives := arrays.get(key, frozenset()))
        or (order.order.delete_s is not None and order.array_job_id < max(lives))
    )
