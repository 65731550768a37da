"""Decides which replica of a pool has which models.

What is loaded stays loaded while its memory is not needed: a model that nobody asks costs nothing
but memory. A model that is asked and nowhere ready goes to a replica with little to do, and of
these to the one where it is ready soonest; what is evicted for it is what costs least to lose: the
time of a load times the chance of a request, for each MiB. A replica that has more to do than it
can passes work on to others: a second replica loads one of its models, or it gives up a model that
others have, too. Memory that is left has what no replica has, and copies where requests would find
all that have a model busy: a replica that is new, or alone with nothing to do, else waits for a
load while requests wait for it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

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

COPY_S = 20_000.0
"""Seconds of a load that it is worth to have one request more each second find a free replica: a
late one costs some seventy slice-seconds, and a copy serves for some five minutes."""


@dataclass
class _Replica:
    """A replica while its models are chosen."""

    seen: PoolReplica
    models: set[str]
    coming: set[str]

    @property
    def place(self) -> SlotPlace:
        return self.seen.place

    def used_mib(self, models: Mapping[str, PoolModel]) -> int:
        return sum(models[name].memory_mib for name in self.models)


class _Pool:
    """The replicas of a pool while their models are chosen.

    Sums over sets are exact: by another order of adding they would differ, and so would the choice.
    """

    def __init__(self, models: Iterable[PoolModel], replicas: Iterable[PoolReplica]) -> None:
        self.models = {model.model: model for model in models}
        self.replicas = [
            _Replica(
                seen,
                {seen.own, *seen.models} & self.models.keys(),
                set(seen.coming & self.models.keys()),
            )
            for seen in sorted(replicas, key=lambda replica: replica.place)
        ]
        self.having = Counter(name for replica in self.replicas for name in replica.models)
        self.work = fsum(model.work for model in self.models.values())

    def share(self, model: str) -> float:
        """The work of a model at each of its replicas: the gateway spreads it evenly."""
        return self.models[model].work / max(1, self.having[model])

    def load(self, replica: _Replica) -> float:
        return fsum(map(self.share, replica.models))

    def evicted(self, replica: _Replica, model: PoolModel) -> frozenset[str] | None:
        """What the replica has to give up for the model; None if it can't have it."""
        memory_mib = replica.seen.memory_mib
        if model.model in replica.seen.refused:
            return None
        if memory_mib is None:
            return frozenset()
        lacking = replica.used_mib(self.models) + model.memory_mib - memory_mib
        if lacking <= 0:
            return frozenset()
        evicted = set[str]()

        def order(name: str) -> tuple[bool, bool, float, str]:
            return self.is_last_asked(name), name in replica.coming, self._worth(name), name

        for name in sorted(replica.models - {replica.seen.own}, key=order):
            if lacking <= 0:
                break
            if not self.models[name].memory_mib or not self._gives_way(name, model):
                continue
            evicted.add(name)
            lacking -= self.models[name].memory_mib
        return frozenset(evicted) if lacking <= 0 else None

    def _gives_way(self, name: str, to: PoolModel) -> bool:
        if self.having[name] > 1:
            return True
        weaker = self.models[name]
        if weaker.is_asked:
            return STRONGER * weaker.urgency < to.urgency
        return not weaker.is_kept or to.is_asked

    def worth(self, names: Collection[str]) -> float:
        return fsum(map(self._worth, names))

    def is_last_asked(self, name: str) -> bool:
        """Whether requests for it have no other replica."""
        return self.having[name] == 1 and self.models[name].is_asked

    def _worth(self, name: str) -> float:
        """What is lost with a model, for each MiB."""
        model = self.models[name]
        asked = model.requests_per_s * model.load_s / max(1, model.memory_mib)
        return model.urgency + asked if self.having[name] == 1 else 0.0

    def waits_s(self, replica: _Replica, evicted: Collection[str]) -> float:
        """Seconds until a replica can load one more model that is asked, at most.

        Others that are asked come first, and what it loads is unloaded once it is loaded.
        """
        return fsum(
            self.models[name].load_s
            for name in replica.coming
            if self.models[name].is_asked or name in evicted
        )

    def add(self, replica: _Replica, model: PoolModel, evicted: Collection[str]) -> None:
        for name in evicted:
            self.remove(replica, name)
        replica.models.add(model.model)
        replica.coming.add(model.model)
        self.having[model.model] += 1

    def remove(self, replica: _Replica, name: str) -> None:
        replica.models.remove(name)
        replica.coming.discard(name)
        self.having[name] -= 1


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
        if not pool.having[model.model] and not _placed(pool, model):
            unplaced.add(model.model)
    # Each change relieves the fullest replica by GAIN, so there are not many.
    for _ in range(len(pool.replicas) * 2):
        if not _relieved(pool):
            break
    for replica in pool.replicas:
        _fill(pool, replica)
    placement = {replica.place: frozenset(replica.models) for replica in pool.replicas}
    return Placed(placement, frozenset(unplaced))


