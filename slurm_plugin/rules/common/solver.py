"""Solves linear programs with HiGHS; columns are at least 0, and some of them whole numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError

_NODES = 2_000
"""Most nodes of the branch-and-bound tree; the best solution found until then is taken."""


@dataclass(frozen=True)
class Solution:
    """A solution of HiGHS.

    Attributes:
        values: values of the columns.
        prices: price of each row: the cost of one more of what the row asks; 0 with whole columns.
        cost: cost of these values.
        floor: lower bound of the cost of any solution.
    """

    values: Sequence[float]
    prices: Sequence[float]
    cost: float
    floor: float


class LinearProgram:
    """Minimises the cost of columns, subject to each row's sum being at least what it asks."""

    def __init__(self, rows: Sequence[float]) -> None:
        # highspy imports numpy, and most commands that import this module solve nothing.
        from highspy import (  # noqa: PLC0415 -- only for solving
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
        """Add a column. ``entries``: what one of it adds to each row; ``at_most``: its bound."""
        rows, amounts = list(entries), [float(amount) for amount in entries.values()]
        self._highs.addCol(float(cost), 0.0, float(at_most), len(rows), rows, amounts)
        if whole:
            self._whole.append(self._highs.getNumCol() - 1)

    def solve(self) -> Solution:
        """The cheapest values. Each call begins where the last one ended.

        Raises OutsideError (SW-INTERNAL) if HiGHS finds none.
        """
        if self._whole:
            # One call for all: a call for each column takes longer the more columns there are.
            kinds: Any = [self._integer] * len(self._whole)
            self._highs.changeColsIntegrality(len(kinds), self._whole, kinds)
        self._highs.run()
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        if info.primal_solution_status != self._feasible:
            status = self._highs.modelStatusToString(self._highs.getModelStatus())
            raise OutsideError(
                Code.INTERNAL,
                f"HiGHS found no answer: {status}.",
                "Check that loads and throughputs have plausible sizes; if so, report this with"
                " them.",
            )
        cost = info.objective_function_value
        return Solution(solution.col_value, solution.row_dual, cost, info.mip_dual_bound)
