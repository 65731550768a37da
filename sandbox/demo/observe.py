"""The services as the demo shows them: the daemon's view joined with what the gateway sees."""

from collections import Counter
from collections.abc import Awaitable, Callable

from cluster.errors import OutsideError
from cluster.settings import Settings
from cluster.wire import ServiceView, SlotView, ViewAnswer
from launcher.daemon_client import DaemonClient
from launcher.decide.gateway import Backend, Gateway, Mode, load_of
from launcher.haproxy import HaproxyRuntime
from launcher.render import services_map
from sandbox.demo.record import Replicas, ServiceState


class ClusterObserver:
    """Asks both for each sample; fails if either does not answer."""

    def __init__(
        self,
        view: Callable[[], Awaitable[ViewAnswer]],
        gateway: Callable[[], Awaitable[Gateway]],
    ) -> None:
        self._view = view
        self._gateway = gateway

    async def sample(self) -> tuple[ServiceState, ...]:
        """Every service now, the gateway after the daemon."""
        return service_states(await self._view(), await self._gateway())


def connect(settings: Settings) -> ClusterObserver:
    """An observer of the system with these settings, for root or the launcher's user."""
    runtime = HaproxyRuntime(settings.gateway.runtime_socket, services_map(settings.gateway))
    return ClusterObserver(DaemonClient(settings.daemon.user_socket).view, runtime.observe)


def service_states(view: ViewAnswer, gateway: Gateway) -> tuple[ServiceState, ...]:
    """Join the two by service, ordered by name; without those that have no route yet.

    An incomplete view is no observation: raises OutsideError (SW-VIEW-INCOMPLETE).
    """
    if not view.complete:
        raise OutsideError("SW-VIEW-INCOMPLETE", "The daemon could not see all of Slurm.")
    tenants = {tenant.name: tenant for tenant in view.tenants}
    by_key = {f"{service.tenant}/{service.name}": service for service in view.services}
    return tuple(
        ServiceState(
            key,
            load_of(backend).waiting,
            _replicas(service, backend),
            tenants[service.tenant].used_millislices,
            tenants[service.tenant].nominal_millislices,
        )
        for key, service in sorted(by_key.items())
        if (backend := gateway.backend_of(key)) is not None
    )


def _replicas(service: ServiceView, backend: Backend) -> Replicas:
    return Replicas(**Counter(filter(None, (_word(slot, backend) for slot in service.slots))))


def _word(slot: SlotView, backend: Backend) -> str | None:
    """What the slot's replica does; a running one is starting until its server gets requests."""
    server = backend.servers[slot.index] if slot.index < len(backend.servers) else None
    match slot.state:
        case "held":
            return "held"
        case "gone":
            return None
        case "ending":
            return "draining"
        case "running" if server is not None and server.mode is Mode.DRAIN:
            return "draining"
        case "running" if server is not None and server.mode is Mode.READY and server.up:
            return "ready"
        case _:
            return "starting"
