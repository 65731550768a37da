"""Measures a simulated month: 1,000 GPUs, 100,000 jobs, 20 tenants, with Slicewise's rounds.

``slicewise simulate`` with a changed policy beside the present one, each in a process of its own:
the whole month at once, and nothing of it left out.
"""

import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import exp
from random import Random
from typing import Any

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import (
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.history.jobs import HistoryJob, in_order
from slicewise.simulation.rules.runs.experiment import Experiment
from slicewise.simulation.rules.runs.run_figures import Figures, SimulationResult
from slicewise.simulation.rules.site.plans import SlicewisePlan
from slicewise.simulation.runs.simulate import simulate
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Policy,
    Quota,
    Tenant,
)

NODES, GPUS_OF_NODE, TENANTS, USERS_OF_TENANT = 125, 8, 20, 10
LOAD = 0.9
"""GPU-hours that are asked for, as a share of those that the cluster has."""
_SEED = 20_261_127
_START_S = 1_790_812_800.0  # 2026-10-01 in UTC.
_DAY_S, _HOUR_S = 86_400.0, 3600
_JOBS_A_DAY, _DAYS, _QUICK_DAYS = 100_000 / 30, 30, 2
_GPUS = (1, 2, 4, 8, 16, 32)
_OF_GPUS = (60, 15, 12, 10, 2, 1)
"""How many of 100 jobs ask for so many GPUs."""
_SPREAD = 1.8
"""Standard deviation of the logarithm of run times: half of the jobs take a fifth of the mean."""
_SPREAD_OF_TENANTS = 6
"""The first so many tenants have 63 % of the jobs."""
_SHORTEST_S, _LONGEST_S = 10.0, 7 * _DAY_S
_ROUNDS = 50
"""In which the run times are scaled until they ask for the load, as far as the bounds let them."""
_LIMITS_S = tuple(hours * _HOUR_S for hours in (1, 4, 12, 24, 48, 96, 168))
_BUDGET_OF_USE = 1.2
"""A tenant's budget of a month beside what its jobs use, on average over seeds. Budgets by quota
would be used up by the middle of the month, and a fifth of all jobs would wait for its end."""
SETTINGS = Settings.model_validate(
    {
        "cluster": {"name": "month", "partitions": ["gpu"]},
        "gpus": {"A100-SXM4-80GB": {"whole": ["a100"]}},
    }
)
_GPU = SETTINGS.costs["a100"]


def cluster() -> SimulatedCluster:
    """125 nodes of 8 GPUs, where age and fair share count in priorities."""
    return SimulatedCluster(
        "month",
        tuple(
            SimulatedNode(f"n{i:03}", frozenset({"gpu"}), {"a100": GPUS_OF_NODE}, 64)
            for i in range(NODES)
        ),
        Scheduling(PriorityWeights(age=1000, fair_share=10_000)),
        accounts={_tenant(number): "root" for number in range(TENANTS)},
    )


def _tenant(number: int) -> str:
    return f"t{number:02}"


def tenants(*, is_changed: bool) -> Policy:
    """Quotas of 50 GPUs each, with budgets; changed, half of them give 10 to the other half.

    A budget follows a tenant's jobs, and not its quota.
    """
    found, month_s = {}, _DAYS * _DAY_S
    for number in range(TENANTS):
        gpus = NODES * GPUS_OF_NODE // TENANTS
        if is_changed:
            gpus += 10 if number % 2 else -10
        most, cost = MAX_NOMINAL_MILLISLICES, Millislices(gpus * _GPU)
        used = _share(number) * LOAD * NODES * GPUS_OF_NODE * _GPU * month_s
        budget = Budget(Period.MONTH, MillisliceSeconds(int(used * _BUDGET_OF_USE)))
        name = _tenant(number)
        found[name] = Tenant(name, "", Quota(cost, most, most), budget)
    return found


def _share(number: int) -> float:
    """The share of all jobs that are a tenant's, on average; the last one has what is left."""
    after = exp(-(number + 1) / _SPREAD_OF_TENANTS) if number < TENANTS - 1 else 0.0
    return exp(-number / _SPREAD_OF_TENANTS) - after


