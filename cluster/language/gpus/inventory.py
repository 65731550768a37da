"""Values for a node's GPUs, the instances they are cut into, and the processes that use them."""

from dataclasses import dataclass

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU or an instance.

    Attributes:
        memory_mib: GPU memory that the process uses; None where the driver does not say it.
        job_id: the Slurm job that the process belongs to, by its cgroup; None if there is none.
    """

    pid: int
    memory_mib: int | None
    job_id: int | None


@dataclass(frozen=True)
class ComputeInstance:
    """What CUDA sees of an instance: a MIG device.

    Attributes:
        uuid: as in CUDA_VISIBLE_DEVICES: ``MIG-...``.
        minor: number of its device file, at NVIDIA of its capability,
            /dev/nvidia-caps/nvidia-cap<minor>; None if unknown.
    """

    ci_id: int
    uuid: str
    minor: int | None
    holders: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class Instance:
    """A GPU instance.

    Attributes:
        gi_id: the driver's number of the instance, unique on its GPU; AMD's partition.
        minor: number of its device file, as for a compute instance.
        computes: its compute instances. Slicewise makes one; other programs make none or several.
    """

    gi_id: int
    placement: Placement
    memory_mib: int | None
    minor: int | None
    computes: tuple[ComputeInstance, ...]

    @property
    def holders(self) -> tuple[GpuProcess, ...]:
        """Processes that use any of its compute instances."""
        return tuple(holder for compute in self.computes for holder in compute.holders)


@dataclass(frozen=True)
class Health:
    """A board's errors since its driver was loaded; None for what can't be read.

    Attributes:
        xids: the kernel's error numbers, in the order of their first appearance.
    """

    ecc_corrected: int | None
    ecc_uncorrected: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    xids: tuple[int, ...] | None


@dataclass(frozen=True)
class Gpu:
    """One board.

    Attributes:
        index: the driver's index, which another boot may change; ``uuid`` stays.
        name: the driver's name, such as ``NVIDIA H200``.
        minor: number of its device file, such as /dev/nvidia<minor>, /dev/dri/renderD<minor>.
        board: its profiles as the driver has them; None if it can't be cut.
        mig: whether MIG mode is on. AMD's GPUs that have modes are always divided, in SPX into one.
        mig_pending: whether MIG mode will be on after the GPU's next reset.
        instances: in the order of their first memory slices.
        holders: processes that use a board that is not cut.
    """

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    pci_device_id: int
    minor: int
    board: Board | None
    mig: bool
    mig_pending: bool
    memory_mib: int
    memory_used_mib: int
    power_mw: int | None
    power_limit_mw: int | None
    temperature_c: int | None
    health: Health
    instances: tuple[Instance, ...]
    holders: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class LostGpu:
    """A board that the driver counts but can't reach, and the driver's error."""

    index: int
    error: str


@dataclass(frozen=True)
class Inventory:
    """A node's GPUs at one moment.

    Attributes:
        driver: the driver's version.
        vendor: name of the accelerator.
    """

    driver: str
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...]
    vendor: str = "NVIDIA"
