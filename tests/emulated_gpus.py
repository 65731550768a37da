"""A GPU node for a test: the vendor's package, unchanged, on the emulated driver."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from sandbox.amd_smi import driver as amd
from sandbox.amd_smi.library import library as amd_library
from sandbox.nvml.driver import DIRECTORY_VARIABLE, EmulatedDriver, EmulatedGpu
from sandbox.nvml.library import library

BUILDS = Path(__file__).parents[1] / "build"


@contextmanager
def gpu_node(*gpus: EmulatedGpu) -> Iterator[EmulatedDriver]:
    """Emulate a node with these boards in this process."""
    _loaded(library(BUILDS))
    with TemporaryDirectory() as directory:
        driver = EmulatedDriver(Path(directory))
        driver.load(gpus)
        with patch.dict(os.environ, {DIRECTORY_VARIABLE: directory}):
            yield driver


@contextmanager
def amd_node(*gpus: amd.EmulatedAmdGpu) -> Iterator[amd.EmulatedAmdDriver]:
    """Emulate a node with these GPUs of AMD's in this process."""
    _loaded(amd_library(BUILDS))
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
