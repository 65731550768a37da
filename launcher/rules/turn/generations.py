"""Joins the daemon's and the gateway's view of a generation's replicas with what is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.service import (
    DEFAULT_LEASE_S,
    DEFAULT_START_TIMEOUT_S,
    gives_back_s,
    whole_number,
)
from slicewise.cluster.language.starts import StartClass
from slicewise.cluster.rpc.messages import SOON_S, WHEN_REPLACED_S, ServiceView, SlotView
from slicewise.launcher.rules.autoscale.types import ReplicaStart
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Server, ServerMode
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.rules.turn.backoff import SETTLED_S, Backoff
from slicewise.launcher.rules.turn.endpoints import (
    REFUSED_S,
    SILENT_S,
    Down,
    ReplicaRun,
    Verified,
    down_run,
    last_run,
    run_of,
    unfit,
)
from slicewise.launcher.rules.turn.notes import replica_text
from slicewise.launcher.rules.turn.outliers import (
    SPAN_S,
    Bounds,
    Judgement,
    Outlier,
    Sight,
    Verdict,
    judge,
    removals_left,
)
from slicewise.launcher.rules.turn.slots import Expiry, Phase, Slot, SlotId
from slicewise.launcher.rules.turn.state import FAILURES_S, MOST_FAILURES, Failure, GenerationState

NOW_S = 70.0
"""Seconds before its end at which a replica drains at the latest; its successor starts ``SOON_S``
before the end. Short leases have less: one third and two thirds of the lease."""
_UNEXTENDED_S = 5.0
"""Seconds: a lease that the daemon extends never comes this close to the time at which its script
gives the slot back."""
PENDING_LONG_S = 60.0
_WELL_S = 600.0
"""Seconds for which a replica must have been ready so that earlier failures on its node are
forgotten: a broken GPU may serve for a while."""
SETTLES_S = 5.0
"""Seconds after a generation was first seen during which the daemon may not know the ports of runs
that were there before: its look can miss a step, and this launcher has not seen them itself."""
_LIMITS = ("QOSGrp", "AssocGrp", "QOSMax", "AssocMax")
"""Beginnings of Slurm's reasons that name a limit."""
_UNDER_WAY = frozenset({"released", "starting", "running"})
_OVER = frozenset({"held", "ending", "gone"})

Answers = Mapping[tuple[int, int], Answer]
"""Answers of replicas that were asked for their identity, by array job id and slot index."""


@dataclass(frozen=True)
class Generation:
    """One generation at this look.

    Attributes:
        state: what is remembered from now on; its desired slots are still the last ones.
        slots: slots of the array, in order.
        runs: where the slots' replicas listen.
        starts: starts that have come to their end at this look.
        said: why replicas are not ready, in their own words.
        unknown: addresses of runs that began before this launcher's first look and have ports that
            it never learnt.
        cut: replicas that answer nothing, with requests in flight that end now.
        outliers: replicas that have just been doubted or judged.
    """

    view: ServiceView
    state: GenerationState
    slots: tuple[Slot, ...]
    runs: Mapping[SlotId, ReplicaRun] = field(hash=False)
    starts: tuple[ReplicaStart, ...] = ()
    said: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    cut: frozenset[Endpoint] = frozenset()
    outliers: tuple[Outlier, ...] = ()

    @property
    def array_job_id(self) -> int:
        """Its job array's id."""
        return self.view.array_job_id

    @property
    def is_under_way(self) -> bool:
        """Whether any of its slots holds a slice, or may at any moment."""
        return any(s.state in _UNDER_WAY or s.state == "ending" for s in self.view.slots)


