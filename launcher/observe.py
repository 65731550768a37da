"""What every service does now: the daemon's view joined with the gateway's."""

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.daemon_client import DaemonClient
from cluster.errors import UnreachableError
from cluster.settings import Settings
from cluster.wire import ServiceView, ViewAnswer
from launcher.decide.gateway import Gateway, Load, Mode, load_of
from launcher.decide.notes import waiting_text
from launcher.decide.runs import run_of
from launcher.decide.services import key_of
from launcher.decide.slots import loss_text
from launcher.haproxy import HaproxyRuntime
from launcher.render import services_map


@dataclass(frozen=True)
class ServiceObservation:
    """One service now.

    Attributes:
        url: where its clients send ``v2/...``.
        load: requests at the gateway; None if this user may not see the gateway or the service has
            no route yet.
        ready: slots that get requests and pass their health checks.
        starting: slots that wait for Slurm, or run and are not ready yet.
        draining: slots that finish what they have or have finished it, ending ones included.
        held: slots that cost nothing.
        gone: slots that were lost for good.
        used_millislices, nominal_millislices: of the tenant; None if this user may not see them.
        note: why slots do not run that should: quota, failed starts, Slurm's reason; "" if all is
            well.
    """

    array_job_id: int
    tenant: str
    name: str
    user: str
    url: str
    profile: str
    min_replicas: int
    max_replicas: int
    load: Load | None
    ready: frozenset[int]
    starting: frozenset[int]
    draining: frozenset[int]
    held: frozenset[int]
    gone: frozenset[int]
    used_millislices: int | None
    nominal_millislices: int | None
    note: str

    @property
    def service(self) -> str:
        """As in the address: ``tenant/name``."""
        return f"{self.tenant}/{self.name}"

    @property
    def loss(self) -> str:
        """What to know about slots that were lost for good; "" if none was."""
        return loss_text(self.gone)

    @property
    def backlog(self) -> int | None:
        """Requests that wait for a replica."""
        return self.load.waiting if self.load is not None else None

    @property
    def in_flight(self) -> int | None:
        """Requests that a replica works on."""
        return self.load.in_flight if self.load is not None else None


async def observe(settings: Settings) -> tuple[ServiceObservation, ...]:
    """Every service that this user may see, by tenant and name.

    Raises UnreachableError if the daemon or HAProxy does not answer, or if the daemon could not
    see all of Slurm (SW-VIEW-INCOMPLETE): nobody shall take that for "nothing runs". A user who
    may not use HAProxy's socket, or is on another host, gets everything but the load.
    """
    daemon = DaemonClient(settings.daemon)
    view = await daemon.view()
    if not view.complete:
        raise UnreachableError(
            "SW-VIEW-INCOMPLETE", "The daemon can't see all of Slurm now.", "Try again."
        )
    hidden = (PermissionError, FileNotFoundError) if daemon.is_remote else (PermissionError,)
    return join(view, await _gateway(settings, hidden), settings.gateway.url)


async def _gateway(settings: Settings, hidden: tuple[type[OSError], ...]) -> Gateway | None:
    socket = settings.gateway.runtime_socket
    try:
        return await HaproxyRuntime(socket, services_map(settings.gateway)).observe()
    except UnreachableError as error:
        if isinstance(error.__cause__, hidden):
            return None
        raise


def join(
    view: ViewAnswer, gateway: Gateway | None, gateway_url: str
) -> tuple[ServiceObservation, ...]:
    """The two looks as one, service by service."""
    found = (_service(service, view, gateway, gateway_url) for service in view.services)
    return tuple(sorted(found, key=lambda service: service.service))


def _service(
    service: ServiceView, view: ViewAnswer, gateway: Gateway | None, gateway_url: str
) -> ServiceObservation:
    tenant = next((t for t in view.tenants if t.name == service.tenant), None)
    backend = gateway.backend_of(key_of(service)) if gateway is not None else None
    states = _states(service, gateway)
    return ServiceObservation(
        array_job_id=service.array_job_id,
        tenant=service.tenant,
        name=service.name,
        user=service.user,
        url=service_url(gateway_url, service.tenant, service.name),
        profile=service.profile,
        min_replicas=int(service.directives.get("min_replicas", "0")),
        max_replicas=len(service.slots),
        load=load_of(backend) if backend is not None else None,
        ready=_with(states, "ready"),
        starting=_with(states, "starting"),
        draining=_with(states, "draining"),
        held=_with(states, "held"),
        gone=_with(states, "gone"),
        used_millislices=tenant.used_millislices if tenant is not None else None,
        nominal_millislices=tenant.nominal_millislices if tenant is not None else None,
        note="; ".join(filter(None, (service.note, waiting_text(service)))),
    )


def service_url(gateway_url: str, tenant: str, name: str) -> str:
    """The address of a service: it stays, whatever its replicas do."""
    return f"{gateway_url.rstrip('/')}/{tenant}/{name}"


def _with(states: Mapping[int, str], state: str) -> frozenset[int]:
    return frozenset(index for index, found in states.items() if found == state)


_WORDS = {"held": "held", "gone": "gone", "ending": "draining"}


def _states(service: ServiceView, gateway: Gateway | None) -> Mapping[int, str]:
    """Without the gateway a running replica counts as ready: it is the best guess."""
    if gateway is None:
        return {
            s.index: _WORDS.get(s.state, "ready" if s.state == "running" else "starting")
            for s in service.slots
        }
    return {
        s.index: _WORDS.get(s.state) or _running(service, s.index, gateway) for s in service.slots
    }


def _running(service: ServiceView, index: int, gateway: Gateway) -> str:
    backend = gateway.backend_of(key_of(service))
    run = run_of(next(slot for slot in service.slots if slot.index == index))
    if backend is None or run is None or index >= len(backend.servers):
        return "starting"
    server = backend.servers[index]
    # A server gets its run's address with its route. Slurm gives out its ports in turn, so an
    # earlier run's address is another one.
    if (server.address, server.port) != (run.address, run.port):
        return "starting"
    if server.mode is not Mode.READY:
        return "draining"
    return "ready" if server.up else "starting"
