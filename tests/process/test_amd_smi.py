"""Tests the adapter and the emulated driver, through AMD's own package."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from stand_ins.emulated_gpus import BUILDS, amd_node

from slicewise.sandbox.amd_smi.driver import EmulatedAmdDriver, EmulatedAmdGpu

CPX, SPX = EmulatedAmdGpu("MI300X-192GB", "cpx.nps4"), EmulatedAmdGpu("MI300X-192GB", "spx.nps1")


@pytest.fixture
def node() -> Iterator[EmulatedAmdDriver]:
    with amd_node(CPX, SPX) as driver:
        yield driver


def test_another_process_sees_the_driver_and_without_a_library_nothing_is_printed(
    node: EmulatedAmdDriver,
) -> None:
    """AMD's package prints where it finds no library: that must not be in a command's JSON."""
    code = "from slicewise.cluster.gpu.driver import read_inventory as r; print(len(r().gpus))"
    argv = (sys.executable, "-c", code)
    plain = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    seen = subprocess.run(
        argv, env={**plain, **node.environment(BUILDS)}, capture_output=True, text=True, check=True
    )
    assert seen.stdout == "2\n"
    blind = subprocess.run(argv, env=plain, capture_output=True, text=True, check=False)
    assert blind.stdout == ""
    assert "SW-DRIVER-MISSING" in blind.stderr