@dataclass(frozen=True)
class GenerationInput:
    """What was seen of one generation.

    Attributes:
        is_newest: whether the service has no newer generation, or none that its replicas can't
            follow by loading other adapters.
        now_s: Unix seconds.
        service_s: mean seconds that a request takes.
        deadline_s: seconds that a request may take; None if the service does not say.
        p95_s: seconds within which 95 % of its requests shall be answered; None if it does not say.
        may_give_back: replicas that may give their slots back now since they fail health checks.
        beside: requests of other services that its replicas work on, by address and HTTP port,
            then by ``tenant/service``.
        models: what replicas have said of their pool's models, by slot.
        worn: slots whose replicas have loaded so many models, or keep so much memory of them, that
            others are to take their place.
    """

    view: ServiceView
    backend: Backend | None
    answers: Answers = field(hash=False)
    is_newest: bool
    now_s: float
    service_s: float = 1.0
    deadline_s: float | None = None
    p95_s: float | None = None
    may_give_back: int = 1
    beside: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict, hash=False)
    models: Mapping[int, ReplicaModels] = field(default_factory=dict, hash=False)
    worn: frozenset[int] = frozenset()


def unverified(view: ServiceView, generation_state: GenerationState) -> tuple[SlotView, ...]:
    """Return the slots with a replica that must be asked, also those in doubt."""
    return tuple(
        slot
        for slot in view.slots
        if run_of(slot) is not None
        and (
            not is_verified(slot, generation_state)
            or (
                (watch := generation_state.watched.get(slot.index)) is not None
                and watch.doubt is not None
            )
        )
    )


def is_verified(slot: SlotView, generation_state: GenerationState) -> bool:
    """Whether the slot's replica has proved to be ours since its run began."""
    before = generation_state.verified.get(slot.index)
    return before is not None and before.run == run_of(slot)


def generation(sight: GenerationInput, generation_state: GenerationState) -> Generation:
    """Join what was seen with what is known from before."""
    sight = replace(sight, view=_with_known_ports(sight.view, generation_state))
    view, now_s = sight.view, sight.now_s
    verified = _verified(sight, generation_state)
    runs = {
        slot.index: run
        for slot in view.slots
        if (run := last_run(slot, verified.get(slot.index))) is not None
    }
    lease_s = whole_number(view.directives, "lease_s", DEFAULT_LEASE_S)
    start_timeout_s = whole_number(view.directives, "start_timeout_s", DEFAULT_START_TIMEOUT_S)
    judged = _judged(sight, generation_state, runs)
    failed_now = frozenset(o.index for o in judged.outliers if o.verdict is Verdict.FAILED)
    slots, down, given_back = [], {}, 0
    for seen in view.slots:
        run = runs.get(seen.index)
        slot = _slot(sight, seen, run, lease_s, is_ready=seen.index in verified)
        if slot.phase is Phase.WARM and seen.index in generation_state.draining_since_s:
            slot = replace(slot, is_drained=True)
        if (watch := judged.watched.get(seen.index)) is not None and watch.doubt is not None:
            outdated = slot.is_outdated or watch.is_outdated(now_s)
            slot = replace(slot, is_doubted=watch.is_out, is_outdated=outdated)
        before = generation_state.down.get(seen.index)
        wrong = _down(sight, seen, slot, run, before, start_timeout_s=start_timeout_s)
        if wrong is not None and wrong.unfit and wrong != before and not wrong.starts:
            wrong = replace(wrong, unfit=given_back < sight.may_give_back)
            given_back += wrong.unfit
        if run is not None and seen.index in failed_now:
            wrong = Down(run, now_s, starts=False, unfit=True)
        if wrong is not None:
            down[seen.index] = wrong
            slot = replace(slot, phase=Phase.OUT) if wrong.unfit else slot
        slots.append(slot)
    failed = _failed(view, generation_state, verified, now_s)
    failures = _failures(view, generation_state, verified, now_s, failed=failed)
    state = replace(
        generation_state,
        backoff=_backoff(view, generation_state, verified, down, now_s, failed=failed),
        is_proved=generation_state.is_proved or bool(verified),
        verified=verified,
        draining_since_s=_draining_since_s(slots, generation_state, now_s),
        down=down,
        alive=frozenset(s.index for s in view.slots if s.state in _UNDER_WAY),
        leaving=frozenset(s.index for s in view.slots if s.ends_in_s is not None),
        seen_s=generation_state.seen_s or now_s,
        failing=frozenset(s.index for s in view.slots if s.state == "ending")
        & (failed | generation_state.failing),
        watched=judged.watched,
        removed_s=_removed_s(generation_state, len(failed_now), now_s),
        removed=_removed(view, judged) or generation_state.removed,
        given_back_s=_given_back_s(generation_state, given_back, now_s),
        nodes=_nodes(view),
        failures=failures,
        late_s=_late_s(generation_state, failed, start_timeout_s),
        ran_on=_ran_on(generation_state, verified, down, now_s) if failures else frozenset(),
        allotted_s=_allotted_s(view, generation_state.allotted_s, verified),
    )
    return Generation(
        view,
        state,
        tuple(slots),
        {SlotId(view.array_job_id, index): run for index, run in runs.items()},
        _starts(sight, generation_state, verified),
        _said(sight),
        _unknown(sight, generation_state),
        _cut(sight, runs, down),
        judged.outliers,
    )


