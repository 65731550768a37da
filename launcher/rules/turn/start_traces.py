"""Follows each start from the request that waits for it to the first byte of its answer.

What the launcher sees itself is by its own host's clock, and so is what the gateway on that host
tells. Of a node it hears how long ago something was, and of Slurm how long a job has waited:
no time of one clock is taken from a time of another one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slicewise.cluster.language.starts import (
    LONGEST_NODE,
    MOST_STARTS,
    Moment,
    StartTrace,
    Weights,
    in_order,
)
from slicewise.cluster.rpc.messages import SlotPlace, SlotView
from slicewise.launcher.rules.engines.engine import Answer
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.turn.endpoints import Verified
from slicewise.launcher.rules.turn.slots import SlotId

if TYPE_CHECKING:
    from slicewise.launcher.rules.turn.generations import Generation

HEARD_S = 2.0
"""Seconds for which the gateway's word that it holds a request belongs to the request that a turn
sees waiting: turns follow each other faster, and no service wakes and sleeps again within them."""
UNASKED_S = 2.0
"""Seconds in the gateway after which a replica has got none of the requests that had waited."""
AHEAD_S = 1.0
"""Seconds by which what was told may be ahead of the turn that hears it. More is a time by a clock
that was set back since, or by Slurm's, set forward: no moment of this start is known by it."""
_IN_POOL, _FROM_NODE = Weights("pool"), Weights("pool_node")
_OF_NODE: tuple[Moment, ...] = ("script", "brought", "engine")
_BEFORE_RUN = frozenset({"held", "gone"})


@dataclass(frozen=True)
class Starts:
    """What is remembered of a service's starts.

    Attributes:
        over: the last ones that are over, the newest last.
        under_way: the others.
        held_s: since when a request waits for a first replica, in Unix seconds; None if none does.
        seen_s: when a turn first saw that.
    """

    over: tuple[StartTrace, ...] = ()
    under_way: tuple[StartTrace, ...] = ()
    held_s: float | None = None
    seen_s: float | None = None

    @property
    def newest(self) -> tuple[StartTrace, ...]:
        """The last starts, those under way at the end."""
        return (*self.over, *self.under_way)[-MOST_STARTS:]


