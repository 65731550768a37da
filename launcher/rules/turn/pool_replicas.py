"""Decides how many replicas services have that share them, and whose these are."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.launcher.rules.autoscale.types import Scaling
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.pools.placement import Placed
from slicewise.launcher.rules.pools.room import memory_mib
from slicewise.launcher.rules.pools.types import Placement
from slicewise.launcher.rules.turn.pool_models import READY, Member, Pool, is_ready
from slicewise.launcher.rules.turn.slots import Phase, SlotId, order_of

SAYS_S = 10.0
"""Seconds for which a replica may not have said what it has before others start for what it might
have."""
_COSTS = READY | {Phase.STARTING, Phase.DRAINING}


def scaling(asked: Sequence[Scaling], most: int, refill_s: float) -> Scaling:
    """Return what a pool asks of the autoscaler: what the strictest of its services asks.

    It may have as many replicas as all its services together. A replica counts with the smallest
    ``concurrency``, so that none gets more than its model can.
    """
    has_p95 = any(service.p95_s is not None for service in asked)
    return Scaling(
        min_replicas=max(service.min_replicas for service in asked),
        max_replicas=min(most, sum(service.max_replicas for service in asked)),
        concurrency=min(service.concurrency for service in asked),
        max_queue_s=None if has_p95 else _least(service.max_queue_s for service in asked),
        p95_s=_least(service.p95_s for service in asked),
        keep_alive_s=max(
            (kept_s for service in asked if (kept_s := service.keep_alive_s) is not None),
            default=None,
        ),
        learns=all(service.learns for service in asked),
        ttft_s=_least(service.ttft_s for service in asked),
        tpot_s=_least(service.tpot_s for service in asked),
        refill_s=refill_s,
    )


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def load(loads: Sequence[Load]) -> Load:
    """Add up requests; a service that moves to another backend is no continuation for all."""
    return Load(
        in_flight=sum(load.in_flight for load in loads),
        queued=sum(load.queued for load in loads),
        held=sum(load.held for load in loads),
        arrived=sum(load.arrived for load in loads),
        answered=sum(load.answered for load in loads),
        given_up=sum(load.given_up for load in loads),
        counter=" ".join(load.counter for load in loads),
    )


@dataclass(frozen=True)
class PoolCounts:
    """How many replicas each service keeps or starts.

    Attributes:
        kept: by ``tenant/service``.
        lacking: services whose models are asked and have no room.
        going: a replica that is given up once others have the models that are asked there.
        placed: the models of the replicas that stay.
    """

    kept: Mapping[str, int]
    lacking: Sequence[str] = ()
    going: SlotId | None = None
    placed: Placed = field(default_factory=lambda: Placed({}))


def counts(pool: Pool, wanted: int, most: int) -> PoolCounts:
    """Choose which of the pool's replicas stay, and which services start one.

    One replica is given up at a time, once the models that are asked there are ready elsewhere. If
    there is no room for them elsewhere, it stays. A model that has no room at all starts a replica
    of its own service; the pool has at most ``most``. Where there is no room for that one either,
    by quota or in the cluster, a replica gives way whose models nobody asks.
    """
    slots = (slot for member in pool.open_members for slot in member.slots)
    ready = sorted((s for s in slots if is_ready(s) and not s.is_replaced), key=order_of)
    placed, going = pool.placed_without(None), None
    stays, unplaced = placed, placed.unplaced
    if wanted < len(ready):
        last = ready[-1].id
        if (without := pool.placed_without(last)).unplaced <= unplaced:
            going, stays = last, without
        wanted = len(ready) - (going is not None and _is_dispensable(pool, last))
    kept = _split(wanted, pool, unplaced)
    lacking = [member for member in pool.open_members if member.model in unplaced]
    starting = min(
        (member for member in lacking if _may_start(pool, member)),
        key=lambda member: (
            not member.work.is_asked,
            not member.is_starting,
            *_start_order(member, unplaced),
        ),
        default=None,
    )
    if starting is not None:
        if starting.is_short or kept.total() >= most:
            kept.subtract(_giving_way(pool, placed.models, kept) if starting.work.is_asked else ())
        if kept.total() < most:
            kept[starting.key] = max(1, kept[starting.key])
    return PoolCounts(kept, tuple(member.key for member in lacking), going, stays)


def _split(wanted: int, pool: Pool, unplaced: Collection[str]) -> Counter[str]:
    """Return how many replicas each service keeps or starts of those that the pool wants.

    The best of all stay, in the order of ``plan_slots``. A replica that is to be replaced has its
    successor in its own service. What is missing besides starts where a model is asked that has no
    room elsewhere, then where most is asked; a service whose starts fail comes last, and one whose
    replica would have no model that is asked, or kept, starts none.
    """
    members = pool.open_members
    costing = [
        (order_of(slot), member.key)
        for member in members
        for slot in member.slots
        if slot.phase in _COSTS and not slot.is_replaced
    ]
    kept = Counter(key for _, key in sorted(costing)[:wanted])
    missing = wanted - kept.total()
    for member in members:
        replaced = sum(slot.phase in _COSTS and slot.is_replaced for slot in member.slots)
        more = max(0, min(missing, replaced, member.most - kept[member.key]))
        kept[member.key] += more
        missing -= more
    for member in sorted(members, key=lambda member: _start_order(member, unplaced)):
        more = max(0, min(missing, member.most - kept[member.key], member.startable))
        if more and _helps(pool, member):
            kept[member.key] += more
            missing -= more
    return kept


def _start_order(member: Member, unplaced: Collection[str]) -> tuple[bool, bool, bool, float, str]:
    return (
        not member.may_start,
        member.fails,
        member.model not in unplaced,
        -member.work.work,
        member.key,
    )


def _is_dispensable(pool: Pool, slot: SlotId) -> bool:
    """Whether the models that are asked, or kept, in a replica are ready elsewhere, too."""
    others = [replica for replica in pool.ready if replica.slot.id != slot]
    return all(
        any(other.has(name) for other in others)
        for replica in pool.replicas
        if replica.slot.id == slot
        for name in pool.needed
        if replica.has(name)
    )


def _may_start(pool: Pool, member: Member) -> bool:
    """Whether a service whose model has no room starts a replica, or goes on with a start.

    It waits for replicas that may have room: those that have not said what they have, and those
    that come.
    """
    if member.is_starting or not (member.may_start and member.startable):
        return member.is_starting
    is_heard = all(
        (since_s := replica.told.silent_s) is None or pool.now_s - since_s >= SAYS_S
        for replica in pool.ready
    )
    return is_heard and not any(
        other.is_starting and not other.fails and _has_room(pool, other, member.model)
        for other in pool.open_members
    )


def _helps(pool: Pool, member: Member) -> bool:
    """Whether a new replica of a service would have a model that is needed, or room for one."""
    return member.model in pool.needed or any(_has_room(pool, member, name) for name in pool.needed)


def _has_room(pool: Pool, member: Member, name: str) -> bool:
    """Whether a replica of a service has room for another's model."""
    room_mib = memory_mib(member.newest.view)
    if room_mib is None:
        return True
    return pool.models[member.model].memory_mib + pool.models[name].memory_mib <= room_mib


def _giving_way(pool: Pool, placement: Placement, kept: Mapping[str, int]) -> Sequence[str]:
    """Return the service of a replica that nobody asks: it is given up; none if one ends now.

    It is the same one at each look. ``kept`` is how many each service keeps so far.
    """
    if any(slot.phase is Phase.ENDING for member in pool.members for slot in member.slots):
        return ()
    asked = {model.model for model in pool.models.values() if model.is_asked}
    idle = [
        ((replica.slot.phase is Phase.DRAINING, order_of(replica.slot)), replica.member.key)
        for replica in pool.replicas
        if replica.slot.phase in READY | {Phase.DRAINING} and not replica.slot.is_replaced
        if not asked & {replica.member.model, *placement.get(replica.place, ())}
        if not replica.member.is_closing and kept[replica.member.key] > 0
    ]
    return (max(idle)[1],) if idle else ()
