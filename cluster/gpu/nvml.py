"""Reads a node's GPUs, and makes and removes instances, by NVIDIA's management library (pynvml).

The module is a ``Driver``. Every other module uses the types of ``inventory``. The driver's own
profiles and placements are what counts; the table names the model, and is used where the driver
gives none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml as nv

from slicewise.cluster.gpu import node_files
from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, SlicewiseError, UnreachableError
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
from slicewise.cluster.language.gpus.nvidia import Nvidia

_MIB = 1024 * 1024
_UNKNOWN = (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_NO_PERMISSION, nv.NVML_ERROR_NO_DATA)
_OF_NODE = (
    nv.NVML_ERROR_UNINITIALIZED,
    nv.NVML_ERROR_NO_PERMISSION,
    nv.NVML_ERROR_DRIVER_NOT_LOADED,
    nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""Errors that are of no board alone. Others are: one that fell off the bus or hangs has many."""


@dataclass(frozen=True)
class _Host:
    """What the node says besides NVML."""

    root: Path
    minors: Mapping[str, int]
    xids: Mapping[str, tuple[int, ...]] | None


def read_inventory(root: Path = ROOT, *, with_xids: bool = True) -> Inventory:
    """Read the node's GPUs, changing nothing; ``root`` is where the node's /proc and /dev are.

    Without the kernel's errors its log is not read. Raises UnreachableError (SW-DRIVER-MISSING)
    without a driver, OutsideError (SW-DRIVER) if an answer of the node's is missing. A board is
    lost that lacks one that the inventory can't do without.
    """
    with opened():
        xids = node_files.xids(root) if with_xids else None
        node = _Host(root, node_files.capability_minors(root), xids)
        gpus: list[Gpu] = []
        lost: list[LostGpu] = []
        for index in range(nv.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(index, nv.nvmlDeviceGetHandleByIndex(index), node))
            except nv.NVMLError as error:
                if error.value in _OF_NODE:
                    raise
                lost.append(LostGpu(index, str(error)))
        version = nv.nvmlSystemGetDriverVersion()
        return Inventory(version, tuple(gpus), tuple(lost), Nvidia.vendor)


def create_instance(gpu_uuid: str, placement: Placement, root: Path = ROOT) -> Instance:
    """Make an instance at this placement, with one compute instance that has all of it. Needs root.

    In the end either both exist or neither. Raises OutsideError: SW-MIG-IN-USE where other
    instances are in the way, SW-VALUE for a placement that the board lacks, SW-DRIVER for all
    else.
    """
    with opened():
        handle = nv.nvmlDeviceGetHandleByUUID(gpu_uuid)
        profile = _profile_of(handle, gpu_uuid, placement)
        where = nv.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        try:
            gi = nv.nvmlDeviceCreateGpuInstanceWithPlacement(
                handle, profile.gi_profile_id, byref(where)
            )
        except nv.NVMLError_InsufficientResources:
            raise _no_room(gpu_uuid, placement) from None
        try:
            nv.nvmlGpuInstanceCreateComputeInstance(gi, _whole_compute_profile(gi, placement))
        except (nv.NVMLError, SlicewiseError):
            nv.nvmlGpuInstanceDestroy(gi)
            raise
        node = _Host(root, node_files.capability_minors(root), None)
        gi_id = nv.nvmlGpuInstanceGetInfo(gi).id
        return next(instance for instance in _instances(handle, node) if instance.gi_id == gi_id)


def destroy_instance(gpu_uuid: str, gi_id: int) -> None:
    """Remove an instance and its compute instances; do nothing if it is gone already. Needs root.

    Raises OutsideError (SW-MIG-IN-USE) if a process holds the instance: nothing is removed then. If
    the driver finds a process only afterwards, compute instances may be gone while the instance
    stays.
    """
    with opened():
        handle = nv.nvmlDeviceGetHandleByUUID(gpu_uuid)
        try:
            gi = nv.nvmlDeviceGetGpuInstanceById(handle, gi_id)
        except nv.NVMLError_NotFound:
            return
        devices = _mig_devices(handle).get(gi_id, {})
        if any(_processes(device) for device in devices.values()):
            raise _in_use(gpu_uuid, gi_id, "nothing was removed")
        try:
            for ci_id in devices:
                nv.nvmlComputeInstanceDestroy(nv.nvmlGpuInstanceGetComputeInstanceById(gi, ci_id))
            nv.nvmlGpuInstanceDestroy(gi)
        except nv.NVMLError_InUse:
            raise _in_use(
                gpu_uuid, gi_id, "its compute instances may be gone, the GPU instance is not"
            ) from None


