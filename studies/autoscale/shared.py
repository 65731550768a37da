"""Replicas that serve several models, as those of a pool do, on nodes that keep weights.

A replica has its own model from its start on, and loads others while it serves; what it works on
counts together, whatever the model. A request waits until a replica that has its model has a place;
of those that wait for models that a replica has, it takes the first. The product says which replica
is to have which model, and which it loads next (``launcher/rules/pools/placement.py``).
"""

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from slicewise.cluster.language.starts import StartClass
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.pools.model_work import ModelWork, model_work
from slicewise.launcher.rules.pools.placement import next_load, place
from slicewise.launcher.rules.pools.types import PoolModel, PoolReplica
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests
from studies.autoscale.workload import Workload
from studies.autoscale.world import Replica, Stage, World

NODES = 4
ROOM = 8
"""Models that a replica has memory for: all are of the same size."""
MEMORY_S = 600.0
"""Seconds after its last use on a node for which a model's weights stay in the node's memory."""
FROM_DISK, FROM_MEMORY, TO_DISK = 0.59, 0.19, 1.06
"""Time of a load from the node's disk and memory, and of one that copies the weights there first,
beside a load without a cache: ``make bench-weights``."""


@dataclass(frozen=True)
class SharedLoad(Workload):
    """The requests of services that share replicas; one service is a pool of one.

    Attributes:
        models: number of the service, which is its model, of each request.
        count: how many services there are.
        nodes: the node of each start, by its number.
        cached: whether nodes keep weights.
    """

    models: NDArray[np.int_]
    count: int
    nodes: NDArray[np.int_]
    cached: bool


@dataclass(slots=True, eq=False)
class SharedReplica(Replica):
    """A replica, and its models.

    Attributes:
        own: the model that it has from its start on.
        node: where it runs.
        models: those that it serves.
        to_have: those that it is to have.
        loading: those that it loads, and when it has loaded them.
    """

    own: int = 0
    node: int = 0
    models: set[int] = field(default_factory=set)
    to_have: frozenset[int] = frozenset()
    loading: dict[int, float] = field(default_factory=dict)


class SharedRequests(ServiceRequests):
    """Requests that only replicas with their model serve; ``queue`` is in the order of its keys.

    Attributes:
        models: the model of each request.
        came: how many requests have come, by model.
    """

    def __init__(self, load: SharedLoad) -> None:
        arrivals_s, service_s = load.arrivals_s.tolist(), load.service_s.tolist()
        super().__init__(arrivals_s, service_s, load.concurrency)
        self.models: list[int] = load.models.tolist()
        self.came = [0] * load.count

    def give(self, replica: SharedReplica, model: int) -> None:
        """Let a replica serve one more model from now on."""
        replica.models.add(model)
        if replica.is_open:
            self._fill(replica, self.now_s)

    def loads(self) -> list[Load]:
        """Return what the gateway counts, by model."""
        working = Counter(self.models[request] for *_, request in self._ends)
        waiting = Counter(self.models[request] for _, request in self.queue)
        return [
            Load(working[model], waiting[model], 0, came, came - working[model] - waiting[model])
            for model, came in enumerate(self.came)
        ]

    def _arrive(self, at_s: float) -> None:
        request = self.arrived
        self.arrived += 1
        self.moments += at_s
        model = self.models[request]
        self.came[model] += 1
        having = [replica for replica in self.ready if model in replica.models]
        replica = min(having, key=_BUSY, default=None)
        if replica is None:
            self.wakes.append(request)
        elif replica.in_flight < self.concurrency:
            self._serve(request, replica, at_s)
            return
        self._wait(request, at_s)

    def _wait(self, request: int, at_s: float) -> None:
        super()._wait(request, at_s)
        self.queue.sort()

    def _fill(self, replica: RunningReplica, at_s: float) -> None:
        index = 0
        while index < len(self.queue) and replica.in_flight < self.concurrency:
            if self.models[self.queue[index][1]] in replica.models:
                self._serve(self.queue.pop(index)[1], replica, at_s)
            else:
                index += 1


