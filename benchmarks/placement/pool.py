"""Where a request for an instance goes: which GPU, and where on it.

It goes where the cluster keeps the most of what it is expected to be asked next. A place that the
next requests hardly need costs nothing, the last one for a rare large profile costs much. Where
that is the same: rather on a GPU that is in use, where least is left in vain, and beside the
instance that runs longest, for who has run long stays long: that GPU will hardly become empty
soon, and others may.

It decides where instances are cut as requests come, at no cost. Slurm's GPUs are cut beforehand,
and Slurm picks the device, so nothing in Slicewise goes by it (docs/placement.md).
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import le

from benchmarks.placement.outlook import Outlook
from cluster.mig.layouts import Placement


@dataclass(frozen=True)
class Instance:
    """One that is held by a job.

    Attributes:
        begun_s: when the job got it; any clock, the same for all.
    """

    placement: Placement
    begun_s: float


@dataclass(frozen=True)
class Gpu:
    """A GPU and what is held of it. ``name`` is its own in the cluster."""

    name: str
    node: str
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Spot:
    """Where an instance would lie.

    Attributes:
        lost_millislices: of what the cluster was expected to serve next.
    """

    gpu: Gpu
    placement: Placement
    lost_millislices: float


@dataclass(frozen=True)
class _Option:
    """A place on any GPU of one occupancy.

    Attributes:
        fewer: places that are lost with it, of each profile that is expected.
        rank: what decides where the loss is the same.
    """

    placement: Placement
    fewer: tuple[int, ...]
    rank: tuple[bool, float, int]


_Ranked = tuple[float, tuple[bool, float, int], float, int, str, Placement, int]
"""Loss, rank, when the oldest instance began, start, GPU, and that place and its occupancy."""


class Pool:
    """All GPUs of one board, by occupancy: those that are cut alike differ by age only.

    Whoever follows the cluster keeps it up to date with ``put`` and ``drop``; a decision takes
    microseconds, however many GPUs there are.
    """

    def __init__(self, seen: Outlook) -> None:
        self._seen = seen
        self._options = _options(seen)
        self._gpus: dict[str, Gpu] = {}
        self._shelves: dict[int, list[tuple[float, str]]] = {}
        self._places = [0 for _ in seen.expected]

    def put(self, gpu: Gpu) -> None:
        """As it is now, whatever it was. One that is cut as no table knows takes nothing more."""
        self.drop(gpu.name)
        self._gpus[gpu.name] = gpu
        occupancy = self._occupancy(gpu)
        if occupancy is not None:
            insort(self._shelves.setdefault(occupancy, []), _age(gpu))
            self._count(occupancy, 1)

    def drop(self, name: str) -> None:
        """It is gone, or drained."""
        gpu = self._gpus.pop(name, None)
        occupancy = None if gpu is None else self._occupancy(gpu)
        if gpu is None or occupancy is None:
            return
        shelf = self._shelves[occupancy]
        del shelf[bisect_left(shelf, _age(gpu))]
        if not shelf:
            del self._shelves[occupancy]
        self._count(occupancy, -1)

    def best(self, profiles: Collection[str]) -> Spot | None:
        """For a request that any of these profiles would serve; None if none fits anywhere."""
        found = min(self._ranked(profiles), default=None)
        if found is None:
            return None
        lost, _, _, _, name, placement, _ = found
        return Spot(self._gpus[name], placement, lost)

    def _ranked(self, profiles: Collection[str]) -> Iterator[_Ranked]:
        """Every place that is open; of GPUs that are alike, on the one with the oldest instance."""
        losses = self._seen.losses(self._places)
        scarce = [(index, loss) for index, loss in enumerate(losses) if any(loss)]
        for occupancy, shelf in self._shelves.items():
            for profile in profiles:
                for option in self._options[occupancy].get(profile, ()):
                    lost = sum(loss[option.fewer[index]] for index, loss in scarce)
                    begun_s, name = shelf[0]
                    one = option.placement
                    yield round(lost, 6), option.rank, begun_s, one.start, name, one, occupancy

    def _occupancy(self, gpu: Gpu) -> int | None:
        return self._seen.geometry.occupancy(one.placement for one in gpu.instances)

    def _count(self, occupancy: int, gpus: int) -> None:
        for index, places in enumerate(self._seen.places[occupancy]):
            self._places[index] += gpus * places


def _age(gpu: Gpu) -> tuple[float, str]:
    return min((one.begun_s for one in gpu.instances), default=inf), gpu.name


def _options(seen: Outlook) -> Mapping[int, Mapping[str, tuple[_Option, ...]]]:
    """By occupancy and profile."""
    return {
        occupancy: {
            profile: _undominated([_option(seen, occupancy, *place) for place in places])
            for profile, places in room.items()
        }
        for occupancy, room in seen.geometry.room.items()
    }


def _undominated(options: Sequence[_Option]) -> tuple[_Option, ...]:
    """Without those that lose at least as much as another in every way: they are never best."""
    kept: list[_Option] = []
    for option in sorted(options, key=lambda one: (one.rank, one.fewer, one.placement.start)):
        if not any(all(map(le, other.fewer, option.fewer)) for other in kept):
            kept.append(option)
    return tuple(kept)


def _option(seen: Outlook, occupancy: int, placement: Placement, after: int) -> _Option:
    pairs = zip(seen.places[occupancy], seen.places[after], strict=True)
    stranded = round(seen.stranded[after] - seen.stranded[occupancy], 9)
    rank = (occupancy == 0, stranded, seen.geometry.free_slices(after))
    return _Option(placement, tuple(before - then for before, then in pairs), rank)
