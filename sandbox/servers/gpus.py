"""The nodes' GPUs: an emulated NVIDIA driver for each node, and device files for Slurm to count."""

import ctypes
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from slicewise.cluster.gpu.apply import cut
from slicewise.cluster.gpu.node_files import capability_minors
from slicewise.cluster.gpu.nvml import read_inventory
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.sandbox.host.inventory import NODES, EmulatedNode, gpu_types
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.nvml.driver import DIRECTORY_VARIABLE, EmulatedDriver, EmulatedGpu
from slicewise.sandbox.nvml.library import library
from slicewise.slurm_plugin.rules.slurm_config.gres import Device, devices, types_by_kind
from slicewise.slurm_plugin.rules.slurm_config.node_lines import padded, positions, room

_NVIDIA_MAJOR = 195
_FIRST_MINOR = 4096
"""Far from the minor numbers of a real GPU."""
_CONFIG, _MONITOR = 1, 2
"""Minors of the capabilities that every MIG node has."""
_OF_FIRST = re.compile(r"gpu0/gi\d+(?:/ci0)?")


def make(layout: Layout, *, device_nodes: bool) -> Mapping[str, tuple[Device, ...]]:
    """Cut every node's GPU as in the inventory; return each node's devices for Slurm, with pads."""
    slots = {node.name: _make(layout, node, device_nodes=device_nodes) for node in NODES}
    for path in (layout.drivers, *layout.drivers.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return slots


def driver(layout: Layout, node: str) -> EmulatedDriver:
    """The emulated driver of a node."""
    return EmulatedDriver(layout.drivers / node)


def slices(layout: Layout) -> Mapping[str, Mapping[str, int]]:
    """Each node's MIG instances as they are cut now, by profile name."""
    return {node.name: _slices(layout, node.name) for node in NODES}


def _slices(layout: Layout, node: str) -> Mapping[str, int]:
    with _seen(layout, node):
        inventory = read_inventory(driver(layout, node).host_root)
    placements = [instance.placement for gpu in inventory.gpus for instance in gpu.instances]
    return dict(Counter(placement.profile for placement in placements))


def library_directory(layout: Layout) -> Path:
    """Where the emulated libnvidia-ml.so.1 is."""
    return library(layout.drivers).parent


def environment(layout: Layout, node: str) -> Mapping[str, str]:
    """What a process of the node needs to see its driver."""
    emulated = driver(layout, node)
    return {
        **emulated.environment(layout.drivers),
        "SLICEWISE_HOST_ROOT": str(emulated.host_root),
    }


def _make(layout: Layout, node: EmulatedNode, *, device_nodes: bool) -> tuple[Device, ...]:
    emulated = driver(layout, node.name)
    emulated.load([EmulatedGpu(node.gpu, serial=node.name)])
    _make_devices(layout.devices / node.name, emulated.host_root, nodes=device_nodes)
    with _seen(layout, node.name):
        (gpu,) = read_inventory(emulated.host_root).gpus
        cut(gpu.uuid, "", node.instances, emulated.host_root)
        return _slots(read_inventory(emulated.host_root), layout.devices / node.name)


def _slots(inventory: Inventory, directory: Path) -> tuple[Device, ...]:
    on = {kind: board(model) for model, kinds in gpu_types().items() for kind in kinds}
    found = devices(inventory, types_by_kind(on), str(directory))
    arranged = positions([None] * room(inventory), found, ())
    return padded(arranged, inventory.vendor, str(directory))


@contextmanager
def _seen(layout: Layout, node: str) -> Iterator[None]:
    """Let this process see that node's driver."""
    _loaded(library(layout.drivers))
    with patch.dict(os.environ, {DIRECTORY_VARIABLE: str(layout.drivers / node)}):
        yield


@cache
def _loaded(path: Path) -> ctypes.CDLL:
    # When pynvml loads the library by name later, it gets the one already loaded under that name.
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _make_devices(directory: Path, host_root: Path, *, nodes: bool) -> None:
    """Make the GPU's character devices; no driver is behind them.

    With ``nodes`` they are device nodes with NVIDIA's major number, which only root may make, and
    not in every container. Without, they are links to /dev/null: slurmd ignores a GPU that is not a
    character device.
    """
    (directory / "nvidia-caps").mkdir(parents=True, exist_ok=True)
    minors = capability_minors(host_root).items()
    own = (n for name, n in minors if _OF_FIRST.fullmatch(name))
    names = ("nvidia0", *(f"nvidia-caps/nvidia-cap{n}" for n in (_CONFIG, _MONITOR, *own)))
    for minor, name in enumerate(names, start=_FIRST_MINOR):
        if nodes:
            number = os.makedev(_NVIDIA_MAJOR, minor)
            os.mknod(directory / name, 0o666 | stat.S_IFCHR, number)
        else:
            (directory / name).symlink_to("/dev/null")


def device_nodes_work(directory: Path) -> bool:
    """Whether device nodes can be made here."""
    probe = directory / ".device"
    try:
        os.mknod(probe, 0o600 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, 0))
    except OSError:
        return False
    probe.unlink()
    return True