def change(
    gpu_uuid: str, going: Collection[int], coming: Collection[Placement], root: Path = ROOT
) -> None:
    """Remove instances, then make others. Needs root; raises as the two functions above."""
    for gi_id in going:
        destroy_instance(gpu_uuid, gi_id)
    for placement in coming:
        create_instance(gpu_uuid, placement, root)


@contextmanager
def opened() -> Iterator[None]:
    """Keep NVML open, and turn its errors into the project's own.

    The functions here open NVML themselves; it may be open already.
    """
    try:
        nv.nvmlInit()
    except (nv.NVMLError_LibraryNotFound, nv.NVMLError_DriverNotLoaded) as error:
        raise UnreachableError(
            Code.DRIVER_MISSING,
            f"No NVIDIA driver answers on this host: {error}.",
            "Run it on a GPU node where nvidia-smi works.",
        ) from None
    except nv.NVMLError as error:
        raise _failure(error) from None
    try:
        yield
    except nv.NVMLError as error:
        raise _failure(error) from None
    finally:
        nv.nvmlShutdown()


def _failure(error: Any) -> SlicewiseError:
    hint = (
        "Run it as root."
        if error.value == nv.NVML_ERROR_NO_PERMISSION
        else "See the kernel's log (dmesg), and nvidia-smi -q."
    )
    return OutsideError(Code.DRIVER, f"The NVIDIA driver answered: {str(error).rstrip('.')}.", hint)


def _no_room(gpu_uuid: str, placement: Placement) -> SlicewiseError:
    return OutsideError(
        Code.MIG_IN_USE,
        f"{gpu_uuid} has no room for {placement.profile} at memory slice {placement.start}.",
        "See which instances are there: slicewise node probe",
    )


def _in_use(gpu_uuid: str, gi_id: int, so: str) -> SlicewiseError:
    return OutsideError(
        Code.MIG_IN_USE,
        f"A process holds GPU instance {gi_id} of {gpu_uuid}: {so}.",
        "See which: slicewise node probe",
    )


def _profile_of(handle: Any, gpu_uuid: str, placement: Placement) -> MigProfile:
    profile = next(
        (profile for profile in _profiles(handle) if profile.name == placement.profile), None
    )
    if (
        profile is None
        or placement.start not in profile.starts
        or placement.size != profile.memory_slices
    ):
        raise OutsideError(
            Code.VALUE,
            f"The driver offers no {placement.profile} of {placement.size} memory slices at slice"
            f" {placement.start} on {gpu_uuid}.",
            "See what it offers: slicewise node probe --json",
        )
    return profile


def _whole_compute_profile(gi: Any, placement: Placement) -> int:
    """The id of the compute instance with all processors of its GPU instance."""
    infos = []
    for kind in range(nv.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        shared = nv.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        with suppress(nv.NVMLError_NotSupported, nv.NVMLError_InvalidArgument):
            infos.append(nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, kind, shared))
    if not infos:
        raise OutsideError(
            Code.DRIVER,
            f"The NVIDIA driver offers no compute instance for {placement.profile}.",
            "See what nvidia-smi mig -lcip says.",
        )
    most = max(infos, key=lambda info: (info.sliceCount, info.multiprocessorCount))
    return int(most.id)


