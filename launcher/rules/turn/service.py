"""Decides for one service: how many replicas, which slots run, which of them get requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from slicewise.cluster.language.adapters import adapters_of
from slicewise.cluster.language.service import (
    AUTO,
    ServiceSpec,
    can_follow,
)
from slicewise.cluster.rpc.messages import AdapterReport, ModelPlace, ServiceView
from slicewise.launcher.rules.autoscale import types as scaling
from slicewise.launcher.rules.autoscale.keep_warm import added_up
from slicewise.launcher.rules.autoscale.policy import autoscale, initial
from slicewise.launcher.rules.autoscale.types import ScalingDecision, Supply
from slicewise.launcher.rules.engines.engine import Engine, TokenCounts
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.engines.registry import engine_of
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import (
    Backend,
    Endpoint,
    Load,
    ServerMode,
    Terms,
)
from slicewise.launcher.rules.pools.types import Placement, RefusedModel, ReplicaModels
from slicewise.launcher.rules.turn import scaling_inputs
from slicewise.launcher.rules.turn.budgets import UsedUp
from slicewise.launcher.rules.turn.curves import Curves, Serving, replicas_of, with_replicas
from slicewise.launcher.rules.turn.generations import (
    Answers,
    Generation,
    GenerationInput,
    generation,
)
from slicewise.launcher.rules.turn.notes import (
    aborted_text,
    failure_text,
    note,
    replica_text,
    starts_have,
)
from slicewise.launcher.rules.turn.outliers import Outlier
from slicewise.launcher.rules.turn.slots import (
    DRAIN_DEADLINE_S,
    Goal,
    Phase,
    Slot,
    SlotId,
    SlotPlan,
    plan_slots,
)
from slicewise.launcher.rules.turn.start_traces import (
    HeardOfStarts,
    ModelLoad,
    StartSight,
    followed,
)
from slicewise.launcher.rules.turn.state import (
    AbortedRoll,
    DesiredSlots,
    GenerationState,
    ServiceState,
)
from slicewise.launcher.rules.turn.urgency import urgency

RETRY_AFTER_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
"""Steps of Retry-After, in seconds, for clients of a service without a serving replica."""

REASON_LENGTH = 200
"""Characters of the reason that clients of a service get whose replicas do not start."""

ASK_AGAIN_S = 2.0
"""Seconds after which desired slots that were not all released are sent again; so is a retirement,
and, while slots wait for Slurm, those whose urgency has changed."""

TOLD_S = 600.0
"""Seconds for which users are told that a replica was taken out because an inference failed."""


@dataclass(frozen=True)
class ServicePlan:
    """What shall be done for one service.

    Attributes:
        array_job_id: the job array of its newest generation.
        spec: the specification of that one.
        slots: the slots of all generations.
        desired_by_array: what to ask the daemon for, by array job id, older generations first;
            those that the daemon already knows are left out.
        retired: array job ids of generations to cancel.
        note: why the service does not start, for its users; "" if nothing is wrong.
        is_unpaid: whether a budget is used up, so that no replica can start.
        load: its requests at the gateway.
        urgency: how much its backlog presses, from 0 to 1.
        lost: slots of the newest generation with a task that ended for good.
        objective_ms: within how many milliseconds an answer is in time; None without an objective.
        outliers: replicas of any generation that have just been doubted or judged, with its array
            job id.
        lineless: why it gets none of the backends with server lines, though it needs replicas; ""
            if it does, or needs none.
        submit_s: Unix seconds at which its newest generation was submitted.
        concurrency: requests that a replica gets at the same time.
        fits: array job ids of the generations with replicas that load and unload its adapters.
        models: of a service in a pool, the models that each of its ready replicas is to have.
        members: the services with which it shares replicas, itself among them, by
            ``tenant/service``; none without a pool.
        shared_replicas: replicas of the others that serve it.
        refusals: replicas of its pool that could not load its model.
        places: replicas of its pool that have its model, or are to have it.
    """

    array_job_id: int
    service: str
    spec: ServiceSpec = field(hash=False)
    decision: ScalingDecision
    slots: tuple[Slot, ...]
    route: Route
    desired_by_array: Mapping[int, DesiredSlots] = field(hash=False)
    retired: tuple[int, ...]
    note: str
    load: Load
    urgency: float
    lost: frozenset[int]
    objective_ms: float | None = None
    is_unpaid: bool = False
    outliers: tuple[tuple[int, Outlier], ...] = ()
    lineless: str = ""
    submit_s: int = 0
    concurrency: int = 1
    fits: frozenset[int] = frozenset()
    models: Placement = field(default_factory=dict, hash=False)
    members: tuple[str, ...] = ()
    shared_replicas: int = 0
    refusals: tuple[RefusedModel, ...] = ()
    places: tuple[ModelPlace, ...] = ()

    @property
    def desired(self) -> frozenset[int] | None:
        """Slots that the newest generation is to run; None if the daemon already knows them."""
        desired = self.desired_by_array.get(self.array_job_id)
        return desired.run if desired is not None else None


NO_CURVES: Curves = {}


@dataclass(frozen=True)
class Heard:
    """What replicas' servers have said besides their answers, by ``tenant/service``.

    Attributes:
        tokens: what they have counted.
        loads: what they work on.
        adapters: names of the adapters that each of them has loaded or refused.
        models: what replicas of pools have said of the pool's models, by the run's array job id,
            slot index and start in Unix seconds.
        starts: what the gateway has told of requests that wait for a start.
        adapter_reports: what users are told of adapters.
        old_engines: engine and version of a replica, if it has holes that a newer one mends.
    """

    tokens: Mapping[str, TokenCounts] = field(default_factory=dict)
    loads: Mapping[str, ServersLoad] = field(default_factory=dict)
    adapters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    models: Mapping[tuple[int, int, int], ReplicaModels] = field(default_factory=dict)
    starts: HeardOfStarts = field(default_factory=HeardOfStarts)
    adapter_reports: Mapping[str, tuple[AdapterReport, ...]] = field(default_factory=dict)
    old_engines: Mapping[str, str] = field(default_factory=dict)


NOTHING_HEARD = Heard()


@dataclass(frozen=True)
class ServiceInput:
    """What was seen of one service.

    Attributes:
        key: ``tenant/service``.
        spec: the specification of its newest generation.
        views: its generations, the newest last.
        backend: its backend at the gateway; None if it has no route.
        load: its requests there.
        most: replicas that a backend can carry.
        free: millislices that each tenant may still take, by tenant.
        aborted: its last roll-over, if it was aborted.
        avoid: nodes on which its next replicas are rather not to start.
        lineless: why no replica of it could get requests now; "" if one could.
        heard: what was heard of all services.
        used_up: the budget under which no replica of it can start; None if there is none.
        adapters: names of adapters that clients may ask for before this turn.
        curves: what services have learnt of replicas.
        may_give_back: replicas that may give their slots back now since they fail health checks.
        beside: requests of other services that its replicas work on, by address and HTTP port,
            then by ``tenant/service``.
        lent: other services' replicas at which it still has requests.
    """

    key: str
    spec: ServiceSpec
    views: Sequence[ServiceView]
    backend: Backend | None
    load: Load
    most: int
    answers: Answers = field(hash=False)
    free: Mapping[str, int] = field(hash=False)
    aborted: AbortedRoll | None = None
    avoid: tuple[str, ...] = ()
    lineless: str = ""
    heard: Heard = field(default=NOTHING_HEARD, hash=False)
    used_up: UsedUp | None = None
    adapters: frozenset[str] = frozenset()
    curves: Curves = field(default_factory=dict, hash=False)
    may_give_back: int = 1
    beside: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict, hash=False)
    lent: frozenset[Endpoint] = frozenset()

    @property
    def newest(self) -> ServiceView:
        """Its newest generation."""
        return self.views[-1]

    def is_current(self, view: ServiceView) -> bool:
        """Whether replicas of a generation need no successors: they load others' adapters."""
        newest = self.newest
        return view is newest or can_follow(view.directives, newest.directives)

    @property
    def engine(self) -> Engine:
        """The engine of its newest generation."""
        return engine_of(self.newest.directives)


