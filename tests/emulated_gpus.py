"""A GPU node for a test: pynvml, unchanged, on the emulated driver."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from sandbox.nvml.driver import DIRECTORY_VARIABLE, EmulatedDriver, EmulatedGpu
from sandbox.nvml.library import library

BUILDS = Path(__file__).parents[1] / "build"


@contextmanager
def gpu_node(*gpus: EmulatedGpu) -> Iterator[EmulatedDriver]:
    """Emulate a node with these boards in this process."""
    _loaded()
    with TemporaryDirectory() as directory:
        driver = EmulatedDriver(Path(directory))
        driver.load(gpus)
        with patch.dict(os.environ, {DIRECTORY_VARIABLE: directory}):
            yield driver


@cache
def _loaded() -> ctypes.CDLL:
    # When pynvml loads the driver's library by name later, it gets this one, which has that name.
    return ctypes.CDLL(str(library(BUILDS)), mode=ctypes.RTLD_GLOBAL)
