"""Decides which models the replicas of a pool have, and which services' requests they get."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum
from typing import TypeVar

from slicewise.cluster.language.pools import shape_of
from slicewise.cluster.language.service import can_follow, whole_number
from slicewise.cluster.language.starts import LONGEST_NODE
from slicewise.cluster.rpc.messages import ModelPlace, SlotPlace
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Server, ServerMode
from slicewise.launcher.rules.pools.model_work import ModelWork
from slicewise.launcher.rules.pools.placement import Placed, next_load, place
from slicewise.launcher.rules.pools.room import memory_mib, replica_memory
from slicewise.launcher.rules.pools.types import (
    Placement,
    PoolModel,
    PoolReplica,
    RefusedModel,
    ReplicaModels,
    Told,
)
from slicewise.launcher.rules.pools.wear import with_wear
from slicewise.launcher.rules.turn.generations import Generation
from slicewise.launcher.rules.turn.slots import Phase, Slot, SlotId
from slicewise.launcher.rules.turn.start_traces import ModelLoad

AGAIN_S = 60.0
"""Seconds for which a replica that has refused a model is not told to load it again."""
FIRST_LOAD_S = 5.0
"""Seconds that a load takes as long as none was seen."""
_T = TypeVar("_T")
READY = frozenset({Phase.WARM, Phase.SERVING})


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
        beside: requests of other services that its replicas work on, by address and HTTP port,
            then by ``tenant/service``.
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
    beside: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict, hash=False)

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.values.get("model", "")

    @property
    def model_mib(self) -> int:
        """Memory that its model takes in a replica, in MiB; 0 is not known."""
        return whole_number(self.values, "model_mib", 0)

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


def is_ready(slot: Slot) -> bool:
    """Whether it may get requests."""
    return slot.phase in READY and not slot.is_doubted


@dataclass(frozen=True)
class SharedReplica:
    """A replica of the pool.

    Attributes:
        node: where it runs.
        lines: its servers at the gateway that are not in maintenance, by the service's model.
        has_guests: whether it works for a service that has left the pool.
    """

    member: Member
    slot: Slot
    node: str
    endpoint: Endpoint
    is_verified: bool
    told: Told
    heard: ReplicaModels | None
    memory_mib: int | None
    lines: Mapping[str, Server]
    has_guests: bool

    @property
    def place(self) -> SlotPlace:
        """Its array job id and slot index."""
        return self.slot.id.array_job_id, self.slot.id.index

    @property
    def leaving(self) -> frozenset[str]:
        """Models that it still has and is not to have."""
        ready = self.heard.ready if self.heard is not None else frozenset[str]()
        return ready - self.told.models.keys() - {self.member.model}

    @cached_property
    def stays(self) -> frozenset[str]:
        """Models that are ready there, and stay."""
        ready = self.heard.ready if self.heard is not None else frozenset[str]()
        return (ready & self.told.models.keys()) | {self.member.model}

    def has(self, model: str) -> bool:
        """Whether the model is ready there, and stays."""
        return model in self.stays

    def load(self, model: str, mode: ServerMode | None) -> ModelLoad:
        """Return how far it is with another service's model, which it is to have.

        ``mode`` is that in which it gets requests for it.
        """
        line = self.lines.get(model)
        is_ready = self.heard is not None and model in self.heard.ready
        return ModelLoad(
            self.place,
            self.node,
            self.endpoint.digest,
            is_new=self.heard is not None and not is_ready and model not in self.told.models,
            is_loaded=self.has(model),
            is_from_node=self.heard is not None and model in self.heard.from_node,
            is_routed=mode is ServerMode.READY,
            works=line is not None and line.in_flight > 0,
        )

    def model_place(self, model: str, to_have: Collection[str]) -> ModelPlace:
        """Return what users are told of a model that it has, or is to have.

        ``to_have`` are models of other services that it is to have.
        """
        heard = self.heard or ReplicaModels()
        is_wanted = model == self.member.model or model in to_have
        line, load_s = self.lines.get(model), heard.load_s.get(model)
        return ModelPlace(
            array_job_id=self.place[0],
            slot=self.place[1],
            state="leaving" if not is_wanted else "ready" if self.has(model) else "loading",
            in_flight=0 if line is None else line.in_flight,
            load_s=None if load_s is None else round(load_s, 2),
        )

    def placing(self, models: frozenset[str]) -> PoolReplica:
        """Return it as the placement sees it: what leaves can't come back before it is gone.

        One that has not said what it has, or works for others, gets no more of the ``models``.
        """
        is_open = self.heard is not None and not self.has_guests
        refused = self.leaving.union(self.told.refused_s)
        return PoolReplica(
            self.place,
            self.member.model,
            frozenset(self.told.models) | {self.member.model},
            refused if is_open else models,
            self.memory_mib,
            frozenset(self.told.models) - self.stays,
        )

    def mode(
        self, model: str, own: ServerMode | None, to_have: Collection[str]
    ) -> ServerMode | None:
        """Return in which mode it gets requests of another service's model; None: it gets none.

        ``own`` is the mode for the service whose slot it is.
        """
        line = self.lines.get(model)
        if model in to_have and self.has(model):
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
    """The services that share replicas, and what is seen of these.

    Attributes:
        models: by name.
    """

    members: Sequence[Member]
    replicas: Sequence[SharedReplica]
    models: Mapping[str, PoolModel] = field(hash=False)
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

    @cached_property
    def open_members(self) -> Sequence[Member]:
        """The services that may start replicas."""
        return [member for member in self.members if not member.is_closing]

    @cached_property
    def ready(self) -> Sequence[SharedReplica]:
        """The replicas that may get requests."""
        return [r for r in self.replicas if is_ready(r.slot) and r.slot.up]

    @cached_property
    def refill_s(self) -> float:
        """Seconds of loads of others' models that a replica has behind it, in the mean."""
        loads_s = (
            self.models[name].load_s
            for replica in self.ready
            for name in replica.stays & self.models.keys() - {replica.member.model}
        )
        return fsum(loads_s) / max(1, len(self.ready))

    @cached_property
    def needed(self) -> frozenset[str]:
        """The models that are asked, or kept."""
        return frozenset(model.model for model in self.models.values() if model.is_needed)

    def serves(self, member: Member) -> bool:
        """Whether another service's replica serves it."""
        return any(r.member is not member and r.has(member.model) for r in self.ready)

    def placed_without(self, slot: SlotId | None) -> Placed:
        """Choose the models of the replicas that are ready now, but for one."""
        return self.placed([replica for replica in self.ready if replica.slot.id != slot])

    def placed(self, replicas: Iterable[SharedReplica]) -> Placed:
        """Choose the models of these replicas."""
        names = frozenset(self.models)
        return place(self.models.values(), [replica.placing(names) for replica in replicas])


