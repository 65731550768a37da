"""Decides for services that share replicas: as one how many, and which model is where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.rpc.messages import SlotPlace
from slicewise.launcher.rules.autoscale import types as scaling
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.types import ScalingDecision
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Load, ServerMode
from slicewise.launcher.rules.pools.model_work import model_work
from slicewise.launcher.rules.pools.types import Told
from slicewise.launcher.rules.turn import pool_models, pool_replicas, scaling_inputs
from slicewise.launcher.rules.turn.generations import Generation
from slicewise.launcher.rules.turn.notes import note, refused_text
from slicewise.launcher.rules.turn.service import (
    REASON_LENGTH,
    ServiceInput,
    ServicePlan,
    fallback_of,
    generations_of,
    goal_of,
    is_start,
    planned,
    refuses,
    scaled,
    slots_of,
)
from slicewise.launcher.rules.turn.slots import SlotPlan, plan_slots
from slicewise.launcher.rules.turn.state import ServiceState


@dataclass(frozen=True)
class _Sight:
    """One of the services, at this look.

    Attributes:
        load: its requests; one waits at least while the gateway refuses some.
    """

    look: ServiceInput
    load: Load
    state: ServiceState
    seen: Sequence[Generation] = field(hash=False)
    member: pool_models.Member = field(hash=False)


def decide_pool(
    looks: Mapping[str, ServiceInput], states: Mapping[str, ServiceState], now_s: float
) -> Mapping[str, tuple[ServiceState, ServicePlan]]:
    """Decide for services that share replicas, by ``tenant/service``."""
    sights = _sights(looks, states, now_s)
    heard = next((look.heard.models for look in looks.values()), {})
    pool = pool_models.seen([sight.member for sight in sights.values()], heard, now_s)
    memory, decision, counts = _scaled(
        [sight for sight in sights.values() if not sight.member.is_closing], pool, now_s
    )
    ready = sum(_ready(sight) for sight in sights.values() if not sight.member.is_closing)
    decisions = {
        key: _own_decision(
            sight,
            replace(decision, kept_warm=decision.kept_warm.part(_ready(sight) / max(1, ready))),
            counts.kept.get(key, 0),
            now_s,
        )
        for key, sight in sights.items()
    }
    plans = {key: _slot_plan(sight, decisions[key], pool, now_s) for key, sight in sights.items()}
    modes = {slot: mode for plan in plans.values() for slot, mode in plan.modes.items()}
    shared = pool_models.shared(pool, modes, counts.going, counts.placed)
    decided: dict[str, tuple[ServiceState, ServicePlan]] = {}
    for key, sight in sights.items():
        state = sight.state if memory is None else replace(sight.state, memory=memory)
        words = f"{decisions[key].reason}; {_words(sight.member, shared)}"
        state, plan = planned(
            sight.look,
            [_with_told(generation, shared.told[key]) for generation in sight.seen],
            state,
            now_s,
            decision=replace(decisions[key], reason=words),
            plan=plans[key],
            told=refused_text(sight.member.model, shared.refusals[key]),
            loads=shared.loads[key],
        )
        decided[key] = state, _sharing(sight, plan, shared, pool)
    return decided


def _sights(
    looks: Mapping[str, ServiceInput], states: Mapping[str, ServiceState], now_s: float
) -> Mapping[str, _Sight]:
    sights: dict[str, _Sight] = {}
    given_back = 0
    for key, look in looks.items():
        left = look.may_give_back - given_back
        sights[key] = _sight(replace(look, may_give_back=left), states[key], now_s)
        given_back += sum(g.state.given_back_s.count(now_s) for g in sights[key].seen)
    return sights


def _sight(look: ServiceInput, state: ServiceState, now_s: float) -> _Sight:
    seen = generations_of(look, state, now_s)
    load = look.load
    if refuses(seen) and not _is_served(look.backend):
        starts = any(map(is_start, seen[-1].slots))
        load = scaling_inputs.with_refused(load, state.model_work, starts=starts)
    concurrency = scaling_inputs.concurrency(look.spec, look.engine, state.memory)
    work = model_work(state.model_work, load, concurrency, now_s)
    state = replace(state, model_work=work)
    order, newest = look.newest.order, seen[-1]
    lowest, highest = scaling_inputs.replica_bounds(look.spec, order)
    usable = sum(slot.state != "gone" for slot in look.newest.slots)
    member = pool_models.Member(
        look.key,
        seen,
        look.newest.directives,
        look.backend,
        work,
        is_closing=order.delete_s is not None,
        is_kept=lowest > 0 and order.delete_s is None,
        most=0 if look.lineless else min(highest, usable, look.most),
        may_start=now_s >= newest.state.backoff.until_s,
        beside=look.beside,
    )
    return _Sight(look, load, state, seen, member)


def _is_served(backend: Backend | None) -> bool:
    servers = backend.servers if backend is not None else ()
    return any(server.up and server.mode is ServerMode.READY for server in servers)


def _scaled(
    sights: Sequence[_Sight], pool: pool_models.Pool, now_s: float
) -> tuple[Memory | None, ScalingDecision, pool_replicas.PoolCounts]:
    """Return what the pool remembers now, how many replicas it wants, and of which services."""
    if not sights:
        return None, ScalingDecision(0, "its pool ends"), pool_replicas.PoolCounts({})
    first = sights[0].look
    asked_for = pool_replicas.scaling(
        [_scaling_of(sight) for sight in sights], first.most, pool.refill_s
    )
    generations = [generation for sight in sights for generation in sight.seen]
    supply = scaling_inputs.supply(slot for slot in slots_of(generations) if not slot.is_replaced)
    memories = (sight.state.memory for sight in sights)
    memory, decision = autoscale(
        asked_for,
        next((memory for memory in memories if memory is not None), None) or initial(supply, now_s),
        scaling.ServiceLook(
            now_s,
            pool_replicas.load([sight.load for sight in sights]),
            supply,
            tuple(start for generation in generations for start in generation.starts),
            scaling_inputs.room(generations, first.free),
            is_known=any(sight.look.backend is not None for sight in sights),
            wakes_node=any(generation.view.wakes_node for generation in generations),
        ),
    )
    counts = pool_replicas.counts(pool, decision.wanted, asked_for.max_replicas)
    if counts.lacking:
        words = f"{decision.reason}; no replica has room for {', '.join(counts.lacking)}"
        decision = replace(decision, reason=words)
    return memory, decision, counts


def _scaling_of(sight: _Sight) -> scaling.Scaling:
    look = sight.look
    return scaling_inputs.scaling(look.spec, look.newest.order, sight.member.most, look.engine)


def _ready(sight: _Sight) -> int:
    """Return how many of its own replicas serve."""
    own = (slot for slot in slots_of(sight.seen) if not slot.is_replaced)
    return scaling_inputs.supply(own).ready


def _own_decision(
    sight: _Sight, decision: ScalingDecision, wanted: int, now_s: float
) -> ScalingDecision:
    """Return the decision for a service's own slots; one that is to end finishes what it has."""
    if not sight.member.is_closing:
        return replace(decision, wanted=wanted, in_time=None)
    falls_back = fallback_of(sight.seen) is not None
    return scaled(sight.look, sight.seen, sight.state, now_s, falls_back=falls_back)[1]


