"""Tests cutting one GPU from one layout to another, by real pynvml on an emulated driver."""

from collections.abc import Iterator

import pynvml as nv
import pytest
from stand_ins.emulated_gpus import FaultyDriver, gpu_node

from slicewise.cluster.gpu.apply import cut
from slicewise.cluster.gpu.nvml import destroy_instance, read_inventory
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.inventory import Gpu
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.gpus.placement_text import placements_text, read_placements
from slicewise.sandbox.nvml.driver import EmulatedGpu

ONES = ",".join(f"1g.10gb@{start}" for start in range(7))
MIXED = "1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.10gb@3,3g.40gb@4"


@pytest.fixture
def node() -> Iterator[FaultyDriver]:
    with gpu_node(EmulatedGpu("A100-80GB"), EmulatedGpu("A100-80GB", mig=False)) as driver:
        cut(gpu(driver).uuid, "", ONES, driver.host_root)
        yield driver


def gpu(node: FaultyDriver) -> Gpu:
    return read_inventory(node.host_root).gpus[0]


def layout(node: FaultyDriver) -> str:
    return placements_text(one.placement for one in gpu(node).instances)


def to_mixed(node: FaultyDriver) -> Gpu:
    return cut(gpu(node).uuid, ONES, MIXED, node.host_root)


def test_it_is_cut_and_what_is_in_both_layouts_stays(node: FaultyDriver) -> None:
    before = {one.placement: one.computes for one in gpu(node).instances}
    after = {one.placement: one.computes for one in to_mixed(node).instances}
    assert layout(node) == MIXED
    assert {where: after[where] for where in after.keys() & before.keys()} == {
        where: computes for where, computes in before.items() if where.start < 4
    }


def test_only_root_can_keep_others_waiting(node: FaultyDriver) -> None:
    to_mixed(node)
    assert (node.host_root / "run/slicewise-cut.lock").stat().st_mode & 0o777 == 0o600


def test_again_is_nothing_and_swapped_is_back(node: FaultyDriver) -> None:
    first = to_mixed(node)
    assert to_mixed(node) == first
    cut(first.uuid, MIXED, ONES, node.host_root)
    assert layout(node) == ONES


@pytest.mark.parametrize("gone", [(4,), (4, 5), (0, 4)])
def test_one_that_was_killed_is_taken_on(node: FaultyDriver, gone: tuple[int, ...]) -> None:
    for one in gpu(node).instances:
        if one.placement.start in gone:
            destroy_instance(gpu(node).uuid, one.gi_id)
    if 0 in gone:
        with pytest.raises(OutsideError, match=r"was not touched.*\[SW-MIG-CHANGED\]"):
            to_mixed(node)
        return
    to_mixed(node)
    assert layout(node) == MIXED


def test_an_instance_that_was_left_half_made_is_made_anew(node: FaultyDriver) -> None:
    uuid = gpu(node).uuid
    three = next(one for one in to_mixed(node).instances if one.placement.start == 4)
    nv.nvmlInit()
    handle = nv.nvmlDeviceGetGpuInstanceById(nv.nvmlDeviceGetHandleByUUID(uuid), three.gi_id)
    nv.nvmlComputeInstanceDestroy(nv.nvmlGpuInstanceGetComputeInstanceById(handle, 0))
    nv.nvmlShutdown()
    assert [len(one.computes) for one in to_mixed(node).instances] == [1] * 5


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("nvmlGpuInstanceDestroy", 2),
        ("nvmlComputeInstanceDestroy", 3),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 1),
        ("nvmlGpuInstanceCreateComputeInstance", 1),
    ],
)
def test_a_call_that_fails_leaves_it_as_it_was(
    node: FaultyDriver, function: str, call: int
) -> None:
    node.fail(function, call, nv.NVML_ERROR_UNKNOWN)
    with pytest.raises(OutsideError, match=r"it is cut as before.*\[SW-DRIVER\]"):
        to_mixed(node)
    assert layout(node) == ONES
    assert {len(one.computes) for one in gpu(node).instances} == {1}


def test_going_back_may_fail_too_and_says_so(node: FaultyDriver) -> None:
    name = "nvmlDeviceCreateGpuInstanceWithPlacement"
    node.fail(name, 1, nv.NVML_ERROR_UNKNOWN)
    node.fail(name, 2, nv.NVML_ERROR_UNKNOWN)
    with pytest.raises(OutsideError, match=r"going back failed.*neither layout.*\[SW-DRIVER\]"):
        to_mixed(node)
    cut(gpu(node).uuid, MIXED, ONES, node.host_root)
    assert layout(node) == ONES


def test_what_a_process_holds_stops_it_before_anything_is_done(node: FaultyDriver) -> None:
    held = gpu(node).instances[5]
    node.hold(0, held.gi_id, 0, 4711, 512)
    with pytest.raises(OutsideError, match=r"4711 holds 1g.10gb@5.*\[SW-MIG-IN-USE\]"):
        to_mixed(node)
    assert layout(node) == ONES
    node.release(4711)
    node.hold(0, gpu(node).instances[0].gi_id, 0, 4711, 512)
    to_mixed(node)


def test_a_gpu_that_is_not_there_or_not_in_mig_mode_is_left_alone(node: FaultyDriver) -> None:
    whole = read_inventory(node.host_root).gpus[1]
    with pytest.raises(OutsideError, match=r"not in MIG mode.*\[SW-NODE-GPU\]"):
        cut(whole.uuid, "", "7g.80gb@0", node.host_root)
    with pytest.raises(OutsideError, match=r"does not answer.*\[SW-NODE-GPU\]"):
        cut("GPU-1", "", "7g.80gb@0", node.host_root)


def test_placements_are_read_as_they_are_written() -> None:
    a100 = board("A100-80GB")
    assert placements_text(reversed(read_placements(MIXED, a100))) == MIXED
    assert read_placements("", a100) == ()


@pytest.mark.parametrize("text", ["1g.10gb", "1g.10gb@7", "9g.1gb@0", "1g.10gb@0;3g.40gb@4", "x"])
def test_other_placements_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        read_placements(text, board("A100-80GB"))