def decide_service(
    look: ServiceInput, service_state: ServiceState, now_s: float
) -> tuple[ServiceState, ServicePlan]:
    """Decide for one service: how many replicas, which slots run, which of them get requests."""
    seen = generations_of(look, service_state, now_s)
    fallback = fallback_of(seen)
    service_state, decision = scaled(
        look, seen, service_state, now_s, falls_back=fallback is not None
    )
    plan = plan_slots(slots_of(seen), goal_of(look, seen, decision, fallback, now_s))
    return planned(look, seen, service_state, now_s, decision=decision, plan=plan)


def slots_of(seen: Sequence[Generation]) -> tuple[Slot, ...]:
    """Return the slots of all generations."""
    return tuple(slot for generation in seen for slot in generation.slots)


def planned(
    look: ServiceInput,
    seen: Sequence[Generation],
    service_state: ServiceState,
    now_s: float,
    *,
    decision: ScalingDecision,
    plan: SlotPlan,
    told: str = "",
    loads: Sequence[ModelLoad] = (),
) -> tuple[ServiceState, ServicePlan]:
    """Return what is remembered, and what shall be done, once the slots are chosen.

    ``told`` is what its users are told of its pool; ``loads`` are replicas of other services there
    that are to have its model.
    """
    generations = {generation.array_job_id: generation.state for generation in seen}
    cost_millislices = look.newest.cost_millislices
    state = replace(
        service_state,
        generations=generations,
        aborted=look.aborted,
        starts=followed(service_state.starts, _start_sight(look, seen, plan, loads), now_s),
        warm=added_up(service_state.warm, decision.kept_warm, cost_millislices, now_s),
    )
    concurrency = scaling_inputs.concurrency(look.spec, look.engine, service_state.memory)
    told = note((_note(look, seen, now_s), told))
    given = (look, seen, decision, plan, now_s)
    service_plan = _service_plan(*given, concurrency=concurrency, told=told)
    objective_ms = scaling_inputs.objective_ms(look.spec, service_state.memory)
    return state, replace(service_plan, objective_ms=objective_ms, lineless=_lineless(look))


