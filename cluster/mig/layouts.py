"""Which instances can lie beside each other on one GPU.

Instances lie on the memory-slice axis. Where two don't overlap there, their compute slices fit
too: so it is on every board of the table, and a test looks. What an instance takes is a number, a
bit for each memory slice; further bits stand for the engines of which a board has too few for all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from cluster.mig_profiles import Board, MigProfile


@dataclass(frozen=True, order=True)
class Placement:
    """An instance, or the room for one: ``size`` memory slices from slice ``start`` on."""

    profile: str
    start: int
    size: int


Layout = frozenset[Placement]
"""Instances of one GPU that don't exclude each other; what is left of it is free."""


@dataclass(frozen=True)
class _Cut:
    """What a placement takes.

    Attributes:
        takes: all of these bits.
        engines: one of these besides, whichever is free; 0 if it needs none.
    """

    takes: int
    engines: int


@dataclass(frozen=True)
class Geometry:
    """All that can be cut out of one board. An *occupancy* is the bits that its instances take.

    Attributes:
        placements: of every profile at every start, in the table's order.
    """

    memory_slices: int
    placements: tuple[Placement, ...]
    cuts: Mapping[Placement, _Cut]

    def after(self, occupancy: int, placement: Placement) -> int | None:
        """The occupancy with that instance too; None if it does not fit."""
        cut = self.cuts[placement]
        free = cut.engines & ~occupancy
        if occupancy & cut.takes or (cut.engines and not free):
            return None
        return occupancy | cut.takes | (free & -free)

    def occupancy(self, instances: Iterable[Placement]) -> int | None:
        """What they take together; None if they exclude each other or the board has no such."""
        taken = 0
        for instance in sorted(instances):
            after = self.after(taken, instance) if instance in self.cuts else None
            if after is None:
                return None
            taken = after
        return taken

    def free_slices(self, occupancy: int) -> int:
        """Memory slices that nobody has."""
        return self.memory_slices - (occupancy & ((1 << self.memory_slices) - 1)).bit_count()

    def is_legal(self, instances: Iterable[Placement]) -> bool:
        """Whether they can be on one GPU at a time."""
        return self.occupancy(instances) is not None

    def fitting(self, occupancy: int) -> tuple[Placement, ...]:
        """All that still fits."""
        return tuple(one for places in self.room[occupancy].values() for one, _ in places)

    @cached_property
    def room(self) -> Mapping[int, Mapping[str, tuple[tuple[Placement, int], ...]]]:
        """By occupancy and profile: where one more fits, and the occupancy with it."""
        return {occupancy: self._room(occupancy) for occupancy in self.occupancies}

    @cached_property
    def conflicts(self) -> Mapping[Placement, frozenset[Placement]]:
        """Of each placement, those that can't be beside it."""
        return {
            one: frozenset(o for o in self.placements if o == one or not self.is_legal((one, o)))
            for one in self.placements
        }

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """All there are, the empty one first."""
        return tuple(frozenset(found) for found in self._layouts(0, 0))

    @cached_property
    def maximal(self) -> tuple[Layout, ...]:
        """Those to which nothing can be added."""
        return tuple(one for one in self.layouts if not self.room[self._taken(one)])

    @cached_property
    def occupancies(self) -> tuple[int, ...]:
        """All there are, rising."""
        return tuple(sorted({self._taken(one) for one in self.layouts}))

    def _room(self, occupancy: int) -> Mapping[str, tuple[tuple[Placement, int], ...]]:
        found: dict[str, tuple[tuple[Placement, int], ...]] = {}
        for one in self.placements:
            after = self.after(occupancy, one)
            if after is not None:
                found[one.profile] = (*found.get(one.profile, ()), (one, after))
        return found

    def _taken(self, layout: Layout) -> int:
        taken = self.occupancy(layout)
        assert taken is not None  # noqa: S101  # it was put together so
        return taken

    def _layouts(self, first: int, occupancy: int) -> Iterator[tuple[Placement, ...]]:
        yield ()
        for index in range(first, len(self.placements)):
            one = self.placements[index]
            after = self.after(occupancy, one)
            if after is not None:
                for others in self._layouts(index + 1, after):
                    yield (one, *others)


def geometry(board: Board) -> Geometry:
    """Of that board; boards with the same profiles share one."""
    return _geometry(board.memory_slices, tuple(board.profiles.values()))


@cache
def _geometry(memory_slices: int, profiles: tuple[MigProfile, ...]) -> Geometry:
    media = any(_takes_all_media(profile) for profile in profiles)
    engines = _engines(2 * memory_slices, profiles)
    cuts = {
        Placement(profile.name, start, profile.memory_slices): _Cut(
            _slices(profile, start) | (_media(profile, start, memory_slices) if media else 0),
            engines.get(_engine(profile), 0),
        )
        for profile in profiles
        for start in profile.starts
    }
    return Geometry(memory_slices, tuple(cuts), cuts)


def _slices(profile: MigProfile, start: int) -> int:
    return ((1 << profile.memory_slices) - 1) << start


def _media(profile: MigProfile, start: int, memory_slices: int) -> int:
    """Each slice brings media engines: for who lies there, for nobody, or all of them for one."""
    if profile.name.endswith("-me"):
        return 0
    if _takes_all_media(profile):
        return ((1 << memory_slices) - 1) << memory_slices
    return _slices(profile, start) << memory_slices


def _takes_all_media(profile: MigProfile) -> bool:
    return profile.name.endswith("+me.all")


def _engines(first_bit: int, profiles: Iterable[MigProfile]) -> Mapping[str, int]:
    """Bits for what has fewer instances than would have room."""
    bits: dict[str, int] = {}
    for profile in profiles:
        name = _engine(profile)
        if name not in bits and profile.max_instances < _most_by_room(profile):
            bits[name] = ((1 << profile.max_instances) - 1) << first_bit
            first_bit += profile.max_instances
    return bits


def _engine(profile: MigProfile) -> str:
    """All with media extensions share the one engine for optical flow."""
    return "+me" if "+me" in profile.name else profile.name


def _most_by_room(profile: MigProfile) -> int:
    most, end = 0, 0
    for start in profile.starts:
        if start >= end:
            most, end = most + 1, start + profile.memory_slices
    return most
