"""Tests the adapter and the emulated driver, through real pynvml."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from stand_ins.emulated_gpus import BUILDS, FaultyDriver, gpu_node

from cluster.mig.inventory import Gpu, Instance
from cluster.mig.layouts import Placement
from cluster.mig.nvml import create_instance, read_inventory
from sandbox.nvml.driver import EmulatedGpu

ONE_G, TWO_G, THREE_G = Placement("1g.10gb", 6, 1), Placement("2g.20gb", 4, 2), "3g.40gb"


@pytest.fixture
def node() -> Iterator[FaultyDriver]:
    with gpu_node(EmulatedGpu("A100-80GB"), EmulatedGpu("H200-141GB", mig=False)) as driver:
        yield driver


def gpus(node: FaultyDriver) -> tuple[Gpu, ...]:
    return read_inventory(node.host_root).gpus


def create(node: FaultyDriver, placement: Placement) -> Instance:
    return create_instance(gpus(node)[0].uuid, placement, node.host_root)


def test_another_process_sees_the_same_boards(node: FaultyDriver) -> None:
    made = create(node, TWO_G)
    program = (
        "from pathlib import Path; from cluster.mig.nvml import read_inventory;"
        f"print(read_inventory(Path({str(node.host_root)!r})).gpus[0].instances[0].gi_id)"
    )
    seen = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **node.environment(BUILDS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(seen.stdout) == made.gi_id