def _start_sight(
    look: ServiceInput,
    seen: Sequence[Generation],
    plan: SlotPlan,
    loads: Sequence[ModelLoad],
) -> StartSight:
    waiting = (look.load.counter, look.load.held)
    heard = look.heard.starts
    return StartSight(*waiting, seen, look.answers, plan.run, plan.modes, heard, loads)


def _lineless(look: ServiceInput) -> str:
    """Return why the service gets no replica that it needs for want of server lines."""
    lowest, _ = scaling_inputs.replica_bounds(look.spec, look.newest.order)
    return look.lineless if look.load.total or lowest else ""


def given_back(services: Iterable[ServiceState], since_s: float) -> int:
    """Count the replicas that gave their slots back since they failed their health checks."""
    generations = (one for service in services for one in service.generations.values())
    return sum(at_s >= since_s for one in generations for at_s in one.given_back_s)


def generations_of(
    look: ServiceInput, service_state: ServiceState, now_s: float
) -> tuple[Generation, ...]:
    """Join what was seen of each generation with what is known."""
    generations: list[Generation] = []
    for view in look.views:
        given_back = sum(one.state.given_back_s.count(now_s) for one in generations)
        left = look.may_give_back - given_back
        generations.append(_generation(look, view, service_state, now_s, left))
    return tuple(generations)


