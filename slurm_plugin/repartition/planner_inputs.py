"""Reads everything that the planner of repartitioning uses: Slurm, its files, journal and
surveys.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.gpus.repartitions import (
    RepartitionStep,
)
from slicewise.cluster.language.jobs import ALLOTTED
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.mig.gpu_state import Past, past
from slicewise.slurm_plugin.rules.mig.guaranteed_shapes import needs
from slicewise.slurm_plugin.rules.mig.instance_demand import (
    MOVE_S,
    REPARTITION_S,
    in_use,
    move_s,
    owed_tasks,
    preempting,
    repartition_s,
    room_of,
    waiting_for_instances,
)
from slicewise.slurm_plugin.rules.mig.planner import HORIZON_S, RepartitionTerms
from slicewise.slurm_plugin.rules.mig.problem import SiteObservation, SitePlanInput, inputs
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import free_on_nodes
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.reclaim.busy import busy_tasks
from slicewise.slurm_plugin.rules.services.state import used_by_tenant
from slicewise.slurm_plugin.state.node_looks import NodeRecords, node_looks, node_records, types_of

_HISTORY = 500
"""Newest repartitions that are read from the journal; no more than that fall within a horizon."""
_LATELY_S = 86_400
"""Seconds of past use that a tenant's guarantee may claim again: at night what it has by day."""


@dataclass(frozen=True)
class _OnDisk:
    records: NodeRecords
    past: Past
    policy: Policy
    step_seconds: Mapping[RepartitionStep, Sequence[float]]


async def gathered(settings: Settings, slurm: Slurm, ledger: Ledger) -> SitePlanInput:
    """Read everything once.

    Raises SlicewiseError if Slurm, its accounting or the ledger does not answer, and
    InvalidInputError (SW-REPARTITION-CONF) if slurm.conf or gres.conf can't be read.
    """
    now_s = wall_s()
    partitions = frozenset(settings.cluster.partitions)
    since_s = int(now_s - HORIZON_S)
    on_disk, jobs, runs = await asyncio.gather(
        asyncio.to_thread(_on_disk, settings, ledger, now_s),
        slurm.jobs(),
        slurm.runs(min(since_s, int(now_s - _LATELY_S))),
    )
    holding = tuple(job for job in jobs if job.state in ALLOTTED)
    indices = await slurm.devices(holding)
    # Read nodes after jobs: a job that started in between is then seen as holding its GPUs and is
    # left alone.
    nodes = await slurm.nodes()
    looks = await asyncio.to_thread(node_looks, settings, on_disk.records, nodes, now_s)
    room = room_of(on_disk.policy, used_by_tenant(jobs, partitions, settings.costs))
    by_holder = jobs_by_holder(jobs, partitions, settings.costs, settings.models)
    owed = owed_tasks(on_disk.policy, by_holder)
    seen = SiteObservation(
        looks=looks,
        jobs=holding,
        indices=indices,
        waiting=tuple(
            waiting_for_instances(
                jobs,
                partitions,
                room,
                settings.costs,
                now_s,
                owed=owed,
                busy=busy_tasks(on_disk.policy, by_holder, free_on_nodes(nodes, partitions)),
            )
        ),
        in_use=in_use(runs, since_s, now_s),
        needed=needs(
            on_disk.policy, jobs, runs, partitions, costs=settings.costs, models=settings.models
        ),
        shapes=frozenset(kind for node in nodes if node.is_shapes for kind in node.gpus),
        past=on_disk.past,
        move_s=move_s(on_disk.step_seconds, MOVE_S),
        term_s=settings.lending.term_s,
        preempting=preempting(on_disk.policy, by_holder) if owed else {},
        at_s=now_s,
    )
    took_s = repartition_s(on_disk.step_seconds, REPARTITION_S)
    terms = RepartitionTerms(took_s, HORIZON_S, settings.repartition.nodes_at_once)
    return inputs(seen, types_of(settings), terms)


def _on_disk(settings: Settings, ledger: Ledger, now_s: float) -> _OnDisk:
    return _OnDisk(
        records=node_records(settings, ledger),
        past=past(ledger.repartitions.unfinished(), ledger.repartitions.history(_HISTORY), now_s),
        policy=ledger.tenants.policy_in_force(now_s, settings.ledger.time_zone),
        step_seconds=ledger.repartitions.step_seconds(),
    )
