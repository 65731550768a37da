"""Whether the gateway has a place for one more service, and a service for one more generation."""

from collections import Counter

from cluster.errors import InvalidInputError
from cluster.service import ServiceSpec
from slurm_plugin.decide.snapshot import Recent, Snapshot

MOST_GENERATIONS = 16
"""Of one service. Daemon and launcher look at all slots of each at every turn, for everybody; those
that a newer one replaces are cancelled within seconds."""


def check_generations(spec: ServiceSpec, snapshot: Snapshot, recent: Recent) -> None:
    """Raise SW-SERVICE-GENERATIONS for a service that has as many generations as it may.

    What was admitted a moment ago counts.
    """
    key = (spec.tenant, spec.name)
    living = snapshot.services.get(key)
    arrays = living.arrays if living is not None else 0
    arrays += sum(count for (*one, _), count in recent.services.items() if tuple(one) == key)
    if arrays >= MOST_GENERATIONS:
        raise InvalidInputError(
            "SW-SERVICE-GENERATIONS",
            f"name: {spec.tenant}/{spec.name} has {arrays} generations; it may have"
            f" {MOST_GENERATIONS}.",
            "Those that a newer one replaces are cancelled within seconds: try again then, or"
            " cancel them: scancel.",
        )


def check_place(spec: ServiceSpec, snapshot: Snapshot, recent: Recent) -> None:
    """Raise SW-SERVICE-PLACES for a new service without one; a new generation takes its service's.

    What was admitted a moment ago counts.
    """
    places = snapshot.rules.places
    services = {*snapshot.services, *((tenant, name) for tenant, name, _ in recent.services)}
    if places is None or (spec.tenant, spec.name) in services:
        return
    if why := places.why_none(spec.tenant, Counter(tenant for tenant, _ in services)):
        raise InvalidInputError(
            "SW-SERVICE-PLACES",
            f"name: there is no place for one more service: {why}.",
            "Delete one that is not used, or ask the operator to raise gateway.backends or"
            " gateway.services_per_tenant.",
        )
