"""Decides for services that share replicas: how many each starts, and what each replica serves."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from slicewise.cluster.language.service import can_follow, whole_number
from slicewise.cluster.rpc.messages import SlotPlace
from slicewise.launcher.rules.autoscale.types import Scaling
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Load, Server, ServerMode
from slicewise.launcher.rules.pools.members import shape_of
from slicewise.launcher.rules.pools.model_work import ModelWork
from slicewise.launcher.rules.pools.placement import Placed, place
from slicewise.launcher.rules.pools.types import (
    Placement,
    PoolModel,
    PoolReplica,
    ReplicaModels,
    Told,
)
from slicewise.launcher.rules.turn.generations import Generation
from slicewise.launcher.rules.turn.slots import Phase, Slot, SlotId, order_of

MOST_LOADS = 100
"""Loads after which a replica is replaced: servers don't give back all memory of unloaded models
(TorchScript 1 GB of GPU memory in 50 loads, triton-inference-server/server#5841)."""
AGAIN_S = 60.0
"""Seconds for which a replica that has refused a model is not told to load it again."""
SAYS_S = 10.0
"""Seconds for which a replica may not have said what it has before others start for what it might
have."""
FIRST_LOAD_S = 5.0
"""Seconds that a load takes as long as none was seen."""
USED = 0.9
"""Share of a GPU's memory for models: the rest is for contexts and what requests need."""
_READY = frozenset({Phase.WARM, Phase.SERVING})
_COSTS = _READY | {Phase.STARTING, Phase.DRAINING}


@dataclass(frozen=True)
class Member:
    """One of the services that share replicas, at this look.

    Attributes:
        key: ``tenant/service``.
        generations: its generations, the newest last.
        values: the newest one's directives.
        work: how much its model is asked.
        is_closing: whether it is to end: it starts no replica, and its own finish what they have.
        is_kept: whether its owner wants it ready also while nobody asks.
        most: replicas that its owner lets it have.
        may_start: whether the pause after its last failed start is over.
        beside: requests of other services that its replicas work on, by address and HTTP port.
    """

    key: str
    generations: Sequence[Generation]
    values: Mapping[str, str] = field(hash=False)
    backend: Backend | None
    work: ModelWork
    is_closing: bool
    is_kept: bool
    most: int
    may_start: bool
    beside: Mapping[tuple[str, int], int] = field(default_factory=dict, hash=False)

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.values.get("model", "")

    @property
    def newest(self) -> Generation:
        """Its newest generation."""
        return self.generations[-1]

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots of all its generations."""
        return [slot for generation in self.generations for slot in generation.slots]

    @property
    def fails(self) -> bool:
        """Whether its last start has failed."""
        return bool(self.newest.state.backoff.failures)

    @property
    def startable(self) -> int:
        """How many more replicas of it could start now; while starts fail, one at a time."""
        held = sum(slot.phase is Phase.HELD for slot in self.slots)
        return min(held, 1) if self.fails else held

    @property
    def is_starting(self) -> bool:
        """Whether a replica of it is on its way."""
        return any(s.phase is Phase.STARTING and not s.is_replaced for s in self.slots)

    @property
    def is_short(self) -> bool:
        """Whether a start of it finds no room, by quota or in the cluster."""
        desired = self.newest.state.desired
        kept_back = desired.kept_back if desired is not None else frozenset[int]()
        return any(
            slot.is_stuck or (slot.phase is Phase.HELD and slot.id.index in kept_back)
            for slot in self.newest.slots
        )


def worn(models: Mapping[tuple[int, int, int], ReplicaModels]) -> frozenset[SlotPlace]:
    """Return the slots whose replicas have loaded so many models that they are replaced."""
    return frozenset(run[:2] for run, replica in models.items() if replica.loads > MOST_LOADS)


def scaling(asked: Sequence[Scaling], most: int) -> Scaling:
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


def _split(wanted: int, pool: "Pool", unplaced: Collection[str]) -> Counter[str]:
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
        if more and pool.helps(member):
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


@dataclass(frozen=True)
class PoolCounts:
    """How many replicas each service keeps or starts.

    Attributes:
        kept: by ``tenant/service``.
        lacking: services whose models are asked and have no room.
        going: a replica that is given up once others have the models that are asked there.
    """

    kept: Mapping[str, int]
    lacking: Sequence[str] = ()
    going: SlotId | None = None


def counts(pool: "Pool", wanted: int, most: int) -> PoolCounts:
    """Choose which of the pool's replicas stay, and which services start one.

    One replica is given up at a time, once the models that are asked there are ready elsewhere. If
    there is no room for them elsewhere, it stays. A model that has no room at all starts a replica
    of its own service; the pool has at most ``most``. Where there is no room for that one either,
    by quota or in the cluster, a replica gives way whose models nobody asks.
    """
    slots = (slot for member in pool.open_members for slot in member.slots)
    ready = sorted((s for s in slots if _is_ready(s) and not s.is_replaced), key=order_of)
    placed, going = pool.placed_without(None), None
    unplaced = placed.unplaced
    if wanted < len(ready):
        last = ready[-1].id
        if pool.placed_without(last).unplaced <= unplaced:
            going = last
        wanted = len(ready) - (going is not None and pool.is_dispensable(last))
    kept = _split(wanted, pool, unplaced)
    lacking = [member for member in pool.open_members if member.model in unplaced]
    starting = min(
        (member for member in lacking if pool.may_start(member)),
        key=lambda member: (
            not member.work.is_asked,
            not member.is_starting,
            *_start_order(member, unplaced),
        ),
        default=None,
    )
    if starting is not None:
        if starting.is_short or kept.total() >= most:
            kept.subtract(pool.giving_way(placed.models, kept) if starting.work.is_asked else ())
        if kept.total() < most:
            kept[starting.key] = max(1, kept[starting.key])
    return PoolCounts(kept, tuple(member.key for member in lacking), going)


def _is_ready(slot: Slot) -> bool:
    return slot.phase in _READY and not slot.is_doubted


@dataclass(frozen=True)
class Shared:
    """What the replicas of a pool serve, by ``tenant/service``.

    Attributes:
        told: what each replica of a service was told.
        models: what each is to have now.
        targets: modes of other services' replicas for each service.
        replicas: how many replicas have each service's model ready.
        refused: why replicas have not loaded a service's model.
    """

    told: Mapping[str, Mapping[SlotPlace, Told]]
    models: Mapping[str, Placement]
    targets: Mapping[str, Mapping[Endpoint, ServerMode]]
    replicas: Mapping[str, int]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class _Replica:
    """A replica of the pool.

    Attributes:
        lines: its servers at the gateway that are not in maintenance, by ``tenant/service``.
        has_guests: whether it works for a service that has left the pool.
    """

    member: Member
    slot: Slot
    endpoint: Endpoint
    is_verified: bool
    told: Told
    heard: ReplicaModels | None
    memory_mib: int | None
    lines: Mapping[str, Server]
    has_guests: bool

    @property
    def place(self) -> SlotPlace:
        return self.slot.id.array_job_id, self.slot.id.index

    @property
    def leaving(self) -> frozenset[str]:
        """Models that it still has and is not to have."""
        ready = self.heard.ready if self.heard is not None else frozenset[str]()
        return ready - self.told.models.keys() - {self.member.model}

    def has(self, model: str) -> bool:
        """Whether the model is ready there, and stays."""
        is_ready = self.heard is not None and model in self.heard.ready
        return model == self.member.model or (is_ready and model in self.told.models)

    def placing(self, models: Iterable[str]) -> PoolReplica:
        """Return it as the placement sees it: what leaves can't come back before it is gone.

        One that has not said what it has, or works for others, gets no more of the ``models``.
        """
        is_open = self.heard is not None and not self.has_guests
        refused = self.leaving.union(self.told.refused_s)
        return PoolReplica(
            self.place,
            self.member.model,
            frozenset(self.told.models) | {self.member.model},
            refused if is_open else frozenset(models),
            self.memory_mib,
        )

    def mode(
        self, member: Member, own: ServerMode | None, to_have: Collection[str]
    ) -> ServerMode | None:
        """Return in which mode it gets requests of another service; None: it gets none.

        ``own`` is the mode for the service whose slot it is.
        """
        line = self.lines.get(member.key)
        if member.model in to_have and self.has(member.model):
            return own
        if own is None or line is None:
            return None
        if self.heard is None:
            # Nothing is known of it yet: it stays as it is.
            return own if own is ServerMode.DRAIN else line.mode
        is_busy = line.in_flight > 0 or line.mode is ServerMode.READY
        return ServerMode.DRAIN if is_busy else None


@dataclass(frozen=True)
class Pool:
    """The services that share replicas, and what is seen of these."""

    members: Sequence[Member]
    replicas: Sequence[_Replica]
    models: Sequence[PoolModel]
    now_s: float

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The services, as ``tenant/service``."""
        return tuple(sorted(member.key for member in self.members))

    @cached_property
    def cut(self) -> frozenset[Endpoint]:
        """Replicas that answer nothing, with requests in flight that end now."""
        return frozenset().union(*(generation.cut for generation in self._generations))

    @cached_property
    def unknown(self) -> frozenset[str]:
        """Addresses of runs with ports that the launcher never learnt."""
        return frozenset().union(*(generation.unknown for generation in self._generations))

    @property
    def _generations(self) -> Iterator[Generation]:
        return (generation for member in self.members for generation in member.generations)

    @property
    def open_members(self) -> Sequence[Member]:
        """The services that may start replicas."""
        return [member for member in self.members if not member.is_closing]

    @property
    def _ready(self) -> Sequence[_Replica]:
        return [r for r in self.replicas if _is_ready(r.slot) and r.slot.up]

    @property
    def is_heard(self) -> bool:
        """Whether all replicas that are ready have said what they have, if they ever do."""
        return all(
            (since_s := replica.told.silent_s) is None or self.now_s - since_s >= SAYS_S
            for replica in self._ready
        )

    def serves(self, member: Member) -> bool:
        """Whether another service's replica serves it."""
        return any(r.member is not member and r.has(member.model) for r in self._ready)

    def placed_without(self, slot: SlotId | None) -> Placed:
        """Choose the models of the replicas that are ready now, but for one."""
        return self.placed([replica for replica in self._ready if replica.slot.id != slot])

    def placed(self, replicas: Iterable[_Replica]) -> Placed:
        """Choose the models of these replicas."""
        names = [model.model for model in self.models]
        return place(self.models, [replica.placing(names) for replica in replicas])

    def is_dispensable(self, slot: SlotId) -> bool:
        """Whether the models that are asked, or kept, in a replica are ready elsewhere, too."""
        needed = [model.model for model in self.models if model.is_needed]
        others = [replica for replica in self._ready if replica.slot.id != slot]
        return all(
            any(other.has(name) for other in others)
            for replica in self.replicas
            for name in needed
            if replica.slot.id == slot and replica.has(name)
        )

    def may_start(self, member: Member) -> bool:
        """Whether a service whose model has no room starts a replica, or goes on with a start.

        It waits for replicas that may have room: those that have not said what they have, and those
        that come.
        """
        if member.is_starting or not (member.may_start and member.startable):
            return member.is_starting
        return self.is_heard and not any(
            other.is_starting and not other.fails and self._has_room(other, member.model)
            for other in self.open_members
        )

    def helps(self, member: Member) -> bool:
        """Whether a new replica of a service would have a model that is needed, or room for one."""
        needed = [model.model for model in self.models if model.is_needed]
        return member.model in needed or any(self._has_room(member, name) for name in needed)

    def _has_room(self, member: Member, name: str) -> bool:
        """Whether a replica of a service has room for another's model."""
        memory_mib = _memory_mib(member.newest)
        return memory_mib is None or self._mib[member.model] + self._mib[name] <= memory_mib

    @cached_property
    def _mib(self) -> Mapping[str, int]:
        return {model.model: model.memory_mib for model in self.models}

    def giving_way(self, placement: Placement, kept: Mapping[str, int]) -> Sequence[str]:
        """Return the service of a replica that nobody asks: it is given up; none if one ends now.

        It is the same one at each look. ``kept`` is how many each service keeps so far.
        """
        if any(slot.phase is Phase.ENDING for member in self.members for slot in member.slots):
            return ()
        asked = {model.model for model in self.models if model.is_asked}
        idle = [
            ((replica.slot.phase is Phase.DRAINING, order_of(replica.slot)), replica.member.key)
            for replica in self.replicas
            if replica.slot.phase in _READY | {Phase.DRAINING} and not replica.slot.is_replaced
            if not asked & {replica.member.model, *placement.get(replica.place, ())}
            if not replica.member.is_closing and kept[replica.member.key] > 0
        ]
        return (max(idle)[1],) if idle else ()


def seen(
    members: Sequence[Member],
    heard: Mapping[tuple[int, int, int], ReplicaModels],
    now_s: float,
) -> Pool:
    """Join what is seen of a pool's services with what their replicas have said."""
    replicas = tuple(_replicas(members, heard, now_s))
    return Pool(members, replicas, tuple(_models(members, replicas)), now_s)


def shared(pool: Pool, modes: Mapping[SlotId, ServerMode], going: SlotId | None) -> Shared:
    """Decide which models the pool's replicas have, and which services' requests they get.

    ``modes`` are those of all replicas' servers for the services whose slots they are. No model is
    loaded in the replica that is ``going``. A model that is to go gets no new requests first, and
    is unloaded once it has none. What is to come is chosen after that, so that a replica never gets
    requests for what it was just told to give up.
    """
    arrays = {member.model: member.newest.array_job_id for member in pool.members}
    placed = pool.placed(
        replica
        for replica in pool.replicas
        if modes.get(replica.slot.id) is ServerMode.READY
        and replica.slot.up
        and replica.slot.id != going
    )
    told: dict[str, dict[SlotPlace, Told]] = {member.key: {} for member in pool.members}
    models: dict[str, dict[SlotPlace, frozenset[str]]] = {member.key: {} for member in pool.members}
    targets: dict[str, dict[Endpoint, ServerMode]] = {member.key: {} for member in pool.members}
    ready: Counter[str] = Counter()
    for replica in pool.replicas:
        own = modes.get(replica.slot.id)
        to_have = placed.models.get(replica.place, replica.told.models.keys())
        to_have = frozenset(to_have) - {replica.member.model}
        draining = set[str]()
        for member in pool.members:
            if member is replica.member:
                ready[member.key] += own is ServerMode.READY
            elif (mode := replica.mode(member, own, to_have)) is not None:
                targets[member.key][replica.endpoint] = mode
                ready[member.key] += mode is ServerMode.READY
                if member.model not in to_have:
                    draining.add(member.model)
        if not replica.is_verified:
            continue
        if draining:
            to_have &= replica.told.models.keys()
        told[replica.member.key][replica.place] = replace(
            replica.told,
            models={name: replica.told.models.get(name, arrays[name]) for name in sorted(to_have)},
        )
        if not replica.has_guests:
            models[replica.member.key][replica.place] = to_have | draining | {replica.member.model}
    return Shared(told, models, targets, ready, _refused(pool))


def _replicas(
    members: Sequence[Member],
    heard: Mapping[tuple[int, int, int], ReplicaModels],
    now_s: float,
) -> Iterator[_Replica]:
    arrays = {member.model: member.newest.array_job_id for member in members}
    for member in members:
        shape = shape_of(member.values)
        for generation in member.generations:
            values = generation.view.directives
            is_alike = shape_of(values) == shape or can_follow(values, member.values)
            for slot in generation.slots if is_alike else ():
                run = generation.runs.get(slot.id)
                if run is None:
                    continue
                answer = heard.get((generation.array_job_id, slot.id.index, run.start_s))
                lines = _lines(members, run.endpoint)
                before = generation.state.models.get(slot.id.index)
                if before is None or before.start_s != run.start_s:
                    before = _as_routed(members, lines, run.start_s)
                guests = member.beside.get(run.endpoint.place, 0) - sum(
                    line.in_flight + line.queued for key, line in lines.items() if key != member.key
                )
                yield _Replica(
                    member,
                    slot,
                    run.endpoint,
                    slot.id.index in generation.state.verified,
                    _told(before, answer, arrays, now_s),
                    answer,
                    _memory_mib(generation),
                    lines,
                    guests > 0,
                )


def _lines(members: Iterable[Member], endpoint: Endpoint) -> Mapping[str, Server]:
    lines = (
        (member.key, member.backend.server_of(endpoint))
        for member in members
        if member.backend is not None
    )
    return {
        key: line for key, line in lines if line is not None and line.mode is not ServerMode.MAINT
    }


def _as_routed(members: Iterable[Member], lines: Mapping[str, Server], start_s: int) -> Told:
    """Return what the gateway shows that a replica has: it outlives the launcher.

    It does not show of which generation: where there are several, it counts as the oldest.
    """
    models = {
        member.model: member.generations[0].array_job_id
        for member in members
        if member.key in lines
    }
    return Told(start_s, models)


def _told(
    before: Told, heard: ReplicaModels | None, arrays: Mapping[str, int], now_s: float
) -> Told:
    """Leave out what was refused, and what was loaded before its service's newest files."""
    refused = heard.refused.keys() if heard is not None else frozenset[str]()
    lately = {name: at_s for name, at_s in before.refused_s.items() if now_s - at_s < AGAIN_S}
    new = {name: lately.get(name, now_s) for name in refused}
    models = {
        name: array
        for name, array in before.models.items()
        if name not in refused and arrays.get(name) == array
    }
    silent_s = (before.silent_s or now_s) if heard is None else None
    return replace(before, models=models, refused_s={**lately, **new}, silent_s=silent_s)


def _models(members: Iterable[Member], replicas: Sequence[_Replica]) -> Iterator[PoolModel]:
    for member in members:
        loads_s = [
            replica.heard.load_s[member.model]
            for replica in replicas
            if replica.heard is not None and member.model in replica.heard.load_s
        ]
        yield PoolModel(
            member.model,
            member.work.work,
            whole_number(member.values, "model_mib", 0),
            max(loads_s, default=FIRST_LOAD_S),
            member.work.requests_per_s,
            member.is_kept,
            member.work.is_asked,
            member.work.waited_s,
        )


def _memory_mib(generation: Generation) -> int | None:
    memory_mib = generation.view.memory_mib
    if memory_mib is None:
        return None
    return int(USED * memory_mib * whole_number(generation.view.directives, "gpus", 1))


def _refused(pool: Pool) -> Mapping[str, str]:
    return {
        member.key: why
        for member in pool.members
        for replica in pool.replicas
        if replica.heard is not None and (why := replica.heard.refused.get(member.model))
    }