class NodeCache:
    """Which weights lie on which node, and in its memory."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._using: Counter[tuple[int, int]] = Counter()
        self._left_s: dict[tuple[int, int], float] = {}

    def start_class(self, node: int, model: int) -> StartClass:
        """Where the weights are for a load that begins now."""
        if not self._is_on:
            return "remote"
        weights = node, model
        return "node" if self._using[weights] or weights in self._left_s else "copied"

    def factor(self, node: int, model: int, at_s: float) -> float:
        """By what the time of a load is multiplied that begins now."""
        weights = node, model
        match self.start_class(node, model):
            case "remote":
                return 1.0
            case "copied":
                return TO_DISK
        if self._using[weights]:
            return FROM_MEMORY
        return FROM_MEMORY if at_s - self._left_s[weights] <= MEMORY_S else FROM_DISK

    def use(self, node: int, model: int) -> None:
        """A replica on the node has loaded the model."""
        self._using[node, model] += 1

    def leave(self, node: int, model: int, at_s: float) -> None:
        """A replica on the node has the model no longer."""
        self._using[node, model] -= 1
        self._left_s[node, model] = at_s


class SharedWorld(World):
    """The state of one pool during a replay.

    Attributes:
        loads: number of models that running replicas have loaded.
    """

    requests: SharedRequests
    workload: SharedLoad

    def __init__(self, load: SharedLoad) -> None:
        self.cache = NodeCache(is_on=load.cached)
        self.loads = 0
        self._work = [ModelWork()] * load.count
        self._unplaced: frozenset[str] = frozenset()
        super().__init__(load, SharedRequests(load))

    @property
    def is_at_rest(self) -> bool:
        """Whether there is neither a request nor a replica."""
        requests = self.requests
        return not (requests.queue or requests.in_flight or any(self.replicas.values()))

    def place(self) -> None:
        """Let replicas give up and load models as the product says."""
        load = self.workload
        if load.count == 1:
            return
        self._work = [
            model_work(before, now, load.concurrency, self.now_s)
            for before, now in zip(self._work, self.requests.loads(), strict=True)
        ]
        load_s = float(load.starts.load_s.mean())
        self._models = {
            _name(model): PoolModel(
                _name(model),
                seen.work,
                1,
                load_s,
                seen.requests_per_s,
                is_asked=seen.is_asked,
                waited_s=seen.waited_s,
            )
            for model, seen in enumerate(self._work)
        }
        replicas = {(0, replica.number): replica for replica in self.ready}
        placed = place(
            self._models.values(),
            [
                PoolReplica(
                    slot,
                    _name(replica.own),
                    _names(replica.to_have),
                    memory_mib=ROOM,
                    coming=_names(replica.to_have - replica.models),
                )
                for slot, replica in replicas.items()
            ],
        )
        self._unplaced = placed.unplaced
        for slot, names in placed.models.items():
            self._fit(replicas[slot], frozenset(map(_number, names)))

    @property
    def refill_s(self) -> float:
        """Seconds of loads of others' models that a replica has behind it, in the mean."""
        others = sum(len(replica.models) - 1 for replica in self.ready) / max(1, len(self.ready))
        return others * float(self.workload.starts.load_s.mean())

    def with_room(self, wanted: int) -> int:
        """Return how many replicas are wanted, one more than serve if a model has no room."""
        return max(wanted, len(self.ready) + 1) if self._unplaced else wanted

    def _fit(self, replica: SharedReplica, to_have: frozenset[int]) -> None:
        replica.to_have &= to_have
        for model in replica.models - to_have:
            replica.models.discard(model)
            self.cache.leave(replica.node, model, self.now_s)
        lacking = to_have - replica.models - replica.loading.keys()
        loading = [self._models[_name(model)] for model in replica.loading]
        having = Counter(_name(have) for one in self.ready for have in one.models)
        first = next_load((self._models[_name(lacked)] for lacked in lacking), loading, having)
        if first is not None:
            model = _number(first.model)
            replica.to_have |= {model}
            load_s = self.workload.starts.load_s
            took_s = float(load_s[-1 - self.loads % load_s.size])
            self.loads += 1
            took_s *= self.cache.factor(replica.node, model, self.now_s)
            replica.loading[model] = self.now_s + took_s
            self._later(self.now_s + took_s, replica)

    def _new(self, number: int, queue_s: float, load_s: float) -> SharedReplica:
        is_first = number < 0
        if is_first:
            number -= len(self.ready)
        node = int(self.workload.nodes[number])
        own = self._first_owner() if is_first else self._owner()
        replica = SharedReplica(number=number, queue_s=queue_s, load_s=load_s, own=own, node=node)
        if is_first:
            self._have_own(replica)
        return replica

    def _have_own(self, replica: SharedReplica) -> None:
        replica.models, replica.to_have = {replica.own}, frozenset((replica.own,))
        self.cache.use(replica.node, replica.own)

    def _drained(self) -> Replica:
        """Of those with the least work the one with the fewest models, as the product orders."""
        return min(self.ready, key=lambda one: (one.in_flight, len(one.models)))

    def _owner(self) -> int:
        """Return whose slot the next replica is, as the product splits what a pool wants.

        Where a model is asked that has no room, else where most is asked.
        """

        def asked(model: int) -> tuple[bool, float]:
            return _name(model) in self._unplaced, self._work[model].work

        return max(range(self.workload.count), key=asked)

    def _first_owner(self) -> int:
        """Return whose slot the next of the first replicas is, by the work that comes first."""
        load = self.workload
        early = load.arrivals_s < load.warm_s
        work_s = np.bincount(load.models[early], load.service_s[early], load.count)
        having = Counter(replica.own for replica in self.ready)
        return max(range(load.count), key=lambda model: work_s[model] / (1 + having[model]))

    def _go_on(self, replica: SharedReplica) -> None:
        if replica.stage is Stage.PENDING:
            replica.start_class = self.cache.start_class(replica.node, replica.own)
            replica.load_s *= self.cache.factor(replica.node, replica.own, self.now_s)
        elif replica.stage is Stage.STARTING:
            self._have_own(replica)
        elif replica.stage is not Stage.ENDED:
            for model in [one for one, at_s in replica.loading.items() if at_s <= self.now_s]:
                del replica.loading[model]
                self.cache.use(replica.node, model)
                self.requests.give(replica, model)
        super()._go_on(replica)

    def _end(self, replica: SharedReplica, at_s: float) -> None:
        for model in replica.models:
            self.cache.leave(replica.node, model, at_s)
        replica.models.clear()
        super()._end(replica, at_s)


def _name(model: int) -> str:
    return f"m{model:03d}"


def _number(name: str) -> int:
    return int(name[1:])


def _names(models: frozenset[int]) -> frozenset[str]:
    return frozenset(map(_name, models))


_BUSY = attrgetter("in_flight")
