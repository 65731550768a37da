"""Tests the adapter and the emulated driver, through real pynvml."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pynvml
import pytest
from stand_ins.emulated_gpus import FaultyDriver, gpu_node, two_boards

from slicewise.cluster.gpu.nvml import destroy_instance, opened, read_inventory
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.inventory import GpuProcess
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import boards
from slicewise.sandbox.nvml.driver import VERSION, EmulatedGpu

ONE_G, TWO_G, THREE_G = Placement("1g.10gb", 6, 1), Placement("2g.20gb", 4, 2), "3g.40gb"


@pytest.fixture
def node() -> Iterator[FaultyDriver]:
    with two_boards() as driver:
        yield driver


def test_a_node_tells_what_its_boards_are(node: FaultyDriver) -> None:
    inventory = read_inventory(node.host_root)
    a100, h200 = inventory.gpus
    assert inventory.driver == VERSION
    assert (a100.name, a100.pci_bus_id, a100.minor) == (
        "NVIDIA A100-SXM4-80GB",
        "00000000:07:00.0",
        0,
    )
    assert (a100.mig, h200.mig) == (True, False)
    assert (h200.power_mw, h200.temperature_c, h200.memory_mib) == (68_000, 31, 143_104)
    assert a100.uuid != h200.uuid
    assert a100.instances == ()


@pytest.mark.parametrize(
    "model", sorted(model for model, on in boards().items() if on.vendor == "NVIDIA")
)
def test_every_board_of_the_table_comes_back_from_the_driver(model: str) -> None:
    with gpu_node(EmulatedGpu(model)) as driver:
        (gpu,) = driver.gpus()
    assert gpu.board is not None
    assert gpu.board.model == model
    expected = boards()[model]
    assert (gpu.board.compute_slices, gpu.board.memory_slices) == (
        expected.compute_slices,
        expected.memory_slices,
    )
    assert {name: (one.starts, one.memory_slices) for name, one in gpu.board.profiles.items()} == {
        name: (one.starts, one.memory_slices) for name, one in expected.profiles.items()
    }


def test_an_instance_is_made_where_it_is_wanted_with_one_device(node: FaultyDriver) -> None:
    made = node.create(TWO_G)
    (device,) = made.computes
    assert made.placement == TWO_G
    assert device.uuid.startswith("MIG-")
    # Minor numbers as in /proc: 9 for each instance of a GPU, the first is 3.
    assert (made.minor, device.minor) == (3 + 9 * made.gi_id, 4 + 9 * made.gi_id)
    assert node.gpus()[0].instances == (made,)


def test_instances_stand_in_the_order_of_their_slices(node: FaultyDriver) -> None:
    for placement in (ONE_G, TWO_G, Placement(THREE_G, 0, 4)):
        node.create(placement)
    starts = [one.placement.start for one in node.gpus()[0].instances]
    assert starts == [0, 4, 6]


def test_an_instance_that_came_back_has_the_uuid_it_had(node: FaultyDriver) -> None:
    first = node.create(TWO_G)
    destroy_instance(node.gpus()[0].uuid, first.gi_id)
    assert node.create(TWO_G) == first


def test_a_seven_slice_instance_and_the_double_memory_one_have_all_processors(
    node: FaultyDriver,
) -> None:
    with gpu_node(EmulatedGpu("H100-80GB")) as driver:
        driver.create(Placement("1g.20gb", 0, 2))
        assert "compute 0 3 0 7" in (Path(driver.host_root).parent / "state").read_text()


def test_where_an_instance_lies_there_is_no_room(node: FaultyDriver) -> None:
    node.create(TWO_G)
    with pytest.raises(OutsideError, match="SW-MIG-IN-USE"):
        node.create(Placement(THREE_G, 4, 4))


@pytest.mark.parametrize(
    "placement",
    [Placement("9g.90gb", 0, 1), Placement(THREE_G, 2, 4), Placement(THREE_G, 0, 3)],
)
def test_what_the_driver_does_not_offer_is_refused(
    node: FaultyDriver, placement: Placement
) -> None:
    with pytest.raises(OutsideError, match="SW-VALUE"):
        node.create(placement)
    assert node.gpus()[0].instances == ()


def test_holders_are_seen_and_their_instance_stays(node: FaultyDriver) -> None:
    made = node.create(TWO_G)
    cgroup = node.host_root / "proc" / "4711" / "cgroup"
    cgroup.parent.mkdir()
    cgroup.write_text("0::/system.slice/slurmstepd.scope/job_88/step_0/user/task_0\n")
    node.hold(0, made.gi_id, 0, pid=4711, memory_mib=512)
    (held,) = node.gpus()[0].instances
    assert held.holders == (GpuProcess(4711, 512, 88),)
    with pytest.raises(OutsideError, match="SW-MIG-IN-USE"):
        destroy_instance(node.gpus()[0].uuid, made.gi_id)
    assert node.gpus()[0].instances == (held,)
    node.release(4711)
    destroy_instance(node.gpus()[0].uuid, made.gi_id)
    assert node.gpus()[0].instances == ()


def test_destroying_what_is_gone_is_nothing(node: FaultyDriver) -> None:
    destroy_instance(node.gpus()[0].uuid, 3)


def test_a_board_that_is_not_cut_has_holders_of_its_own(node: FaultyDriver) -> None:
    node.hold(1, -1, -1, pid=12, memory_mib=1000)
    _, h200 = node.gpus()
    assert h200.holders == (GpuProcess(12, 1000, None),)
    assert h200.memory_used_mib == 1000


def test_an_instance_whose_device_fails_is_taken_back(node: FaultyDriver) -> None:
    node.fail("nvmlGpuInstanceCreateComputeInstance", 1, pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(OutsideError, match="SW-DRIVER"):
        node.create(TWO_G)
    assert node.gpus()[0].instances == ()
    node.create(TWO_G)


def test_a_failure_comes_at_the_call_it_was_ordered_for(node: FaultyDriver) -> None:
    node.fail("nvmlDeviceGetCount_v2", 2, pynvml.NVML_ERROR_UNKNOWN)
    read_inventory(node.host_root)
    with pytest.raises(OutsideError, match="Unknown Error"):
        read_inventory(node.host_root)
    read_inventory(node.host_root)


def test_a_reading_that_a_board_lacks_is_none_and_a_lost_board_is_named(
    node: FaultyDriver,
) -> None:
    node.fail("nvmlDeviceGetPowerUsage", 1, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert node.gpus()[0].power_mw is None
    node.fail("nvmlDeviceGetHandleByIndex_v2", 2, pynvml.NVML_ERROR_GPU_IS_LOST)
    inventory = read_inventory(node.host_root)
    assert [gpu.index for gpu in inventory.gpus] == [0]
    assert [(lost.index, lost.error) for lost in inventory.lost] == [(1, "GPU is lost")]


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"]
)
def test_an_odd_error_costs_its_board_and_no_other(node: FaultyDriver, call: str) -> None:
    node.fail(call, 2, pynvml.NVML_ERROR_TIMEOUT)
    inventory = read_inventory(node.host_root)
    assert [gpu.index for gpu in inventory.gpus] == [0]
    assert [(lost.index, lost.error) for lost in inventory.lost] == [(1, "Timeout")]


def test_a_board_that_fell_off_the_bus_stays_lost_until_it_is_reset(node: FaultyDriver) -> None:
    before = read_inventory(node.host_root)
    node.lose(1)
    node.create(TWO_G)
    for _ in range(2):
        inventory = read_inventory(node.host_root)
        assert ([gpu.index for gpu in inventory.gpus], inventory.lost[0].index) == ([0], 1)
    node.reset(1)
    assert read_inventory(node.host_root).gpus[1] == before.gpus[1]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_board_that_hangs_does_not_hide_the_others(node: FaultyDriver, code: int) -> None:
    node.fail("nvmlDeviceGetHandleByIndex_v2", 1, code)
    inventory = read_inventory(node.host_root)
    assert ([gpu.index for gpu in inventory.gpus], len(inventory.lost)) == ([1], 1)


def test_where_mig_mode_is_off_the_table_says_how_a_board_can_be_cut(node: FaultyDriver) -> None:
    assert node.gpus()[1].board == boards()["H200-141GB"]


def test_a_driver_that_is_newer_than_its_kernel_module_is_named(node: FaultyDriver) -> None:
    node.fail("nvmlInitWithFlags", 1, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(OutsideError, match="mismatch"):
        read_inventory(node.host_root)


def test_who_may_not_read_it_is_told_who_may(node: FaultyDriver) -> None:
    function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
    node.fail(function, 1, pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(OutsideError, match="Run it as root"):
        read_inventory(node.host_root)


def test_errors_of_memory_and_the_kernel_s_are_read(node: FaultyDriver) -> None:
    node.ecc(0, corrected=4, uncorrected=1)
    for number in (79, 31, 79):
        node.xid("0000:07:00", number, "pid=1, GPU has fallen off the bus.")
    a100, h200 = node.gpus()
    assert (a100.health.ecc_corrected, a100.health.ecc_uncorrected) == (4, 1)
    assert (a100.health.remap_pending, a100.health.remap_failed) == (True, False)
    assert (a100.health.xids, h200.health.xids) == ((79, 31), ())


@pytest.mark.parametrize(
    "record",
    [
        "3,1,2,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:07:00): 79'",
        "3,1,2,-;NVRM: Xid (PCI:0000:07:00): 99999999999999999999, none is so long",
        "11,1,2,-;NVRM: Xid (PCI:0000:07:00): 79, not of the kernel",
    ],
)
def test_what_users_make_the_kernel_say_is_no_error_of_a_board(
    node: FaultyDriver, record: str
) -> None:
    """Whoever mounts with an unknown option has its name in the log."""
    with (node.host_root / "dev" / "kmsg").open("a", encoding="ascii") as log:
        log.write(f"{record}\n")
    node.xid("0000:07:00", 31, "pid=1, of a program")
    assert node.gpus()[0].health.xids == (31,)


def test_an_error_of_an_instance_is_its_board_s(node: FaultyDriver) -> None:
    node.xid("0000:07:00 GPU-I:05", 94, "pid=7194, Contained: CE User Channel (0x9).")
    node.xid("0000:07:00 GPU-I:05 GPU-CI:00", 95, "pid=7194, Uncontained.")
    assert node.gpus()[0].health.xids == (94, 95)


def test_a_kernel_log_that_may_not_be_read_leaves_its_errors_unknown(
    node: FaultyDriver,
) -> None:
    (node.host_root / "dev" / "kmsg").unlink()
    assert node.gpus()[0].health.xids is None


def test_a_host_without_a_driver_says_so(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLICEWISE_NVML_DIR")
    with pytest.raises(UnreachableError, match=r"Driver Not Loaded.*SW-DRIVER-MISSING"):
        read_inventory(node.host_root)


@pytest.mark.parametrize(
    ("order", "fits"),
    [
        ((THREE_G, "2g.20gb", "1g.10gb", "1g.10gb"), True),
        (("2g.20gb", "1g.10gb", "1g.10gb", THREE_G), False),
    ],
)
def test_without_a_start_the_order_of_making_matters(
    node: FaultyDriver, order: tuple[str, ...], fits: bool
) -> None:
    with opened():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        *first, last = (boards()["A100-80GB"].profiles[name].gi_profile_id for name in order)
        for profile_id in first:
            pynvml.nvmlDeviceCreateGpuInstance(device, profile_id)
        with nullcontext() if fits else pytest.raises(pynvml.NVMLError_InsufficientResources):
            pynvml.nvmlDeviceCreateGpuInstance(device, last)


def test_a_board_that_offers_no_compute_instance_is_left_as_it_was(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offers_none(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlGpuInstanceGetComputeInstanceProfileInfo", offers_none)
    with pytest.raises(OutsideError, match=r"offers no compute instance for 1g.10gb"):
        node.create(ONE_G)
    assert node.gpus()[0].instances == ()
