"""The vendors whose GPUs Slicewise divides. Their drivers: ``cluster/gpu/driver.py``."""

from slicewise.cluster.language.gpus.accelerator import Accelerator
from slicewise.cluster.language.gpus.amd import Amd
from slicewise.cluster.language.gpus.nvidia import Nvidia

ACCELERATORS: tuple[Accelerator, ...] = (Nvidia(), Amd())
_BY_VENDOR = {accelerator.vendor: accelerator for accelerator in ACCELERATORS}


def accelerator(vendor: str) -> Accelerator:
    """The accelerator of this vendor, as a board or an inventory names it."""
    return _BY_VENDOR[vendor]
