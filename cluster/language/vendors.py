"""The vendors whose GPUs Slicewise divides. Their drivers: ``cluster/mig/driver.py``."""

from cluster.language.accelerator import Accelerator
from cluster.language.amd import Amd
from cluster.language.nvidia import Nvidia

ACCELERATORS: tuple[Accelerator, ...] = (Nvidia(), Amd())
_BY_VENDOR = {one.vendor: one for one in ACCELERATORS}


def accelerator(vendor: str) -> Accelerator:
    """The accelerator of this vendor, as a board or an inventory names it."""
    return _BY_VENDOR[vendor]