def _nodes(view: ServiceView) -> Mapping[int, str]:
    """Return the nodes of slots under way; {} if each has several: which one fails is not known."""
    if whole_number(view.directives, "nodes", 1) != 1:
        return {}
    return {s.index: s.node for s in view.slots if s.node and s.state in _UNDER_WAY}


def _judged(
    sight: GenerationInput, generation_state: GenerationState, runs: Mapping[int, ReplicaRun]
) -> Judgement:
    sights: dict[int, Sight] = {}
    for slot in sight.view.slots:
        run = runs.get(slot.index)
        if slot.state != "running" or run is None or sight.backend is None:
            continue
        server = sight.backend.server_of(run.endpoint)
        if server is not None and not _is_unfit(generation_state, slot.index, run):
            answer = sight.answers.get((sight.view.array_job_id, slot.index))
            serves = server.up and server.mode is ServerMode.READY
            sights[slot.index] = Sight((run.job_id, run.start_s), server, serves, answer)
    left = removals_left(generation_state.removed_s, len(sight.view.slots), sight.now_s)
    bounds = Bounds(sight.service_s, sight.deadline_s, left, sight.p95_s)
    return judge(generation_state.watched, sights, bounds, sight.now_s)


def _is_unfit(generation_state: GenerationState, index: int, run: ReplicaRun) -> bool:
    down = generation_state.down.get(index)
    return down is not None and down.unfit and down.run == run


def _failures(
    view: ServiceView,
    generation_state: GenerationState,
    verified: Mapping[int, Verified],
    now_s: float,
    *,
    failed: frozenset[int],
) -> tuple[Failure, ...]:
    settled_s: dict[str, float] = {}
    for index, proof in verified.items():
        if now_s - proof.at_s >= _WELL_S and index in generation_state.nodes:
            node = generation_state.nodes[index]
            settled_s[node] = max(proof.at_s, settled_s.get(node, 0.0))
    before = [
        failure
        for failure in generation_state.failures
        if now_s - failure.at_s < FAILURES_S and failure.at_s >= settled_s.get(failure.node, 0.0)
    ]
    new = [
        Failure(generation_state.nodes[slot.index], now_s, slot.is_borrowed)
        for slot in view.slots
        if slot.index in failed and slot.index in generation_state.nodes
    ]
    return tuple([*before, *new][-MOST_FAILURES:])


def _late_s(generation_state: GenerationState, failed: frozenset[int], start_timeout_s: int) -> int:
    if not failed:
        return generation_state.late_s
    late = (generation_state.down[index] for index in failed if index in generation_state.down)
    return start_timeout_s if any(down.unfit and down.starts for down in late) else 0


def _ran_on(
    generation_state: GenerationState,
    verified: Mapping[int, Verified],
    down: Mapping[int, Down],
    now_s: float,
) -> frozenset[str]:
    return generation_state.ran_on | frozenset(
        generation_state.nodes[index]
        for index, proof in verified.items()
        if now_s - proof.at_s >= SETTLED_S and index not in down and index in generation_state.nodes
    )


