"""Chooses instances for each demand so that all of them fit on the fewest GPUs.

A linear program over covers prices the profiles. The instances of a GPU are never worth more than
a GPU, so the cost of the demands at these prices is a lower bound for the number of GPUs. An
integer program then turns fractions of the linear solution into whole numbers.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.slurm_plugin.rules.common.solver import LinearProgram, Solution
from slicewise.slurm_plugin.rules.mig.covers import Cover, Priced, ServingNeed, cheapest_cover

Filling = Mapping[str, int]
"""Instances by profile that fill a GPU."""

_PRICE_OF_GPU = 10**9
_TOLERANCE = 1e-6
_DECIDED_ANEW = 16
"""Further demands that the integer program decides if the first answer exceeds the lower bound."""


@dataclass(frozen=True)
class Packing:
    """The chosen instances and GPUs.

    Attributes:
        covers: the cover of each demand.
        gpus: the number of GPUs with each filling.
        at_least: lower bound of the number of GPUs for the demands.
        prices: price of an instance by profile, in billionths of a GPU. They prove the linear
            program's floor: the cost of all cheapest covers, divided by the dearest filling's.
    """

    covers: Sequence[Cover]
    gpus: Sequence[int]
    at_least: int
    prices: Mapping[str, int]


def pack(demands: Sequence[ServingNeed], fillings: Sequence[Filling]) -> Packing:
    """Pack all demands on the fewest GPUs; with many demands perhaps a few above ``at_least``."""
    relaxed = _Relaxation(demands, fillings).solve()
    rounded = _rounded(relaxed, demands, fillings, 0)
    if sum(rounded.gpus) > rounded.at_least:
        again = _rounded(relaxed, demands, fillings, _DECIDED_ANEW)
        rounded = min(again, rounded, key=lambda packing: sum(packing.gpus))
    return rounded


def _rounded(
    relaxed: "_Relaxed", demands: Sequence[ServingNeed], fillings: Sequence[Filling], anew: int
) -> Packing:
    """Round the linear program's answer.

    The integer program decides the demands whose covers are divided, and ``anew`` further ones.
    Other demands keep the linear program's covers.
    """
    order = sorted(range(len(demands)), key=lambda index: index not in relaxed.divided)
    split = len(relaxed.divided) + anew
    covers = dict(enumerate(relaxed.covers))
    held = sum((Counter(covers[index]) for index in order[split:]), Counter[str]())
    whole = _whole([demands[index] for index in order[:split]], fillings, held)
    covers |= dict(zip(order, whole.covers, strict=False))
    all_decided = split >= len(demands)
    at_least = max(relaxed.at_least, whole.at_least if all_decided else 0)
    return Packing(list(covers.values()), whole.gpus, at_least, relaxed.prices)


def _floor(
    cheapest: Iterable[Priced], fillings: Iterable[Filling], prices: Mapping[str, int]
) -> int:
    """Least cost of the demands, divided by that of the dearest filling of a GPU; rounded up."""
    dearest = max(sum(prices[p] * n for p, n in filling.items()) for filling in fillings)
    return -(-sum(priced.floor for priced in cheapest) // max(dearest, 1))


@dataclass(frozen=True)
class _Relaxed:
    """The linear program's answer.

    Attributes:
        covers: for each demand, the cover that serves most of it.
        divided: indices of demands that several covers share.
        at_least, prices: as in ``Packing``.
    """

    covers: Sequence[Cover]
    divided: frozenset[int]
    at_least: int
    prices: Mapping[str, int]


class _Relaxation:
    """The linear program: fractions of covers on fractions of GPUs, by column generation."""

    def __init__(self, demands: Sequence[ServingNeed], fillings: Sequence[Filling]) -> None:
        self._demands, self._fillings = demands, fillings
        self._rows = _rows(fillings)
        self._program = LinearProgram([0] * len(self._rows) + [1] * len(demands))
        _add_gpus(self._program, fillings, self._rows)
        self._covers: list[tuple[int, Cover]] = []
        for index, demand in enumerate(demands):
            for cover in demand.by_one_profile():
                self._add(index, cover)

    def solve(self) -> _Relaxed:
        """Add covers until none is cheaper at the prices, or the floor is the answer rounded up."""
        while True:
            solution = self._program.solve()
            prices = self._prices(solution)
            cheapest = [cheapest_cover(demand, prices) for demand in self._demands]
            at_least = _floor(cheapest, self._fillings, prices)
            better = self._better(cheapest, solution)
            if not better or at_least >= _round_up(solution.cost):
                return self._relaxed(solution, at_least, prices)
            for index, cover in better:
                self._add(index, cover)

    def _add(self, index: int, cover: Cover) -> None:
        self._covers.append((index, cover))
        takes = {self._rows[profile]: -count for profile, count in cover.items()}
        self._program.add(0, takes | {len(self._rows) + index: 1})

    def _prices(self, solution: Solution) -> Mapping[str, int]:
        return {
            profile: max(0, int(solution.prices[row] * _PRICE_OF_GPU))
            for profile, row in self._rows.items()
        }

    def _better(self, cheapest: Sequence[Priced], solution: Solution) -> list[tuple[int, Cover]]:
        """Covers worth adding; never a known one that only looks cheaper by rounded-down prices."""
        offers = solution.prices[len(self._rows) :]
        return [
            (index, priced.cover)
            for index, (priced, offer) in enumerate(zip(cheapest, offers, strict=True))
            if priced.price + sum(priced.cover.values()) < (offer - _TOLERANCE) * _PRICE_OF_GPU
        ]

    def _relaxed(self, solution: Solution, at_least: int, prices: Mapping[str, int]) -> _Relaxed:
        parts = solution.values[len(self._fillings) :]
        covers: dict[int, tuple[float, Cover]] = {}
        divided = set()
        for (index, cover), part in zip(self._covers, parts, strict=True):
            if _TOLERANCE < part < 1 - _TOLERANCE:
                divided.add(index)
            if index not in covers or part > covers[index][0]:
                covers[index] = part, cover
        most = [covers[index][1] for index in range(len(self._demands))]
        return _Relaxed(most, frozenset(divided), at_least, prices)


def _whole(demands: Sequence[ServingNeed], fillings: Sequence[Filling], held: Filling) -> Packing:
    """Solve the integer program for these demands, with room for the instances held besides.

    HiGHS takes 2.999999 for 3. Where a load is not served because of that, the program is solved
    again with what the tolerance hides added to the load.
    """
    asked = list(demands)
    at_least: int | None = None
    while True:
        solution = _whole_program(asked, fillings, held).solve()
        at_least = _round_up(solution.floor) if at_least is None else at_least
        counts = [round(value) for value in solution.values]
        rest = iter(counts[len(fillings) :])
        covers = [{p: next(rest) for p in demand.rates_mrps} for demand in demands]
        short = [n for n, demand in enumerate(demands) if not demand.is_served_by(covers[n])]
        if not short:
            enough = [demand.enough(cover) for demand, cover in zip(demands, covers, strict=True)]
            return Packing(enough, counts[: len(fillings)], at_least, {})
        for n in short:
            asked[n] = _with_what_hides(asked[n])


def _whole_program(
    demands: Sequence[ServingNeed], fillings: Sequence[Filling], held: Filling
) -> LinearProgram:
    rows = _rows(fillings)
    units_mrps = [max(1000, max(demand.rates_mrps.values()) / 1000) for demand in demands]
    loads = [demand.load_mrps / unit for demand, unit in zip(demands, units_mrps, strict=True)]
    program = LinearProgram([*(held.get(profile, 0) for profile in rows), *loads])
    _add_gpus(program, fillings, rows, whole=True)
    for n, demand in enumerate(demands):
        for profile, rate_mrps in demand.rates_mrps.items():
            entries = {rows[profile]: -1, len(rows) + n: rate_mrps / units_mrps[n]}
            program.add(0, entries, whole=True)
    return program


def _with_what_hides(demand: ServingNeed) -> ServingNeed:
    hidden_mrps = 1 + math.ceil(10 * _TOLERANCE * sum(demand.rates_mrps.values()))
    return replace(demand, load_mrps=demand.load_mrps + hidden_mrps)


def _add_gpus(
    program: LinearProgram,
    fillings: Iterable[Filling],
    rows: Mapping[str, int],
    *,
    whole: bool = False,
) -> None:
    for filling in fillings:
        program.add(1, {rows[profile]: count for profile, count in filling.items()}, whole=whole)


def _rows(fillings: Iterable[Filling]) -> Mapping[str, int]:
    profiles = sorted({profile for filling in fillings for profile in filling})
    return {profile: row for row, profile in enumerate(profiles)}


def _round_up(gpus: float) -> int:
    return math.ceil(gpus - _TOLERANCE)
