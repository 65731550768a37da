"""Places replicas on boards and nodes by a system's rule, and adds up what the boards draw.

Slurm takes a node of the lowest weight, then the first in order, and on it the first free device. A
node that is powered down comes last, whatever its weight. A replica has one slice of a board.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from slicewise.cluster.language.gpus.power import BoardPower, power_w
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.mig.node_weights import changes

BOARDS, SLICES = 4, 7
"""Boards of a node, slices of a board."""
BOOT_S = 210.0
"""Seconds from a start on a node that is powered down until the node takes it: cropdiversity's
cluster tells its users 3 to 4 minutes."""
OFF_AFTER_S = 600.0
"""Seconds that a node is empty before it is powered down (Slurm's SuspendTime)."""
_ROUND_S = 10.0
"""Seconds between two looks of the daemon's at the nodes' weights."""
_PARTITIONS = frozenset({"gpu"})
_COSTS = {"1g": Millislices(1000)}
_UNIT = BoardPower(0.0, 0.0, 1.0, "the curve alone")

Rule = Literal["spread", "first", "weights"]
"""How a place is chosen: the emptiest node and board, as Kubernetes' default does; the first free
one, as Slurm does where all weights are equal; by the weights that the product sets."""


class Held(NamedTuple):
    """What holds a slice at a moment.

    Attributes:
        key: who.
        share: how much of the slice works, 0 to 1.
    """

    key: Hashable
    share: float


@dataclass
class Tally:
    """Board-seconds, from which the joules of any board follow.

    Attributes:
        off_s, idle_s, awake_s: of boards of nodes that are powered down; of boards that nothing
            holds, those of nodes that boot included; of boards with a context.
        work_s: board-seconds of full load that the work of awake boards draws as much as, above a
            context.
        straight_s: the same if watts were a straight line of activity.
        busy_s: the same as ``work_s`` if one request in a replica kept its slice as busy as many.
        boots: nodes that were powered up.
    """

    off_s: float = 0.0
    idle_s: float = 0.0
    awake_s: float = 0.0
    work_s: float = 0.0
    straight_s: float = 0.0
    busy_s: float = 0.0
    boots: int = 0

    def joules(self, board: BoardPower, curve: str = "work_s") -> float:
        """What boards of this kind would have drawn."""
        awake_w = board.idle_w + board.context_w
        work_s: float = getattr(self, curve)
        return (
            self.idle_s * board.idle_w + self.awake_s * awake_w + work_s * (board.load_w - awake_w)
        )


class Site:
    """Nodes, and who holds which of their slices.

    Attributes:
        tally: what its boards did while it was counted.
    """

    def __init__(self, nodes: int, rule: Rule, off_after_s: float | None = None) -> None:
        """All nodes are up and empty. ``off_after_s``: None: no node is ever powered down."""
        self.tally = Tally()
        self._rule, self._off_after_s = rule, off_after_s
        self._held = [[0] * BOARDS for _ in range(nodes)]
        self._places: dict[Hashable, tuple[int, int]] = {}
        self._weights = [1] * nodes
        self._weighed_s = -_ROUND_S
        self._empty_s: list[float | None] = [0.0] * nodes
        self._up_s: list[float | None] = [0.0] * nodes
        """When each node is or was up; None: it is powered down."""

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return len(self._held)

    def company(self, key: Hashable) -> int:
        """How many slices are held on the node of who holds one."""
        return sum(self._held[self._places[key][0]])

    def allot(self, key: Hashable, now_s: float) -> float | None:
        """Give a slice, and return the seconds until its node is up; None: no slice is free."""
        place = self._choose(now_s)
        if place is None:
            return None
        node, board = place
        self._places[key] = place
        self._held[node][board] += 1
        self._empty_s[node] = None
        up_s = self._up_s[node]
        if up_s is None:
            up_s = self._up_s[node] = now_s + BOOT_S
            self.tally.boots += 1
        return max(up_s - now_s, 0.0)

    def free(self, key: Hashable, now_s: float) -> None:
        """Take back what was given, if anything was."""
        place = self._places.pop(key, None)
        if place is None:
            return
        node, board = place
        self._held[node][board] -= 1
        if not any(self._held[node]):
            self._empty_s[node] = now_s

    def look(self, now_s: float, holding: Iterable[Held], counts_s: float) -> None:
        """Power down who is empty for long enough, and count what is held for so many seconds."""
        if self._off_after_s is not None:
            for node, empty_s in enumerate(self._empty_s):
                if empty_s is not None and now_s - empty_s >= self._off_after_s:
                    self._up_s[node] = None
        if counts_s:
            self._count(holding, counts_s)

    def _count(self, holding: Iterable[Held], counts_s: float) -> None:
        shares: dict[tuple[int, int], float] = {}
        busy: dict[tuple[int, int], float] = {}
        for key, share in holding:
            place = self._places[key]
            shares[place] = shares.get(place, 0.0) + share / SLICES
            busy[place] = busy.get(place, 0.0) + (share > 0) / SLICES
        tally = self.tally
        for used in shares.values():
            tally.work_s += counts_s * power_w(_UNIT, True, used)
            tally.straight_s += counts_s * used
        for used in busy.values():
            tally.busy_s += counts_s * power_w(_UNIT, True, used)
        off = BOARDS * sum(up_s is None for up_s in self._up_s)
        tally.off_s += counts_s * off
        tally.awake_s += counts_s * len(shares)
        tally.idle_s += counts_s * (BOARDS * self.nodes - off - len(shares))

    def _choose(self, now_s: float) -> tuple[int, int] | None:
        free = [
            (node, board)
            for node, boards in enumerate(self._held)
            for board, held in enumerate(boards)
            if held < SLICES
        ]
        if self._rule == "weights":
            self._weigh(now_s)
        return min(free, key=self._order, default=None)

    def _order(self, place: tuple[int, int]) -> tuple[float, ...]:
        node, board = place
        held = self._held[node]
        is_off = self._up_s[node] is None
        match self._rule:
            case "spread":
                return (is_off, sum(held), held[board], node, board)
            case "first":
                return (is_off, node, board)
            case "weights":
                return (is_off, self._weights[node], node, board)

    def _weigh(self, now_s: float) -> None:
        """Let the product set the weights of the nodes, as often as it does."""
        if now_s - self._weighed_s < _ROUND_S:
            return
        self._weighed_s = now_s
        whole = {"1g": BOARDS * SLICES}
        nodes = [
            NodeView(
                name=str(node),
                address="",
                states=frozenset(),
                gpus=whole,
                gpus_allotted={"1g": sum(held)},
                partitions=_PARTITIONS,
                weight=self._weights[node],
            )
            for node, held in enumerate(self._held)
        ]
        for name, weight in changes(nodes, _PARTITIONS, _COSTS).items():
            self._weights[int(name)] = weight