def seen(
    members: Sequence[Member],
    heard: Mapping[tuple[int, int, int], ReplicaModels],
    now_s: float,
) -> Pool:
    """Join what is seen of a pool's services with what their replicas have said."""
    replicas = tuple(_replicas(members, heard, now_s))
    models = {model.model: model for model in _models(members, replicas)}
    return Pool(members, replicas, models, now_s)


@dataclass(frozen=True)
class Shared:
    """What the replicas of a pool serve, by ``tenant/service``.

    Attributes:
        told: what each replica of a service was told.
        models: what each is to have now.
        targets: modes of other services' replicas for each service.
        replicas: how many replicas have each service's model ready.
        refused: why a service's model was not loaded lately, by each replica.
        refusals: which replicas could not load it, and have not since.
        loads: other services' replicas that are to have it.
        places: replicas that have it, or are to have it, as users are told.
    """

    told: Mapping[str, Mapping[SlotPlace, Told]]
    models: Mapping[str, Placement]
    targets: Mapping[str, Mapping[Endpoint, ServerMode]]
    replicas: Mapping[str, int]
    refused: Mapping[str, Sequence[str]]
    refusals: Mapping[str, Sequence[RefusedModel]]
    loads: Mapping[str, Sequence[ModelLoad]]
    places: Mapping[str, Sequence[ModelPlace]]


