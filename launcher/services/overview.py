"""What every service does now: joins the daemon's view with the gateway's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import computed_field

from slicewise.cluster.language.audience import audience_of
from slicewise.cluster.language.documents import HIDDEN, TextOrNull
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import can_follow, whole_number
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import (
    WHEN_REPLACED_S,
    ServiceQuality,
    ServiceReport,
    ServiceView,
    SlotPlace,
    SlotView,
    TenantView,
    ViewAnswer,
)
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.rules.engines.registry import engine_of
from slicewise.launcher.rules.gateway.types import Backend, Gateway, Load, ServerMode, load_of
from slicewise.launcher.rules.pools.room import memory_mib
from slicewise.launcher.rules.services.apply_plan import generations_of
from slicewise.launcher.rules.turn.endpoints import run_of
from slicewise.launcher.rules.turn.notes import waiting_text
from slicewise.launcher.rules.turn.slots import loss_text
from slicewise.launcher.services.logs import last_line, why_it_failed
from slicewise.launcher.services.lookup import whole_view

State = Literal["ready", "starting", "draining", "held", "gone"]
"""ready: gets requests and passes its health checks. starting: waits for Slurm, or runs and is not
ready yet. draining: finishes its requests or has finished them; also while Slurm ends it. held:
costs nothing. gone: lost for good."""

Condition = Literal[
    "asleep", "waking", "ready", "failing", "unpaid", "rolling", "ending", "no address"
]
"""asleep: no replica runs or is wanted; a request wakes it. waking: a first replica is wanted and
is not ready yet. ready: a replica serves. failing: starts fail, and no replica of the newest
generation serves. unpaid: its budget is used up, so that no replica can start. rolling: new
replicas replace outdated ones. ending: its owner has deleted it. no address: the gateway does not
lead to it."""

Slots = Mapping[State, Sequence[int]]
"""Slots by state."""


@dataclass(frozen=True)
class ReplicaView:
    """One slot of one generation now; times are in seconds.

    Attributes:
        age_s: seconds since Slurm started it; None if it has not.
        lease_left_s: seconds until its time limit, which is extended while it is wanted.
        is_outdated: whether a newer one replaces it: its generation is older, or it started before
            its owner ordered a restart.
        has_other_files: whether it started with other files in its model repository than its
            generation was applied with.
        why: why it waits or must end; "" if there is nothing to say.
        last_log_line: of a replica that runs and is not ready yet: what it has written last; "" if
            nothing can be read.
    """

    array_job_id: int
    slot: int
    state: State
    node: str = ""
    age_s: int | None = None
    lease_left_s: int | None = None
    is_borrowed: bool = False
    is_outdated: bool = False
    has_other_files: bool = False
    why: str = ""
    last_log_line: str = ""


@dataclass(frozen=True)
class PooledModel:
    """A model of a pool in one of its replicas; null stands for what is not known.

    Attributes:
        service: ``tenant/name`` of the service whose model it is.
        memory_mib: MiB that it takes, as its service's file says.
        array_job_id, slot, node: the replica; null of a model that no replica has.
        replica_mib: MiB that the replica has for models.
        state: refused: its last load there failed. absent: no replica has it, or is to have it.
        in_flight: requests for it that the replica works on.
        load_s: seconds that its last load there took; null of a model with which it started.
        why: why it was refused; "" if it was not.
    """

    service: str
    model: str
    memory_mib: int | None
    array_job_id: int | None = None
    slot: int | None = None
    node: str | None = None
    replica_mib: int | None = None
    state: Literal["ready", "loading", "leaving", "refused", "absent"] = "absent"
    in_flight: int = 0
    load_s: float | None = None
    why: str = ""


@dataclass(frozen=True)
class GenerationNow:
    """A generation of a service: its array job, and its slots by state."""

    array_job_id: int
    slots: Slots


@dataclass(frozen=True)
class ServiceObservation:
    """One service now, all of its generations together; null stands for what is not known.

    Attributes:
        array_job_id: the newest generation's.
        url: where its clients send requests.
        min_replicas, max_replicas: as ordered, else as its script says.
        is_scaled: whether they are ordered.
        is_ending: whether its owner has ordered its end.
        report: the launcher's last one.
        quota: its tenant's; None also if this user may not see it.
        objective: as the newest generation's script says, such as ``p95_ms 800``.
        token_objective: the same of its tokens, such as ``ttft_ms 500, tpot_ms 50``.
        note: why slots that should run do not: quota, failed starts, Slurm's reason; "" if all is
            well.
        audience: tenants that may ask it beside its owner, each with all below it; ``*`` is all.
        pool: which replica has which model, of all services with which it shares replicas, replica
            by replica. Null without a pool, and where many services are listed.
    """

    array_job_id: int
    older: Annotated[tuple[int, ...], HIDDEN]
    """Array jobs of the generations that it replaces, the newest first."""
    tenant: str
    name: str
    user: str
    url: str
    api: Annotated[str, HIDDEN]
    """Path that follows the address, of its engine."""
    is_routed: Annotated[bool, HIDDEN]
    """Whether the gateway leads its address to it."""
    shape: Annotated[ReplicaShape, HIDDEN]
    min_replicas: int
    max_replicas: int
    is_scaled: bool
    is_ending: bool
    load: Annotated[Load | None, HIDDEN]
    """Requests at the gateway; None if neither the gateway nor the report can be seen."""
    report: ServiceReport | None
    every_slot: Annotated[tuple[ReplicaView, ...], HIDDEN]
    """Slots of all generations, the newest first."""
    objective: TextOrNull
    quota: TenantView | None
    note: str
    token_objective: TextOrNull = ""
    audience: tuple[str, ...] = ()
    directives: Annotated[Mapping[str, str], HIDDEN] = field(default_factory=dict, hash=False)
    """The newest generation's."""
    models_mib: Annotated[int | None, HIDDEN] = None
    """Memory that a replica has for the models of a pool."""
    pool: tuple[PooledModel, ...] | None = None

    @computed_field
    @property
    def service(self) -> str:
        """As in the address: ``tenant/name``."""
        return f"{self.tenant}/{self.name}"

    @computed_field
    @property
    def profile(self) -> str:
        """GRES type of each of a replica's GPUs; "" is Slurm's choice."""
        return self.shape.gres_type or ""

    @computed_field
    @property
    def gpus(self) -> int:
        """GPU instances of a replica."""
        return self.shape.gpus

    @computed_field
    @property
    def nodes(self) -> int:
        """Nodes of a replica."""
        return self.shape.nodes

    @computed_field
    @property
    def replicas(self) -> tuple[ReplicaView, ...]:
        """Slots that cost something or have a remark."""
        shown = {"ready", "starting", "draining"}
        return tuple(
            replica for replica in self.every_slot if replica.state in shown or replica.why
        )

    @computed_field
    @property
    def slots(self) -> Slots:
        """Slots of the newest generation by state."""
        return self._slots(self.array_job_id)

    @computed_field
    @property
    def generations(self) -> tuple[GenerationNow, ...]:
        """The newest generation, and those that it replaces."""
        arrays = (self.array_job_id, *self.older)
        return tuple(GenerationNow(array, self._slots(array)) for array in arrays)

    def _slots(self, array: int) -> Slots:
        return {
            state: sorted(replica.slot for replica in self.in_state(state, array))
            for state in get_args(State)
        }

    def in_state(self, state: State, array_job_id: int | None = None) -> tuple[ReplicaView, ...]:
        """Return the replicas in that state, of all generations or of one."""
        return tuple(
            replica
            for replica in self.every_slot
            if replica.state == state and array_job_id in {None, replica.array_job_id}
        )

    @property
    def outdated(self) -> tuple[ReplicaView, ...]:
        """Replicas that newer ones replace."""
        return tuple(
            replica
            for replica in self.every_slot
            if replica.is_outdated and replica.state not in {"held", "gone"}
        )

    @property
    def quality(self) -> ServiceQuality | None:
        """How well it answered lately, as far as the launcher has told."""
        return self.report.quality if self.report is not None else None

    @property
    def ready(self) -> tuple[ReplicaView, ...]:
        """Replicas that serve and that no newer ones replace."""
        return tuple(replica for replica in self.in_state("ready") if not replica.is_outdated)

    @property
    def failures(self) -> int:
        """Starts of the newest generation that failed in a row, as far as the launcher has told."""
        report = self.report
        is_told = report is not None and report.array_job_id in {None, self.array_job_id}
        return report.failed_starts if report is not None and is_told else 0

    @computed_field
    @property
    def state(self) -> Condition:
        """The state of the service as a whole, in one word."""
        if self.is_ending:
            return "ending"
        if not self.is_routed:
            return "no address"
        ready = self.in_state("ready")
        if self.failures and not any(
            replica.array_job_id == self.array_job_id for replica in ready
        ):
            return "failing"
        if self.outdated:
            return "rolling"
        if ready or (self.report is not None and self.report.shared_replicas):
            return "ready"
        return self._without_replica

    @property
    def _without_replica(self) -> Condition:
        if self.report is not None and self.report.is_unpaid:
            return "unpaid"
        is_wanted = self.report is not None and self.report.desired_replicas
        wakes = self.in_state("starting") or is_wanted or self.backlog
        return "waking" if wakes else "asleep"

    @computed_field
    @property
    def loss(self) -> str:
        """Text about slots that were lost for good; "" if none was."""
        return loss_text([replica.slot for replica in self.in_state("gone", self.array_job_id)])

    @computed_field
    @property
    def backlog(self) -> int | None:
        """Requests that wait for a replica; None if that is not known."""
        return self.load.waiting if self.load is not None else None

    @computed_field
    @property
    def in_flight(self) -> int | None:
        """Requests that a replica works on; None if that is not known."""
        return self.load.in_flight if self.load is not None else None


