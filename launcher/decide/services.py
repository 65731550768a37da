"""One tick, decided: from what daemon, gateway and replicas showed to what shall be done."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.errors import InvalidInputError
from cluster.service import ServiceSpec, service_spec
from cluster.wire import ServiceView, SlotView, ViewAnswer
from launcher.decide.autoscale import Decision, Peak, autoscale, first_peaks
from launcher.decide.backoff import SETTLED_S, Backoff
from launcher.decide.gateway import Backend, Gateway, Mode, Server, load_of
from launcher.decide.notes import failure_text
from launcher.decide.routing import Route, RoutePlan, Target, plan_routes
from launcher.decide.runs import Down, Run, down_runs, run_of, unfit
from launcher.decide.slots import (
    DRAIN_DEADLINE_S,
    Expiry,
    Phase,
    Slot,
    SlotPlan,
    plan_slots,
    supply,
)
from launcher.decide.urgency import urgency

WISH_AGAIN_S = 2.0
"""A wish that was not (wholly) fulfilled is repeated this often; and, while slots wait for Slurm,
one whose urgency has changed."""
EXPIRES_SOON_S, EXPIRES_NOW_S = 240.0, 130.0
"""The script is warned 60 s before its time limit, and Slurm may do so 60 s earlier (sbatch(1),
``--signal``); before that a replica must be drained. ``time_limit_min`` leaves room for it."""


class Probe(StrEnum):
    """What a replica said when it was asked who it is."""

    OURS = "ours"
    SILENT = "silent"
    """No answer, or not ready yet."""
    STRANGER = "stranger"
    """Another server has the port."""


@dataclass(frozen=True)
class Verified:
    """That run was found to be ours and ready at that time."""

    run: Run
    at_s: float


@dataclass(frozen=True)
class Wish:
    """The last wish sent, when its answer came, what it told the service's users and Slurm."""

    run: frozenset[int]
    at_s: float
    note: str = ""
    urgency: float = 0.0


@dataclass(frozen=True)
class ServiceState:
    """What the launcher remembers of a service; all of it can be lost (see ``decide``).

    Attributes:
        alive: slots that were under way at the last look, or were released since.
        draining_since_s: by slot index.
        down: runs that fail their health checks, by slot index.
    """

    peaks: tuple[Peak, ...] = ()
    backoff: Backoff = field(default_factory=Backoff)
    verified: Mapping[int, Verified] = field(default_factory=dict, hash=False)
    draining_since_s: Mapping[int, float] = field(default_factory=dict, hash=False)
    down: Mapping[int, Down] = field(default_factory=dict, hash=False)
    alive: frozenset[int] = frozenset()
    wish: Wish | None = None


State = Mapping[int, ServiceState]
"""By array job id."""
Probes = Mapping[tuple[int, int], Probe]
"""By array job id and slot index."""


@dataclass(frozen=True)
class ServicePlan:
    """What shall be done for one service.

    Attributes:
        wish: slots to ask the daemon for; None if it knows already.
        note: why the service does not start, for its users; "" if nothing is wrong.
        urgency: of its backlog, in 0..1.
        lost: slots whose task ended for good.
    """

    array_job_id: int
    service: str
    decision: Decision
    slots: tuple[Slot, ...]
    route: Route
    wish: frozenset[int] | None
    note: str
    urgency: float
    lost: frozenset[int]


@dataclass(frozen=True)
class Plan:
    """What shall be done: the changes at the gateway first, then the wishes.

    Attributes:
        unreadable: why a service can't be looked after, by its name.
    """

    services: tuple[ServicePlan, ...]
    routes: RoutePlan
    unreadable: Mapping[str, str] = field(hash=False)


def key_of(view: ServiceView) -> str:
    """``tenant/service``, as in the address."""
    return f"{view.tenant}/{view.name}"


def unverified(view: ServiceView, state: ServiceState) -> tuple[SlotView, ...]:
    """Slots whose replica must be asked who it is."""
    return tuple(
        slot
        for slot in view.slots
        if (run := run_of(slot)) is not None
        and ((known := state.verified.get(slot.index)) is None or known.run != run)
    )


