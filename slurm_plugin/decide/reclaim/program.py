"""The smallest set of runs that makes room for jobs, as an integer program."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import gcd
from operator import mul

from cluster.errors import OutsideError
from slurm_plugin.decide.mig.solver import Program
from slurm_plugin.decide.reclaim.order import in_order
from slurm_plugin.decide.reclaim.room import Found, Need, Room, Run, Shape

_Group = tuple[Shape, int]
"""Jobs of one shape on as many nodes: it does not matter which of them is where."""
_Row = tuple[object, ...]


class Choice:
    """Which runs go, and how many jobs of a group are on each node: these are the columns.

    Rows: of each type there is enough on all nodes together, and on each node for jobs of more than
    one instance there; these get their nodes; no tenant falls below its own part. As a node has
    room for no more jobs of a group than there are, each job gets different nodes.
    """

    def __init__(self, room: Room, needs: Sequence[Need]) -> None:
        """For all of these jobs; the room is left as it is."""
        self._runs = in_order(room)
        self._unit = gcd(*(run.cost for run in self._runs)) or 1
        self._groups: dict[_Group, list[int]] = defaultdict(list)
        for need in needs:
            if not need.is_single:
                self._groups[need.shape, need.nodes].append(need.key)
        self._at = [(one, node) for one in self._groups for node in sorted(room.estimates(one[0]))]
        self._asked = self._rows(room, needs)
        self._columns = [(self._given(run), 1) for run in self._runs]
        self._columns += [(_needed(*place), len(self._groups[place[0]])) for place in self._at]

    def _rows(self, room: Room, needs: Iterable[Need]) -> dict[_Row, int]:
        """What each asks for."""
        short: Counter[str] = Counter()
        for need in needs:
            short.update({kind: count * need.nodes for kind, count in need.shape})
        rows: dict[_Row, int] = {("all", kind): n - room.balance[kind] for kind, n in short.items()}
        for group, keys in self._groups.items():
            rows["jobs", group] = group[1] * len(keys)
        for (shape, _), node in self._at:
            rows |= {("on", node, kind): -room.free[node][kind] for kind, _ in shape}
        for run in self._runs:
            rows["above", run.tenant] = -(room.above[run.tenant] // self._unit)
        return rows

    def _given(self, run: Run) -> dict[_Row, int]:
        given: dict[_Row, int] = {("all", kind): count for kind, count in run.total}
        for node, there in run.instances.items():
            given |= {("on", node, kind): count for kind, count in there.items()}
        return given | {("above", run.tenant): -(run.cost // self._unit)}

    def is_possible(self) -> bool:
        """Whether any runs make room for all, as far as the solver's steps tell."""
        return self._solved([]) is not None

    def smallest(self, known: Found | None) -> Found | None:
        """The smallest set, of equal ones that whose runs come first in the order of victims (by
        the sum of their places in it); the known one if none is smaller. None if no runs make room,
        or the solver's steps are too few to find any.
        """
        if any(run.is_batch for run in self._runs):
            self._hold(self._batch_costs())
        least = self._hold(self._replica_costs())
        if least is None or (known is not None and known.size <= self._found(least).size):
            return known
        return self._found(self._solved(range(len(self._runs))) or least)

    def _hold(self, costs: Sequence[int]) -> Sequence[int] | None:
        """The cheapest values; what is solved later costs no more."""
        values = self._solved(costs)
        if values is not None:
            row = "costs", len(self._asked)
            self._asked[row] = -sum(map(mul, costs, values))
            for (adds, _), cost in zip(self._columns, costs, strict=False):
                adds[row] = -cost
        return values

    def _batch_costs(self) -> Sequence[int]:
        return [run.cost // self._unit * run.is_batch for run in self._runs]

    def _replica_costs(self) -> Sequence[int]:
        """Any millislices are more than all runs by number."""
        more = len(self._runs) + 1
        return [run.cost // self._unit * more * (not run.is_batch) + 1 for run in self._runs]

    def _solved(self, costs: Sequence[int]) -> Sequence[int] | None:
        """The columns' values, those of runs first; ``costs`` are the runs', if any."""
        rows = {row: nth for nth, row in enumerate(self._asked)}
        program = Program(list(self._asked.values()))
        for nth, (adds, most) in enumerate(self._columns):
            entries = {rows[row]: amount for row, amount in adds.items() if row in rows}
            cost = costs[nth] if nth < len(costs) else 0
            program.add(cost, entries, whole=True, at_most=most)
        try:
            return [round(value) for value in program.solve().values]
        except OutsideError:
            return None

    def _found(self, values: Sequence[int]) -> Found:
        runs = tuple(run for run, value in zip(self._runs, values, strict=False) if value)
        nodes: dict[_Group, list[str]] = defaultdict(list)
        for (group, node), count in zip(self._at, values[len(self._runs) :], strict=True):
            nodes[group] += [node] * count
        places = {
            # Where a node costs nothing the solver may have more of them than are asked for.
            key: tuple(nodes[group][nth :: len(keys)][: group[1]])
            for group, keys in self._groups.items()
            for nth, key in enumerate(keys)
        }
        return Found((sum(run.weight for run in runs), len(runs)), runs, places)


def _needed(group: _Group, node: str) -> dict[_Row, int]:
    needed: dict[_Row, int] = {("on", node, kind): -count for kind, count in group[0]}
    return needed | {("jobs", group): 1}