def _slot_plan(
    sight: _Sight, decision: ScalingDecision, pool: pool_models.Pool, now_s: float
) -> SlotPlan:
    """Choose a service's own slots; one that is to end needs none while others' replicas serve."""
    fallback = fallback_of(sight.seen)
    goal = goal_of(sight.look, sight.seen, decision, fallback, now_s)
    if sight.member.is_closing and pool.serves(sight.member):
        goal = replace(goal, wanted=0)
    return plan_slots(slots_of(sight.seen), goal)


def _with_told(generation: Generation, told: Mapping[SlotPlace, Told]) -> Generation:
    models = {
        index: replica
        for (array, index), replica in told.items()
        if array == generation.array_job_id
    }
    return replace(generation, state=replace(generation.state, models=models))


def _words(member: pool_models.Member, shared: pool_models.Shared) -> str:
    count = shared.replicas.get(member.key, 0)
    replicas = "1 replica has" if count == 1 else f"{count or 'no'} replicas have"
    return f"in pool {member.values.get('pool', '')} {replicas} {member.model}"


def _sharing(
    sight: _Sight, plan: ServicePlan, shared: pool_models.Shared, pool: pool_models.Pool
) -> ServicePlan:
    """Let other services' replicas serve it, too."""
    key, own = sight.look.key, plan.route.targets or {}
    others: Mapping[Endpoint, ServerMode] = shared.targets.get(key, {})
    serves = ServerMode.READY in others.values()
    terms = plan.route.terms
    failing = "" if serves else terms.failing
    if not (serves or own) and (whys := shared.refused[key]):
        failing = note((f"no replica could load {sight.member.model}: {whys[-1]}",))[:REASON_LENGTH]
    route = replace(
        plan.route,
        targets={**own, **others},
        terms=replace(
            terms, retry_after_s=None if serves else terms.retry_after_s, failing=failing
        ),
        cut=pool.cut,
        spared=pool.unknown,
    )
    return replace(
        plan,
        route=route,
        models=shared.models.get(key, {}),
        members=pool.keys,
        shared_replicas=sum(mode is ServerMode.READY for mode in others.values()),
        refusals=tuple(shared.refusals[key]),
        places=tuple(shared.places[key]),
    )
