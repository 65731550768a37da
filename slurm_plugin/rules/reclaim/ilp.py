"""Finds the smallest set of runs that makes room for jobs, by an integer program."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import gcd
from operator import mul

from slicewise.cluster.language.errors import OutsideError
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.quota.jobs import JobKey, Shape, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity, VictimSet
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victim_order import in_order

_Group = tuple[Shape, int]
"""Shape and number of nodes: jobs that share both are interchangeable."""
_Row = tuple[object, ...]


class Choice:
    """The program. Columns: which runs end, and how many jobs of each group are on each node.

    Rows: of each type there is enough on all nodes together, and on each node enough for the jobs
    of more than one instance there; these jobs get all their nodes; no tenant falls below its own
    part. A node takes at most as many jobs of a group as the group has, so each job gets different
    nodes.
    """

    def __init__(self, room: Capacity, needs: Sequence[WaitingJob]) -> None:
        """Build the program for all of these jobs; ``room`` is left as it is."""
        self._runs = in_order(room)
        self._unit = gcd(*(run.cost_millislices for run in self._runs)) or 1
        self._groups: dict[_Group, list[JobKey]] = defaultdict(list)
        for need in needs:
            if not need.is_single:
                self._groups[need.shape, need.nodes].append(need.key)
        self._at = [
            (group, node) for group in self._groups for node in sorted(room.estimates(group[0]))
        ]
        self._asked = self._rows(room, needs)
        self._columns = [(self._given(run), 1) for run in self._runs]
        self._columns += [(_needed(*place), len(self._groups[place[0]])) for place in self._at]

    def _rows(self, room: Capacity, needs: Iterable[WaitingJob]) -> dict[_Row, int]:
        """The rows, each with the least value that it asks for."""
        short: Counter[str] = Counter()
        for need in needs:
            short.update({gres_type: count * need.nodes for gres_type, count in need.shape})
        rows: dict[_Row, int] = {
            ("all", gres_type): n - room.balance[gres_type] for gres_type, n in short.items()
        }
        for group, keys in self._groups.items():
            rows["jobs", group] = group[1] * len(keys)
        for (shape, _), node in self._at:
            rows |= {("on", node, gres_type): -room.free[node][gres_type] for gres_type, _ in shape}
        for run in self._runs:
            rows["above", run.tenant] = -(room.above[run.tenant] // self._unit)
        return rows

    def _given(self, run: Running) -> dict[_Row, int]:
        given: dict[_Row, int] = {("all", gres_type): count for gres_type, count in run.total}
        for node, instance in run.instances.items():
            given |= {("on", node, gres_type): count for gres_type, count in instance.items()}
        return given | {("above", run.tenant): -(run.cost_millislices // self._unit)}

    def is_possible(self) -> bool:
        """Whether some set of runs makes room for all jobs.

        False also if the solver's steps do not suffice to tell.
        """
        return self._solved([]) is not None

    def smallest(self, victim_set: VictimSet | None) -> VictimSet | None:
        """The smallest set of runs, or ``known`` if none is smaller.

        Of equal sets it is the one with the runs that come first in the order of victims, by the
        sum of their positions. None if no runs make room, or the solver's steps do not suffice to
        find a set.
        """
        if any(not run.is_replica for run in self._runs):
            self._hold(self._batch_costs())
        least = self._hold(self._replica_costs())
        if least is None or (victim_set is not None and victim_set.size <= self._found(least).size):
            return victim_set
        return self._found(self._solved(range(len(self._runs))) or least)

    def _hold(self, costs: Sequence[int]) -> Sequence[int] | None:
        """Solve for the cheapest values, and bind later solutions to cost no more.

        None if there is no solution, or the solver's steps do not suffice.
        """
        values = self._solved(costs)
        if values is not None:
            row = "costs", len(self._asked)
            self._asked[row] = -sum(map(mul, costs, values))
            for (adds, _), cost in zip(self._columns, costs, strict=False):
                adds[row] = -cost
        return values

    def _batch_costs(self) -> Sequence[int]:
        return [(not run.is_replica) * run.cost_millislices // self._unit for run in self._runs]

    def _replica_costs(self) -> Sequence[int]:
        """Costs by which millislices count first: one unit outweighs the number of all runs."""
        more = len(self._runs) + 1
        return [
            run.is_replica * run.cost_millislices // self._unit * more + 1 for run in self._runs
        ]

    def _solved(self, costs: Sequence[int]) -> Sequence[int] | None:
        """The columns' values, runs first; None without a solution.

        ``costs`` are those of runs, if any; all other columns cost nothing.
        """
        rows = {row: nth for nth, row in enumerate(self._asked)}
        program = LinearProgram(list(self._asked.values()))
        for nth, (adds, most) in enumerate(self._columns):
            entries = {rows[row]: amount for row, amount in adds.items() if row in rows}
            cost = costs[nth] if nth < len(costs) else 0
            program.add(cost, entries, whole=True, at_most=most)
        try:
            return [round(value) for value in program.solve().values]
        except OutsideError:
            return None

    def _found(self, values: Sequence[int]) -> VictimSet:
        runs = tuple(run for run, value in zip(self._runs, values, strict=False) if value)
        nodes: dict[_Group, list[str]] = defaultdict(list)
        for (group, node), count in zip(self._at, values[len(self._runs) :], strict=True):
            nodes[group] += [node] * count
        places = {
            # Nodes cost nothing, so the solver may assign more of them than are asked for.
            key: tuple(nodes[group][nth :: len(keys)][: group[1]])
            for group, keys in self._groups.items()
            for nth, key in enumerate(keys)
        }
        return VictimSet((sum(run.weight for run in runs), len(runs)), runs, places)


def _needed(group: _Group, node: str) -> dict[_Row, int]:
    needed: dict[_Row, int] = {("on", node, gres_type): -count for gres_type, count in group[0]}
    return needed | {("jobs", group): 1}
