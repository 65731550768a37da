"""Jobs, nodes and tenants for the tests of ``slicewise why``; the time is second 10,000."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from builders.jobs import a_job
from builders.nodes import a_node
from builders.tenants import policy_of
from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.free_instances import free_instances
from slicewise.slurm_plugin.rules.explain.headroom import Situation
from slicewise.slurm_plugin.rules.explain.shortage import WhyInput
from slicewise.slurm_plugin.rules.quota.demand import held
from slicewise.slurm_plugin.rules.quota.standings import QosUse, by_use, less_elsewhere, standings
from slicewise.slurm_plugin.rules.quota.types import Loan, Tenant

NOW_S = 10_000
SMALL, LARGE = "1g.10gb", "3g.40gb"
COSTS = {SMALL: Millislices(1000), LARGE: Millislices(3500)}
GPU = frozenset({"gpu"})


def job(number: int, reason: str = "None", **changes: Any) -> JobView:
    """A waiting job of user alice in tenant vision, in vision's own QOS."""
    fields = {"name": "bert", "reason": reason, "priority": 1000}
    return a_job(number, **(fields | changes))


def running(number: int, ends_s: int | None = NOW_S + 600, **changes: Any) -> JobView:
    """A job that has run on node1 for 100 s; its limit is at ``ends_s``, and None is no limit."""
    limit_s = None if ends_s is None else ends_s - NOW_S + 100
    fields = {"nodes": ("node1",), "start_s": NOW_S - 100, "time_limit_s": limit_s}
    return job(number, **({"state": JobState.RUNNING} | fields | changes))


def _use(jobs: Iterable[JobView]) -> QosUse:
    """What those that run hold, by QOS, and what those in tenants' own QOS wait for."""
    held, waiting = Counter[str](), Counter[str]()
    for one in jobs:
        cost = run_cost(one.gpus, COSTS)
        (held if one.state in ALLOTTED else waiting)[one.qos] += cost
    return QosUse(held, waiting)


def task(job: JobView, index: int) -> JobView:
    return replace(job, array_job_id=814, task_index=index)


def sight(
    *jobs: JobView,
    tenants: tuple[Tenant, ...],
    loans: Mapping[tuple[str, str], int] | None = None,
    allotted: int = 0,
    available: Mapping[str, int] | None = None,
    **more: Any,
) -> WhyInput:
    """A sight of one node with ten instances of 1g.10gb; ``allotted`` of these are allotted."""
    policy = policy_of(*tenants)
    found = [Loan(*ends, Millislices(amount)) for ends, amount in (loans or {}).items()]
    holds = held(jobs, GPU)
    node = a_node("node1", gpus={SMALL: 10}, gpus_allotted={SMALL: allotted}, partitions=GPU)
    return WhyInput(
        now_s=NOW_S,
        jobs=jobs,
        nodes=(node,),
        partitions=GPU,
        situation=Situation(
            policy=policy,
            standings=less_elsewhere(
                by_use(standings(policy, found, more.get("recalls", ())), _use(jobs)),
                {name: run_cost(one.elsewhere, COSTS) for name, one in holds.items()},
            ),
            held=holds,
            free=free_instances([node]),
            costs=COSTS,
            models=dict.fromkeys(COSTS, "A100-80GB"),
            available_millislice_s=available or {},
        ),
        **{"resets_s": {}, "notes": {}, "reports": {}, "refusals": {}, **more},
    )