def _generation(
    look: ServiceInput,
    view: ServiceView,
    service_state: ServiceState,
    now_s: float,
    left: int,
) -> Generation:
    before = service_state.generations.get(view.array_job_id) or GenerationState()
    sight = GenerationInput(
        view,
        look.backend,
        look.answers,
        look.is_current(view),
        now_s,
        service_s=service_state.memory.work.service_s if service_state.memory is not None else 1.0,
        deadline_s=look.spec.deadline_s,
        p95_s=None if look.spec.p95_ms is None else look.spec.p95_ms / 1000,
        may_give_back=left,
        beside=look.beside,
        models={
            slot.index: models
            for slot in view.slots
            if (models := look.heard.models.get((view.array_job_id, slot.index, slot.start_s or 0)))
        },
        worn=frozenset(
            slot.index
            for slot in view.slots
            if (told := before.models.get(slot.index)) is not None
            and (told.is_worn, told.start_s) == (True, slot.start_s)
        ),
    )
    return generation(sight, before)


def fallback_of(seen: Sequence[Generation]) -> Generation | None:
    """Return the generation that takes over while no start of the newest one succeeds.

    It is the newest one before it that had a ready replica once. None if there is no such
    generation, or if the newest one is not failing.
    """
    if not seen[-1].state.backoff.is_failing:
        return None
    return next(
        (generation for generation in reversed(seen[:-1]) if generation.state.is_proved), None
    )


def refuses(seen: Sequence[Generation]) -> bool:
    """Whether the gateway refuses the service's requests: no start succeeds, and nothing serves.

    A generation that takes over is waited for.
    """
    serves = any(_serving(generation.slots) for generation in seen)
    return seen[-1].state.backoff.is_failing and not serves and fallback_of(seen) is None


def scaled(
    look: ServiceInput,
    seen: Sequence[Generation],
    service_state: ServiceState,
    now_s: float,
    *,
    falls_back: bool,
) -> tuple[ServiceState, ScalingDecision]:
    """Return what is remembered now, and how many replicas are wanted."""
    slots = [slot for generation in seen for slot in generation.slots]
    counted = slots if falls_back else [slot for slot in slots if not slot.is_replaced]
    newest, load = seen[-1], look.load
    if not falls_back and refuses(seen) and service_state.memory is not None:
        starts = any(map(is_start, newest.slots))
        load = scaling_inputs.with_refused(load, service_state.memory.seen, starts=starts)
    usable = sum(slot.state != "gone" for slot in look.newest.slots)
    most = 0 if look.lineless else min(look.most, usable)
    asked = scaling_inputs.scaling(look.spec, look.newest.order, most, look.engine)
    if look.newest.order.delete_s is not None:
        since_s = now_s - look.newest.order.delete_s
        can_serve = not newest.state.backoff.failures or bool(_serving(slots))
        at_once = scaling_inputs.concurrency(look.spec, look.engine, service_state.memory)
        decision = scaling_inputs.ending(asked, load, at_once, since_s, can_serve=can_serve)
        return service_state, decision
    serve = _replicas_that_serve(look, seen)
    begins = service_state.memory or initial(_first_supply(slots, counted), now_s)
    now = Serving(look.key, serve, look.spec.measured or "")
    service_state = with_replicas(service_state, begins, asked, look.curves, now)
    memory, decision = autoscale(
        asked,
        service_state.memory or begins,
        scaling.ServiceLook(
            now_s,
            load,
            scaling_inputs.supply(counted),
            newest.starts,
            scaling_inputs.room(seen, look.free),
            is_known=look.backend is not None,
            serving=scaling_inputs.serving(slots) if len(serve) == 1 else 0,
            tokens=look.heard.tokens.get(look.key),
            servers=look.heard.loads.get(look.key),
            wakes_node=newest.view.wakes_node,
        ),
    )
    if lineless := _lineless(look):
        decision = replace(decision, reason=f"{decision.reason}; {lineless}", ready_in_s=None)
    return replace(service_state, memory=memory), _with_backoff(decision, newest, now_s)