def _removed_s(generation_state: GenerationState, more: int, now_s: float) -> tuple[float, ...]:
    lately = tuple(at_s for at_s in generation_state.removed_s if now_s - at_s < SPAN_S)
    return (*lately, *(now_s,) * more)


def _given_back_s(generation_state: GenerationState, more: int, now_s: float) -> tuple[float, ...]:
    lately = tuple(at_s for at_s in generation_state.given_back_s if now_s - at_s <= REFUSED_S)
    return (*lately, *(now_s,) * more)


def _removed(view: ServiceView, judged: Judgement) -> str:
    nodes = {slot.index: slot.node for slot in view.slots}
    outliers = [outlier for outlier in judged.outliers if outlier.verdict is Verdict.FAILED]
    return "; ".join(
        f"{replica_text(outlier.index, nodes[outlier.index])} {outlier.why}" for outlier in outliers
    )


def _cut(
    sight: GenerationInput, runs: Mapping[int, ReplicaRun], down: Mapping[int, Down]
) -> frozenset[Endpoint]:
    """Return the replicas that fail their health checks since they answer nothing."""
    endpoints = set[Endpoint]()
    for index, wrong in down.items():
        is_late = not wrong.starts and sight.now_s - wrong.since_s >= SILENT_S
        run = runs.get(index)
        if run is None or sight.backend is None or not is_late:
            continue
        server = sight.backend.server_of(run.endpoint)
        if server is not None and server.is_silent and not server.up:
            endpoints.add(run.endpoint)
    return frozenset(endpoints)


def _unknown(sight: GenerationInput, generation_state: GenerationState) -> frozenset[str]:
    first_s = generation_state.seen_s or sight.now_s
    if sight.now_s - first_s >= SETTLES_S:
        return frozenset()
    return frozenset(
        slot.address
        for slot in sight.view.slots
        if slot.state == "starting" and slot.index not in generation_state.verified
        if slot.start_s is not None and slot.start_s < first_s
    )


def _with_known_ports(view: ServiceView, generation_state: GenerationState) -> ServiceView:
    """Fill in ports that the daemon's look has missed: the run still listens and serves there."""
    slots = tuple(
        _with_ports(slot, generation_state.verified.get(slot.index)) for slot in view.slots
    )
    is_whole = all(now is seen for now, seen in zip(slots, view.slots, strict=True))
    return view if is_whole else view.model_copy(update={"slots": slots})


def _with_ports(slot: SlotView, before: Verified | None) -> SlotView:
    if slot.state != "starting" or before is None:
        return slot
    run = before.run
    if (slot.job_id, slot.start_s) != (run.job_id, run.start_s):
        return slot
    where = run.endpoint
    ports = (where.http_port, where.grpc_port)
    change = {"state": "running", "address": where.address, "ports": ports}
    return slot.model_copy(update=change)


def _verified(sight: GenerationInput, generation_state: GenerationState) -> Mapping[int, Verified]:
    """Return the runs known to be ours, by slot index.

    The run of an ended slot is kept for one look, to judge its end. While Slurm ends a run, its
    last requests are still where it listened.
    """
    verified_slots = dict[int, Verified]()
    for slot in sight.view.slots:
        before, run = generation_state.verified.get(slot.index), run_of(slot)
        if run is None:
            if before is not None and (
                slot.index in generation_state.alive or slot.state == "ending"
            ):
                verified_slots[slot.index] = before
        elif before is not None and before.run == run:
            verified_slots[slot.index] = before
        elif _probe(sight, slot) is Probe.OURS:
            verified_slots[slot.index] = Verified(run, sight.now_s)
    return verified_slots


def _probe(sight: GenerationInput, slot: SlotView) -> Probe:
    answer = sight.answers.get((sight.view.array_job_id, slot.index))
    return answer.probe if answer is not None else Probe.SILENT


def _said(sight: GenerationInput) -> tuple[str, ...]:
    array = sight.view.array_job_id
    answers = (sight.answers.get((array, slot.index)) for slot in sight.view.slots)
    return tuple(sorted({a.said for a in answers if a is not None and a.said}))


