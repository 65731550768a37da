"""Prepares the autoscaler's inputs: a service's bounds, its supply, the room that quota leaves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from slicewise.cluster.language.service import AUTO, ServiceSpec
from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.launcher.rules.autoscale.capacity import MOST, ReplicaCapacity
from slicewise.launcher.rules.autoscale.policy import LastCounters, Memory
from slicewise.launcher.rules.autoscale.types import Scaling, ScalingDecision, Supply
from slicewise.launcher.rules.engines.engine import Engine, SlottedEngine
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.pools.model_work import ModelWork
from slicewise.launcher.rules.turn.generations import Generation
from slicewise.launcher.rules.turn.slots import DRAIN_DEADLINE_S, Phase, Slot

_HOLDS = frozenset({"released", "starting", "running", "ending"})


def replica_bounds(spec: ServiceSpec, order: ServiceOrder) -> tuple[int, int]:
    """Return how many replicas the owner wants at least and at most: an order comes before a file.

    The least may be above the most.
    """
    return (
        spec.min_replicas if order.min_replicas is None else order.min_replicas,
        spec.max_replicas if order.max_replicas is None else order.max_replicas,
    )


def scaling(spec: ServiceSpec, order: ServiceOrder, most: int, engine: Engine) -> Scaling:
    """Return what the owner asks for by file or order; slots and gateway can carry ``most``."""
    lowest, highest = replica_bounds(spec, order)
    highest = min(highest, most)
    return Scaling(
        min_replicas=min(lowest, highest),
        max_replicas=highest,
        concurrency=_most_concurrency(engine) if spec.concurrency == AUTO else spec.concurrency,
        max_queue_s=spec.max_queue_s,
        p95_s=None if spec.p95_ms is None else spec.p95_ms / 1000,
        keep_alive_s=spec.keep_alive_s,
        learns=spec.concurrency == AUTO,
        ttft_s=None if spec.ttft_ms is None else spec.ttft_ms / 1000,
        tpot_s=None if spec.tpot_ms is None else spec.tpot_ms / 1000,
    )


def _most_concurrency(engine: Engine) -> int:
    """Return how many requests a replica may get at the same time, where that is learnt."""
    return engine.slots if isinstance(engine, SlottedEngine) else MOST


def concurrency(spec: ServiceSpec, engine: Engine, memory: Memory | None) -> int:
    """Return how many requests a replica gets at the same time: as its owner says, or as learnt."""
    if spec.concurrency != AUTO:
        return spec.concurrency
    learnt = memory.capacity if memory is not None else ReplicaCapacity()
    return min(learnt.limit, _most_concurrency(engine))


def objective_ms(spec: ServiceSpec, memory: Memory | None) -> float | None:
    """Return within how many milliseconds an answer is in time; None without an objective.

    Of ``max_queue_s`` it is the wait that it allows, and the time that a request takes on average.
    """
    if spec.p95_ms is not None:
        return spec.p95_ms
    if spec.max_queue_s is None or memory is None:
        return None
    return 1000 * (spec.max_queue_s + memory.service_s)


def ending(
    asked: Scaling, load: Load, concurrency: int, since_s: float, *, can_serve: bool
) -> ScalingDecision:
    """Decide how many replicas a service that is to end needs to finish its requests.

    It gets them for as long as a drain may take. A replica gets ``concurrency`` requests at the
    same time. ``can_serve`` is False if no replica serves and
    the last start failed: then there is nothing to wait for.
    """
    goes_on = can_serve and since_s < DRAIN_DEADLINE_S
    left = ceil(load.total / concurrency) if goes_on else 0
    reason = f"is being deleted: {load.in_flight} requests in progress, {load.waiting} waiting"
    return ScalingDecision(min(left, asked.max_replicas), reason)


def with_refused(load: Load, before: LastCounters | ModelWork | None, *, starts: bool) -> Load:
    """Count one waiting request if the gateway has refused any since the last look.

    While starts fail no request waits, and without one no start would be tried any more. One is
    enough: one start at a time is tried, and clients that come again and again are no burst. It
    counts until the start that it has caused (``starts``) has ended, well or badly: only that shows
    whether starts still fail.
    """
    is_more = (
        before is not None
        and load.arrived != before.arrived
        and before.counter in {"", load.counter}
    )
    if not starts and not is_more:
        return load
    return replace(load, held=max(load.held, 1))


def supply(slots: Iterable[Slot]) -> Supply:
    """Count the slots that are replicas, by what they do."""
    counted = [slot for slot in slots if slot.phase in _COUNTED]
    waiting = [slot for slot in counted if slot.phase in {Phase.STARTING, Phase.WARM}]
    allotted = sum(slot.allotted for slot in waiting)
    return Supply(
        pending=len(waiting) - allotted,
        starting=allotted,
        ready=sum(slot.phase is Phase.SERVING for slot in counted),
        draining=sum(slot.phase is Phase.DRAINING for slot in counted),
        borrowed=sum(slot.is_borrowed for slot in counted),
        booting=sum(slot.is_configuring for slot in waiting),
    )


def serving(slots: Iterable[Slot]) -> int:
    """Count the replicas that get requests, of all generations; 0 while others finish theirs."""
    phases = [slot.phase for slot in slots]
    return 0 if Phase.DRAINING in phases else phases.count(Phase.SERVING)


_COUNTED = frozenset({Phase.STARTING, Phase.WARM, Phase.SERVING, Phase.DRAINING})


def free_millislices(view: ViewAnswer) -> Mapping[str, int]:
    """Return the millislices that each tenant may still take, besides what waits for Slurm."""
    free = {tenant.name: tenant.room_millislices for tenant in view.tenants}
    for service in view.services:
        if service.tenant in free:
            pending = [slot.state for slot in service.slots].count("released")
            free[service.tenant] -= pending * service.cost_millislices
    return free


def room(generations: Sequence[Generation], free: Mapping[str, int]) -> int | None:
    """Return how many more replicas of the newest generation quota allows; None if not known.

    Outdated replicas count as room, since they make way for new ones.
    """
    newest = generations[-1].view
    left = free.get(newest.tenant)
    if left is None or not newest.cost_millislices:
        return None
    replaced = sum(map(_replaced_millislices, generations))
    return max(0, (left + replaced) // newest.cost_millislices)


def _replaced_millislices(generation: Generation) -> int:
    view: ServiceView = generation.view
    count = sum(
        slot.is_outdated and seen.state in _HOLDS
        for slot, seen in zip(generation.slots, view.slots, strict=True)
    )
    return count * view.cost_millislices