def _replicas_that_serve(look: ServiceInput, seen: Sequence[Generation]) -> frozenset[str]:
    """Name the kinds of replicas that serve; while none does, that of the newest generation."""
    generations = (
        generation
        for generation in seen
        if any(slot.phase is Phase.SERVING for slot in generation.slots)
    )
    return frozenset(map(_replicas, generations)) or frozenset((replicas_of(look.newest),))


def _replicas(generation: Generation) -> str:
    return replicas_of(generation.view)


def is_start(slot: Slot) -> bool:
    """Whether a slot is on its way, and does not serve yet."""
    # One that has drained has served: its start is over, and has succeeded.
    return slot.phase in {Phase.STARTING, Phase.WARM} and not slot.is_drained


def _first_supply(slots: Sequence[Slot], counted: Sequence[Slot]) -> Supply:
    """Return the supply for a launcher that knows nothing yet.

    Serving replicas of a generation that is being replaced count as well, if that makes more.
    """
    either = (scaling_inputs.supply(counted), scaling_inputs.supply(_serving(slots)))
    return max(either, key=lambda supply: supply.coming)


def _with_backoff(decision: ScalingDecision, newest: Generation, now_s: float) -> ScalingDecision:
    backoff = newest.state.backoff
    left_s = backoff.until_s - now_s
    if left_s <= 0:
        return decision
    pause = f"{starts_have(backoff.failures)} failed, the next is tried in {left_s:.0f} s"
    ready_in_s = None if decision.ready_in_s is None else left_s + decision.ready_in_s
    return replace(decision, reason=f"{decision.reason}; {pause}", ready_in_s=ready_in_s)


def goal_of(
    look: ServiceInput,
    seen: Sequence[Generation],
    decision: ScalingDecision,
    fallback: Generation | None,
    now_s: float,
) -> Goal:
    """Return what the slots of all generations shall come to."""
    newest = seen[-1]
    desired, backoff = newest.state.desired, newest.state.backoff
    held = {slot.id.index for slot in newest.slots if slot.phase is Phase.HELD}
    return Goal(
        wanted=decision.wanted,
        newest=newest.array_job_id,
        fallback=fallback.array_job_id if fallback is not None else None,
        failures=backoff.failures,
        may_start=now_s >= backoff.until_s,
        most=look.most,
        kept_back=frozenset(desired.kept_back & held if desired is not None else ()),
        is_firm=desired is not None and desired.is_firm,
        late=frozenset(
            SlotId(generation.array_job_id, index)
            for generation in seen
            for index, since_s in generation.state.draining_since_s.items()
            if now_s - since_s >= DRAIN_DEADLINE_S
        ),
    )


def _service_plan(
    look: ServiceInput,
    seen: Sequence[Generation],
    decision: ScalingDecision,
    plan: SlotPlan,
    now_s: float,
    *,
    concurrency: int,
    told: str,
) -> ServicePlan:
    slots = tuple(slot for generation in seen for slot in generation.slots)
    pressing = urgency(look.load, concurrency * len(_serving(slots)))
    newest = seen[-1]
    desired_by_array = {
        generation.array_job_id: replace(desired, avoid=look.avoid)
        for generation in seen
        if _must_send(generation, desired := _desired(generation, plan, told, pressing, now_s))
    }
    return ServicePlan(
        array_job_id=newest.array_job_id,
        service=look.key,
        spec=look.spec,
        decision=decision,
        slots=slots,
        route=_route(look, seen, decision, plan, concurrency),
        desired_by_array=desired_by_array,
        retired=_retired(look, seen, decision, now_s),
        note=told,
        load=look.load,
        urgency=pressing,
        lost=frozenset(
            slot.index for slot in newest.view.slots if slot.state == "gone" and slot.job_id is None
        ),
        is_unpaid=look.used_up is not None,
        outliers=tuple(
            (generation.array_job_id, outlier)
            for generation in seen
            for outlier in generation.outliers
        ),
        submit_s=newest.view.submit_s,
        concurrency=concurrency,
        models=_models_alone(look, seen),
        fits=frozenset(
            view.array_job_id
            for view in look.views
            if adapters_of(view.directives) and look.is_current(view)
        ),
    )


