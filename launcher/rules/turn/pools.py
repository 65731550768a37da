"""Decides for services that share replicas: how many each starts, and what each replica serves."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.service import whole_number
from slicewise.cluster.rpc.messages import SlotPlace
from slicewise.launcher.rules.autoscale.types import Scaling
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Load, ServerMode
from slicewise.launcher.rules.pools.members import shape_of
from slicewise.launcher.rules.pools.model_work import ModelWork
from slicewise.launcher.rules.pools.placement import place
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
        most: replicas that its owner lets it have.
        may_start: whether the pause after its last failed start is over.
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


def split(wanted: int, members: Sequence[Member], unplaced: Collection[str]) -> Mapping[str, int]:
    """Return how many replicas each service keeps or starts of those that the pool wants.

    The best of all stay, in the order of ``plan_slots``. A replica that is to be replaced has its
    successor in its own service. What is missing besides starts where a model is asked that has no
    room elsewhere, then where most is asked; a service whose starts fail comes last.
    """
    open_members = [member for member in members if not member.is_closing]
    costing = [
        (order_of(slot), member.key)
        for member in open_members
        for slot in member.slots
        if slot.phase in _COSTS and not slot.is_replaced
    ]
    kept = Counter(key for _, key in sorted(costing)[:wanted])
    missing = wanted - kept.total()
    for member in open_members:
        replaced = sum(slot.phase in _COSTS and slot.is_replaced for slot in member.slots)
        more = max(0, min(missing, replaced, member.most - kept[member.key]))
        kept[member.key] += more
        missing -= more
    for member in sorted(open_members, key=lambda member: _start_order(member, unplaced)):
        more = max(0, min(missing, member.most - kept[member.key]))
        if member.newest.state.backoff.failures:
            more = min(more, 1)
        kept[member.key] += more
        missing -= more
    return kept


def _start_order(member: Member, unplaced: Collection[str]) -> tuple[bool, bool, bool, float, str]:
    fails = bool(member.newest.state.backoff.failures)
    return (
        not member.may_start,
        fails,
        member.model not in unplaced,
        -member.work.work,
        member.key,
    )


@dataclass(frozen=True)
class Shared:
    """What the replicas of a pool serve.

    Attributes:
        told: what each ready replica was told, by its place.
        models: what each is to have now.
        targets: modes of other services' replicas for each service, by ``tenant/service``.
        replicas: how many replicas have each service's model ready, by the same.
        unplaced: models that are asked and have no room.
        refused: why replicas have not loaded a service's model, by the same.
    """

    told: Mapping[SlotPlace, Told]
    models: Placement
    targets: Mapping[str, Mapping[Endpoint, ServerMode]]
    replicas: Mapping[str, int]
    unplaced: frozenset[str]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class _Replica:
    member: Member
    slot: Slot
    endpoint: Endpoint
    told: Told
    heard: ReplicaModels | None
    mode: ServerMode | None
    memory_mib: int | None

    @property
    def place(self) -> SlotPlace:
        return self.slot.id.array_job_id, self.slot.id.index

    @property
    def is_placed(self) -> bool:
        """Whether models may be loaded there."""
        return self.mode is ServerMode.READY and self.slot.up and self.heard is not None

    @property
    def leaving(self) -> frozenset[str]:
        """Models that it still has and is not to have."""
        ready = self.heard.ready if self.heard is not None else frozenset[str]()
        return ready - self.told.models.keys()

    def placing(self) -> PoolReplica:
        """Return it as the placement sees it: what leaves can't come back before it is gone."""
        return PoolReplica(
            self.place,
            self.member.model,
            frozenset(self.told.models),
            self.leaving | self.told.refused_s.keys(),
            self.memory_mib,
        )


