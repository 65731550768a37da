"""What a report says of each replay, and what ours draw beside the others for as many in time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slicewise.cluster.language.gpus.power import POWERS
from studies.autoscale.curves import slice_hours_at
from studies.autoscale.fleets import pool_words
from studies.energy.replay import Served
from studies.energy.site import Rule, Tally

BOARDS = ("A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB")
OURS = "slicewise"
STATIC = "static"
"""What the waterfall begins with: replicas that never change, with hindsight, in Slurm's order."""
HINDSIGHT = ("static", "always on")
"""What nobody can set beforehand."""
FINAL = "slicewise, weights, nodes off, emptiest first"
OF_8 = "slicewise, pools of 8, weights, nodes off, emptiest first"
OF_ALL = "slicewise, one pool, weights, nodes off, emptiest first"
LEVERS = {
    "elasticity": "slicewise (least 1)",
    "weights of nodes": "slicewise (least 1), weights",
    "contexts closed": "slicewise, weights",
    "nodes powered down": "slicewise, weights, nodes off",
    "drains on the emptiest node": FINAL,
    "pools of 8": OF_8,
    "one pool in place of them": OF_ALL,
}
"""What each lever adds to the ones before."""
CURVES = ("work_s", "straight_s", "busy_s")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """Who decides, and where replicas go.

    Attributes:
        target: the policy's setting.
        least: replicas that each service always has.
        is_off: whether empty nodes are powered down.
        empties: whether scaling down prefers the emptiest node, as the product does.
        pool: services that share replicas; 0: all.
        night: the most replicas of a service at night; None: as many as by day.
    """

    policy: str
    target: float
    least: int
    rule: Rule
    is_off: bool
    empties: bool = False
    pool: int = 1
    night: int | None = None

    @property
    def name(self) -> str:
        """What a report calls it, whatever its setting; without a rule it is in Slurm's order."""
        least = " (least 1)" * (self.policy == OURS and self.least)
        rule = "" if self.rule == "first" else f", {self.rule}"
        off, empties = ", nodes off" * self.is_off, ", emptiest first" * self.empties
        night = "" if self.night is None else f", {self.night} at night"
        return f"{self.policy}{least}{pool_words(self.pool)}{rule}{off}{empties}{night}"


def row_of(system: System, served: Served, tally: Tally) -> Row:
    """What a report says of one replay with one rule of places."""
    joules = {
        curve: {board: round(tally.joules(POWERS[board], curve)) for board in BOARDS}
        for curve in CURVES
    }
    return {
        "name": system.name,
        **asdict(system),
        **{key: round(value, 5) for key, value in asdict(served).items()},
        "tally": {key: round(value, 1) for key, value in asdict(tally).items()},
        "joules": joules,
        **joules["work_s"],
    }


def always_on(served: Served, tally: Tally, target: float) -> Row:
    """The same if an engine were awake on every board, wanted or not."""
    awake = replace(tally, idle_s=0.0, awake_s=tally.idle_s + tally.awake_s)
    row = row_of(System("static", target, 0, "spread", is_off=False), served, awake)
    return {**row, "name": "always on"}


def compared(rows: Sequence[Row]) -> dict[str, Any]:
    """Each of ours beside the others at its own attainment, by board.

    ``others`` are by system the fewest joules for as many in time: linear in the logarithm of the
    late share between two settings; None: no setting attains it. ``best`` is of those whose
    services share no replicas, ``best_pooled`` of those with the same pools as ours; ``_known``
    without hindsight. ``of_static``: the joules of each beside those of static replicas for as many
    in time, others at the attainment of ``FINAL``.
    """
    names = dict.fromkeys(row["name"] for row in rows if row["policy"] != OURS)
    by_name = {name: [row for row in rows if row["name"] == name] for name in names}
    ours = {
        row["name"]: {
            "attainment": row["attainment"],
            "sure": row["sure"],
            "joules_per_request": {b: round(row[b] / row["requests"], 1) for b in BOARDS},
            **{board: _beside(row, by_name, board) for board in BOARDS},
            "straight": _curved(row, by_name, "straight_s"),
            "busy": _curved(row, by_name, "busy_s"),
        }
        for row in rows
        if row["policy"] == OURS
    }
    of_static = {board: _of_static(ours, board) for board in BOARDS}
    return {
        "rows": [*rows],
        "ours": ours,
        "of_static": of_static,
        "saved_by": {board: _saved_by(of_static[board]) for board in BOARDS},
    }


def _of_static(ours: Mapping[str, Any], board: str) -> dict[str, float | None]:
    """Joules beside the static ones at equal attainment; {} without static ones."""
    if FINAL not in ours or ours[FINAL][board]["others"].get(STATIC) is None:
        return {}
    others = ours[FINAL][board]["others"]
    found = {name: joules and round(joules / others[STATIC], 4) for name, joules in others.items()}
    for name, one in ours.items():
        found[name] = one[board]["ratio_of_each"].get(STATIC)
    return found


def _saved_by(of_static: Mapping[str, float | None]) -> dict[str, float]:
    """The share of the static joules that each lever saves, beyond the ones before it."""
    found, before = {}, 1.0
    for lever, name in LEVERS.items():
        ratio = of_static.get(name)
        if ratio is None:
            break
        found[lever] = round(before - ratio, 4)
        before = ratio
    return found


def _beside(row: Row, by_name: Mapping[str, Sequence[Row]], board: str) -> dict[str, Any]:
    others = {
        name: slice_hours_at(points, row["attainment"], board) for name, points in by_name.items()
    }
    ratios = {
        name: round(row[board] / joules, 4) for name, joules in others.items() if joules is not None
    }

    def best(pool: int, hindsight: tuple[str, ...] = ()) -> Mapping[str, Any] | None:
        """The one with such pools beside which ours draw most."""
        names = [name for name in ratios if by_name[name][0]["pool"] == pool]
        fair = [name for name in names if not name.startswith(hindsight)]
        name = max(fair, key=lambda name: ratios[name], default=None)
        return name and {"name": name, "ratio": ratios[name]}

    return {
        "joules": row[board],
        "others": {name: joules and round(joules) for name, joules in others.items()},
        "best": best(1),
        "best_known": best(1, HINDSIGHT),
        "best_pooled": best(row["pool"]),
        "best_pooled_known": best(row["pool"], HINDSIGHT),
        "ratio_of_each": ratios,
    }


def _curved(row: Row, by_name: Mapping[str, Sequence[Row]], curve: str) -> float | None:
    """The ratio to the best, on an H100, if watts followed another curve."""
    board = BOARDS[1]
    curved = {
        name: [{**one, "curved": one["joules"][curve][board]} for one in points]
        for name, points in by_name.items()
        if points[0]["pool"] == 1
    }
    found = [slice_hours_at(points, row["attainment"], "curved") for points in curved.values()]
    joules = [one for one in found if one is not None]
    return round(row["joules"][curve][board] / min(joules), 4) if joules else None
