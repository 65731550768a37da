"""All ways to cut one GPU anew: what may be made of it, and what must go for that."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from cluster.mig.layouts import Geometry, Placement


@dataclass(frozen=True)
class Job:
    """It can't move, so its instance stays.

    Attributes:
        ends_in_s: at the latest; None if nobody knows.
    """

    name: str
    ends_in_s: int | None = None


@dataclass(frozen=True)
class Replica:
    """It moves to a free instance of its profile, a successor first, where that is worth it.

    Attributes:
        move_s: how long both hold an instance.
    """

    name: str
    move_s: int


@dataclass(frozen=True)
class Instance:
    """One that is there. ``holder`` is None where it is free."""

    placement: Placement
    holder: Job | Replica | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU as it is cut.

    Attributes:
        name: its own in the cluster.
        cut_ago_s: when a plan last changed it; None if long ago.
        in_work: a plan is being applied to it: its instances are those that it will have.
    """

    name: str
    node: str
    instances: tuple[Instance, ...] = ()
    cut_ago_s: int | None = None
    in_work: bool = False


@dataclass(frozen=True)
class Change:
    """What could be made of a GPU: all that is not destroyed stays as it is.

    Attributes:
        drained_millislice_s: what is not to be had meanwhile, with what moving replicas take twice.
    """

    destroyed: tuple[Instance, ...]
    created: tuple[Placement, ...]
    drained_millislice_s: int

    @cached_property
    def moves(self) -> Mapping[str, int]:
        """By profile: replicas that need a free instance elsewhere."""
        return Counter(
            one.placement.profile for one in self.destroyed if isinstance(one.holder, Replica)
        )

    @cached_property
    def more(self) -> Mapping[str, int]:
        """By profile: how many more are free then. Who moves takes one elsewhere."""
        more = Counter(one.profile for one in self.created)
        more.subtract(one.placement.profile for one in self.destroyed)
        return {profile: count for profile, count in more.items() if count}

    @cached_property
    def fewer(self) -> Mapping[str, int]:
        """By profile: how many fewer there are then, held or free."""
        gone = Counter(one.placement.profile for one in self.destroyed)
        return gone - Counter(one.profile for one in self.created)

    @cached_property
    def spent(self) -> Mapping[str, int]:
        """By profile: free instances that are gone before the first new one is there."""
        return Counter(one.placement.profile for one in self.destroyed)


def changes(
    found: Geometry,
    gpu: Gpu,
    wanted: Collection[str],
    costs_millislices: Mapping[str, int],
    recut_s: int,
) -> Iterator[Change]:
    """All that create instances of wanted profiles and destroy no more than is in their way."""
    there = {one.placement: one for one in gpu.instances}
    if not found.is_legal(there):
        return
    fixed = {one for one, instance in there.items() if isinstance(instance.holder, Job)}
    open_places = [
        one
        for one in found.placements
        if one.profile in wanted and one not in there and fixed.isdisjoint(found.conflicts[one])
    ]
    for created in _sets(found, open_places):
        in_the_way = {one for new in created for one in found.conflicts[new] if one in there}
        if found.is_legal((*(there.keys() - in_the_way), *created)):
            destroyed = tuple(there[one] for one in sorted(in_the_way))
            yield Change(
                destroyed, created, _drained(destroyed, created, costs_millislices, recut_s)
            )


def _sets(
    found: Geometry, places: Collection[Placement], taken: int = 0
) -> Iterator[tuple[Placement, ...]]:
    """Every one but the empty one that can be beside each other."""
    rest = list(places)
    while rest:
        first = rest.pop(0)
        after = found.after(taken, first)
        if after is not None:
            yield (first,)
            for others in _sets(found, rest, after):
                yield (first, *others)


def _drained(
    destroyed: Collection[Instance],
    created: Collection[Placement],
    costs_millislices: Mapping[str, int],
    recut_s: int,
) -> int:
    gone = sum(costs_millislices[one.placement.profile] for one in destroyed)
    new = sum(costs_millislices[one.profile] for one in created)
    twice = sum(
        costs_millislices[one.placement.profile] * one.holder.move_s
        for one in destroyed
        if isinstance(one.holder, Replica)
    )
    return max(gone, new) * recut_s + twice
