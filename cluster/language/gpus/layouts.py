"""Calculates which instances can lie beside each other on one GPU.

Instances lie on the memory-slice axis. Where two don't overlap there, their compute slices fit too:
that is so on every board of the table, and a test checks it. What an instance takes is a number
with a bit for each memory slice; further bits stand for the engines that a board has too few of for
all instances. Which those are is the vendor's to say.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from slicewise.cluster.language.gpus.accelerator import Extra
from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile
from slicewise.cluster.language.gpus.vendors import accelerator


@dataclass(frozen=True, order=True)
class Placement:
    """An instance, or the room for one: ``size`` memory slices from slice ``start`` on."""

    profile: str
    start: int
    size: int


Layout = frozenset[Placement]
"""Instances that can be on one GPU together; what they leave of it is free."""


@dataclass(frozen=True)
class _Cut:
    """What a placement takes.

    Attributes:
        takes: bits that it takes, all of them.
        engines: bits of engines, of which it takes one that is free; 0 if it needs none.
    """

    takes: int
    engines: int


@dataclass(frozen=True)
class Geometry:
    """All that can be cut out of one board. An *occupancy* is the bits that instances take.

    Attributes:
        placements: every profile at every start, in the table's order.
    """

    memory_slices: int
    placements: tuple[Placement, ...]
    cuts: Mapping[Placement, _Cut]

    def after(self, occupancy: int, placement: Placement) -> int | None:
        """The occupancy with this instance added; None if the instance does not fit."""
        cut = self.cuts[placement]
        free = cut.engines & ~occupancy
        if occupancy & cut.takes or (cut.engines and not free):
            return None
        return occupancy | cut.takes | (free & -free)

    def occupancy(self, instances: Iterable[Placement]) -> int | None:
        """What these instances take together.

        None if they exclude each other, or if the board has no such instance.
        """
        taken = 0
        for instance in sorted(instances):
            after = self.after(taken, instance) if instance in self.cuts else None
            if after is None:
                return None
            taken = after
        return taken

    def free_slices(self, occupancy: int) -> int:
        """Number of memory slices that no instance has."""
        return self.memory_slices - (occupancy & ((1 << self.memory_slices) - 1)).bit_count()

    def is_legal(self, instances: Iterable[Placement]) -> bool:
        """Whether these instances can be on one GPU together."""
        return self.occupancy(instances) is not None

    def fitting(self, occupancy: int) -> tuple[Placement, ...]:
        """Every placement that still fits."""
        return tuple(
            placement for places in self.room[occupancy].values() for placement, _ in places
        )

    @cached_property
    def room(self) -> Mapping[int, Mapping[str, tuple[tuple[Placement, int], ...]]]:
        """Where one more instance fits, with the occupancy after it, by occupancy and profile."""
        return {occupancy: self._room(occupancy) for occupancy in self.occupancies}

    @cached_property
    def conflicts(self) -> Mapping[Placement, frozenset[Placement]]:
        """For each placement, those that can't be beside it, and itself."""
        return {
            placement: frozenset(
                o for o in self.placements if o == placement or not self.is_legal((placement, o))
            )
            for placement in self.placements
        }

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Every layout, the empty one first."""
        return tuple(frozenset(layout) for layout in self._layouts(0, 0))

    @cached_property
    def maximal(self) -> tuple[Layout, ...]:
        """Layouts to which nothing can be added."""
        return tuple(layout for layout in self.layouts if not self.room[self._taken(layout)])

    @cached_property
    def occupancies(self) -> tuple[int, ...]:
        """Every possible occupancy, in rising order."""
        return tuple(sorted({self._taken(layout) for layout in self.layouts}))

    def _room(self, occupancy: int) -> Mapping[str, tuple[tuple[Placement, int], ...]]:
        by_profile: dict[str, tuple[tuple[Placement, int], ...]] = {}
        for placement in self.placements:
            after = self.after(occupancy, placement)
            if after is not None:
                by_profile[placement.profile] = (
                    *by_profile.get(placement.profile, ()),
                    (placement, after),
                )
        return by_profile

    def _taken(self, layout: Layout) -> int:
        taken = self.occupancy(layout)
        assert taken is not None  # noqa: S101  # it was put together so
        return taken

    def _layouts(self, first: int, occupancy: int) -> Iterator[tuple[Placement, ...]]:
        yield ()
        for index in range(first, len(self.placements)):
            placement = self.placements[index]
            after = self.after(occupancy, placement)
            if after is not None:
                for others in self._layouts(index + 1, after):
                    yield (placement, *others)


def geometry(board: Board) -> Geometry:
    """The geometry of this board; boards with the same profiles share one."""
    return _geometry(board.vendor, board.memory_slices, tuple(board.profiles.values()))


@cache
def _geometry(vendor: str, memory_slices: int, profiles: tuple[MigProfile, ...]) -> Geometry:
    extras = accelerator(vendor).extras(memory_slices, profiles)
    cuts = {
        Placement(profile.name, start, profile.memory_slices): _cut(
            _slices(profile, start),
            extras[profile.name, start],
            memory_slices,
        )
        for profile in profiles
        for start in profile.starts
    }
    return Geometry(memory_slices, tuple(cuts), cuts)


def _slices(profile: MigProfile, start: int) -> int:
    return ((1 << profile.memory_slices) - 1) << start


def _cut(slices: int, extra: Extra, memory_slices: int) -> _Cut:
    return _Cut(slices | extra.takes << memory_slices, extra.one_of << memory_slices)
