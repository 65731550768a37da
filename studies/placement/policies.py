"""Policies that choose a place for a request: published ones, adapted to MIG, and ours.

No policy refuses a request that fits. Except for random, a policy takes the lowest start and the
GPU with the lowest number where its rule leaves a choice.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from slicewise.cluster.language.gpus.layouts import Placement, geometry
from studies.placement.outlook import outlook
from studies.placement.pods import BOARD
from studies.placement.pool import Gpu, Instance, Pool

GEOMETRY = geometry(BOARD)


class Cluster:
    """The GPUs of a cluster, by number.

    Attributes:
        held: the held instances of each GPU, and since when.
        alike: the GPUs of each occupancy.
    """

    def __init__(self, gpus: int) -> None:
        self.held: list[dict[Placement, float]] = [{} for _ in range(gpus)]
        self.occupancies = [0] * gpus
        self.alike: dict[int, set[int]] = {0: set(range(gpus))}

    def place(self, gpu: int, placement: Placement, at_s: float) -> None:
        """Note that an instance is held from ``at_s`` on; ValueError if the GPU can't be cut so."""
        self.held[gpu][placement] = at_s
        self._move(gpu)

    def free(self, gpu: int, placement: Placement) -> None:
        """Note that an instance is held no more."""
        del self.held[gpu][placement]
        self._move(gpu)

    def _move(self, gpu: int) -> None:
        before, after = self.occupancies[gpu], GEOMETRY.occupancy(self.held[gpu])
        if after is None:
            raise ValueError(f"GPU {gpu} can't be cut so: {sorted(self.held[gpu])}")
        self.alike[before].discard(gpu)
        self.alike.setdefault(after, set()).add(gpu)
        self.occupancies[gpu] = after


class Choice(NamedTuple):
    """A GPU, and the place on it."""

    gpu: int
    placement: Placement


class Policy(Protocol):
    """Chooses a place for a request, and learns of every change."""

    def choose(self, cluster: Cluster, profile: str) -> Choice | None:
        """The place for an instance of that profile; None if it fits nowhere."""
        ...

    def changed(self, cluster: Cluster, gpu: int) -> None:
        """Take into account that an instance was placed on that GPU, or has gone."""
        ...


class Option(NamedTuple):
    """A place that is free on all GPUs of one occupancy.

    Attributes:
        after: the occupancy of such a GPU with an instance at that place.
        first: the lowest number of these GPUs.
    """

    occupancy: int
    placement: Placement
    after: int
    first: int


class Ranked:
    """Takes the option of lowest rank."""

    def __init__(self, rank: Callable[[Option], tuple[float, ...]]) -> None:
        self._rank = rank

    def choose(self, cluster: Cluster, profile: str) -> Choice | None:
        """The option of lowest rank; ties go to the lowest GPU's number, then the lowest start."""
        found = min(
            _options(cluster, profile),
            key=lambda one: (*self._rank(one), one.first, one.placement.start),
            default=None,
        )
        return None if found is None else Choice(found.first, found.placement)

    def changed(self, cluster: Cluster, gpu: int) -> None:
        """Do nothing: this policy remembers nothing."""


class Random:
    """Takes any GPU with room, and any place on it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, cluster: Cluster, profile: str) -> Choice | None:
        """Choose a GPU with room, each equally likely, and a place on it."""
        options = list(_options(cluster, profile))
        gpus = sorted({gpu for one in options for gpu in cluster.alike[one.occupancy]})
        if not gpus:
            return None
        gpu = self._chance.choice(gpus)
        places = GEOMETRY.room[cluster.occupancies[gpu]][profile]
        return Choice(gpu, self._chance.choice(places)[0])

    def changed(self, cluster: Cluster, gpu: int) -> None:
        """Do nothing: this policy remembers nothing."""


class Slicewise:
    """The benchmark's own policy, which keeps a ``Pool`` for an expected mix of requests."""

    def __init__(self, mix: Mapping[str, float], gpus: int) -> None:
        self._pool = Pool(outlook(BOARD, mix))
        for gpu in range(gpus):
            self._pool.put(_gpu(gpu, {}))

    def choose(self, cluster: Cluster, profile: str) -> Choice | None:  # noqa: ARG002
        """The pool's best place; None if the profile fits nowhere."""
        spot = self._pool.best((profile,))
        return None if spot is None else Choice(int(spot.gpu.name), spot.placement)

    def changed(self, cluster: Cluster, gpu: int) -> None:
        """Replace the GPU in the pool."""
        self._pool.put(_gpu(gpu, cluster.held[gpu]))


def policies(mix: Mapping[str, float], gpus: int, seed: int) -> Mapping[str, Policy]:
    """All policies by name, for requests that come in the proportions of ``mix``."""
    stranded = outlook(BOARD, mix).stranded
    return {
        "random": Random(random.Random(seed)),  # noqa: S311
        "first_fit": Ranked(lambda _: ()),
        "best_fit": Ranked(lambda one: (GEOMETRY.free_slices(one.after),)),
        "packing": Ranked(lambda one: (one.occupancy == 0,)),
        "fgd": Ranked(
            lambda one: (
                stranded[one.after] - stranded[one.occupancy],
                GEOMETRY.free_slices(one.after),
            )
        ),
        "slicewise": Slicewise(mix, gpus),
    }


def _options(cluster: Cluster, profile: str) -> Iterator[Option]:
    for occupancy, gpus in cluster.alike.items():
        if gpus:
            first = min(gpus)
            for placement, after in GEOMETRY.room[occupancy].get(profile, ()):
                yield Option(occupancy, placement, after, first)


def _gpu(number: int, held: Mapping[Placement, float]) -> Gpu:
    instances = tuple(Instance(placement, begun_s) for placement, begun_s in held.items())
    return Gpu(str(number), str(number), instances)
