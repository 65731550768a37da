"""Enumerates all ways to cut one GPU again: what to create, and what must be destroyed for that."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from slicewise.cluster.language.gpus.layouts import Geometry, Placement


@dataclass(frozen=True)
class JobHolder:
    """A holder that can't move, so its instance stays.

    Attributes:
        ends_in_s: seconds until it ends at the latest; None if unknown.
        on_loan_s: seconds for which it has run on borrowed quota, so that it may be ended for a job
            that is owed its type; None if it may not.
    """

    name: str
    ends_in_s: int | None = None
    on_loan_s: int | None = None


@dataclass(frozen=True)
class ReplicaHolder:
    """A holder that can move to a free instance of its profile, where that is worth it.

    Its successor starts first.

    Attributes:
        move_s: seconds for which both hold an instance.
        preempts: how many successors like this one are within its tenant's guarantee, too, so that
            Slurm preempts jobs on loan for them; all replicas of the ``tenant`` share that.
    """

    name: str
    move_s: int
    preempts: int = 0
    tenant: str = ""


@dataclass(frozen=True)
class InstanceState:
    """An existing instance. ``holder`` is None if it is free."""

    placement: Placement
    holder: JobHolder | ReplicaHolder | None = None

    @property
    def on_loan_s(self) -> int | None:
        """Seconds for which a job that may be ended has held it; None if none does."""
        return self.holder.on_loan_s if isinstance(self.holder, JobHolder) else None


@dataclass(frozen=True)
class GpuState:
    """A GPU with its present instances.

    Attributes:
        name: name that is unique in the cluster.
        cut_ago_s: seconds since a plan last changed it, or tried to; None if long ago.
        in_work: whether a plan is being applied to it: ``instances`` are then its future ones.
        in_vain: whether the last plan only tried to change it.
    """

    name: str
    node: str
    instances: tuple[InstanceState, ...] = ()
    cut_ago_s: int | None = None
    in_work: bool = False
    in_vain: bool = False


@dataclass(frozen=True)
class LayoutChange:
    """A possible change of a GPU. Instances that are not destroyed stay as they are.

    Attributes:
        drained_millislice_s: what is not available meanwhile, including the second instances that
            moving replicas take.
        lost_millislice_s: what jobs on loan have run that end for it.
    """

    destroyed: tuple[InstanceState, ...]
    created: tuple[Placement, ...]
    drained_millislice_s: int
    lost_millislice_s: int = 0

    @cached_property
    def moves(self) -> Mapping[str, int]:
        """Number of replicas that need a free instance elsewhere, by profile."""
        return Counter(
            instance_state.placement.profile
            for instance_state in self.destroyed
            if isinstance(instance_state.holder, ReplicaHolder)
        )

    @cached_property
    def more(self) -> Mapping[str, int]:
        """How many more instances are free afterwards, by profile.

        A replica that moves takes a free one elsewhere.
        """
        return self._more(self.spent)

    @cached_property
    def more_in_reach(self) -> Mapping[str, int]:
        """The same of instances that are free or on loan: what jobs within guarantees may get."""
        return self._more(
            Counter(instance_state.placement.profile for instance_state in self.destroyed)
        )

    def _more(self, gone: Mapping[str, int]) -> Mapping[str, int]:
        more = Counter(placement.profile for placement in self.created)
        more.subtract(gone)
        return {profile: count for profile, count in more.items() if count}

    @cached_property
    def ends(self) -> int:
        """Number of instances whose jobs on loan end for it."""
        return sum(instance_state.on_loan_s is not None for instance_state in self.destroyed)

    @cached_property
    def fewer(self) -> Mapping[str, int]:
        """How many fewer instances exist afterwards, held or free, by profile."""
        gone = Counter(instance_state.placement.profile for instance_state in self.destroyed)
        return gone - Counter(placement.profile for placement in self.created)

    @cached_property
    def spent(self) -> Mapping[str, int]:
        """Free instances that are gone before the first new one exists, by profile."""
        return Counter(
            instance_state.placement.profile
            for instance_state in self.destroyed
            if instance_state.on_loan_s is None
        )


def changes(
    geometry: Geometry,
    gpu: GpuState,
    wanted: Collection[str],
    costs_millislices: Mapping[str, int],
    repartition_s: int,
) -> Iterator[LayoutChange]:
    """All changes that create instances of wanted profiles and destroy only those in their way.

    Jobs stay, except those on loan that may be ended.
    """
    held = {instance.placement: instance for instance in gpu.instances}
    if not geometry.is_legal(held):
        return
    fixed = {
        placement
        for placement, instance in held.items()
        if isinstance(instance.holder, JobHolder) and instance.on_loan_s is None
    }
    open_places = [
        key
        for key in geometry.placements
        if key.profile in wanted and key not in held and fixed.isdisjoint(geometry.conflicts[key])
    ]
    for created in _sets(geometry, open_places):
        in_the_way = {
            placement
            for new in created
            for placement in geometry.conflicts[new]
            if placement in held
        }
        if geometry.is_legal((*(held.keys() - in_the_way), *created)):
            destroyed = tuple(held[placement] for placement in sorted(in_the_way))
            yield LayoutChange(
                destroyed,
                created,
                _drained(destroyed, created, costs_millislices, repartition_s),
                sum(
                    costs_millislices[instance_state.placement.profile]
                    * (instance_state.on_loan_s or 0)
                    for instance_state in destroyed
                ),
            )


def _sets(
    geometry: Geometry, places: Collection[Placement], taken: int = 0
) -> Iterator[tuple[Placement, ...]]:
    """Every non-empty set of placements that can exist beside each other."""
    rest = list(places)
    while rest:
        first = rest.pop(0)
        after = geometry.after(taken, first)
        if after is not None:
            yield (first,)
            for others in _sets(geometry, rest, after):
                yield (first, *others)


def _drained(
    destroyed: Collection[InstanceState],
    created: Collection[Placement],
    costs_millislices: Mapping[str, int],
    repartition_s: int,
) -> int:
    gone = sum(costs_millislices[instance_state.placement.profile] for instance_state in destroyed)
    new = sum(costs_millislices[placement.profile] for placement in created)
    twice = sum(
        costs_millislices[instance_state.placement.profile] * instance_state.holder.move_s
        for instance_state in destroyed
        if isinstance(instance_state.holder, ReplicaHolder)
    )
    return max(gone, new) * repartition_s + twice