def _starts(
    sight: GenerationInput, generation_state: GenerationState, verified: Mapping[int, Verified]
) -> tuple[ReplicaStart, ...]:
    """Return starts that this launcher saw under way and that have made a replica ready since."""
    starts: list[ReplicaStart] = []
    for slot in sight.view.slots:
        now = verified.get(slot.index)
        is_new = (
            now is not None and now.at_s == sight.now_s and slot.index in generation_state.alive
        )
        if is_new and slot.released_s is not None and slot.start_s is not None:
            allotted_s = generation_state.allotted_s.get(slot.index, slot.start_s)
            queue_s = max(0.0, float(allotted_s - slot.released_s))
            load_s = max(0.0, sight.now_s - slot.start_s)
            boot_s = max(0.0, float(slot.start_s - allotted_s))
            starts.append(ReplicaStart(queue_s, load_s, _start_class(sight, slot.index), boot_s))
    return tuple(starts)


def _allotted_s(
    view: ServiceView, before: Mapping[int, int], verified: Mapping[int, Verified]
) -> Mapping[int, int]:
    """Return when slots that are not ready yet got a node that had to be made ready first."""
    starting = [
        slot
        for slot in view.slots
        if slot.state in {"starting", "running"} and slot.index not in verified
    ]
    return {
        slot.index: before.get(slot.index, slot.start_s)
        for slot in starting
        if slot.start_s is not None and (slot.is_configuring or slot.index in before)
    }


def _start_class(sight: GenerationInput, index: int) -> StartClass:
    answer = sight.answers.get((sight.view.array_job_id, index))
    return "remote" if answer is None or answer.times is None else answer.times.weights.start_class


def _draining_since_s(
    slots: list[Slot], generation_state: GenerationState, now_s: float
) -> Mapping[int, float]:
    return {
        slot.id.index: generation_state.draining_since_s.get(slot.id.index, now_s)
        for slot in slots
        if slot.phase is Phase.DRAINING or slot.is_drained
    }


def _failed(
    view: ServiceView,
    generation_state: GenerationState,
    verified: Mapping[int, Verified],
    now_s: float,
) -> frozenset[int]:
    """Return the slots of failed starts: desired, and ended by themselves before they had settled.

    Ended slots with an unfit replica count as well, cancelled ones never do. What Slurm requeues
    did not end by itself. A slot that a request without an answer left out may have been given back
    because of that request: that is no failure.
    """
    desired_run = (
        generation_state.desired.run if generation_state.desired is not None else frozenset()
    )
    if generation_state.unheard is not None:
        desired_run &= generation_state.unheard
    over = frozenset(s.index for s in view.slots if s.state in _OVER and s.ends_in_s is None)
    ended = over & (generation_state.alive - generation_state.leaving) - _cancelled(view)
    settled = {i for i, v in verified.items() if now_s - v.at_s >= SETTLED_S}
    requeued = frozenset(slot.index for slot in view.slots if slot.is_requeued)
    return (ended & unfit(generation_state.down)) | ((ended & desired_run) - settled - requeued)


def _cancelled(view: ServiceView) -> frozenset[int]:
    return frozenset(slot.index for slot in view.slots if slot.slurm_state == "CANCELLED")


def _backoff(
    view: ServiceView,
    generation_state: GenerationState,
    verified: Mapping[int, Verified],
    down: Mapping[int, Down],
    now_s: float,
    *,
    failed: frozenset[int],
) -> Backoff:
    before = (
        generation_state.backoff.forgiven()
        if generation_state.failing & _cancelled(view)
        else generation_state.backoff
    )
    if failed:
        return before.failed(now_s)
    backoff = before.restarted(view.order.restart_s)
    for index, proof in verified.items():
        if index not in down:
            backoff = backoff.settled(proof.at_s, now_s)
    return backoff