async def observe(settings: Settings) -> tuple[ServiceObservation, ...]:
    """Return every service that this user may see, by tenant and name.

    Raises UnreachableError if the daemon or HAProxy does not answer, or if the daemon could not see
    all of Slurm (SW-DAEMON-BLIND). A user who may not use HAProxy's socket, or is on another
    host, sees of the gateway what the launcher has told within the last second.
    """
    daemon = DaemonClient(settings.daemon)
    view = await whole_view(daemon)
    hidden = (PermissionError, FileNotFoundError) if daemon.is_remote else (PermissionError,)
    joined_view = view.model_copy(update={"services": tuple(map(_with_logs, view.services))})
    gateway = await _gateway(settings, hidden)
    return join(joined_view, gateway, settings.gateway.url, last_line=last_line)


def _with_logs(view: ServiceView) -> ServiceView:
    """Add why slots failed, from logs that only owners can read.

    What everybody can see says only that they failed.
    """
    slots = (
        slot.model_copy(update={"last_failure": f"{slot.last_failure}: {why}"})
        if slot.last_failure and (why := why_it_failed(view, slot.index))
        else slot
        for slot in view.slots
    )
    return view.model_copy(update={"slots": tuple(slots)})


async def _gateway(settings: Settings, hidden: tuple[type[OSError], ...]) -> Gateway | None:
    # Imported here: the shell's completion imports the commands, and asks no gateway.
    from slicewise.launcher.gateway.haproxy import HaproxyRuntime  # noqa: PLC0415

    try:
        async with HaproxyRuntime(settings.gateway) as runtime:
            return await runtime.observe()
    except UnreachableError as error:
        if isinstance(error.__cause__, hidden):
            return None
        raise


