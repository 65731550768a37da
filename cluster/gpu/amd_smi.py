"""Reads a node's AMD GPUs by AMD's management library (its Python package amdsmi).

The module is a ``Driver``. The package is an extra: it is imported when the driver is opened, since
importing it loads libamd_smi.so. Partitions appear there as devices of their own; those with one
PCI device are one GPU. The modes are the driver's; compute units and memory are the table's, as
what amd-smi says of a partition's memory differs by version (ROCm/ROCm#4750, ROCm/amdsmi#97).

Modes are never changed: a mode is the whole GPU's, the memory mode that of all GPUs of a node, and
the kernel's driver is loaded again for it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from slicewise.cluster.gpu import node_files
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, SlicewiseError, UnreachableError
from slicewise.cluster.language.gpus.amd import Amd
from slicewise.cluster.language.gpus.inventory import (
    ComputeInstance,
    Gpu,
    GpuProcess,
    Health,
    Instance,
    Inventory,
    LostGpu,
)
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile, boards, model_of

_MIB = 1024 * 1024
_NOT_SUPPORTED, _NO_PERMISSION = 2, 10
_PCI_DEVICE = re.compile(r"(.*)\.[0-7]")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,63}")
_ABSENT = (18, 34)
"""AMDSMI_STATUS_INIT_ERROR and _DRIVER_NOT_LOADED: the host has no such GPU."""


@dataclass(frozen=True)
class _Partition:
    """A device of amd-smi: a GPU, or a part of one.

    Attributes:
        number: the partition's number on its GPU.
        render: number of its render node, /dev/dri/renderD<render>.
    """

    handle: Any
    pci_bus_id: str
    number: int
    render: int


@contextmanager
def opened() -> Iterator[None]:
    """Keep AMD's library open, and turn its errors into the project's own.

    Raises UnreachableError (SW-DRIVER-MISSING) if this host has no AMD GPU or lacks AMD's package,
    OutsideError (SW-DRIVER) if the driver answers with an error.
    """
    smi = _package()
    try:
        smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except smi.AmdSmiLibraryException as error:
        if error.get_error_code() in _ABSENT:
            raise _missing(_words(error)) from None
        raise _failure(error) from None
    try:
        yield
    except smi.AmdSmiLibraryException as error:
        raise _failure(error) from None
    finally:
        with suppress(smi.AmdSmiLibraryException):
            smi.amdsmi_shut_down()


def _package() -> ModuleType:
    """AMD's package. Where there is no library, it prints so and fails in one of several ways."""
    try:
        with redirect_stdout(StringIO()):
            import amdsmi  # noqa: PLC0415 -- it is an extra, and loads the library
    except (AttributeError, ImportError, KeyError, OSError) as error:
        raise _missing(f"AMD's Python package amdsmi can't be loaded ({error})") from None
    package: ModuleType = amdsmi
    return package


def _missing(why: str) -> UnreachableError:
    """Say that it is missing, not broken: the AMD GPU may be a login host's, for graphics."""
    if not node_files.has_amd_gpus(node_files.ROOT):
        return UnreachableError(
            Code.DRIVER_MISSING,
            f"No AMD driver answers on this host: {why}.",
            "Run it on a GPU node where amd-smi works.",
        )
    return UnreachableError(
        Code.DRIVER_MISSING,
        f"No NVIDIA driver answers on this host, and its AMD GPU can't be read: {why}.",
        "On a node with AMD's GPUs, install AMD's package of the node's ROCm for Slicewise's"
        " Python: pip install /opt/rocm/share/amd_smi. Else run it on a GPU node.",
    )


def _failure(error: Any) -> SlicewiseError:
    hint = (
        "Run it as root."
        if error.get_error_code() == _NO_PERMISSION
        else "See the kernel's log (dmesg), and amd-smi static."
    )
    return OutsideError(Code.DRIVER, f"The AMD driver answered: {_words(error)}.", hint)


