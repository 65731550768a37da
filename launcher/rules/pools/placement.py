"""Decides which replica of a pool has which models.

What is loaded stays loaded while its memory is not needed: a model that nobody asks costs nothing
but memory. A model that is asked and nowhere ready goes to the replica with the least to do; what
is evicted for it is what costs least to lose: the time of a load times the chance of a request, for
each MiB. A replica that has more to do than it can passes work on to others: a second replica loads
one of its models, or it gives up a model that others have, too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slicewise.cluster.rpc.messages import SlotPlace
from slicewise.launcher.rules.pools.types import Placement, PoolModel, PoolReplica

FULL = 1.0
"""Work from which on a replica has more to do than it can, so that requests wait."""
GAIN = 0.1
"""Work by which a change must relieve the fullest replica: each costs a load, and nothing moves to
and fro for less."""
STRONGER = 2.0
"""How many times the work of a model in use another must have to take its place, where there is
memory for one of them."""


@dataclass
class _Replica:
    """A replica while its models are chosen."""

    seen: PoolReplica
    models: set[str]

    @property
    def place(self) -> SlotPlace:
        return self.seen.place

    def used_mib(self, models: Mapping[str, PoolModel]) -> int:
        return sum(models[name].memory_mib for name in self.models)


class _Pool:
    """The replicas of a pool while their models are chosen."""

    def __init__(self, models: Iterable[PoolModel], replicas: Iterable[PoolReplica]) -> None:
        self.models = {model.model: model for model in models}
        self.replicas = [
            _Replica(seen, {seen.own, *seen.models} & self.models.keys())
            for seen in sorted(replicas, key=lambda replica: replica.place)
        ]

    def having(self, model: str) -> Sequence[_Replica]:
        return [replica for replica in self.replicas if model in replica.models]

    def share(self, model: str) -> float:
        """The work of a model at each of its replicas: the gateway spreads it evenly."""
        return self.models[model].work / max(1, len(self.having(model)))

    def load(self, replica: _Replica) -> float:
        return sum(map(self.share, replica.models))

    def evicted(self, replica: _Replica, model: PoolModel) -> frozenset[str] | None:
        """What the replica has to give up for the model; None if it can't have it."""
        memory_mib = replica.seen.memory_mib
        if model.model in replica.seen.refused:
            return None
        if memory_mib is None:
            return frozenset()
        lacking = replica.used_mib(self.models) + model.memory_mib - memory_mib
        evicted = set[str]()
        for name in sorted(replica.models - {replica.seen.own}, key=self._worth):
            if lacking <= 0:
                break
            if not self.models[name].memory_mib or not self._gives_way(name, model):
                continue
            evicted.add(name)
            lacking -= self.models[name].memory_mib
        return frozenset(evicted) if lacking <= 0 else None

    def _gives_way(self, name: str, to: PoolModel) -> bool:
        if len(self.having(name)) > 1:
            return True
        weaker = self.models[name]
        if weaker.is_asked:
            return STRONGER * weaker.urgency < to.urgency
        return not weaker.is_kept or to.is_asked

    def worth(self, names: Collection[str]) -> float:
        return sum(self._worth(name)[1] for name in names)

    def _worth(self, name: str) -> tuple[bool, float, str]:
        """What is lost with a model, for each MiB; those that are asked now are worth most."""
        model = self.models[name]
        is_last = len(self.having(name)) == 1
        asked = model.requests_per_s * model.load_s / max(1, model.memory_mib)
        return is_last and model.is_asked, model.urgency + asked if is_last else 0.0, name

    def add(self, replica: _Replica, model: PoolModel, evicted: Collection[str]) -> None:
        replica.models -= set(evicted)
        replica.models.add(model.model)


@dataclass(frozen=True)
class Placed:
    """What a pool's replicas are to have.

    Attributes:
        models: by replica.
        unplaced: models that are asked, or kept, and have no room: another replica is needed.
    """

    models: Placement
    unplaced: frozenset[str] = frozenset()


def place(models: Iterable[PoolModel], replicas: Iterable[PoolReplica]) -> Placed:
    """Choose the models of each replica; those that no service has any more are given up."""
    pool = _Pool(models, replicas)
    needed = [model for model in pool.models.values() if model.is_needed]
    unplaced = set[str]()
    for model in sorted(needed, key=lambda model: (-model.urgency, model.model)):
        if not pool.having(model.model) and not _placed(pool, model):
            unplaced.add(model.model)
    # Each change relieves the fullest replica by GAIN, so there are not many.
    for _ in range(len(pool.replicas) * 2):
        if not _relieved(pool):
            break
    placement = {replica.place: frozenset(replica.models) for replica in pool.replicas}
    return Placed(placement, frozenset(unplaced))


def _placed(pool: _Pool, model: PoolModel) -> bool:
    """Give a model that no replica has to one of them; return whether there is room."""
    choices = []
    for replica in pool.replicas:
        if (evicted := pool.evicted(replica, model)) is not None:
            # One without evictions is preferred as long as nothing waits there.
            load = pool.load(replica) + model.work
            cost = (max(load, FULL), pool.worth(evicted), load, replica.place)
            choices.append((cost, replica, evicted))
    if not choices:
        return False
    _, replica, evicted = min(choices, key=lambda choice: choice[0])
    pool.add(replica, model, evicted)
    return True


@dataclass(frozen=True)
class _Change:
    """A model that a replica loads, or gives up; ``evicted`` is None if it gives it up."""

    replica: _Replica
    model: PoolModel
    evicted: frozenset[str] | None


def _relieved(pool: _Pool) -> bool:
    """Relieve the fullest replica by a model that another one loads, or that it gives up."""
    fullest = max(
        pool.replicas, key=lambda replica: (pool.load(replica), replica.place), default=None
    )
    if fullest is None or (before := pool.load(fullest)) <= FULL:
        return False
    changes = [
        change
        for name in sorted(fullest.models)
        if pool.models[name].work
        for change in (*_passed_on(pool, fullest, name), *_given_up(pool, fullest, name))
    ]
    load, _, change = min(
        ((load, number, change) for number, (load, change) in enumerate(changes)),
        default=(before, 0, None),
    )
    if change is None or load > before - GAIN:
        return False
    if change.evicted is None:
        change.replica.models.discard(change.model.model)
    else:
        pool.add(change.replica, change.model, change.evicted)
    return True


def _given_up(pool: _Pool, fullest: _Replica, name: str) -> Iterable[tuple[float, _Change]]:
    """Yield the highest load of all that have the model once the fullest has it no more."""
    others = [replica for replica in pool.having(name) if replica is not fullest]
    if others and name != fullest.seen.own:
        model, share = pool.models[name], pool.share(name)
        more = model.work / len(others) - share
        loads = (pool.load(fullest) - share, *(pool.load(other) + more for other in others))
        yield max(loads), _Change(fullest, model, None)


def _passed_on(pool: _Pool, fullest: _Replica, name: str) -> Iterable[tuple[float, _Change]]:
    """Yield the higher load of the fullest and of each other replica that would load the model."""
    model = pool.models[name]
    share = model.work / (len(pool.having(name)) + 1)
    left = pool.load(fullest) - pool.share(name) + share
    for other in pool.replicas:
        evicted = None if name in other.models else pool.evicted(other, model)
        if evicted is not None and not any(pool.models[lost].is_asked for lost in evicted):
            yield max(left, pool.load(other) + share), _Change(other, model, evicted)
