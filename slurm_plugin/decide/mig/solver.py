"""HiGHS as arithmetic: linear programs over columns of at least 0, some of them whole numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from cluster.errors import OutsideError

_NODES = 2_000
"""Of the tree of branches, at most: what is found until then is taken."""


@dataclass(frozen=True)
class Solution:
    """What HiGHS found.

    Attributes:
        values: of the columns.
        prices: of the rows: what one more of what a row asks would cost; 0 with whole columns.
        cost: of these values.
        floor: no solution costs less.
    """

    values: Sequence[float]
    prices: Sequence[float]
    cost: float
    floor: float


class Program:
    """Minimise the cost of columns, so that each row's sum is at least what it asks."""

    def __init__(self, rows: Sequence[float]) -> None:
        # With it comes numpy: most commands of a tree that solves something do not solve.
        from highspy import (  # noqa: PLC0415 -- only who solves
            Highs,
            HighsVarType,
            kSolutionStatusFeasible,
        )

        self._integer, self._feasible = HighsVarType.kInteger, int(kSolutionStatusFeasible)
        self._highs = Highs()  # type: ignore[no-untyped-call]
        options = {"output_flag": False, "threads": 1, "mip_max_nodes": _NODES, "mip_rel_gap": 0.0}
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        for asked in rows:
            self._highs.addRow(float(asked), inf, 0, [], [])
        self._whole: list[int] = []

    def add(
        self,
        cost: float,
        entries: Mapping[int, float],
        *,
        whole: bool = False,
        at_most: float = inf,
    ) -> None:
        """A column, by what one of it adds to which rows; at most so much of it."""
        rows, amounts = list(entries), [float(amount) for amount in entries.values()]
        self._highs.addCol(float(cost), 0.0, float(at_most), len(rows), rows, amounts)
        if whole:
            self._whole.append(self._highs.getNumCol() - 1)

    def solve(self) -> Solution:
        """The cheapest values; begins where the last call ended.

        OutsideError (SW-SOLVER) if HiGHS finds none.
        """
        if self._whole:
            # At once: one by one, each takes the longer the more columns there are.
            kinds: Any = [self._integer] * len(self._whole)
            self._highs.changeColsIntegrality(len(kinds), self._whole, kinds)
        self._highs.run()
        found, info = self._highs.getSolution(), self._highs.getInfo()
        if info.primal_solution_status != self._feasible:
            status = self._highs.modelStatusToString(self._highs.getModelStatus())
            raise OutsideError(
                "SW-SOLVER",
                f"HiGHS found no answer: {status}.",
                "Are the loads and throughputs of a plausible size? Else report it, with them.",
            )
        cost = info.objective_function_value
        return Solution(found.col_value, found.row_dual, cost, info.mip_dual_bound)
