"""Chooses the GPU for a requested instance, and the place on that GPU.

The best place is the one with which the cluster loses least of what it is expected to be asked
next. A place that the next requests hardly need costs nothing; the last place for a rare large
profile costs much. Of equal places it takes one on a GPU that is in use, then where least is
stranded, then where the fewest slices stay free, then beside the instance that has run longest: an
instance that has run long is expected to stay long, so that GPU will hardly become empty soon, and
others may.

The pool decides where instances are cut as requests come, at no cost. Slurm's GPUs are cut
beforehand, and Slurm picks the device, so nothing in Slicewise uses it
(studies/placement/README.md).
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import le

from slicewise.cluster.language.gpus.layouts import Placement
from studies.placement.outlook import Outlook


@dataclass(frozen=True)
class Instance:
    """An instance that a job holds.

    Attributes:
        begun_s: when the job got it, by any clock that is the same for all instances.
    """

    placement: Placement
    begun_s: float


@dataclass(frozen=True)
class Gpu:
    """A GPU and its held instances. ``name`` is unique in the cluster."""

    name: str
    node: str
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Spot:
    """A place where an instance would lie.

    Attributes:
        lost_millislices: how much less the cluster is then expected to serve next.
    """

    gpu: Gpu
    placement: Placement
    lost_millislices: float


@dataclass(frozen=True)
class _Option:
    """A place on any GPU of one occupancy.

    Attributes:
        fewer: how many places of each expected profile are lost with it.
        rank: what decides between places with the same loss; the lowest is best.
    """

    placement: Placement
    fewer: tuple[int, ...]
    rank: tuple[bool, float, int]


_Ranked = tuple[float, tuple[bool, float, int], float, int, str, Placement, int]
"""Loss, rank, when the oldest instance began, start, the GPU's name, the place, the occupancy."""


class Pool:
    """All GPUs of one board, by occupancy: GPUs with the same occupancy differ by age only.

    The caller keeps the pool up to date with ``put`` and ``drop``. A decision takes microseconds,
    however many GPUs there are.
    """

    def __init__(self, seen: Outlook) -> None:
        self._seen = seen
        self._options = _options(seen)
        self._gpus: dict[str, Gpu] = {}
        self._shelves: dict[int, list[tuple[float, str]]] = {}
        self._places = [0 for _ in seen.expected]

    def put(self, gpu: Gpu) -> None:
        """Add or replace a GPU. A GPU with a cut that is in no table takes no more instances."""
        self.drop(gpu.name)
        self._gpus[gpu.name] = gpu
        occupancy = self._occupancy(gpu)
        if occupancy is not None:
            insort(self._shelves.setdefault(occupancy, []), _age(gpu))
            self._count(occupancy, 1)

    def drop(self, name: str) -> None:
        """Remove a GPU that is gone or drained."""
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
        """The best place for a request that any of these profiles serves; None if none fits."""
        found = min(self._ranked(profiles), default=None)
        if found is None:
            return None
        lost, _, _, _, name, placement, _ = found
        return Spot(self._gpus[name], placement, lost)

    def _ranked(self, profiles: Collection[str]) -> Iterator[_Ranked]:
        """Every free place; of GPUs of one occupancy, on the one with the oldest instance."""
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
    """The options that may be best, by occupancy and profile."""
    return {
        occupancy: {
            profile: _undominated([_option(seen, occupancy, *place) for place in places])
            for profile, places in room.items()
        }
        for occupancy, room in seen.geometry.room.items()
    }


def _undominated(options: Sequence[_Option]) -> tuple[_Option, ...]:
    """Leave out options that are never best: another one loses no more in any way."""
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
