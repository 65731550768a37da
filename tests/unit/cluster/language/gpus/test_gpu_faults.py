"""Tests the faults that are reported of a node."""

from collections.abc import Iterator
from dataclasses import replace

import pynvml
import pytest
from stand_ins.emulated_gpus import FaultyDriver, gpu_node

from slicewise.cluster.gpu.nvml import opened, read_inventory
from slicewise.cluster.language.gpus.gpu_faults import faults, table_differences
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile, board, boards
from slicewise.sandbox.nvml.driver import EmulatedGpu

A100 = "A100-80GB"


@pytest.fixture
def node() -> Iterator[FaultyDriver]:
    with gpu_node(EmulatedGpu(A100)) as driver:
        yield driver


def cut(node: FaultyDriver) -> None:
    node.create(Placement("3g.40gb", 0, 4))


def said(node: FaultyDriver) -> tuple[str, ...]:
    return faults(read_inventory(node.host_root))


def test_a_node_that_is_well_has_none(node: FaultyDriver) -> None:
    cut(node)
    node.ecc(0, corrected=12)
    node.xid("0000:07:00", 31, "MMU fault of a program")
    assert said(node) == ()


def test_errors_of_the_board_are_faults(node: FaultyDriver) -> None:
    cut(node)
    node.ecc(0, uncorrected=2)
    node.xid("0000:07:00", 79, "GPU has fallen off the bus")
    assert said(node) == (
        "GPU 0: the kernel logged Xid 79.",
        "GPU 0: 2 uncorrected memory errors.",
        "GPU 0: a memory row is remapped at the next reset.",
    )


def test_a_lost_board_is_one(node: FaultyDriver) -> None:
    node.fail("nvmlDeviceGetHandleByIndex_v2", 1, pynvml.NVML_ERROR_GPU_IS_LOST)
    assert said(node) == ("GPU 0 can't be reached: GPU is lost.",)


def test_mig_mode_without_instances_and_an_instance_without_a_device(
    node: FaultyDriver,
) -> None:
    assert said(node) == ("GPU 0: MIG mode is on, but no instance is cut: no job can use it.",)
    with opened():
        pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)
    (fault,) = said(node)
    assert "instance 1 (3g.40gb) has 0 compute instances" in fault


def test_an_instance_without_capability_devices_is_one(node: FaultyDriver) -> None:
    (node.host_root / "proc/driver/nvidia-caps/mig-minors").unlink()
    cut(node)
    (fault,) = said(node)
    assert "has no capability device" in fault


def test_a_pending_mode_is_said(node: FaultyDriver) -> None:
    cut(node)
    inventory = read_inventory(node.host_root)
    pending = replace(inventory, gpus=(replace(inventory.gpus[0], mig_pending=False),))
    assert faults(pending) == ("GPU 0: MIG mode is on until a reset, then off.",)


def changed(on: Board, one: str, **changes: object) -> Board:
    profile: MigProfile = replace(on.profiles[one], **changes)  # type: ignore[arg-type]
    return replace(on, profiles={**on.profiles, one: profile})


@pytest.mark.parametrize("model", sorted(boards()))
def test_the_table_does_not_differ_from_itself(model: str) -> None:
    assert table_differences(board(model)) == ()


def test_what_a_driver_says_otherwise_is_named() -> None:
    on = board(A100)
    assert table_differences(changed(on, "3g.40gb", starts=(0, 2, 4))) == (
        "3g.40gb: starts 0, 2, 4 by the driver, 0, 4 in the table",
    )
    assert table_differences(changed(on, "3g.40gb", name="3g.39gb")) == (
        "the driver calls 3g.40gb 3g.39gb",
    )
    fewer = {name: one for name, one in on.profiles.items() if name != "1g.20gb"}
    assert table_differences(replace(on, profiles=fewer)) == ("the driver lacks 1g.20gb",)
    assert table_differences(changed(on, "1g.20gb", gi_profile_id=99)) == (
        "the table lacks 1g.20gb",
        "the driver lacks 1g.20gb",
    )
    (unknown,) = table_differences(replace(on, model="NVIDIA Z1"))
    assert unknown.startswith("NVIDIA Z1 is not in the table")


def test_an_older_driver_s_name_is_no_difference() -> None:
    assert table_differences(changed(board("GB200-186GB"), "1g.23gb", name="1g.24gb")) == ()
