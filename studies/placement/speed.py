"""Measures the CPU time of one placement decision, on GPUs as full as a busy cluster's."""

import random
import statistics
import time
from collections.abc import Mapping

from slicewise.cluster.language.gpus.layouts import geometry
from studies.placement.outlook import outlook
from studies.placement.pods import BOARD
from studies.placement.pool import Gpu, Instance, Pool

_DECISIONS = 5_000
_GPUS_A_NODE = 8
_FREE = 0.1
"""Share of GPUs that may have room; the other GPUs are full."""


def decision_us(gpus: int, mix: Mapping[str, float], seed: int) -> Mapping[str, float]:
    """Microseconds to choose a place (p50 and p99), and to note that it is taken (p50)."""
    chance = random.Random(seed)  # noqa: S311
    pool = _pool(gpus, mix, chance)
    profiles = chance.choices(list(mix), list(mix.values()), k=_DECISIONS)
    chosen, noted = [], []
    for number, profile in enumerate(profiles):
        began = time.thread_time()
        spot = pool.best((profile,))
        decided = time.thread_time()
        chosen.append(decided - began)
        if spot is not None:
            held = (*spot.gpu.instances, Instance(spot.placement, float(number)))
            began = time.thread_time()
            pool.put(Gpu(spot.gpu.name, spot.gpu.node, held))
            noted.append(time.thread_time() - began)
            pool.put(spot.gpu)
    return {
        "p50": _percentile_us(chosen, 50),
        "p99": _percentile_us(chosen, 99),
        "put_p50": _percentile_us(noted, 50),
    }


def _pool(gpus: int, mix: Mapping[str, float], chance: random.Random) -> Pool:
    """A pool of GPUs with layouts drawn from all of the board's."""
    geo, pool = geometry(BOARD), Pool(outlook(BOARD, mix))
    for number in range(gpus):
        layouts = geo.layouts if chance.random() < _FREE else geo.maximal
        placements = sorted(chance.choice(layouts))
        instances = tuple(Instance(one, -chance.random()) for one in placements)
        pool.put(Gpu(str(number), str(number // _GPUS_A_NODE), instances))
    return pool


def _percentile_us(seconds: list[float], percent: int) -> float:
    return round(statistics.quantiles(seconds, n=100)[percent - 1] * 1e6, 1)
