"""Turns what the launcher's own observation says into the services as the demo shows them."""

from collections.abc import Iterable

from slicewise.cluster.settings.file import Settings
from slicewise.launcher.services.overview import ServiceObservation, observe
from slicewise.sandbox.demo.record import Replicas, ServiceState


class ClusterObserver:
    """Looks at the system with these settings, as root or the launcher's user."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def sample(self) -> tuple[ServiceState, ...]:
        """Return every service as it is now; raises as ``observe`` does."""
        return service_states(await observe(self._settings))


def service_states(observations: Iterable[ServiceObservation]) -> tuple[ServiceState, ...]:
    """Return the services' states in the order given; a service without a route is left out."""
    return tuple(
        ServiceState(
            service.service,
            service.load.waiting,
            _replicas(service),
            service.quota.in_use_millislices if service.quota else 0,
            service.quota.nominal_millislices if service.quota else 0,
        )
        for service in observations
        if service.load is not None
    )


def _replicas(service: ServiceObservation) -> Replicas:
    holding = [
        replica
        for replica in service.every_slot
        if replica.node and replica.state not in {"held", "gone"}
    ]
    ready = service.in_state("ready")
    borrowed = sum(replica.is_borrowed for replica in holding)
    return Replicas(
        ready=len(ready),
        starting=len(service.in_state("starting")),
        draining=len(service.in_state("draining")),
        held=len(service.in_state("held")),
        own=len(holding) - borrowed,
        borrowed=borrowed,
        borrowed_ready=sum(replica.is_borrowed for replica in ready),
    )
