"""Tests the adapter and the emulated driver, through real pynvml."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from stand_ins.emulated_gpus import BUILDS, FaultyDriver, two_boards

from slicewise.cluster.language.gpus.layouts import Placement


@pytest.fixture
def node() -> Iterator[FaultyDriver]:
    with two_boards() as driver:
        yield driver


def test_another_process_sees_the_same_boards(node: FaultyDriver) -> None:
    made = node.create(Placement("2g.20gb", 4, 2))
    program = (
        "from pathlib import Path; from slicewise.cluster.gpu.nvml import read_inventory;"
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