def jobs(days: int, seed: int) -> tuple[HistoryJob, ...]:
    """Jobs that come more often by day, and ask for ``LOAD`` of the cluster together."""
    draw = Random(seed)  # noqa: S311 -- a load, no secret
    found = list(_drawn(draw, int(days * _JOBS_A_DAY), days))
    wanted = LOAD * NODES * GPUS_OF_NODE * days * _DAY_S
    factor = 1.0
    for _ in range(_ROUNDS):
        asked = sum(sum(job.gpus.values()) * _run_s(job, factor) for job in found)
        factor *= wanted / asked
    return in_order(_scaled(job, factor, draw) for job in found)


def _drawn(draw: Random, count: int, days: int) -> Iterator[HistoryJob]:
    for number in range(count):
        tenant = min(int(draw.expovariate(1 / _SPREAD_OF_TENANTS)), TENANTS - 1)
        gpus = draw.choices(_GPUS, _OF_GPUS)[0]
        at_s = _START_S + (draw.randrange(days) + _hour(draw) / 24) * _DAY_S
        yield HistoryJob(
            job_id=number,
            user=f"u{tenant:02}_{draw.randrange(USERS_OF_TENANT)}",
            account=_tenant(tenant),
            partition="gpu",
            qos="normal",
            submit_s=at_s,
            run_s=draw.lognormvariate(0.0, _SPREAD),
            time_limit_s=None,
            gpus={"a100": gpus},
            nodes=max(1, gpus // GPUS_OF_NODE),
            cpus=4 * gpus,
        )


def _hour(draw: Random) -> float:
    """Two of three jobs come from 8 to 20."""
    hour = draw.uniform(0, 12)
    return hour + 8 if draw.random() < 2 / 3 else (hour + 20) % 24


def _run_s(job: HistoryJob, factor: float) -> float:
    return max(_SHORTEST_S, min(job.run_s * factor, _LONGEST_S))


def _scaled(job: HistoryJob, factor: float, draw: Random) -> HistoryJob:
    """The job with its time in seconds, and a limit that its user would have named."""
    run_s = _run_s(job, factor)
    wanted_s = run_s * draw.uniform(1.0, 4.0)
    limit_s = next((one for one in _LIMITS_S if one >= wanted_s), _LIMITS_S[-1])
    return replace(job, run_s=run_s, time_limit_s=limit_s)


def experiment(days: int, seed: int) -> Experiment:
    """The present policy beside a changed one, over all days in one part."""
    of = cluster()
    return Experiment(
        cluster=of,
        costs=SETTINGS.costs,
        jobs=jobs(days, seed),
        present=SlicewisePlan("present", SETTINGS, tenants(is_changed=False)),
        changed=SlicewisePlan("changed", SETTINGS, tenants(is_changed=True)),
        offsets=1,
        seed=seed,
    )


def _measure(quick: bool) -> Mapping[str, object]:
    days = _QUICK_DAYS if quick else _DAYS
    asked = experiment(days, _SEED)
    began_s, before = time.monotonic(), os.times()
    result = simulate(asked, processes=2)
    seconds, after = time.monotonic() - began_s, os.times()
    cpu_s = sum(after[:4]) - sum(before[:4])
    simulated = 2 * len(asked.jobs)
    return {
        "machine": machine(),
        "seed": _SEED,
        "days": days,
        "gpus": NODES * GPUS_OF_NODE,
        "tenants": TENANTS,
        "jobs": len(asked.jobs),
        "processes": 2,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "jobs_per_cpu_s": simulated / cpu_s,
        # Of the larger one of both processes.
        "memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "present": _figures(result.present),
        "changed": _figures(_changed(result)),
    }


def _changed(result: SimulationResult) -> Figures:
    if result.changed is None:
        raise AssertionError("the experiment has a changed plan")
    return result.changed


def _figures(found: Figures) -> Mapping[str, object]:
    names = ("jobs", "started", "refused", "utilisation", "wait_mean_s", "wait_p99_s", "late_jobs")
    return {name: getattr(found, name) for name in names}


def _show(report: Mapping[str, Any]) -> None:
    print(  # noqa: T201
        f"{report['days']} days of {report['gpus']} GPUs, {report['jobs']:,} jobs under two"
        f" policies: {report['seconds']:.0f} s, {report['cpu_s']:.0f} s of CPU,"
        f" {report['jobs_per_cpu_s']:.0f} jobs a CPU second, {report['memory_mib']:.0f} MiB each"
    )


if __name__ == "__main__":
    run("simulator", __doc__, "two days instead of 30", _measure, _show)
