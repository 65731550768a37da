"""A GPU node for a test: the vendor's package, unchanged, on the emulated driver."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from guard import preparing

from slicewise.cluster.gpu.nvml import create_instance, read_inventory
from slicewise.cluster.language.gpus.inventory import Gpu, Instance
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.sandbox.amd_smi import driver as amd
from slicewise.sandbox.amd_smi.library import library as amd_library
from slicewise.sandbox.nvml.driver import DIRECTORY_VARIABLE, EmulatedDriver, EmulatedGpu
from slicewise.sandbox.nvml.library import library

BUILDS = Path(__file__).parents[2] / "build"
with preparing():
    _NVML, _AMD_SMI = library(BUILDS), amd_library(BUILDS)


class FaultyDriver(EmulatedDriver):
    """An emulated driver whose boards are used, lost, and fail."""

    def gpus(self) -> tuple[Gpu, ...]:
        """What the node's inventory has of its boards."""
        return read_inventory(self.host_root).gpus

    def create(self, placement: Placement) -> Instance:
        """Cut an instance on the first board."""
        return create_instance(self.gpus()[0].uuid, placement, self.host_root)

    def hold(self, gpu: int, gi_id: int, ci_id: int, pid: int, memory_mib: int) -> None:
        """Let a process use a MIG device; ids of -1 mean a board that is not cut."""
        with self.lines() as lines:
            lines.append(f"process {gpu} {gi_id} {ci_id} {pid} {memory_mib}")

    def release(self, pid: int) -> None:
        """Let a process end."""
        with self.lines() as lines:
            lines[:] = [line for line in lines if not _is_of_process(line, pid)]

    def fail(self, function: str, at_call: int, code: int) -> None:
        """Let the ``at_call``-th call of that function from now on (1: the next) fail, once."""
        with self.lines() as lines:
            lines.append(f"fail {function} {at_call} {code}")

    def ecc(self, gpu: int, *, corrected: int = 0, uncorrected: int = 0) -> None:
        """Set memory errors since the driver was loaded; uncorrected ones leave a row to remap."""
        with self.lines() as lines:
            lines[:] = [line for line in lines if not line.startswith(f"errors {gpu} ")]
            lines.append(f"errors {gpu} {corrected} {uncorrected} {int(uncorrected > 0)} 0")

    def count(self, gpu: int, counter_mj: int | None) -> None:
        """Let a board's counter stand at that; None: let it have none."""
        with self.lines() as lines:
            lines[:] = [line for line in lines if not line.startswith(f"energy {gpu} ")]
            if counter_mj is not None:
                lines.append(f"energy {gpu} {counter_mj} 0 1")

    def work(self, gpu: int, gi_id: int, busy_ppm: int) -> None:
        """Let the driver say how busy an instance is, as from Hopper on."""
        with self.lines() as lines:
            lines[:] = [line for line in lines if not line.startswith(f"activity {gpu} {gi_id} ")]
            lines.append(f"activity {gpu} {gi_id} {busy_ppm}")

    def lose(self, gpu: int) -> None:
        """Let a board fall off the bus: from now on no process gets a handle of it."""
        with self.lines() as lines:
            lines.append(f"lost {gpu}")

    def reset(self, gpu: int) -> None:
        """Bring a lost board back, cut as it was."""
        with self.lines() as lines:
            lines[:] = [line for line in lines if line != f"lost {gpu}"]

    def xid(self, bus_id: str, number: int, text: str) -> None:
        """Log a board's error, as the kernel does: ``xid("0000:07:00", 79, "GPU has fallen")``."""
        with (self.host_root / "dev" / "kmsg").open("a", encoding="ascii") as log:
            log.write(f"4,1201,8035412,-;NVRM: Xid (PCI:{bus_id}): {number}, {text}\n")


def _is_of_process(line: str, pid: int) -> bool:
    words = line.split()
    return words[0] == "process" and words[4] == str(pid)


@contextmanager
def gpu_node(*gpus: EmulatedGpu) -> Iterator[FaultyDriver]:
    """Emulate a node with these boards in this process."""
    _loaded(_NVML)
    with TemporaryDirectory() as directory:
        driver = FaultyDriver(Path(directory))
        driver.load(gpus)
        with patch.dict(os.environ, {DIRECTORY_VARIABLE: directory}):
            yield driver


@contextmanager
def two_boards() -> Iterator[FaultyDriver]:
    """Emulate a node with an A100 that can be cut, and a whole H200."""
    with gpu_node(EmulatedGpu("A100-80GB"), EmulatedGpu("H200-141GB", mig=False)) as driver:
        yield driver


@contextmanager
def amd_node(*gpus: amd.EmulatedAmdGpu) -> Iterator[amd.EmulatedAmdDriver]:
    """Emulate a node with these GPUs of AMD's in this process."""
    _loaded(_AMD_SMI)
    with TemporaryDirectory() as directory:
        driver = amd.EmulatedAmdDriver(Path(directory))
        driver.load(gpus)
        # NVIDIA's driver, which is asked first, is not loaded where its state is missing.
        with patch.dict(
            os.environ, {amd.DIRECTORY_VARIABLE: directory, DIRECTORY_VARIABLE: directory}
        ):
            yield driver


@cache
def _loaded(place: Path) -> ctypes.CDLL:
    # When the vendor's package loads its library by name later, it gets this one, which has that
    # name.
    return ctypes.CDLL(str(place), mode=ctypes.RTLD_GLOBAL)