def shared(
    pool: Pool, modes: Mapping[SlotId, ServerMode], going: SlotId | None, placed: Placed
) -> Shared:
    """Decide which models the pool's replicas have, and which services' requests they get.

    ``modes`` are those of all replicas' servers for the services whose slots they are. No model is
    loaded in the replica that is ``going``; ``placed`` holds for the others if all of them serve. A
    model that is to go gets no new requests first, and is unloaded once it has none. What is to
    come is chosen after that, so that a replica never gets requests for what it was just told to
    give up. Models come one after the other, or one that is asked beside one that is not.
    """
    arrays = {member.model: member.newest.array_job_id for member in pool.members}
    keys = {member.model: member.key for member in pool.members}
    having = Counter(name for replica in pool.replicas for name in replica.stays)
    serving = [
        replica
        for replica in pool.replicas
        if modes.get(replica.slot.id) is ServerMode.READY
        and replica.slot.up
        and replica.slot.id != going
    ]
    if placed.models.keys() != {replica.place for replica in serving}:
        placed = pool.placed(serving)
    told: dict[str, dict[SlotPlace, Told]] = {key: {} for key in pool.keys}
    models: dict[str, dict[SlotPlace, frozenset[str]]] = {key: {} for key in pool.keys}
    targets: dict[str, dict[Endpoint, ServerMode]] = {key: {} for key in pool.keys}
    ready: Counter[str] = Counter()
    for replica in pool.replicas:
        own, own_model = modes.get(replica.slot.id), replica.member.model
        to_have = placed.models.get(replica.place, replica.told.models.keys())
        to_have = frozenset(to_have) - {own_model}
        draining = set[str]()
        ready[replica.member.key] += own is ServerMode.READY
        # Of all pairs of replicas and models few have to do with each other.
        for name in (to_have | replica.lines.keys()) - {own_model}:
            if (mode := replica.mode(name, own, to_have)) is not None:
                targets[keys[name]][replica.endpoint] = mode
                ready[keys[name]] += mode is ServerMode.READY
                if name not in to_have:
                    draining.add(name)
        if not replica.is_verified:
            continue
        before = to_have.intersection(replica.told.models)
        coming = next_load(
            [pool.models[name] for name in to_have - before],
            [pool.models[name] for name in before - replica.stays],
            having,
        )
        to_have = before
        if coming is not None and not draining:
            to_have |= {coming.model}
        told[replica.member.key][replica.place] = replace(
            replica.told,
            models={name: replica.told.models.get(name, arrays[name]) for name in sorted(to_have)},
        )
        if not replica.has_guests:
            models[replica.member.key][replica.place] = to_have | draining | {own_model}
    return Shared(
        *(told, models, targets, ready),
        _by_service(pool, _refused(pool)),
        _by_service(pool, _refusals(pool)),
        _by_service(pool, _loads(pool, told, targets)),
        _by_service(pool, _places(pool, told)),
    )


def _by_service(pool: Pool, of_models: Iterable[tuple[str, _T]]) -> Mapping[str, Sequence[_T]]:
    """Group what is of the services' models; a service that has left may have left others."""
    by_model: dict[str, list[_T]] = {name: [] for name in pool.models}
    for name, about in of_models:
        if name in by_model:
            by_model[name].append(about)
    return {member.key: by_model[member.model] for member in pool.members}


def _replicas(
    members: Sequence[Member],
    heard: Mapping[tuple[int, int, int], ReplicaModels],
    now_s: float,
) -> Iterator[SharedReplica]:
    arrays = {member.model: member.newest.array_job_id for member in members}
    models_mib = {member.model: member.model_mib for member in members if member.model_mib}
    keys = {member.key for member in members}
    for member in members:
        for generation in member.generations:
            values = generation.view.directives
            running = [slot for slot in generation.slots if slot.id in generation.runs]
            if not running or not _is_alike(values, member.values):
                continue
            nodes = {slot.index: slot.node for slot in generation.view.slots}
            for slot in running:
                run = generation.runs[slot.id]
                answer = heard.get((generation.array_job_id, slot.id.index, run.start_s))
                lines = _lines(members, run.endpoint)
                before = generation.state.models.get(slot.id.index)
                if before is None or before.start_s != run.start_s:
                    before = _as_routed(members, lines, run.start_s)
                if answer is not None:
                    others = answer.ready - {member.model}
                    # It may still have a model of a service that has left the pool.
                    is_known = others <= models_mib.keys()
                    others_mib = sum(models_mib[name] for name in others) if is_known else None
                    before = with_wear(
                        before, answer, others_mib, replica_memory(generation.view), now_s
                    )
                yield SharedReplica(
                    member,
                    slot,
                    nodes[slot.id.index][:LONGEST_NODE],
                    run.endpoint,
                    slot.id.index in generation.state.verified,
                    _told(before, answer, arrays, now_s),
                    answer,
                    memory_mib(generation.view),
                    lines,
                    has_guests=not member.beside.get(run.endpoint.place, {}).keys() <= keys,
                )