def _slot(
    sight: GenerationInput, seen: SlotView, run: ReplicaRun | None, lease_s: int, *, is_ready: bool
) -> Slot:
    server = _server(sight, seen, run)
    phase = _phase(sight, seen, run, server, is_ready=is_ready)
    # A replica that still has to load its model when it must end can't serve any request in time.
    in_vain = phase is Phase.STARTING and seen.ends_in_s == 0
    own = server.in_flight + server.queued if server is not None else 0
    beside = sight.beside.get(run.endpoint.place, {}) if run is not None else {}
    models = sight.models.get(seen.index, ReplicaModels())
    return Slot(
        SlotId(sight.view.array_job_id, seen.index),
        phase,
        in_flight=own + sum(beside.values()),
        models=len(models.ready),
        up=server is None or server.up,
        allotted=seen.state != "released",
        expiry=_expiry(seen, lease_s) if seen.state == "running" or in_vain else Expiry.FAR,
        is_outdated=in_vain or seen.index in sight.worn or _is_outdated(sight, seen),
        is_borrowed=seen.is_borrowed,
        is_stuck=_is_stuck(seen, sight.now_s),
        node_held_millislices=seen.node_held_millislices or 0,
        is_configuring=seen.is_configuring,
    )


def _down(
    sight: GenerationInput,
    seen: SlotView,
    slot: Slot,
    run: ReplicaRun | None,
    before: Down | None,
    *,
    start_timeout_s: float,
) -> Down | None:
    server = _server(sight, seen, run)
    return down_run(
        *(seen, slot, run, before, sight.now_s),
        start_timeout_s=start_timeout_s,
        is_refused=server is not None and server.is_refused,
    )


def _is_stuck(seen: SlotView, now_s: float) -> bool:
    """Whether a limit keeps the slot from starting, or no slice has become free for long."""
    if seen.state != "released":
        return False
    waited_s = now_s - seen.released_s if seen.released_s is not None else 0.0
    return waited_s >= PENDING_LONG_S or seen.reason.startswith(_LIMITS)


def _server(sight: GenerationInput, seen: SlotView, run: ReplicaRun | None) -> Server | None:
    """Return the replica's server at the gateway; None without one, or if it is in maintenance.

    HAProxy keeps a server's mode, so it survives a restart of the launcher.
    """
    if run is None or sight.backend is None or _probe(sight, seen) is Probe.STRANGER:
        return None
    server = sight.backend.server_of(run.endpoint)
    return None if server is None or server.mode is ServerMode.MAINT else server


def _phase(
    sight: GenerationInput,
    seen: SlotView,
    run: ReplicaRun | None,
    server: Server | None,
    *,
    is_ready: bool,
) -> Phase:
    if seen.state != "running":
        return _PHASES.get(seen.state, Phase.STARTING)
    if server is not None:
        return Phase.SERVING if server.mode is ServerMode.READY else Phase.DRAINING
    is_ours = run is not None and _probe(sight, seen) is not Probe.STRANGER
    return Phase.WARM if is_ready and is_ours else Phase.STARTING


_PHASES = {"held": Phase.HELD, "gone": Phase.OUT, "ending": Phase.ENDING}


def _is_outdated(sight: GenerationInput, seen: SlotView) -> bool:
    """Whether another replica is to take its place, however long this one might stay."""
    ordered_s = sight.view.order.restart_s
    # Slurm counts in whole seconds: a run that started in that second may be the successor.
    is_older = ordered_s is not None and seen.start_s is not None and seen.start_s < int(ordered_s)
    return not sight.is_newest or is_older or seen.ends_in_s == WHEN_REPLACED_S


def _expiry(seen: SlotView, lease_s: int) -> Expiry:
    """Return how near the slot's end is.

    A short announcement leaves no time for a successor; an end that is far off needs none yet.
    """
    if seen.ends_in_s is None:
        last_s = gives_back_s(lease_s) + _UNEXTENDED_S
        is_near = seen.time_left_s is not None and seen.time_left_s < last_s
        return Expiry.NOW if is_near else Expiry.FAR
    if seen.ends_in_s < min(NOW_S, lease_s / 3):
        return Expiry.NOW
    is_far = seen.ends_in_s == WHEN_REPLACED_S or seen.ends_in_s >= min(SOON_S, lease_s * 2 / 3)
    return Expiry.FAR if is_far else Expiry.SOON