def shared(
    members: Sequence[Member],
    modes: Mapping[SlotId, ServerMode],
    heard: Mapping[tuple[int, int, int], ReplicaModels],
    now_s: float,
) -> Shared:
    """Decide which models the pool's replicas have, and which services' requests they get.

    ``modes`` are those of all replicas' servers for the services whose slots they are. A model that
    is to go gets no new requests first, and is unloaded once it has none. What is to come is chosen
    after that, so that a replica never gets requests for what it was just told to give up.
    """
    arrays = {member.model: member.newest.array_job_id for member in members}
    replicas = tuple(_replicas(members, modes, heard, arrays, now_s))
    placed = place(
        _models(members, replicas),
        (replica.placing() for replica in replicas if replica.is_placed),
    )
    told: dict[SlotPlace, Told] = {}
    models: dict[SlotPlace, frozenset[str]] = {}
    targets: dict[str, dict[Endpoint, ServerMode]] = {member.key: {} for member in members}
    ready: Counter[str] = Counter()
    for replica in replicas:
        to_have = placed.models.get(replica.place, frozenset(replica.told.models))
        draining = set[str]()
        for member in members:
            if member.model == replica.member.model:
                ready[member.key] += replica.mode is ServerMode.READY
            elif (mode := _mode(member, replica, to_have)) is not None:
                targets[member.key][replica.endpoint] = mode
                ready[member.key] += mode is ServerMode.READY
                if member.model not in to_have:
                    draining.add(member.model)
        if draining:
            to_have &= replica.told.models.keys()
        told[replica.place] = replace(
            replica.told,
            models={name: replica.told.models.get(name, arrays[name]) for name in sorted(to_have)},
        )
        models[replica.place] = to_have | draining | {replica.member.model}
    return Shared(told, models, targets, ready, placed.unplaced, _refused(members, replicas))


def _replicas(
    members: Sequence[Member],
    modes: Mapping[SlotId, ServerMode],
    heard: Mapping[tuple[int, int, int], ReplicaModels],
    arrays: Mapping[str, int],
    now_s: float,
) -> Iterator[_Replica]:
    for member in members:
        shape = shape_of(member.values)
        for generation in member.generations:
            is_alike = shape_of(generation.view.directives) == shape
            for slot in generation.slots if is_alike else ():
                run = generation.runs.get(slot.id)
                if run is None or slot.id.index not in generation.state.verified:
                    continue
                answer = heard.get((generation.array_job_id, slot.id.index, run.start_s))
                before = generation.state.models.get(slot.id.index)
                if before is None or before.start_s != run.start_s:
                    before = _as_routed(members, run.endpoint, run.start_s)
                yield _Replica(
                    member,
                    slot,
                    run.endpoint,
                    _told(before, answer, arrays, now_s),
                    answer,
                    modes.get(slot.id),
                    _memory_mib(generation),
                )


def _as_routed(members: Iterable[Member], endpoint: Endpoint, start_s: int) -> Told:
    """Return what the gateway shows that a replica has: it outlives the launcher."""
    return Told(
        start_s,
        {
            member.model: member.newest.array_job_id
            for member in members
            if _line_mode(member, endpoint) not in {None, ServerMode.MAINT}
        },
    )


def _told(
    before: Told, heard: ReplicaModels | None, arrays: Mapping[str, int], now_s: float
) -> Told:
    """Leave out what was refused, and what was loaded before its service's newest files."""
    refused = heard.refused.keys() if heard is not None else frozenset[str]()
    lately = {name: at_s for name, at_s in before.refused_s.items() if now_s - at_s < AGAIN_S}
    new = {name: now_s for name in refused if name in before.models}
    models = {
        name: array
        for name, array in before.models.items()
        if name not in refused and arrays.get(name) == array
    }
    return replace(before, models=models, refused_s={**lately, **new})


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
    memory_mib: int | None = getattr(generation.view, "memory_mib", None)
    if memory_mib is None:
        return None
    return int(USED * memory_mib * whole_number(generation.view.directives, "gpus", 1))


def _line_mode(member: Member, endpoint: Endpoint) -> ServerMode | None:
    server = member.backend.server_of(endpoint) if member.backend is not None else None
    return server.mode if server is not None else None


def _mode(member: Member, replica: _Replica, to_have: Collection[str]) -> ServerMode | None:
    """Return in which mode a replica gets requests of another service; None: it gets none."""
    if replica.mode is None:
        return None
    line = _line_mode(member, replica.endpoint)
    has_line = line not in {None, ServerMode.MAINT}
    if replica.heard is None:
        # Nothing is known of it yet: it stays as it is.
        return line if has_line else None
    if member.model not in replica.heard.ready:
        return None
    if member.model in to_have and member.model not in replica.leaving:
        return replica.mode
    server = member.backend.server_of(replica.endpoint) if member.backend is not None else None
    is_busy = server is not None and (server.in_flight > 0 or server.mode is ServerMode.READY)
    return ServerMode.DRAIN if has_line and is_busy else None


def _refused(members: Iterable[Member], replicas: Sequence[_Replica]) -> Mapping[str, str]:
    return {
        member.key: why
        for member in members
        for replica in replicas
        if replica.heard is not None and (why := replica.heard.refused.get(member.model))
    }