def _is_alike(before: Mapping[str, str], newest: Mapping[str, str]) -> bool:
    return shape_of(before) == shape_of(newest) or can_follow(before, newest)


def _lines(members: Iterable[Member], endpoint: Endpoint) -> Mapping[str, Server]:
    lines = (
        (member.model, member.backend.server_of(endpoint))
        for member in members
        if member.backend is not None
    )
    return {
        model: line
        for model, line in lines
        if line is not None and line.mode is not ServerMode.MAINT
    }


def _as_routed(members: Iterable[Member], lines: Mapping[str, Server], start_s: int) -> Told:
    """Return what the gateway shows that a replica has: it outlives the launcher.

    It does not show of which generation: where there are several, it counts as the oldest.
    """
    models = {
        member.model: member.generations[0].array_job_id
        for member in members
        if member.model in lines
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
    unloaded = before.refused
    if heard is not None:
        unloaded = {name: why for name, why in unloaded.items() if name not in heard.ready}
        unloaded |= heard.refused
    # Services leave the pool, and serve other models.
    unloaded = {name: why for name, why in unloaded.items() if name in arrays}
    told = replace(before, models=models, refused_s={**lately, **new}, silent_s=silent_s)
    return replace(told, refused=unloaded)


def load_s(model: str, heard: Iterable[ReplicaModels]) -> float:
    """Return how long the next load of a model takes, by the last ones of all replicas.

    Once one was read from a node's copy, those tell: wherever the model was loaded it was copied,
    so what is given up there is read from the node when it comes back.
    """
    loaded = [models for models in heard if model in models.load_s]
    from_node = [models for models in loaded if model in models.from_node]
    return max((models.load_s[model] for models in from_node or loaded), default=FIRST_LOAD_S)


def _models(members: Iterable[Member], replicas: Sequence[SharedReplica]) -> Iterator[PoolModel]:
    heard = [replica.heard for replica in replicas if replica.heard is not None]
    for member in members:
        yield PoolModel(
            member.model,
            member.work.work,
            member.model_mib,
            load_s(member.model, heard),
            member.work.requests_per_s,
            member.is_kept,
            member.work.is_asked,
            member.work.waited_s,
        )


def _refused(pool: Pool) -> Iterator[tuple[str, str]]:
    for replica in pool.replicas:
        if replica.heard is not None:
            yield from replica.heard.refused.items()


def _refusals(pool: Pool) -> Iterator[tuple[str, RefusedModel]]:
    for replica in pool.replicas:
        for name, why in replica.told.refused.items():
            yield name, RefusedModel(replica.place, replica.member.key, why)


def _loads(
    pool: Pool,
    told: Mapping[str, Mapping[SlotPlace, Told]],
    targets: Mapping[str, Mapping[Endpoint, ServerMode]],
) -> Iterator[tuple[str, ModelLoad]]:
    modes = {member.model: targets[member.key] for member in pool.members}
    for replica in pool.replicas:
        if (now := told[replica.member.key].get(replica.place)) is not None:
            for name in now.models:
                yield name, replica.load(name, modes[name].get(replica.endpoint))


def _places(
    pool: Pool, told: Mapping[str, Mapping[SlotPlace, Told]]
) -> Iterator[tuple[str, ModelPlace]]:
    for replica in pool.replicas:
        if (now := told[replica.member.key].get(replica.place)) is not None:
            for name in now.models.keys() | replica.stays | replica.leaving:
                yield name, replica.model_place(name, now.models)
