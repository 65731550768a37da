"""What nodes with a meter have last told of their boards: watts now, and joules by tenant."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.language.gpus.energy import NOBODY
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest

FRESH_S = 180.0
"""What a node told longer ago is not what it draws now: a meter tells each minute."""
_KEPT_S = 3 * 3600
"""So long before the newest hour of a message parts are remembered that may be told again."""

_Parts = Mapping[tuple[int, str, str, str, int], int]
"""Millijoules by hour, meter, board, measure and job."""


@dataclass(frozen=True)
class _Told:
    at_monotonic_s: float
    boards_mw: tuple[int, ...]
    parts: _Parts


class NodePower:
    """Watts of nodes, and joules by tenant since this daemon began to hear of them."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self.energy_mj: Counter[str] = Counter()

    def hear(self, told: EnergyPostRequest, tenants: Mapping[int, str]) -> None:
        """Take over what a node's meter told: what is new since it told before is counted.

        ``tenants`` are those of Slurm's jobs.
        """
        parts = _parts(told)
        before = self._told.get(told.node)
        earlier = {} if before is None else before.parts
        if before is not None:
            for key, energy_mj in parts.items():
                more_mj = energy_mj - earlier.get(key, 0)
                if more_mj > 0:
                    tenant = "" if key[-1] == NOBODY else tenants.get(key[-1], "")
                    self.energy_mj[tenant] += more_mj
        # A message has only hours that have changed: what others said stays known.
        both = {**earlier, **{key: max(part, earlier.get(key, 0)) for key, part in parts.items()}}
        oldest_s = max((key[0] for key in parts), default=0) - _KEPT_S
        kept = {key: part for key, part in both.items() if key[0] >= oldest_s}
        boards_mw = tuple(board.power_mw for board in told.boards)
        self._told[told.node] = _Told(time.monotonic(), boards_mw, kept)

    def watts(self) -> Mapping[str, float]:
        """What the boards of each node draw together that told it lately."""
        return {node: sum(boards_mw) / 1000 for node, boards_mw in self.boards_mw().items()}

    def boards_mw(self) -> Mapping[str, tuple[int, ...]]:
        """What each board draws, in milliwatts, by node; of nodes that told it lately."""
        fresh_s = time.monotonic() - FRESH_S
        return {
            node: told.boards_mw
            for node, told in sorted(self._told.items())
            if told.at_monotonic_s >= fresh_s
        }


def _parts(told: EnergyPostRequest) -> _Parts:
    parts = Counter[tuple[int, str, str, str, int]]()
    for hour in told.hours:
        for part in hour.parts:
            key = (hour.hour_s, told.seen_by, hour.gpu_uuid, hour.measure.value, part.job_id)
            parts[key] += part.energy_mj
    return parts
