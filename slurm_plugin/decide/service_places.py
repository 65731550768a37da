"""Whether the gateway has a place for one more service."""

from collections import Counter

from cluster.errors import InvalidInputError
from cluster.service import ServiceSpec
from slurm_plugin.decide.snapshot import Recent, Snapshot


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
