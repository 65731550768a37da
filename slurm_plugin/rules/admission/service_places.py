"""Checks whether the gateway can take one more service, and a service one more generation."""

from collections import Counter

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.slurm_plugin.rules.admission.snapshot import Recent, Snapshot

MOST_GENERATIONS = 16
"""Most generations of one service. Daemon and launcher look at all slots of each at every turn, at
the cost of all tenants. Generations that a newer one replaces are cancelled within seconds."""


def check_generations(spec: ServiceSpec, snapshot: Snapshot, recent: Recent) -> None:
    """Refuse a generation of a service that has as many as it may: SW-SERVICE-ENDING.

    Arrays admitted since the snapshot count as well.
    """
    key = (spec.tenant, spec.name)
    living = snapshot.services.get(key)
    arrays = living.arrays if living is not None else 0
    arrays += sum(
        count for (*service, _), count in recent.services.items() if tuple(service) == key
    )
    if arrays >= MOST_GENERATIONS:
        raise InvalidInputError(
            Code.SERVICE_ENDING,
            f"name: {spec.tenant}/{spec.name} has {arrays} generations; it may have"
            f" {MOST_GENERATIONS}.",
            "Replaced generations are cancelled within seconds: try again then, or cancel them"
            " with scancel.",
        )


def check_place(spec: ServiceSpec, snapshot: Snapshot, recent: Recent) -> None:
    """Refuse a new service for which the gateway has no place: SW-SERVICE-PLACES.

    A new generation takes its service's place. Services admitted since the snapshot count as well.
    """
    places = snapshot.rules.places
    services = {*snapshot.services, *((tenant, name) for tenant, name, _ in recent.services)}
    if places is None or (spec.tenant, spec.name) in services:
        return
    if why := places.why_none(spec.tenant, Counter(tenant for tenant, _ in services)):
        raise InvalidInputError(
            Code.SERVICE_PLACES,
            f"name: there is no place for one more service: {why}.",
            "Delete one that is not used, or ask the operator to raise gateway.services or"
            " gateway.services_per_tenant.",
        )