def _models_alone(look: ServiceInput, seen: Sequence[Generation]) -> Placement:
    """Return what the replicas of a service are to have that shares them with none, or no more.

    Those that still work for others stay as they are: what was loaded for them goes after that.
    """
    if look.spec.pool is None:
        return {}
    return {
        (slot.array_job_id, slot.index): frozenset({generation.view.directives.get("model", "")})
        for generation in seen
        for slot, run in generation.runs.items()
        if not look.beside.get(run.endpoint.place)
    }


def _serving(slots: Sequence[Slot]) -> Sequence[Slot]:
    return [slot for slot in slots if slot.phase is Phase.SERVING and slot.up]


def _route(
    look: ServiceInput,
    seen: Sequence[Generation],
    decision: ScalingDecision,
    plan: SlotPlan,
    concurrency: int,
) -> Route:
    targets: dict[Endpoint, ServerMode] = dict.fromkeys(look.lent, ServerMode.DRAIN) | {
        generation.runs[slot].endpoint: mode
        for generation in seen
        for slot, mode in plan.modes.items()
        if slot in generation.runs
    }
    serves = any(_serving(generation.slots) for generation in seen)
    newest = seen[-1]
    failed = _failure_text(newest) if refuses(seen) else ""
    if look.used_up is not None and not serves:
        failed = look.used_up.why
    terms = Terms(
        closing=look.newest.order.delete_s is not None,
        retry_after_s=None if serves else _retry_after_s(look, decision),
        # A fair order leaves no place for another one.
        in_time=None if look.spec.fair_among else decision.in_time,
        failing=note((failed,))[:REASON_LENGTH],
        deadline_ms=None if look.spec.deadline_s is None else ceil(look.spec.deadline_s * 1000),
        retry_once=look.spec.retry_once,
        sequences=look.newest.directives.get("session_affinity") == "sequence",
    )
    return Route(
        look.key,
        concurrency,
        targets,
        look.engine.group,
        terms,
        spared=frozenset().union(*(generation.unknown for generation in seen)),
        cut=frozenset().union(*(generation.cut for generation in seen)),
        follows=look.spec.concurrency == AUTO,
        adapters=_adapters(look, serves=serves),
    )


def _adapters(look: ServiceInput, *, serves: bool) -> frozenset[str]:
    """Return the adapters that clients may ask for: a new one once replicas that serve have it.

    One that a replica has refused is let in, too, so that its clients hear what the server says.
    """
    names = frozenset(dict(look.spec.adapters))
    tried = look.heard.adapters.get(look.key, frozenset())
    return names & (look.adapters | tried) if serves else names


def _failure_text(newest: Generation, *, falls_back: bool = False) -> str:
    failures, late_s = newest.state.backoff.failures, newest.state.late_s
    return failure_text(newest.view, failures, falls_back=falls_back, late_s=late_s)


def _retry_after_s(look: ServiceInput, decision: ScalingDecision) -> int | None:
    """Round up to a step, so that the gateway's value does not change every second.

    A budget may be raised at any time: it is never further away than the longest step.
    """
    ready_in_s = RETRY_AFTER_S[-1] if look.used_up is not None else decision.ready_in_s
    if ready_in_s is None:
        return None
    return next((step for step in RETRY_AFTER_S if step >= ready_in_s), RETRY_AFTER_S[-1])