def _gpu(index: int, handle: Any, node: _Host) -> Gpu:
    name = nv.nvmlDeviceGetName(handle)
    pci = nv.nvmlDeviceGetPciInfo(handle)
    memory = nv.nvmlDeviceGetMemoryInfo(handle)
    modes = _reading(nv.nvmlDeviceGetMigMode, handle)
    mig, mig_pending = modes or (0, 0)
    return Gpu(
        index=index,
        name=name,
        uuid=nv.nvmlDeviceGetUUID(handle),
        pci_bus_id=pci.busId,
        pci_device_id=pci.pciDeviceId >> 16,
        minor=nv.nvmlDeviceGetMinorNumber(handle),
        board=_board(handle, name, pci.pciDeviceId >> 16) if modes else None,
        mig=bool(mig),
        mig_pending=bool(mig_pending),
        memory_mib=memory.total // _MIB,
        memory_used_mib=memory.used // _MIB,
        power_mw=_reading(nv.nvmlDeviceGetPowerUsage, handle),
        power_limit_mw=_reading(nv.nvmlDeviceGetEnforcedPowerLimit, handle),
        temperature_c=_reading(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
        health=_health(handle, pci.busId, node),
        instances=_instances(handle, node) if mig else (),
        holders=() if mig else _holders(handle, node),
    )


def _reading(call: Callable[..., Any], *args: Any) -> Any:
    """The call's result; None where this board or this user gets no answer."""
    try:
        return call(*args)
    except nv.NVMLError as error:
        if error.value in _UNKNOWN:
            return None
        raise


def _health(handle: Any, bus_id: str, node: _Host) -> Health:
    volatile = nv.NVML_VOLATILE_ECC
    remapped = _reading(nv.nvmlDeviceGetRemappedRows, handle)
    corrected, uncorrected = (
        _reading(nv.nvmlDeviceGetTotalEccErrors, handle, kind, volatile)
        for kind in (nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    )
    return Health(
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        xids=None if node.xids is None else node.xids.get(node_files.bus_key(bus_id), ()),
    )


def _board(handle: Any, name: str, pci_device_id: int) -> Board | None:
    """The board as the driver says; as the table does where the driver says nothing.

    That may happen where MIG mode is off.
    """
    model = model_of(pci_device_id)
    profiles = {profile.name: profile for profile in _profiles(handle)}
    if not profiles:
        return boards().get(model or name)
    return Board(
        model=model or name,
        compute_slices=max(profile.compute_slices for profile in profiles.values()),
        memory_slices=max(
            profile.starts[-1] + profile.memory_slices for profile in profiles.values()
        ),
        profiles=profiles,
        pci_device_ids=(pci_device_id,),
        vendor=Nvidia.vendor,
    )


def _profiles(handle: Any) -> Iterator[MigProfile]:
    for kind in range(nv.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(nv.NVMLError_NotSupported, nv.NVMLError_InvalidArgument):
            info = nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind)
            placements = _possible_placements(handle, info.id)
            if placements:
                yield _profile(info, placements)


def _profile(info: Any, placements: Sequence[Any]) -> MigProfile:
    return MigProfile(
        name=info.name.removeprefix("MIG "),
        compute_slices=info.sliceCount,
        memory_slices=placements[0].size,
        memory_mib=info.memorySizeMB or None,
        starts=tuple(sorted(placement.start for placement in placements)),
        max_instances=info.instanceCount,
        gi_profile_id=info.id,
        sources=("nvml",),
        multiprocessors=info.multiprocessorCount or None,
    )


def _possible_placements(handle: Any, profile_id: int) -> list[Any]:
    count = c_uint()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
    placements = (nv.c_nvmlGpuInstancePlacement_t * count.value)()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, placements, byref(count))
    return list(placements[: count.value])


def _instances(handle: Any, node: _Host) -> tuple[Instance, ...]:
    gpu = f"gpu{nv.nvmlDeviceGetMinorNumber(handle)}"
    devices = _mig_devices(handle)
    instances = (
        _instance(gi, profile, devices, gpu, node)
        for profile in _profiles(handle)
        for gi in _gpu_instances(handle, profile)
    )
    return tuple(sorted(instances, key=lambda instance: instance.placement.start))


def _gpu_instances(handle: Any, profile: MigProfile) -> list[Any]:
    count = c_uint(profile.max_instances)
    instances = (nv.c_nvmlGpuInstance_t * profile.max_instances)()
    nv.nvmlDeviceGetGpuInstances(handle, profile.gi_profile_id, instances, byref(count))
    return list(instances[: count.value])


def _instance(
    gi: Any, profile: MigProfile, devices: Mapping[int, Mapping[int, Any]], gpu: str, node: _Host
) -> Instance:
    info = nv.nvmlGpuInstanceGetInfo(gi)
    name = f"{gpu}/gi{info.id}"
    computes = (
        ComputeInstance(
            ci_id,
            nv.nvmlDeviceGetUUID(device),
            node.minors.get(f"{name}/ci{ci_id}"),
            _holders(device, node),
        )
        for ci_id, device in sorted(devices.get(info.id, {}).items())
    )
    return Instance(
        gi_id=info.id,
        placement=Placement(profile.name, info.placement.start, info.placement.size),
        memory_mib=profile.memory_mib,
        minor=node.minors.get(name),
        computes=tuple(computes),
    )


def _mig_devices(handle: Any) -> Mapping[int, Mapping[int, Any]]:
    """Devices of compute instances, by the id of their GPU instance, then by their own id."""
    devices: dict[int, dict[int, Any]] = {}
    for index in range(nv.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nv.NVMLError_NotFound):
            device = nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            gi_id = nv.nvmlDeviceGetGpuInstanceId(device)
            devices.setdefault(gi_id, {})[nv.nvmlDeviceGetComputeInstanceId(device)] = device
    return devices


def _holders(device: Any, node: _Host) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(
            process.pid,
            None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB,
            node_files.job_of(node.root, process.pid),
        )
        for process in _processes(device)
    )


def _processes(device: Any) -> list[Any]:
    return _reading(nv.nvmlDeviceGetComputeRunningProcesses, device) or []
