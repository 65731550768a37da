"""Reads everything that the planner of repartitioning uses: Slurm, its files, journal and
surveys.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.language.errors import InvalidInputError, OutsideError
from cluster.language.jobs import ALLOTTED, NodeView
from cluster.mig.inventory import Inventory
from cluster.mig.inventory_json import inventory_of
from cluster.settings.file import Settings
from cluster.settings.repartition import RepartitionSettings
from cluster.slurm.interface import Slurm
from slurm_plugin.mig.demand import in_use, move_s, repartition_s, room_of, waiting_for_instances
from slurm_plugin.mig.gpu_state import NodeLook, Past, lines_by_node, past
from slurm_plugin.mig.guaranteed_shapes import needs
from slurm_plugin.mig.planner import RepartitionTerms
from slurm_plugin.mig.problem import SiteObservation, SitePlanInput, inputs
from slurm_plugin.mig.steps import RepartitionStep
from slurm_plugin.quota.demand import has_gpus
from slurm_plugin.quota.types import Policy
from slurm_plugin.services.state import used_by_tenant
from slurm_plugin.slurm_config.gres import Device, ProfileKind, devices_of, types_by_kind
from slurm_plugin.slurm_config.node_lines import Positions, node_positions

if TYPE_CHECKING:
    from slurm_plugin.ledger.repartitions import NodeSurvey
    from slurm_plugin.ledger.store import Ledger


_HISTORY = 500
"""Newest repartitions that are read from the journal; no more than that fall within a horizon."""
_MOVE_S = 60
"""Seconds that a move is assumed to take until some were measured."""
_LATELY_S = 86_400
"""Seconds of past use that a tenant's guarantee may claim again: at night what it has by day."""


@dataclass(frozen=True)
class _OnDisk:
    surveys: "Mapping[str, NodeSurvey]"
    slurm_conf: Mapping[str, str]
    gres_conf: Mapping[str, str]
    past: Past
    policy: Policy
    step_seconds: Mapping[RepartitionStep, Sequence[float]]


async def gathered(settings: Settings, slurm: Slurm, ledger: "Ledger") -> SitePlanInput:
    """Read everything once.

    Raises SlicewiseError if Slurm, its accounting or the ledger does not answer, and
    InvalidInputError (SW-RECUT-CONF) if slurm.conf or gres.conf can't be read.
    """
    now_s, horizon_s = time.time(), settings.repartition.horizon_s
    partitions = frozenset(settings.cluster.partitions)
    since_s = int(now_s - horizon_s)
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
    types = types_by_kind(settings.boards_by_type, settings.whole_types)
    looks = await asyncio.to_thread(_looks, settings, on_disk, nodes, types, now_s)
    room = room_of(on_disk.policy, used_by_tenant(jobs, partitions, settings.costs))
    seen = SiteObservation(
        looks=looks,
        jobs=holding,
        indices=indices,
        waiting=tuple(waiting_for_instances(jobs, partitions, room, settings.costs, now_s)),
        in_use=in_use(runs, since_s, now_s),
        needed=needs(
            on_disk.policy, jobs, runs, partitions, costs=settings.costs, models=settings.models
        ),
        shapes=frozenset(kind for node in nodes if node.is_shapes for kind in node.gpus),
        past=on_disk.past,
        move_s=move_s(on_disk.step_seconds, _MOVE_S),
        at_s=now_s,
    )
    took_s = repartition_s(on_disk.step_seconds, settings.repartition.repartition_s)
    terms = RepartitionTerms(took_s, horizon_s, settings.repartition.nodes_at_once)
    return inputs(seen, types, terms)


def _on_disk(settings: Settings, ledger: "Ledger", now_s: float) -> _OnDisk:
    return _OnDisk(
        surveys=ledger.repartitions.inventories(),
        slurm_conf=lines_by_node(_text(settings.repartition.slurm_conf)),
        gres_conf=lines_by_node(_text(settings.repartition.gres_conf)),
        past=past(ledger.repartitions.unfinished(), ledger.repartitions.history(_HISTORY), now_s),
        policy=ledger.tenants.policy_in_force(now_s, settings.ledger.time_zone),
        step_seconds=ledger.repartitions.step_seconds(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            "SW-RECUT-CONF",
            f"{path} can't be read: {error}.",
            "Set slurm_conf and gres_conf of [repartition] in slicewise.toml to where they are.",
        ) from None


def _looks(
    settings: Settings,
    on_disk: _OnDisk,
    nodes: Sequence[NodeView],
    types: Mapping[ProfileKind, str],
    now_s: float,
) -> tuple[NodeLook, ...]:
    """Looks at all nodes with GPUs in managed partitions."""
    partitions = frozenset(settings.cluster.partitions)
    return tuple(
        NodeLook(
            node=node,
            inventory=inventory,
            age_s=now_s - survey.seen_s if survey is not None else 0.0,
            devices=_devices(settings.repartition, node.name, inventory, types),
            positions=_positions(on_disk, node.name),
        )
        for node in nodes
        if has_gpus(node, partitions)
        for survey in (on_disk.surveys.get(node.name),)
        for inventory in (_inventory(survey),)
    )


def _inventory(survey: "NodeSurvey | None") -> Inventory | None:
    """The survey's inventory; None without a survey, or if an older Slicewise wrote it."""
    try:
        return inventory_of(survey.inventory) if survey is not None else None
    except OutsideError:
        return None


def _devices(
    settings: RepartitionSettings,
    node: str,
    inventory: Inventory | None,
    types: Mapping[ProfileKind, str],
) -> Mapping[str, Sequence[Device]]:
    directory = settings.devices_of(node)
    if inventory is None:
        return {}
    return {
        gpu.uuid: tuple(devices_of(gpu, inventory.vendor, types, directory))
        for gpu in inventory.gpus
    }


def _positions(on_disk: _OnDisk, node: str) -> Positions | str:
    shared, own = on_disk.slurm_conf, on_disk.gres_conf
    try:
        return node_positions(shared.get(node, shared[""]), own.get(node, own[""]), node)
    except InvalidInputError as error:
        return error.refusal.message
