"""What a service's owner orders beside its script: what may be ordered, and when it is over."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.errors import InvalidInputError
from cluster.wire import OrderRequest, ServiceOrder, ServiceView

FORGOTTEN_S = 60.0
"""A service that was not seen for so long has ended, and its orders with it."""

Key = tuple[str, str]
"""Tenant and name of a service."""


@dataclass(frozen=True)
class Ordered:
    """An order, and the newest array that the service had when it was given."""

    order: ServiceOrder
    array_job_id: int


@dataclass(frozen=True)
class Bounds:
    """Replicas, as the service's script has them; as many as slots at most."""

    min_replicas: int
    max_replicas: int


def ordered(
    known: ServiceOrder, request: OrderRequest, script: Bounds, now_s: float
) -> ServiceOrder:
    """What holds after the request; InvalidInputError (SW-SERVICE-SCALE) for impossible bounds."""
    if request.what == "restart":
        return known.model_copy(update={"restart_s": now_s})
    if request.what == "end":
        return known.model_copy(update={"delete_s": known.delete_s or now_s})
    _check(request, script)
    bounds = {"min_replicas": request.min_replicas, "max_replicas": request.max_replicas}
    return known.model_copy(update=bounds)


def _check(request: OrderRequest, script: Bounds) -> None:
    least = script.min_replicas if request.min_replicas is None else request.min_replicas
    most = script.max_replicas if request.max_replicas is None else request.max_replicas
    if most > script.max_replicas:
        raise InvalidInputError(
            "SW-SERVICE-SCALE",
            f"The service has {script.max_replicas} slots, not {most}.",
            "For more, raise max_replicas in its file and apply it again.",
        )
    if least > most:
        raise InvalidInputError(
            "SW-SERVICE-SCALE",
            f"At least {least} and at most {most} replicas: that can't be.",
            "Give both --min and --max.",
        )


def newest_arrays(services: Iterable[ServiceView]) -> Mapping[Key, int]:
    """The newest generation of each service."""
    newest: dict[Key, int] = {}
    for one in services:
        key = (one.tenant, one.name)
        newest[key] = max(one.array_job_id, newest.get(key, 0))
    return newest


def missing_since(
    orders: Mapping[Key, Ordered],
    arrays: Mapping[Key, int],
    before_s: Mapping[Key, float],
    now_s: float,
) -> Mapping[Key, float]:
    """Since when there is no array of a service that has an order, in Unix seconds."""
    return {key: before_s.get(key, now_s) for key in orders.keys() - arrays.keys()}


def over(
    orders: Mapping[Key, Ordered],
    arrays: Mapping[Key, int],
    missing_s: Mapping[Key, float],
    now_s: float,
) -> frozenset[Key]:
    """Orders of services that have ended, and ends of those that were applied again since."""
    ended = {
        key
        for key, since_s in missing_s.items()
        if orders[key].order.delete_s is not None or now_s - since_s >= FORGOTTEN_S
    }
    renewed = {
        key
        for key, one in orders.items()
        if one.order.delete_s is not None and arrays.get(key, 0) > one.array_job_id
    }
    return frozenset(ended | renewed)