@dataclass(frozen=True)
class HeardOfStarts:
    """What the gateway has told, in Unix seconds.

    Attributes:
        held_s: when each backend began to hold a request.
        answered_s: when a replica first answered one of those, by backend and by the digest of the
            replica's certificate.
    """

    held_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    answered_s: Mapping[tuple[str, str], float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ModelLoad:
    """A replica of another service of the pool that is to have this service's model.

    Attributes:
        place: its array job id and slot index.
        digest: its certificate's.
        is_new: whether it is told so now, and does not have it.
        is_loaded: whether it has it.
        is_from_node: whether it has read the node's copy when it loaded it last.
        is_routed: whether the gateway leads requests for the model to it.
        works: whether it works on such requests.
    """

    place: SlotPlace
    node: str
    digest: str
    is_new: bool
    is_loaded: bool
    is_from_node: bool
    is_routed: bool
    works: bool


@dataclass(frozen=True)
class StartSight:
    """What a turn sees and has decided of a service.

    Attributes:
        backend: the name of its backend at the gateway.
        held: requests that wait for a first replica.
        answers: what replicas have answered, by array job id and slot index.
        run: slots that shall run.
        modes: modes of servers that the turn gives them, by slot.
        loads: replicas of other services that are to have its model.
    """

    backend: str
    held: int
    generations: Sequence["Generation"]
    answers: Mapping[tuple[int, int], Answer] = field(hash=False)
    run: Collection[SlotId]
    modes: Mapping[SlotId, ServerMode] = field(hash=False)
    heard: HeardOfStarts = HeardOfStarts()
    loads: Sequence[ModelLoad] = ()


def followed(starts: Starts, sight: StartSight, now_s: float) -> Starts:
    """Return what is remembered after a turn."""
    starts = _waiting(starts, sight, now_s)
    begun = tuple(_begun(starts, sight, now_s))
    if not begun and not starts.under_way:
        return starts
    by_array = {generation.array_job_id: generation for generation in sight.generations}
    loads = {load.place: load for load in sight.loads}
    over, under_way = list(starts.over), list[StartTrace]()
    seen: StartTrace | None
    for trace in (*starts.under_way, *begun):
        if trace.is_load:
            seen = _after_load(trace, loads.get((trace.array_job_id, trace.slot)), sight, now_s)
        else:
            seen = _after(trace, by_array.get(trace.array_job_id), sight, now_s)
        if seen is not None and seen.state == "starting":
            under_way.append(replace(seen, seen_s=now_s))
        elif seen is not None:
            over.append(replace(seen, seen_s=None))
    last = starts.over if len(over) == len(starts.over) else tuple(over[-MOST_STARTS:])
    return replace(starts, over=last, under_way=tuple(under_way[-MOST_STARTS:]))


def released(starts: Starts, array_job_id: int, slots: Collection[int], at_s: float) -> Starts:
    """Return what is remembered once the daemon has answered that it has released these slots."""
    if not starts.under_way:
        return starts
    under_way = tuple(
        _with(trace, {"released": at_s})
        if trace.array_job_id == array_job_id and trace.slot in slots
        else trace
        for trace in starts.under_way
    )
    return replace(starts, under_way=under_way)


def moved(starts: Starts, step_s: float) -> Starts:
    """Return it after the host's clock was set forward by some seconds."""

    def later(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + step_s

    def all_later(traces: Sequence[StartTrace]) -> tuple[StartTrace, ...]:
        return tuple(
            replace(
                trace,
                at_s={moment: at + step_s for moment, at in trace.at_s.items()},
                seen_s=later(trace.seen_s),
            )
            for trace in traces
        )

    return Starts(
        all_later(starts.over),
        all_later(starts.under_way),
        later(starts.held_s),
        later(starts.seen_s),
    )


def after_takeover(starts: Starts) -> Starts:
    """Return what another launcher begins with: nobody has seen all of a start under way."""
    return Starts(over=starts.over)


def joined(saved: Starts, now: Starts) -> Starts:
    """Return what was saved together with what a launcher has seen before it could read that."""
    return replace(now, over=(*saved.over, *now.over)[-MOST_STARTS:])


def _waiting(starts: Starts, sight: StartSight, now_s: float) -> Starts:
    if not sight.held:
        return starts if starts.held_s is None else replace(starts, held_s=None, seen_s=None)
    if starts.held_s is not None:
        return starts
    heard_s = sight.heard.held_s.get(sight.backend, now_s)
    held_s = heard_s if 0 <= now_s - heard_s <= HEARD_S else now_s
    return replace(starts, held_s=held_s, seen_s=now_s)


def _begun(starts: Starts, sight: StartSight, now_s: float) -> Iterator[StartTrace]:
    """Yield a trace of each slot that shall run from now on, or that Slurm runs once more.

    So it does of each load of the model in another service's replica that is told now.
    """
    if not sight.run and not sight.loads:
        return
    under_way = {(trace.array_job_id, trace.slot) for trace in starts.under_way}
    at_s: dict[Moment, float] = {"desired": now_s}
    if starts.held_s is not None and starts.seen_s is not None:
        at_s |= {"held": starts.held_s, "seen": starts.seen_s}
    for load in sight.loads:
        if load.is_new and load.place not in under_way:
            yield StartTrace(*load.place, in_order(at_s), "starting", _IN_POOL, load.node)
    startable = {
        (generation.array_job_id, slot.index)
        for generation in sight.generations
        for slot in generation.view.slots
        if slot.state == "held" or _is_delayed(slot)
    }
    for slot_id in sorted(sight.run):
        place = (slot_id.array_job_id, slot_id.index)
        if place in startable and place not in under_way:
            yield StartTrace(*place, in_order(at_s))


def _after(
    trace: StartTrace, generation: "Generation | None", sight: StartSight, now_s: float
) -> StartTrace | None:
    """Return the trace after this look; None of a slot that never was released."""
    place = SlotId(trace.array_job_id, trace.slot)
    slots = generation.view.slots if generation is not None else ()
    slot = next((slot for slot in slots if slot.index == trace.slot), None)
    if generation is None or slot is None or slot.state in _BEFORE_RUN:
        return _without_run(trace, now_s, is_desired=slot is not None and place in sight.run)
    if slot.state == "released" and trace.node:
        # Slurm has requeued it: the next turn begins a new trace.
        return _without_run(trace, now_s, is_desired=False)
    if _is_delayed(slot):
        # StartTime less EligibleTime has nothing of this delay, so neither has its phase.
        return replace(trace, at_s=in_order({**trace.at_s, "released": now_s}))
    trace = replace(trace, node=slot.node[:LONGEST_NODE] or trace.node)
    trace = _with(trace, _told_by_slurm(trace, slot, now_s))
    trace = replace(trace, is_configuring=slot.is_configuring)
    proof = generation.state.verified.get(trace.slot)
    if proof is None or proof.at_s < trace.at_s["desired"]:
        return _ended(trace, now_s) if slot.state == "ending" else trace
    if "ready" not in trace.at_s:
        answer = sight.answers.get((trace.array_job_id, trace.slot))
        trace = _with(trace, _ready(trace, answer, proof, now_s))
        if answer is not None and answer.times is not None:
            trace = replace(trace, weights=answer.times.weights)
    return _routed(
        trace,
        sight,
        proof.run.endpoint.digest,
        now_s,
        is_routed=sight.modes.get(place) is ServerMode.READY,
        is_ending=slot.state == "ending",
        works=any(seen.id.index == slot.index and seen.in_flight for seen in generation.slots),
    )


def _after_load(
    trace: StartTrace, load: ModelLoad | None, sight: StartSight, now_s: float
) -> StartTrace:
    """Return the trace of a model's load; None: its replica has refused it, or gives it up."""
    if load is None:
        return replace(trace, state="ready") if "routed" in trace.at_s else _ended(trace, now_s)
    if load.is_loaded:
        trace = _with(trace, {"loaded": now_s})
        trace = replace(trace, weights=_FROM_NODE if load.is_from_node else _IN_POOL)
    is_routed = load.is_loaded and load.is_routed
    more = {"is_routed": is_routed, "is_ending": False, "works": load.works}
    return _routed(trace, sight, load.digest, now_s, **more)


def _routed(
    trace: StartTrace,
    sight: StartSight,
    digest: str,
    now_s: float,
    *,
    is_routed: bool,
    is_ending: bool,
    works: bool,
) -> StartTrace:
    """Follow what is in the gateway until it answers, or nothing more is to be seen of it."""
    if is_routed:
        trace = _with(trace, {"routed": now_s})
    routed_s = trace.at_s.get("routed")
    if routed_s is None:
        return trace
    answered_s = sight.heard.answered_s.get((sight.backend, digest))
    # A replica of a pool may have had the model before, and have answered for it.
    is_earlier = trace.is_load and (answered_s or 0.0) < trace.at_s["desired"]
    if answered_s is not None and not is_earlier:
        if answered_s <= now_s + AHEAD_S:
            trace = _with(trace, {"answered": answered_s})
        return replace(trace, state="ready")
    is_unasked = not works and now_s - routed_s >= UNASKED_S
    is_over = "held" not in trace.at_s or is_ending or is_unasked
    return replace(trace, state="ready") if is_over else trace


def _without_run(trace: StartTrace, now_s: float, *, is_desired: bool) -> StartTrace | None:
    if "routed" in trace.at_s:
        return replace(trace, state="ready")
    if "released" in trace.at_s:
        return _ended(trace, now_s)
    return trace if is_desired else None


def _ended(trace: StartTrace, now_s: float) -> StartTrace:
    return replace(_with(trace, {"ended": now_s}), state="ended")


def _is_delayed(slot: SlotView) -> bool:
    """Whether Slurm lets the slot wait since it has requeued its last run."""
    return slot.state == "released" and slot.reason == "BeginTime"


def _told_by_slurm(trace: StartTrace, slot: SlotView, now_s: float) -> Mapping[Moment, float]:
    """Return when Slurm gave the slot its slice: as long after its release as Slurm says.

    Of a node that had to boot first Slurm then says the end of the boot.
    """
    released_s = trace.at_s.get("released")
    if released_s is None or slot.start_s is None or slot.released_s is None:
        return {}
    started_s = released_s + slot.start_s - slot.released_s
    if not released_s <= started_s <= now_s + AHEAD_S:
        return {}
    allotted_s = trace.at_s.get("started", started_s)
    is_booted = trace.is_configuring and not slot.is_configuring and started_s >= allotted_s + 1
    return {"booted" if is_booted else "started": started_s}


def _ready(
    trace: StartTrace, answer: Answer | None, proof: Verified, now_s: float
) -> Mapping[Moment, float]:
    times = answer.times if answer is not None else None
    if times is None or not trace.at_s["desired"] <= times.ready_s <= now_s + AHEAD_S:
        return {"ready": proof.at_s}
    told: dict[Moment, float] = {
        moment: times.marks_s[moment] for moment in _OF_NODE if moment in times.marks_s
    }
    return {**told, "loaded": times.loaded_s, "ready": times.ready_s}


def _with(trace: StartTrace, more: Mapping[Moment, float]) -> StartTrace:
    """Add moments; one that is known stays as it was."""
    new = {moment: at_s for moment, at_s in more.items() if moment not in trace.at_s}
    return replace(trace, at_s=in_order({**trace.at_s, **new})) if new else trace