def _note(look: ServiceInput, seen: Sequence[Generation], now_s: float) -> str:
    newest = seen[-1]
    serves = any(_serving(generation.slots) for generation in seen[:-1])
    failed = "" if _has_started(newest) else _failure_text(newest, falls_back=serves)
    outliers = (text for generation in seen for text in _outliers(generation, now_s))
    ended = aborted_text(look.aborted) if look.aborted is not None else ""
    unpaid = look.used_up.why if look.used_up is not None else ""
    return note((unpaid, failed, *outliers, *newest.said, ended))


def _has_started(generation: Generation) -> bool:
    """Whether a replica of the generation became ready after its last failed start.

    The failures still count against it until that replica has settled.
    """
    failed_s = generation.state.backoff.failed_s
    return any(proof.at_s > failed_s for proof in generation.state.verified.values())


def _outliers(generation: Generation, now_s: float) -> Iterator[str]:
    """Yield texts about replicas in doubt, and about the last one that was taken out."""
    nodes = {slot.index: slot.node for slot in generation.view.slots}
    for index, watch in generation.state.watched.items():
        if watch.doubt is not None:
            meanwhile = "it gets no requests and" if watch.is_out else "it"
            replica = replica_text(index, nodes[index])
            yield f"{replica} {watch.doubt.why}; {meanwhile} is asked an inference"
    if generation.state.removed_s and now_s - generation.state.removed_s[-1] < TOLD_S:
        yield f"taken out: {generation.state.removed}"


def _desired(
    generation: Generation, plan: SlotPlan, told: str, pressing: float, now_s: float
) -> DesiredSlots:
    run = frozenset(slot.index for slot in plan.run if slot.array_job_id == generation.array_job_id)
    return DesiredSlots(run, now_s, told, pressing, is_firm=plan.is_quiet)


def _must_send(generation: Generation, desired: DesiredSlots) -> bool:
    last = generation.state.desired
    if last is None or (last.run, last.note) != (desired.run, desired.note):
        return True
    if generation.state.unheard is not None:
        # The daemon may have taken a later request without its answer having come.
        return True
    if last.kept_back and desired.is_firm and not last.is_firm:
        return True
    held = {slot.index for slot in generation.view.slots if slot.state == "held"}
    waiting = [slot for slot in generation.view.slots if slot.state == "released"]
    pending = held | {slot.index for slot in waiting}
    # A slot that waits on borrowed quota may fit its tenant's own by now: the daemon checks again.
    borrows = any(slot.is_borrowed for slot in waiting)
    fulfilled = not (held & desired.run) and generation.state.alive <= desired.run and not borrows
    presses_else = bool(pending & desired.run) and desired.urgency != last.urgency
    return (presses_else or not fulfilled) and desired.at_s - last.at_s >= ASK_AGAIN_S


def _retired(
    look: ServiceInput, seen: Sequence[Generation], decision: ScalingDecision, now_s: float
) -> tuple[int, ...]:
    """Return the array job ids of generations to cancel.

    An older generation that has proved itself is kept until a replica of the newest was ready, if
    the newest is tried at all, or its roll-over may be aborted. A service that is to end keeps its
    generations while it needs replicas for its remaining requests. A generation with slots under
    way is never cancelled.
    """
    closing = look.newest.order.delete_s is not None
    older = () if closing else seen[:-1]
    newest = seen[-1].state
    may_fail = decision.wanted or newest.backoff.failures or look.spec.abort_roll_after
    tries = not newest.is_proved and bool(may_fail)
    kept = (
        next((generation for generation in reversed(older) if generation.state.is_proved), None)
        if tries
        else None
    )
    ends = seen if closing and not decision.wanted else older
    return tuple(
        end.array_job_id
        for end in ends
        if end is not kept and not end.is_under_way and now_s - end.state.retired_s >= ASK_AGAIN_S
    )
