"""Finds the GPU driver of a node: each vendor's driver stands behind one protocol."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from slicewise.cluster.gpu import amd_smi, node_files, nvml
from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.layouts import Placement


class Driver(Protocol):
    """One vendor's driver on this node. Its errors are the project's own."""

    def opened(self) -> AbstractContextManager[None]:
        """Keep the driver open; it may be open already.

        Raises UnreachableError if this host has no such driver.
        """
        ...

    def read_inventory(self, root: Path) -> Inventory:
        """Read the node's GPUs; ``root`` is where the node's /proc and /dev are.

        The driver is open.
        """
        ...

    def change(
        self, gpu_uuid: str, going: Collection[int], coming: Collection[Placement], root: Path
    ) -> None:
        """Destroy a GPU's instances by the driver's numbers, then create others. Needs root.

        Raises OutsideError if the driver refuses: then some of it may be done. A driver of GPUs
        without parts refuses always (``Accelerator.has_parts``).
        """
        ...


_DRIVERS: Mapping[str, Driver] = {"NVIDIA": nvml, "AMD": amd_smi}
"""By vendor."""


@contextmanager
def opened() -> Iterator[Driver]:
    """Keep the first driver that answers on this host open.

    Raises UnreachableError if none does: the first one's (SW-DRIVER-MISSING), or AMD's on a host
    where its driver for compute is loaded (SW-DRIVER-MISSING).
    """
    with ExitStack() as stack:
        yield _answering(stack)


def _answering(stack: ExitStack) -> Driver:
    missing: list[UnreachableError] = []
    for driver in _DRIVERS.values():
        try:
            stack.enter_context(driver.opened())
        except UnreachableError as error:
            missing.append(error)
        else:
            return driver
    raise missing[-1 if node_files.has_amd_gpus(node_files.ROOT) else 0]


def read_inventory(root: Path = ROOT) -> Inventory:
    """Read the node's GPUs by the driver that answers, changing nothing.

    ``root`` is where the node's /proc and /dev are. Raises as ``opened``, and OutsideError
    (SW-DRIVER) if an answer is missing that the inventory can't do without.
    """
    with opened() as driver:
        return driver.read_inventory(root)