def decide(
    view: ViewAnswer, gateway: Gateway, probes: Probes, state: State, now_s: float
) -> tuple[State, Plan] | None:
    """The whole decision; None if the daemon could not see all of Slurm: then nothing changes.

    ``state`` may be empty (after a restart). Then what runs counts as wanted, the gateway tells
    which slots serve or drain, and every replica is asked again who it is.
    """
    if not view.complete:
        return None
    newest = {key_of(service): service for service in view.services}
    found: dict[int, ServiceState] = {}
    plans: list[ServicePlan] = []
    waiting: list[Route] = []
    unreadable: dict[str, str] = {}
    for key, service in newest.items():
        known = state.get(service.array_job_id, ServiceState())
        try:
            spec = service_spec(service.directives)
        except InvalidInputError as error:
            waiting.append(Route(key, 1, None))
            unreadable[key] = str(error)
            continue
        if known.wish is not None and view.observed_s <= known.wish.at_s:
            found[service.array_job_id] = known
            waiting.append(Route(key, spec.concurrency, None))
            continue
        asked = {i: p for (array, i), p in probes.items() if array == service.array_job_id}
        look = Look(spec, service, gateway.backend_of(key), _most(gateway), asked)
        found[service.array_job_id], plan = decide_service(look, known, now_s)
        plans.append(plan)
    routes = plan_routes(gateway, (*waiting, *(plan.route for plan in plans)))
    return found, Plan(tuple(plans), routes, unreadable)


def _most(gateway: Gateway) -> int:
    return min((len(backend.servers) for backend in gateway.backends.values()), default=0)


@dataclass(frozen=True)
class Look:
    """What was seen of one service.

    Attributes:
        most: replicas that a backend can carry.
        probes: by slot index.
    """

    spec: ServiceSpec
    view: ServiceView
    backend: Backend | None
    most: int
    probes: Mapping[int, Probe] = field(hash=False)


def decide_service(
    look: Look, known: ServiceState, now_s: float
) -> tuple[ServiceState, ServicePlan]:
    """One service: how many, which slots, which of them get requests."""
    verified = _verified(look, known, now_s)
    seen = tuple(_slot(look, slot, verified) for slot in look.view.slots)
    down = down_runs(look.view, seen, known.down, now_s)
    slots = tuple(Slot(s.index, Phase.OUT) if s.index in unfit(down) else s for s in seen)
    backoff = _backoff(look.view, known, verified, down, now_s)
    draining = {s.index: s for s in slots if s.phase is Phase.DRAINING}
    since_s = {i: known.draining_since_s.get(i, now_s) for i in draining}
    peaks, decision = autoscale(
        look.spec,
        known.peaks or first_peaks(supply(slots), now_s),
        load_of(look.backend),
        look.most,
        now_s,
    )
    plan = plan_slots(
        slots,
        decision.wanted,
        may_start=now_s >= backoff.until_s,
        drained_out=frozenset(i for i, t in since_s.items() if now_s - t >= DRAIN_DEADLINE_S),
    )
    state = ServiceState(peaks, backoff, verified, since_s, down, _alive(look.view), known.wish)
    return state, _service_plan(look, _with_backoff(decision, backoff, now_s), slots, plan, state)


def _service_plan(
    look: Look, decision: Decision, slots: tuple[Slot, ...], plan: SlotPlan, state: ServiceState
) -> ServicePlan:
    key = key_of(look.view)
    route = Route(key, look.spec.concurrency, _targets(look.view, plan))
    note = failure_text(look.view, state.backoff.failures)
    pressing = urgency(load_of(look.backend), look.spec.concurrency * _serving(slots))
    newest = Wish(plan.run, state.peaks[-1].at_s, note, pressing)
    wish = plan.run if _must_wish(look.view, newest, state.wish) else None
    lost = frozenset(slot.index for slot in look.view.slots if slot.state == "gone")
    array = look.view.array_job_id
    return ServicePlan(array, key, decision, slots, route, wish, note, pressing, lost)


def _serving(slots: tuple[Slot, ...]) -> int:
    return sum(slot.phase is Phase.SERVING and slot.up for slot in slots)


def with_wish(state: State, array_job_id: int, wish: Wish, released: frozenset[int]) -> State:
    """Remember what the daemon answered; a released slot may have failed before the next look."""
    known = state[array_job_id]
    return {**state, array_job_id: replace(known, wish=wish, alive=known.alive | released)}


