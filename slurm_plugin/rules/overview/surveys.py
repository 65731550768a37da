"""Finds where the instances of surveyed GPUs lie, and which index Slurm has for each."""

from collections.abc import Iterable, Iterator, Mapping

from slicewise.cluster.language.gpus.inventory import Gpu
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.slurm_plugin.rules.mig.gpu_state import NodeLook, devices_at
from slicewise.slurm_plugin.rules.overview.overview_facts import SurveyedGpu

_SLICES = 8
"""Length of a GPU of which no board is known."""


def surveyed_gpus(looks: Iterable[NodeLook]) -> Mapping[str, tuple[SurveyedGpu, ...]]:
    """Return the GPUs of each node whose last survey is as Slurm's files have the node."""
    by_node = {look.node.name: tuple(_gpus(look)) for look in looks if _is_as_slurm_has_it(look)}
    return {name: gpus for name, gpus in by_node.items() if gpus}


def _is_as_slurm_has_it(look: NodeLook) -> bool:
    if look.inventory is None or isinstance(look.positions, str):
        return False
    return {device for those in look.devices.values() for device in those} == look.indices.keys()


def _gpus(look: NodeLook) -> Iterator[SurveyedGpu]:
    for gpu in look.inventory.gpus if look.inventory is not None else ():
        slices = gpu.board.memory_slices if gpu.board is not None else _SLICES
        yield SurveyedGpu(gpu.index, slices, tuple(_places(look, gpu, slices)))


def _places(look: NodeLook, gpu: Gpu, slices: int) -> Iterator[tuple[Placement, int | None]]:
    if gpu.mig:
        devices = devices_at(look, gpu)
        for instance in gpu.instances:
            device = devices.get(instance.placement)
            yield instance.placement, None if device is None else look.indices[device]
    else:
        (device,) = look.devices[gpu.uuid]
        yield Placement("", 0, slices), look.indices[device]