LogReader = Callable[[ServiceView, int], str]
"""Returns the last line that a slot's replica has written."""


def join(
    view: ViewAnswer, gateway: Gateway | None, gateway_url: str, *, last_line: LogReader
) -> tuple[ServiceObservation, ...]:
    """Join the two looks, service by service; ``last_line`` is asked of replicas that start."""
    tenants = {tenant.name: tenant for tenant in view.tenants}
    reports = {
        (service_report.tenant, service_report.name): service_report
        for service_report in view.service_reports
    }
    services = sorted({(service.tenant, service.name) for service in view.services})
    return tuple(
        _service(
            generations_of(view.services, tenant, name),
            tenants.get(tenant),
            _Look(view.observed_s, gateway, reports.get((tenant, name)), last_line),
            service_url(gateway_url, tenant, name),
        )
        for tenant, name in services
    )


@dataclass(frozen=True)
class _Look:
    at_s: float
    gateway: Gateway | None
    report: ServiceReport | None
    last_line: LogReader


def _service(
    living: Sequence[ServiceView], tenant: TenantView | None, look: _Look, url: str
) -> ServiceObservation:
    newest, order = living[0], living[0].order
    key = f"{newest.tenant}/{newest.name}"
    backend = look.gateway.backend_of(key) if look.gateway is not None else None
    least, most = order.min_replicas, order.max_replicas
    return ServiceObservation(
        array_job_id=newest.array_job_id,
        older=tuple(view.array_job_id for view in living[1:]),
        tenant=newest.tenant,
        name=newest.name,
        user=newest.user,
        url=url,
        api=engine_of(newest.directives).api,
        is_routed=_is_routed(living, backend, look),
        shape=ReplicaShape(
            newest.profile,
            whole_number(newest.directives, "gpus", 1),
            whole_number(newest.directives, "nodes", 1),
        ),
        min_replicas=whole_number(newest.directives, "min_replicas", 0) if least is None else least,
        max_replicas=len(newest.slots) if most is None else most,
        is_scaled=least is not None,
        is_ending=order.delete_s is not None,
        load=_load(backend, look),
        report=look.report,
        every_slot=tuple(
            _replica(
                view, slot, _state(view, slot, backend, look), look, is_old=_is_old(view, newest)
            )
            for view in living
            for slot in view.slots
        ),
        objective=_objective(newest),
        quota=tenant,
        note="; ".join(filter(None, (newest.note, waiting_text(newest)))),
        token_objective=", ".join(_said(newest, _TOKEN_OBJECTIVES)),
        audience=tuple(sorted(audience_of(newest.directives))),
        directives=newest.directives,
        models_mib=memory_mib(newest) if "pool" in newest.directives else None,
    )


