"""Computes what a clairvoyant that knows all requests reaches: an integer program, for few GPUs.

With ``refuses`` the clairvoyant may also turn away a request that fits, to keep the place for a
better one. Without ``refuses`` it keeps the rule of every policy here: a request that fits is
accepted. The difference between the two is the price of that rule. The difference between a policy
and the clairvoyant that never refuses is what placement could still bring.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from studies.placement.pods import BOARD, SLICES, Request
from studies.placement.policies import GEOMETRY

_Row = tuple[float, Mapping[int, float]]
"""A lower bound, and the columns' factors: their weighted sum is at least that bound."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of slice-hours accepted ÷ asked for.

    Attributes:
        found: the ratio of the best plan that was found.
        most: the proven upper bound: no plan reaches more.
    """

    found: float
    most: float


@dataclass(frozen=True)
class _Column:
    """One request at one place."""

    request: int
    gpu: int
    placement: Placement


def optimum(requests: Sequence[Request], gpus: int, *, refuses: bool) -> Bounds:
    """Find the largest share of slice-hours that can be accepted on ``gpus`` GPUs."""
    columns = [
        _Column(number, gpu, placement)
        for number, request in enumerate(requests)
        for gpu in range(gpus)
        for placement in GEOMETRY.placements
        if placement.profile == request.profile
    ]
    worth = [SLICES[request.profile] * request.held_s for request in requests]
    rows = [*_one_each(columns), *_no_overlaps(requests, columns)]
    if not refuses:
        rows += _accepts_what_fits(requests, gpus, columns)
    return _solved([worth[column.request] / sum(worth) for column in columns], rows)


def _solved(worth: Sequence[float], rows: Sequence[_Row]) -> Bounds:
    entries: dict[int, dict[int, float]] = defaultdict(dict)
    for row, (_, factors) in enumerate(rows):
        for column, factor in factors.items():
            entries[column][row] = factor
    program = LinearProgram([least for least, _ in rows])
    for column, share in enumerate(worth):
        program.add(-share, entries[column], whole=True)
    solution = program.solve()
    return Bounds(-solution.cost, -solution.floor)


def _one_each(columns: Sequence[_Column]) -> Iterator[_Row]:
    places = defaultdict[int, list[int]](list)
    for number, column in enumerate(columns):
        places[column.request].append(number)
    for numbers in places.values():
        yield _at_most_one(numbers)


def _no_overlaps(requests: Sequence[Request], columns: Sequence[_Column]) -> Iterator[_Row]:
    """Let each slice be held once at most when a request comes: only then can overlaps begin."""
    for request in requests:
        takers = defaultdict[tuple[int, int], list[int]](list)
        for number, column in enumerate(columns):
            if _is_there(requests[column.request], request.at_s):
                for bit in range(BOARD.memory_slices):
                    if GEOMETRY.cuts[column.placement].takes >> bit & 1:
                        takers[column.gpu, bit].append(number)
        for numbers in takers.values():
            yield _at_most_one(numbers)


def _accepts_what_fits(
    requests: Sequence[Request], gpus: int, columns: Sequence[_Column]
) -> Iterator[_Row]:
    """Let a request be refused only if an instance is in the way at each of its places."""
    for number, request in enumerate(requests):
        earlier = [
            (index, column)
            for index, column in enumerate(columns)
            if column.request < number and _is_there(requests[column.request], request.at_s)
        ]
        own = [index for index, column in enumerate(columns) if column.request == number]
        for gpu in range(gpus):
            for placement in (columns[index].placement for index in own[: len(own) // gpus]):
                conflicts = GEOMETRY.conflicts[placement]
                there = [i for i, c in earlier if c.gpu == gpu and c.placement in conflicts]
                yield 1.0, dict.fromkeys((*own, *there), 1.0)


def _is_there(request: Request, at_s: float) -> bool:
    return request.at_s <= at_s < request.at_s + request.held_s


def _at_most_one(columns: Sequence[int]) -> _Row:
    return -1.0, dict.fromkeys(columns, -1.0)