def _words(error: Any) -> str:
    return str(error.get_error_info()).rstrip(".")


def read_inventory(root: Path) -> Inventory:
    """Read the node's GPUs, changing nothing; ``root`` is where the node's /proc is.

    The driver is open. Raises what AMD's package raises if the GPUs can't be listed; a GPU that
    does not answer is part of the inventory.
    """
    smi = _package()
    by_gpu: defaultdict[str, list[Any]] = defaultdict(list)
    for handle in smi.amdsmi_get_processor_handles():
        bus_id = smi.amdsmi_get_gpu_device_bdf(handle)
        by_gpu[_PCI_DEVICE.sub(r"\1", bus_id)].append(handle)
    gpus: list[Gpu] = []
    lost: list[LostGpu] = []
    for index, handles in enumerate(by_gpu.values()):
        try:
            gpus.append(_gpu(smi, index, handles, root))
        except smi.AmdSmiLibraryException as error:
            if error.get_error_code() == _NO_PERMISSION:
                raise
            lost.append(LostGpu(index, _words(error)))
        except OutsideError as error:
            lost.append(LostGpu(index, error.refusal.message.removesuffix(".")))
    return Inventory(_version(smi, by_gpu.values()), tuple(gpus), tuple(lost), Amd.vendor)


def change(
    gpu_uuid: str, going: Collection[int], coming: Collection[Placement], root: Path
) -> None:
    """Refuse: raises OutsideError (SW-NODE-GPU)."""
    del going, coming, root
    raise OutsideError(
        Code.NODE_GPU,
        f"GPU {gpu_uuid} has one mode for all of it, which Slicewise does not change.",
        "Change it on an empty node: amd-smi set --help",
    )


def _version(smi: ModuleType, gpus: Collection[Sequence[Any]]) -> str:
    versions = (smi.amdsmi_get_gpu_driver_info(handles[0])["driver_version"] for handles in gpus)
    match = _VERSION.search(next(versions, ""))
    return match[0] if match else "0"


def _gpu(smi: ModuleType, index: int, handles: Sequence[Any], root: Path) -> Gpu:
    parts = sorted((_partition(smi, handle) for handle in handles), key=lambda board: board.number)
    first = parts[0].handle
    uuid = smi.amdsmi_get_gpu_device_uuid(first).lower()
    asic = smi.amdsmi_get_gpu_asic_info(first)
    device_id = int(asic["device_id"], 16)
    profile, board = _modes(smi, first, device_id, len(parts))
    usage = smi.amdsmi_get_gpu_vram_usage(first)
    power_w = _number(_reading(smi, smi.amdsmi_get_power_info, first), "current_socket_power")
    return Gpu(
        index=index,
        name=asic["market_name"],
        uuid=uuid,
        pci_bus_id=parts[0].pci_bus_id,
        pci_device_id=device_id,
        minor=parts[0].render,
        board=board,
        mig=profile is not None,
        mig_pending=profile is not None,
        memory_mib=(_memory_mib(board) if board is not None else None) or usage["vram_total"],
        memory_used_mib=usage["vram_used"],
        power_mw=None if power_w is None else power_w * 1000,
        power_limit_mw=None,
        temperature_c=_temperature_c(smi, first),
        health=_health(smi, first),
        instances=_instances(smi, profile, uuid, parts, root) if profile is not None else (),
        holders=() if profile is not None else _holders(smi, first, root),
    )


def _partition(smi: ModuleType, handle: Any) -> _Partition:
    number = smi.amdsmi_get_gpu_kfd_info(handle)["current_partition_id"]
    render = smi.amdsmi_get_gpu_enumeration_info(handle)["drm_render"]
    if not isinstance(render, int):
        raise OutsideError(Code.DRIVER, f"Partition {number} has no render node in /dev/dri.")
    bus_id = smi.amdsmi_get_gpu_device_bdf(handle)
    return _Partition(handle, bus_id, number if isinstance(number, int) else 0, render)


