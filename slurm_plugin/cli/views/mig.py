"""GPUs, instances and layouts, for people: a board is drawn as a bar of its memory slices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.gpus.gpu_faults import gpu_faults
from slicewise.cluster.language.gpus.inventory import Gpu, GpuProcess, Instance, Inventory
from slicewise.cluster.language.gpus.layouts import Layout, Placement
from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.slurm_plugin.cli.views.texts import NOTHING

_SLICE_WIDTH = 4
"""Width of a memory slice in characters: ``[1g]``."""
_FREE, _HELD, _IDLE = "dim", "bold yellow", "green"


def node_report(inventory: Inventory) -> RenderableType:
    """All boards, then the instances on them."""
    parts: list[RenderableType] = [Text(f"{inventory.vendor} driver {inventory.driver}")]
    if inventory.gpus:
        parts.append(_gpus_table(inventory.gpus, inventory.vendor))
    cut = [(gpu, instance) for gpu in inventory.gpus for instance in gpu.instances]
    if cut:
        parts.append(_instances_table(cut))
    return Group(*parts)


def survey_table(inventories: Mapping[str, Inventory]) -> FittingTable:
    """How the GPUs of these nodes are cut: a line per GPU."""
    seen = [(node, gpu) for node, inventory in inventories.items() for gpu in inventory.gpus]
    vendors = {node: inventory.vendor for node, inventory in inventories.items()}
    names = [gpu.name.removeprefix(f"{vendors[node]} ") for node, gpu in seen]
    return FittingTable(
        (
            column("node", (node for node, _ in seen)),
            column("GPU", (gpu.index for _, gpu in seen), right=True),
            column("name", names, brief=map(_short, names), rank=2),
            column("memory slices", (_gpu_bar(gpu) for _, gpu in seen)),
            column("health", (_health(gpu) for _, gpu in seen), rank=1),
        )
    )


@dataclass(frozen=True)
class SurveyedLayout:
    """A GPU; ``instances``, and those of them that are held, are as ``1g.10gb@0,3g.40gb@4``."""

    node: str
    gpu: str
    index: int
    name: str
    mig: bool
    instances: str
    held: str


def surveyed_gpus(inventories: Mapping[str, Inventory]) -> list[SurveyedLayout]:
    """Every GPU of these nodes."""
    return [
        SurveyedLayout(
            node,
            gpu.uuid,
            gpu.index,
            gpu.name,
            gpu.mig,
            placements_text(instance.placement for instance in gpu.instances),
            placements_text(instance.placement for instance in gpu.instances if instance.holders),
        )
        for node, inventory in inventories.items()
        for gpu in inventory.gpus
    ]


def _gpus_table(gpus: Sequence[Gpu], vendor: str) -> FittingTable:
    names = [gpu.name.removeprefix(f"{vendor} ") for gpu in gpus]
    return FittingTable(
        (
            column("GPU", (gpu.index for gpu in gpus), right=True),
            column("name", names, brief=map(_short, names)),
            column("memory slices", map(_gpu_bar, gpus)),
            column("health", map(_health, gpus)),
            column("used MiB", map(_memory, gpus), right=True, rank=2),
            column("W", map(_power, gpus), right=True, rank=4),
            column("°C", (_or_nothing(gpu.temperature_c) for gpu in gpus), right=True, rank=3),
        )
    )


def _short(name: str) -> str:
    return " ".join(name.replace("-", " ").split()[:3])


def _gpu_bar(gpu: Gpu) -> Text:
    if gpu.board is None:
        return Text("can't be cut", style=_FREE)
    if not gpu.mig:
        held = f"held by {_holders(gpu.holders)}" if gpu.holders else "whole"
        return Text(f"MIG is off, {held}", style=_HELD if gpu.holders else _FREE)
    held_at = {instance.placement.start for instance in gpu.instances if instance.holders}
    return bar(gpu.board.memory_slices, [instance.placement for instance in gpu.instances], held_at)


def bar(memory_slices: int, layout: Iterable[Placement], held_at: Iterable[int] = ()) -> Text:
    """Draw ``[1g][1g] ·  · [    3g.40gb   ]``; instances that start at ``held_at`` stand out."""
    text, at = Text(), 0
    for one in sorted(layout, key=lambda placement: placement.start):
        text.append(_free_slices(one.start - at), style=_FREE)
        text.append(_block(one), style=_HELD if one.start in held_at else _IDLE)
        at = one.start + one.size
    return text.append(_free_slices(memory_slices - at), style=_FREE)


def _free_slices(count: int) -> str:
    return " ·  " * count


def _block(placement: Placement) -> str:
    room = placement.size * _SLICE_WIDTH - 2
    label = placement.profile if len(placement.profile) <= room else placement.profile[:room]
    return f"[{label.partition('.')[0] if len(placement.profile) > room else label:^{room}}]"


def _memory(gpu: Gpu) -> str:
    return f"{gpu.memory_used_mib:,}/{gpu.memory_mib:,}"


def _power(gpu: Gpu) -> object:
    if gpu.power_mw is None:
        return NOTHING
    limit = f"/{gpu.power_limit_mw // 1000}" if gpu.power_limit_mw else ""
    return f"{gpu.power_mw // 1000}{limit}"


def _or_nothing(value: object) -> object:
    return NOTHING if value is None else value


def _health(gpu: Gpu) -> Text:
    """Whether the GPU has faults; they are printed below the table."""
    return Text("faults", style="red") if gpu_faults(gpu) else Text("good", style=_IDLE)


def _instances_table(cut: Sequence[tuple[Gpu, Instance]]) -> FittingTable:
    instances = [placement for _, placement in cut]
    return FittingTable(
        (
            column("GPU", (gpu.index for gpu, _ in cut), right=True),
            column("GI", (instance.gi_id for instance in instances), right=True),
            column("profile", (instance.placement.profile for instance in instances)),
            column("slices", map(_extent, instances), right=True),
            column(
                "MiB",
                (_or_nothing(instance.memory_mib) for instance in instances),
                right=True,
                rank=3,
            ),
            column("MIG device", map(_devices, instances), rank=2),
            column("caps", map(_capabilities, instances), rank=4),
            column("held by", (_holders(instance.holders) or NOTHING for instance in instances)),
        )
    )


def _extent(instance: Instance) -> str:
    placement = instance.placement
    return f"{placement.start}:{placement.size}"


def _devices(instance: Instance) -> object:
    return ", ".join(compute.uuid for compute in instance.computes) or NOTHING


def _capabilities(instance: Instance) -> str:
    minors = (instance.minor, *(compute.minor for compute in instance.computes))
    return ",".join(str(_or_nothing(minor)) for minor in minors)


def _holders(holders: Sequence[GpuProcess]) -> str:
    jobs = dict.fromkeys(f"job {holder.job_id}" for holder in holders if holder.job_id is not None)
    strays = (f"pid {holder.pid}" for holder in holders if holder.job_id is None)
    return ", ".join((*jobs, *strays))


def profiles_table(found: Sequence[tuple[Board, MigProfile]]) -> FittingTable:
    """A line per profile of each board."""
    profiles = [profile for _, profile in found]
    return FittingTable(
        (
            column("GPU model", (board.model for board, _ in found)),
            column("profile", (profile.name for profile in profiles)),
            column("id", (profile.gi_profile_id for profile in profiles), right=True, rank=2),
            column(
                "compute", (f"{profile.compute_slices}/{b.compute_slices}" for b, profile in found)
            ),
            column(
                "memory", (f"{profile.memory_slices}/{b.memory_slices}" for b, profile in found)
            ),
            column(
                "MiB", (_or_nothing(profile.memory_mib) for profile in profiles), right=True, rank=3
            ),
            column(
                "SMs",
                (_or_nothing(profile.multiprocessors) for profile in profiles),
                right=True,
                rank=4,
            ),
            column("starts", (" ".join(map(str, profile.starts)) for profile in profiles)),
            column("at most", (profile.max_instances for profile in profiles), right=True, rank=1),
            column("sources", (", ".join(profile.sources) for profile in profiles), rank=5),
        )
    )


def layouts_table(board: Board, layouts: Sequence[Layout]) -> FittingTable:
    """A line per layout: where instances lie, and how many there are of each profile."""
    return FittingTable(
        (
            column("memory slices", (bar(board.memory_slices, layout) for layout in layouts)),
            column("instances", map(counts_text, layouts)),
        )
    )


def counts_text(layout: Iterable[Placement]) -> object:
    """``1 × 3g.40gb, 3 × 1g.10gb``, the largest first."""
    by_size = sorted(layout, key=lambda placement: (-placement.size, placement.profile))
    names = [placement.profile for placement in by_size]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or NOTHING
