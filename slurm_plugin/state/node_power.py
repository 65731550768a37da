"""What nodes with a meter have last told of their boards: watts now, and joules by tenant."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.gpus.energy import NOBODY
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest

FRESH_S = 180.0
"""What a node told longer ago is not what it draws now: a meter tells each minute."""


@dataclass(frozen=True)
class _Told:
    at_monotonic_s: float
    power_mw: int
    parts: Mapping[tuple[int, str, str, int], int]
    """Millijoules by hour, board, measure and job."""


class NodePower:
    """Watts of nodes, and joules by tenant since this daemon began to hear of them."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self.energy_mj: Counter[str] = Counter()

    def hear(self, told: EnergyPostRequest, jobs: Iterable[JobView]) -> None:
        """Take over what a node's meter told: what is new since it told before is counted."""
        parts = Counter[tuple[int, str, str, int]]()
        for hour in told.hours:
            for part in hour.parts:
                key = (hour.hour_s, hour.gpu_uuid, hour.measure.value, part.job_id)
                parts[key] += part.energy_mj
        before = self._told.get(told.node)
        if before is not None:
            tenants = {job.job_id: job.account for job in jobs} | {NOBODY: ""}
            for key, energy_mj in parts.items():
                more_mj = energy_mj - before.parts.get(key, 0)
                if more_mj > 0:
                    self.energy_mj[tenants.get(key[-1], "")] += more_mj
        power_mw = sum(board.power_mw for board in told.boards)
        self._told[told.node] = _Told(time.monotonic(), power_mw, parts)

    def watts(self) -> Mapping[str, float]:
        """What nodes draw that told it lately."""
        fresh_s = time.monotonic() - FRESH_S
        return {
            node: told.power_mw / 1000
            for node, told in sorted(self._told.items())
            if told.at_monotonic_s >= fresh_s
        }