def _modes(
    smi: ModuleType, first: Any, device_id: int, partitions: int
) -> tuple[MigProfile, Board] | tuple[None, None]:
    """The profile that all partitions have, and the board with it; None for a GPU without modes.

    A GPU in modes that the table lacks has a profile of its own: its part of all compute units.
    Raises OutsideError (SW-DRIVER) if the driver shows fewer partitions than the modes have.
    """
    compute = _reading(smi, smi.amdsmi_get_gpu_compute_partition, first)
    memory = _reading(smi, smi.amdsmi_get_gpu_memory_partition, first)
    on = boards().get(model_of(device_id) or "")
    name = f"{compute}.{memory}".lower()
    if on is None or re.fullmatch(Amd.profile, name) is None:
        return None, None
    profile = on.profiles.get(name) or _beside_table(name, on, partitions)
    if profile.max_instances != partitions:
        raise OutsideError(
            Code.DRIVER,
            f"{compute} with {memory} has {profile.max_instances} partitions, but the driver shows"
            f" {partitions}.",
        )
    return profile, replace(on, profiles={**on.profiles, name: profile})


def _beside_table(name: str, on: Board, partitions: int) -> MigProfile:
    slices = max(1, on.compute_slices // partitions)
    whole_mib = _memory_mib(on)
    return MigProfile(
        name=name,
        compute_slices=slices,
        memory_slices=slices,
        memory_mib=None if whole_mib is None else whole_mib // partitions,
        starts=tuple(range(0, slices * partitions, slices)),
        max_instances=partitions,
        gi_profile_id=255,
        sources=("amdsmi",),
    )


def _memory_mib(on: Board) -> int | None:
    return on.profiles[Amd.uncut].memory_mib


def _instances(
    smi: ModuleType, profile: MigProfile, uuid: str, parts: Sequence[_Partition], root: Path
) -> tuple[Instance, ...]:
    return tuple(
        Instance(
            gi_id=part.number,
            placement=Placement(profile.name, start, profile.memory_slices),
            memory_mib=profile.memory_mib,
            minor=part.render,
            computes=(
                ComputeInstance(
                    0, f"{uuid}/{part.number}", part.render, _holders(smi, part.handle, root)
                ),
            ),
        )
        for part, start in zip(parts, profile.starts, strict=True)
    )


def _holders(smi: ModuleType, handle: Any, root: Path) -> tuple[GpuProcess, ...]:
    processes = _reading(smi, smi.amdsmi_get_gpu_process_list, handle) or []
    return tuple(
        GpuProcess(
            process["pid"],
            process["memory_usage"]["vram_mem"] // _MIB,
            node_files.job_of(root, process["pid"]),
        )
        for process in processes
    )


def _health(smi: ModuleType, first: Any) -> Health:
    count = _reading(smi, smi.amdsmi_get_gpu_total_ecc_count, first)
    return Health(
        ecc_corrected=_number(count, "correctable_count"),
        ecc_uncorrected=_number(count, "uncorrectable_count"),
        remap_pending=None,
        remap_failed=None,
        xids=None,
    )


def _temperature_c(smi: ModuleType, first: Any) -> int | None:
    count = _reading(
        smi,
        smi.amdsmi_get_temp_metric,
        first,
        smi.AmdSmiTemperatureType.HOTSPOT,
        smi.AmdSmiTemperatureMetric.CURRENT,
    )
    return count if isinstance(count, int) else None


def _number(fields: Any, key: str) -> int | None:
    """A number of an answer; None where there is no answer or the package says N/A."""
    value = None if fields is None else fields[key]
    return value if isinstance(value, int) else None


def _reading(smi: ModuleType, call: Callable[..., Any], *args: Any) -> Any:
    """The call's result; None where this GPU or this user gets no answer."""
    try:
        return call(*args)
    except smi.AmdSmiLibraryException as error:
        if error.get_error_code() in {_NOT_SUPPORTED, _NO_PERMISSION}:
            return None
        raise
