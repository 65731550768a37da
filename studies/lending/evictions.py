"""Computes evicted ÷ needed: what each policy sends away ÷ the least that an exact solver finds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rebalance.worlds import Sizes, world
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput
from studies.lending.fewest import fewest
from studies.lending.victims import POLICIES, Eviction, Policy, candidates, with_slurm

_TENANTS = 8
MIXES: Mapping[str, tuple[float, float]] = {
    "replicas": (1.0, 0.1),
    "large_jobs": (1.0, 0.5),
    "with_batch": (0.7, 0.2),
    "mostly_batch": (0.3, 0.3),
    "batch": (0.0, 0.3),
}
"""Share of replicas among runs; share of runs and waiting jobs with more than one instance."""
_GPUS, _WANTING = (8, 16, 32), (1, 2, 4, 8)


ALL: Mapping[str, Policy] = {
    "youngest_first": partial(with_slurm, youngest_first=True),
    "default_order": partial(with_slurm, youngest_first=False),
}
"""All evictions of a return, those that Slurm chooses too, by the order in which it takes them."""


@dataclass(frozen=True)
class Chosen:
    """All evictions in a world: how many each has chosen, and millislices of both."""

    by_slicewise: int
    by_slurm: int
    millislices: int


@dataclass(frozen=True)
class Found:
    """The results of one world.

    Attributes:
        needed: millislices of the least set of runs that must go; None if no set would do.
        of_replicas: millislices of the least set of replicas; None if no set would do.
        evicted: millislices by policy, without policies that leave a job unserved.
        chosen: all evictions by Slurm's order (``ALL``), without orders that leave a job unserved.
        is_proven: whether the solver has proved that its sets are the least.
    """

    needed: int | None
    of_replicas: int | None
    evicted: Mapping[str, int]
    chosen: Mapping[str, Chosen]
    is_proven: bool


def found(seed: int, mix: str) -> Found:
    """Draw one world of that mix, and let all policies decide on it."""
    reclaim_input = _taking(seed, mix)
    there = candidates(reclaim_input)
    least, replicas = (fewest(reclaim_input, runs) for runs in (there, _replicas(there)))
    costs = {run.job_id: run.cost_millislices for run in reclaim_input.running}
    done = {name: policy(reclaim_input) for name, policy in POLICIES.items()}
    both = {name: policy(reclaim_input) for name, policy in ALL.items()}
    return Found(
        needed=None if least is None else least.millislices,
        of_replicas=None if replicas is None else replicas.millislices,
        evicted={n: _millislices(one, costs) for n, one in done.items() if not one.unserved},
        chosen={n: _chosen(one, costs) for n, one in both.items() if not one.unserved},
        is_proven=all(one is None or one.is_proven for one in (least, replicas)),
    )


def _taking(seed: int, mix: str) -> ReclaimInput:
    """Draw a world in which every run is above its tenant's nominal, so that all runs may go."""
    replicas, large = MIXES[mix]
    gpus, wanting = _GPUS[seed % 3], _WANTING[seed // 3 % 4]
    sizes = Sizes(gpus, gpus * 7, _TENANTS, wanting, replicas=replicas, large=large)
    reclaim_input = world(seed, sizes)
    held: dict[str, int] = {}
    for run in reclaim_input.running:
        held[run.tenant] = held.get(run.tenant, 0) + run.cost_millislices
    running = tuple(replace(one, may_requeue=not one.is_replica) for one in reclaim_input.running)
    return replace(reclaim_input, running=running, above_nominal_millislices=held)


def _replicas(runs: Iterable[Running]) -> Sequence[Running]:
    return [run for run in runs if run.is_replica]


def _millislices(eviction: Eviction, costs: Mapping[int, int]) -> int:
    return sum(costs[job_id] for job_id in eviction.victims)


def _chosen(eviction: Eviction, costs: Mapping[int, int]) -> Chosen:
    by_slurm = len(eviction.preempted)
    return Chosen(len(eviction.victims) - by_slurm, by_slurm, _millislices(eviction, costs))


def report(worlds: Mapping[str, Sequence[Found]]) -> Mapping[str, Any]:
    """Ratios by mix and policy, of worlds in which replicas alone can serve all waiting jobs; and
    of all evictions, of all worlds in which all waiting jobs can be served.
    """
    return {mix: _of_mix(those) for mix, those in worlds.items()}


def _of_mix(worlds: Sequence[Found]) -> Mapping[str, Any]:
    servable = [one for one in worlds if one.needed]
    by_replicas = [one for one in servable if one.of_replicas is not None]
    return {
        "worlds": len(worlds),
        "servable": len(servable),
        "replicas_alone_share": round(len(by_replicas) / max(len(servable), 1), 4),
        "proven": all(one.is_proven for one in worlds),
        "policies": {name: _of_policy(by_replicas, name) for name in POLICIES if by_replicas},
        "all_evictions": {name: _of_all(servable, name) for name in ALL},
    }


def _of_all(worlds: Sequence[Found], name: str) -> Mapping[str, float]:
    """All evictions ÷ the least set of any runs, and who has chosen them."""
    pairs = [(one.chosen[name], one.needed) for one in worlds if name in one.chosen and one.needed]
    evicted = sum(chosen.millislices for chosen, _ in pairs)
    return {
        "ratio": round(evicted / sum(needed for _, needed in pairs), 4),
        "by_slicewise": sum(chosen.by_slicewise for chosen, _ in pairs),
        "by_slurm": sum(chosen.by_slurm for chosen, _ in pairs),
        "unserved_share": round(1 - len(pairs) / len(worlds), 4),
    }


def _of_policy(worlds: Sequence[Found], name: str) -> Mapping[str, float]:
    """Ratios of one policy; ``mean_beside_replicas``: ÷ the least set without batch jobs."""
    served = [one for one in worlds if name in one.evicted]
    ratios = [one.evicted[name] / one.needed for one in served if one.needed]
    asked = [one.evicted[name] / one.of_replicas for one in served if one.of_replicas]
    return {
        "mean": round(statistics.mean(ratios), 4),
        "p95": round(float(np.quantile(ratios, 0.95)), 4),
        "max": round(max(ratios), 4),
        "mean_beside_replicas": round(statistics.mean(asked), 4),
        "unserved_share": round(1 - len(served) / len(worlds), 4),
    }
