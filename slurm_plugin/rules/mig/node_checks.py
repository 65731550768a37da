"""Checks of a node against a planned repartition: blocking jobs, feasibility, completion."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from slicewise.cluster.language.gpus.inventory import ComputeInstance, Gpu, Instance, Inventory
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
)
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.node_states import INVALID, UNFIT
from slicewise.slurm_plugin.rules.mig.planner import GpuPlan
from slicewise.slurm_plugin.rules.slurm_config.gres import Device
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_UNKNOWN_MINOR = 1 << 20
"""Capabilities from this number on stand for instances that do not exist yet."""


def planned(step: GpuPlan, instances: Collection[Placement]) -> PlannedRepartition:
    """Turn a step of the plan into a repartition of a GPU that has these instances now."""
    kept = set(instances) - set(step.destroy)
    return PlannedRepartition(
        node=step.node,
        gpu=step.gpu,
        before=tuple(sorted(instances, key=_by_start)),
        after=tuple(sorted((*kept, *step.create), key=_by_start)),
        moves=step.moves,
        ends=step.ends,
        reason=step.reason,
        gain_millislice_s=step.gain_millislice_s,
        drained_millislice_s=step.drained_millislice_s,
    )


def layout_of(inventory: Inventory, gpu_uuid: str) -> tuple[Placement, ...]:
    """The instances of that GPU, by start; () also if the GPU is lost."""
    placements = (
        instance.placement
        for gpu in inventory.gpus
        if gpu.uuid == gpu_uuid
        for instance in gpu.instances
    )
    return tuple(sorted(placements, key=_by_start))


def _by_start(placement: Placement) -> int:
    return placement.start


def with_layout(inventory: Inventory, gpu_uuid: str, layout: Collection[Placement]) -> Inventory:
    """The inventory as it will be with that GPU cut into ``layout``.

    New instances get capability numbers that no other instance has.
    """
    gpus = (
        replace(gpu, instances=_instances(gpu, layout)) if gpu.uuid == gpu_uuid else gpu
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=tuple(gpus))


def with_gpu(inventory: Inventory, gpu: Gpu) -> Inventory:
    """The inventory with that GPU replaced."""
    gpus = (gpu if other.uuid == gpu.uuid else other for other in inventory.gpus)
    return replace(inventory, gpus=tuple(gpus))


def only(inventory: Inventory, gpu_uuid: str, layout: Collection[Placement]) -> Inventory:
    """The inventory reduced to that GPU and its instances that are in the layout."""
    gpus = (
        replace(
            gpu,
            instances=tuple(instance for instance in gpu.instances if instance.placement in layout),
        )
        for gpu in inventory.gpus
        if gpu.uuid == gpu_uuid
    )
    return replace(inventory, gpus=tuple(gpus))


def _instances(gpu: Gpu, layout: Collection[Placement]) -> tuple[Instance, ...]:
    made = {instance.placement: instance for instance in gpu.instances}
    return tuple(
        made.get(placement) or _unmade(placement) for placement in sorted(layout, key=_by_start)
    )


def _unmade(placement: Placement) -> Instance:
    minor = _UNKNOWN_MINOR + 2 * placement.start
    compute = ComputeInstance(0, "", minor + 1, ())
    return Instance(0, placement, None, minor, (compute,))


def indices_of(positions: Sequence[Device | None], devices: Collection[Device]) -> frozenset[int]:
    """Slurm's indices of these devices on their node."""
    files = {device.files for device in devices}
    return frozenset(
        index
        for index, device in enumerate(positions)
        if device is not None and device.files in files
    )


def unfit(node: NodeView) -> str:
    """Why nothing can be done on a node; "" if something can."""
    return ", ".join(state for state in UNFIT if state in node.states)


def is_invalid(node: NodeView) -> bool:
    """Whether the node's slurmd has other GPUs than slurmctld knows."""
    return not node.states.isdisjoint(INVALID)


def are_indices_known(node: NodeView) -> bool:
    """Whether Slurm reports the index of each GPU that jobs hold."""
    return len(node.gpus_held) >= sum(node.gpus_allotted.values())


def differences(node: NodeView | None, positions: Sequence[Device | None]) -> Iterator[str]:
    """Differences between slurmctld's node and the devices that Slurm's files give it."""
    if node is None:
        yield "Slurm has no such node"
        return
    if words := unfit(node):
        yield words
    wanted = Counter(position.gres_type for position in positions if position is not None)
    has = {name: count for name, count in node.gpus.items() if count and not is_pad(name)}
    if has != wanted:
        yield f"Slurm has {_counts(has)}, not {_counts(wanted)}"


def _counts(by_type: Mapping[str, int]) -> str:
    return ",".join(f"gpu:{name}:{count}" for name, count in sorted(by_type.items())) or "no GPU"


def change_text(before: Sequence[Placement], after: Sequence[Placement]) -> str:
    """Text of a change: what is destroyed and what is created, as ``2 1g.10gb to 2g.20gb@0``."""
    gone = [placement for placement in before if placement not in after]
    new = [placement for placement in after if placement not in before]
    return f"{_counted(gone) or 'free slices'} to {_counted(new) or 'free slices'}"


def _counted(placements: Sequence[Placement]) -> str:
    """Placements as text: the number of several of one profile; the place of a single one."""
    counts = Counter(placement.profile for placement in sorted(placements, key=_by_start))
    alone = {placement.profile: placements_text([placement]) for placement in placements}
    words = (f"{n} {name}" if n > 1 else alone[name] for name, n in counts.items())
    return ", ".join(words)