def next_load(
    lacking: Iterable[PoolModel], loading: Sequence[PoolModel], having: Mapping[str, int]
) -> PoolModel | None:
    """Return which of the models that a replica lacks it begins to load now, if any.

    It is one that requests wait for because no replica has it; then the one with the most to do for
    each replica, then the one that is asked most for each. ``having`` is how many have each model
    ready. They come one after the other, but no request waits for what is loaded without one:
    nobody can end a load, and one beside it is over no later than one after it.
    """

    def is_awaited(model: PoolModel) -> bool:
        return model.is_asked and not having[model.model]

    def order(model: PoolModel) -> tuple[bool, float, float, str]:
        replicas = 1 + having[model.model]
        return (
            not is_awaited(model),
            -model.urgency / replicas,
            -model.requests_per_s / replicas,
            model.model,
        )

    first = min(lacking, key=order, default=None)
    if first is None or not loading:
        return first
    is_beside = len(loading) == 1 and is_awaited(first) and not is_awaited(loading[0])
    return first if is_beside else None


def _placed(pool: _Pool, model: PoolModel) -> bool:
    """Give a model that no replica has to one of them; return whether there is room."""
    choices = []
    for replica in pool.replicas:
        if (evicted := pool.evicted(replica, model)) is not None:
            # One without evictions is preferred as long as nothing waits there.
            load = pool.load(replica) + model.work
            cost = (
                max(load, FULL),
                any(map(pool.is_last_asked, evicted)),
                pool.waits_s(replica, evicted),
                pool.worth(evicted),
                load,
                replica.place,
            )
            choices.append((cost, replica, evicted))
    if not choices:
        return False
    _, replica, evicted = min(choices, key=lambda choice: choice[0])
    pool.add(replica, model, evicted)
    return True


def _fill(pool: _Pool, replica: _Replica) -> None:
    """Load what is missed most, as long as memory and work are left.

    A copy has to be worth its load; what no replica has is loaded in any case, and last what nobody
    asks. Nothing is evicted for it, and a replica does not get what it would give up again.
    """
    if replica.seen.memory_mib is None:
        return
    free_mib = replica.seen.memory_mib - replica.used_mib(pool.models)
    work = pool.load(replica)
    busy = min(FULL, pool.work / len(pool.replicas))
    missed = [
        (model.requests_per_s * busy ** pool.having[name], model)
        for name, model in pool.models.items()
        if name not in replica.models and name not in replica.seen.refused
        if 0 < model.memory_mib <= free_mib
    ]
    for missed_per_s, model in sorted(missed, key=lambda each: (-each[0], each[1].model)):
        others = pool.having[model.model]
        more = model.work / (others + 1)
        is_worth = not others or COPY_S * missed_per_s >= model.load_s
        if is_worth and model.memory_mib <= free_mib and work + more <= FULL:
            pool.add(replica, model, ())
            free_mib -= model.memory_mib
            work += more


@dataclass(frozen=True)
class _Change:
    """A model that a replica loads, or gives up.

    Attributes:
        load: that of the fullest replica concerned, then.
    """

    load: float
    replica: _Replica
    model: PoolModel
    is_load: bool


def _relieved(pool: _Pool) -> bool:
    """Relieve the fullest replica by a model that another one loads, or that it gives up."""
    loads = {replica.place: pool.load(replica) for replica in pool.replicas}
    fullest = max(
        pool.replicas, key=lambda replica: (loads[replica.place], replica.place), default=None
    )
    if fullest is None or loads[fullest.place] <= FULL:
        return False
    changes = (
        change
        for name in sorted(fullest.models)
        if pool.models[name].work
        for change in _changes(pool, fullest, name, loads)
        if change.load <= loads[fullest.place] - GAIN
    )
    for change in sorted(changes, key=lambda change: change.load):
        if not change.is_load:
            pool.remove(change.replica, change.model.model)
            return True
        evicted = pool.evicted(change.replica, change.model)
        if evicted is not None and not any(pool.models[lost].is_asked for lost in evicted):
            pool.add(change.replica, change.model, evicted)
            return True
    return False


def _changes(
    pool: _Pool, fullest: _Replica, name: str, loads: Mapping[SlotPlace, float]
) -> Iterable[_Change]:
    """Yield what could be done with a model of the fullest replica."""
    model, count, share = pool.models[name], pool.having[name], pool.share(name)
    left = loads[fullest.place] - share
    shared = model.work / (count + 1)
    for other in pool.replicas:
        if name not in other.models:
            yield _Change(
                max(left + shared, loads[other.place] + shared), other, model, is_load=True
            )
    if count > 1 and name != fullest.seen.own:
        more = model.work / (count - 1) - share
        others = (
            loads[other.place] + more
            for other in pool.replicas
            if name in other.models and other is not fullest
        )
        yield _Change(max(left, *others), fullest, model, is_load=False)
