"""What would have to be so for services to share replicas, and what is to be said of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.pools import differing, sharing
from slicewise.cluster.language.service import ServiceSpec, service_spec
from slicewise.launcher.rules.pools.room import room_mib
from slicewise.launcher.services.model_repository import files_model_mib
from slicewise.launcher.services.service_file import require_pool_engine
from slicewise.simulation.rules.services.service import SimulatedService

_POOL = "pool"
"""Name of a pool that no file names."""


def shared_specs(specs: Sequence[ServiceSpec]) -> Mapping[str, ServiceSpec]:
    """Return the services as they would be if those of each tenant shared replicas.

    By ``tenant/service``. Raises InvalidInputError: SW-USAGE for one that would have none to
    share with, SW-SERVICE for one that can't be in a pool.
    """
    by_tenant: dict[str, list[ServiceSpec]] = defaultdict(list)
    for spec in specs:
        pooled = service_spec({**spec.values(), "pool": _POOL})
        require_pool_engine(pooled)
        by_tenant[spec.tenant].append(pooled)
    for tenant, members in by_tenant.items():
        keys = [_key(spec) for spec in members]
        if set(keys) not in map(set, sharing((_key(spec), "", spec.values()) for spec in members)):
            raise _alone(tenant, members)
    return {_key(spec): spec for members in by_tenant.values() for spec in members}


def _alone(tenant: str, members: Sequence[ServiceSpec]) -> InvalidInputError:
    """Say which service could not share, and why."""
    first, *others = members
    if not others:
        return _refused(f"{_key(first)} is the only service of {tenant}: it has none to share with")
    for other in others:
        if keys := differing(first.values(), other.values()):
            return _refused(
                f"{_key(other)} can't share replicas with {_key(first)}: {', '.join(keys)}"
                f" {'differ' if len(keys) > 1 else 'differs'}"
            )
    return _refused(f"Two services of {tenant} have a model of the same name")


def with_model_mib(spec: ServiceSpec) -> ServiceSpec:
    """Return a service of a pool with the memory of its model, as ``service apply`` sets it.

    Raises InvalidInputError (SW-SERVICE) where that is not known.
    """
    model = Path(spec.model_repository) / spec.model
    model_mib = spec.model_mib or files_model_mib(model)
    if model_mib is None:
        raise InvalidInputError(
            Code.SERVICE,
            f"{_key(spec)}: how many models fit into a replica is not known: model_mib is not set,"
            f" and {model} can't be read here.",
            "Write model_mib into the service's file, and name that by --service.",
        )
    return spec.model_copy(update={"model_mib": model_mib})


def pool_notes(
    services: Iterable[SimulatedService], memory_mib: Mapping[str, int | None]
) -> Iterator[str]:
    """Say which services share replicas, and what of pools is not simulated."""
    specs = {service.key: service.spec for service in services if service.spec.pool is not None}
    for keys in sharing((key, spec.tenant, spec.values()) for key, spec in specs.items()):
        shape = specs[keys[0]].replica_shape
        has_mib = room_mib(memory_mib.get(shape.gres_type or ""), shape.gpus)
        needs = sum(specs[key].model_mib or 0 for key in keys)
        room = f"each with {has_mib:,} MiB for them" if has_mib else "whose memory is not known"
        yield (
            f"{', '.join(keys)} share replicas: models of {needs:,} MiB together, on"
            f" {shape.gres_type}, {room}. All that a replica works on shares its slice evenly; what"
            " models cost each other besides, and loads that fail, are not simulated."
        )


def _key(spec: ServiceSpec) -> str:
    return f"{spec.tenant}/{spec.name}"


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.USAGE,
        f"--pooled: {why}.",
        "docs/how-to/services.md says which services can share; leave the others out.",
    )
