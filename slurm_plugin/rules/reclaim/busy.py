"""Finds jobs within guaranteed quotas whose GPUs other jobs within guaranteed quotas hold.

No loan keeps these jobs waiting, and none that goes back would start them. So what they will need
of their tenants' quotas may be lent meanwhile.
"""

from collections import Counter
from collections.abc import Mapping

from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.quota.demand import within_guarantees
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, Shape
from slicewise.slurm_plugin.rules.quota.nodes import gpus_on_nodes
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_types
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.reclaim.startable import FreeInstances


def busy_tasks(
    policy: Policy, by_holder: JobsByHolder, free: Mapping[str, Mapping[str, int]]
) -> Mapping[int, int]:
    """How many tasks of each job, by its id, find their GPUs neither free nor on loan.

    They are those that guaranteed quotas pay for. ``free`` are instances by node and type that
    Slurm shows as free; jobs take what there is in Slurm's order. Jobs of a type that their
    tenants' guarantees name are left out: a GPU is cut for them at once.
    """
    waiting = within_guarantees(by_holder, policy)
    if not waiting:
        return {}
    types = guaranteed_types(policy)
    within_reach = {node: Counter(counts) for node, counts in free.items()}
    for (_, qos), runs in by_holder.held.places.items():
        for run in runs if is_borrowed(qos) else ():
            for node, gpus in gpus_on_nodes(run.job):
                if node in within_reach:
                    within_reach[node].update(gpus)
    left, nowhere, busy = FreeInstances(within_reach), set[tuple[Shape, int]](), Counter[int]()
    for job in waiting:
        if job.alike in nowhere or not left.place(job):
            nowhere.add(job.alike)
            is_named = job.gpus.keys() <= types.get(job.tenant, {}).keys()
            busy[job.job_id] += not is_named
    return +busy