def _is_old(view: ServiceView, newest: ServiceView) -> bool:
    """Whether newer replicas replace those of a generation: they can't just load other adapters."""
    is_followed = can_follow(view.directives, newest.directives)
    return view is not newest and not is_followed


def _objective(newest: ServiceView) -> str:
    return next(iter(_said(newest, _OBJECTIVES)), "")


def _said(newest: ServiceView, keys: Sequence[str]) -> Sequence[str]:
    return [f"{key} {newest.directives[key]}" for key in keys if key in newest.directives]


_OBJECTIVES, _TOKEN_OBJECTIVES = ("p95_ms", "max_queue_s"), ("ttft_ms", "tpot_ms")


def _is_routed(living: Sequence[ServiceView], backend: Backend | None, look: _Look) -> bool:
    """Whether the address leads to the service.

    Users who can't see the gateway are told what the launcher has reported, else whether the
    launcher looks after the service.
    """
    if look.gateway is not None:
        return backend is not None
    return look.report.is_routed if look.report is not None else any(v.is_followed for v in living)


def _load(backend: Backend | None, look: _Look) -> Load | None:
    if backend is not None:
        return load_of(backend)
    if look.gateway is not None or look.report is None:
        return None
    return Load(look.report.in_flight, look.report.queued, look.report.held)


def service_url(gateway_url: str, tenant: str, name: str) -> str:
    """Return a service's address, which stays the same whatever its replicas do."""
    return f"{gateway_url.rstrip('/')}/{tenant}/{name}"


def _replica(
    view: ServiceView, slot: SlotView, state: State, look: _Look, *, is_old: bool
) -> ReplicaView:
    loads = state == "starting" and slot.start_s is not None
    is_before = slot.start_s is not None and slot.start_s < int(view.order.restart_s or 0)
    return ReplicaView(
        array_job_id=view.array_job_id,
        slot=slot.index,
        state=state,
        node=slot.node,
        age_s=None if slot.start_s is None else max(0, int(look.at_s - slot.start_s)),
        lease_left_s=slot.time_left_s,
        is_borrowed=slot.is_borrowed,
        is_outdated=is_old or is_before,
        has_other_files=slot.files_digest
        not in {"", view.directives.get("model_digest", slot.files_digest)},
        why=_why(slot),
        last_log_line=look.last_line(view, slot.index) if loads else "",
    )


def _why(slot: SlotView) -> str:
    if slot.ends_in_s == WHEN_REPLACED_S:
        return f"ends once another replica serves: {slot.ends_why}"
    if slot.ends_in_s is not None:
        return f"ends in {slot.ends_in_s} s: {slot.ends_why}"
    if slot.state == "released" and slot.reason != "None":
        return slot.reason
    if slot.is_configuring:
        return "Slurm gets its node ready (CONFIGURING)"
    if slot.state == "ending":
        return "Slurm is ending it (COMPLETING)"
    return slot.last_failure if slot.state == "held" else ""


_STATES: Mapping[str, State] = {"held": "held", "gone": "gone", "ending": "draining"}


def _state(view: ServiceView, slot: SlotView, backend: Backend | None, look: _Look) -> State:
    if (words := _STATES.get(slot.state)) is not None:
        return words
    place = (view.array_job_id, slot.index)
    if look.gateway is None:
        return _told_state(place, slot, look.report)
    run = run_of(slot)
    if run is None and slot.state == "starting" and look.report is not None:
        # A look at Slurm may miss the ports of a replica that serves; the launcher remembers them.
        return _told_state(place, slot, look.report)
    server = backend.server_of(run.endpoint) if backend is not None and run is not None else None
    if server is None:
        return "starting"
    if server.mode is not ServerMode.READY:
        return "draining"
    return "ready" if server.up else "starting"


def _told_state(place: SlotPlace, slot: SlotView, report: ServiceReport | None) -> State:
    """Return the state from the launcher's report.

    Without gateway and report a running replica counts as ready: it is the best guess.
    """
    if report is None:
        return "ready" if slot.state == "running" else "starting"
    if place in report.draining:
        return "draining"
    return "ready" if place in report.ready else "starting"
