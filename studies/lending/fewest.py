"""Computes the least that must be sent away so that all waiting jobs start: an integer program."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.errors import OutsideError
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput

_TOLERANCE = 0.5
"""Millislices within which costs are equal: they are whole, but HiGHS computes with fractions."""


@dataclass(frozen=True)
class Fewest:
    """The least set of runs that must go.

    Attributes:
        millislices: what these runs hold.
        is_proven: whether it is proved that no other set holds less.
    """

    millislices: int
    is_proven: bool


def fewest(reclaim_input: ReclaimInput, runs: Iterable[Running]) -> Fewest | None:
    """Find the least set of these runs; None if not even all of them let all waiting jobs start.

    Columns are runs that go, and jobs on nodes. Rows: a job gets its nodes; on each node the jobs
    need no more of a type than is free after those runs have gone; no tenant falls below its own
    part.
    """
    return _Rows(reclaim_input, tuple(runs)).solved()


class _Rows:
    """The integer program while it is built."""

    def __init__(self, reclaim_input: ReclaimInput, runs: Sequence[Running]) -> None:
        self._taking = reclaim_input
        self._runs = runs
        self._asked: list[float] = []
        self._entries: dict[int, dict[int, float]] = defaultdict(dict)
        self._costs = [float(run.cost_millislices) for run in runs]
        self._nodes = sorted(
            {*reclaim_input.free, *(node for run in runs for node in run.instances)}
        )

    def solved(self) -> Fewest | None:
        self._limit_runs()
        self._place_jobs()
        program = LinearProgram(self._asked)
        for column, cost in enumerate(self._costs):
            program.add(cost, self._entries[column], whole=True, at_most=1)
        try:
            found = program.solve()
        except OutsideError:
            return None
        return Fewest(round(found.cost), found.floor > found.cost - _TOLERANCE)

    def _limit_runs(self) -> None:
        above: dict[str, int] = defaultdict(int, self._taking.above_nominal_millislices)
        by_tenant: dict[str, int] = {}
        for column, run in enumerate(self._runs):
            if run.tenant not in by_tenant:
                by_tenant[run.tenant] = self._row(-float(above[run.tenant]))
            self._entries[column][by_tenant[run.tenant]] = -float(run.cost_millislices)

    def _place_jobs(self) -> None:
        room = self._room_rows()
        for job in self._taking.wanting:
            served = self._row(float(job.nodes))
            for node in self._nodes:
                column = len(self._costs)
                self._costs.append(0.0)
                self._entries[column][served] = 1.0
                for kind, count in job.shape:
                    self._entries[column][room[node, kind]] = -float(count)

    def _room_rows(self) -> dict[tuple[str, str], int]:
        kinds = {kind for job in self._taking.wanting for kind, _ in job.shape}
        rows: dict[tuple[str, str], int] = {}
        for node in self._nodes:
            there = self._taking.free.get(node, {})
            for kind in kinds:
                rows[node, kind] = self._row(-float(there.get(kind, 0)))
        for column, run in enumerate(self._runs):
            for node, held in run.instances.items():
                for kind, count in held.items():
                    if kind in kinds:
                        self._entries[column][rows[node, kind]] = float(count)
        return rows

    def _row(self, asked: float) -> int:
        self._asked.append(asked)
        return len(self._asked) - 1