def _with_backoff(decision: Decision, backoff: Backoff, now_s: float) -> Decision:
    left_s = backoff.until_s - now_s
    if left_s <= 0:
        return decision
    note = f"{backoff.failures} failed start(s) in a row, the next one in {left_s:.0f} s"
    return replace(decision, reason=f"{decision.reason}; {note}")


def _alive(view: ServiceView) -> frozenset[int]:
    under_way = {"released", "starting", "running"}
    return frozenset(slot.index for slot in view.slots if slot.state in under_way)


def _verified(look: Look, known: ServiceState, now_s: float) -> Mapping[int, Verified]:
    """Runs known to be ours; that of an ended slot is kept for one look, to judge its end."""
    found = {i: v for i, v in known.verified.items() if i in known.alive}
    for slot in look.view.slots:
        run = run_of(slot)
        before = found.get(slot.index)
        if run is None or (before is not None and before.run == run):
            continue
        found.pop(slot.index, None)
        if look.probes.get(slot.index) is Probe.OURS:
            found[slot.index] = Verified(run, now_s)
    return found


def _backoff(
    view: ServiceView,
    known: ServiceState,
    verified: Mapping[int, Verified],
    down: Mapping[int, Down],
    now_s: float,
) -> Backoff:
    """A failed start: it was wished and ended by itself before it had settled, or it was unfit."""
    wished = known.wish.run if known.wish is not None else frozenset()
    over = {"held", "ending", "gone"}
    ended = {slot.index for slot in view.slots if slot.state in over} & known.alive
    settled = {i for i, v in verified.items() if now_s - v.at_s >= SETTLED_S}
    if (ended & unfit(known.down)) | ((ended & wished) - settled):
        return known.backoff.failed(now_s)
    backoff = known.backoff
    for index, found in verified.items():
        if index not in down:
            backoff = backoff.settled(found.at_s, now_s)
    return backoff


def _slot(look: Look, view: SlotView, verified: Mapping[int, Verified]) -> Slot:
    if view.index >= look.most or view.state in {"ending", "gone"}:
        return Slot(view.index, Phase.OUT)
    if view.state == "held":
        return Slot(view.index, Phase.HELD)
    run = run_of(view)
    if run is None or look.probes.get(view.index) is Probe.STRANGER:
        return Slot(view.index, Phase.STARTING, allotted=view.state != "released")
    server = look.backend.servers[view.index] if look.backend is not None else None
    return _running_slot(view, run, server, ready=view.index in verified)


def _running_slot(view: SlotView, run: Run, server: Server | None, *, ready: bool) -> Slot:
    """The gateway tells whether it serves or drains: that survives the launcher."""
    expiry = _expiry(view.time_left_s)
    here = server is not None and (server.address, server.port) == (run.address, run.port)
    if server is None or not here or server.mode is Mode.MAINT:
        phase = Phase.WARM if ready else Phase.STARTING
        return Slot(view.index, phase, allotted=True, expiry=expiry)
    phase = Phase.SERVING if server.mode is Mode.READY else Phase.DRAINING
    busy = server.in_flight + server.queued
    return Slot(view.index, phase, busy, server.up, allotted=True, expiry=expiry)


def _expiry(time_left_s: int | None) -> Expiry:
    if time_left_s is None or time_left_s >= EXPIRES_SOON_S:
        return Expiry.FAR
    return Expiry.NOW if time_left_s < EXPIRES_NOW_S else Expiry.SOON


def _targets(view: ServiceView, plan: SlotPlan) -> Mapping[int, Target]:
    runs = {slot.index: run_of(slot) for slot in view.slots}
    return {
        index: Target(run.address, run.port, mode)
        for index, mode in plan.modes.items()
        if (run := runs[index]) is not None
    }


def _must_wish(view: ServiceView, newest: Wish, last: Wish | None) -> bool:
    if last is None or (last.run, last.note) != (newest.run, newest.note):
        return True
    held = {slot.index for slot in view.slots if slot.state == "held"}
    pending = held | {slot.index for slot in view.slots if slot.state == "released"}
    fulfilled = not (held & newest.run) and _alive(view) <= newest.run
    presses_else = bool(pending & newest.run) and newest.urgency != last.urgency
    return (presses_else or not fulfilled) and newest.at_s - last.at_s >= WISH_AGAIN_S
