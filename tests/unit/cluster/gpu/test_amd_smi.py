"""Tests the adapter and the emulated driver, through AMD's own package."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from stand_ins.emulated_gpus import amd_node

from slicewise.cluster.gpu import amd_smi, node_files
from slicewise.cluster.gpu.apply import cut
from slicewise.cluster.gpu.driver import read_inventory
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.gpu_faults import faults, table_differences
from slicewise.cluster.language.gpus.inventory import Gpu, GpuProcess, Inventory, LostGpu
from slicewise.cluster.language.gpus.inventory_json import inventory_of
from slicewise.cluster.language.gpus.layouts import Placement, geometry
from slicewise.cluster.language.gpus.mig_profiles import board, boards
from slicewise.sandbox.amd_smi.driver import VERSION, EmulatedAmdDriver, EmulatedAmdGpu

CPX, SPX = EmulatedAmdGpu("MI300X-192GB", "cpx.nps4"), EmulatedAmdGpu("MI300X-192GB", "spx.nps1")
NO_PERMISSION, IO, NOT_LOADED = 10, 12, 34
PROFILES = [
    (model, profile)
    for model, on in boards().items()
    if on.vendor == "AMD"
    for profile in on.profiles
]


@pytest.fixture
def node() -> Iterator[EmulatedAmdDriver]:
    with amd_node(CPX, SPX) as driver:
        yield driver


def inventory(node: EmulatedAmdDriver) -> Inventory:
    return read_inventory(node.host_root)


def gpus(node: EmulatedAmdDriver) -> tuple[Gpu, ...]:
    return inventory(node).gpus


def test_partitions_of_a_pci_device_are_one_gpu(node: EmulatedAmdDriver) -> None:
    found = inventory(node)
    cpx, spx = found.gpus
    assert (found.vendor, found.driver, found.lost) == ("AMD", VERSION, ())
    assert (cpx.name, cpx.pci_bus_id, cpx.pci_device_id) == (
        "AMD Instinct MI300X",
        "0000:0c:00.0",
        0x74A1,
    )
    assert [one.gi_id for one in cpx.instances] == list(range(8))
    # The kernel's driver has eight render nodes for each GPU.
    assert [one.minor for one in cpx.instances] == list(range(128, 136))
    assert [one.placement for one in spx.instances] == [Placement("spx.nps1", 0, 8)]
    assert spx.minor == 136
    assert (spx.power_mw, spx.temperature_c, spx.memory_mib) == (141_000, 38, 196_592)
    assert cpx.uuid != spx.uuid


@pytest.mark.parametrize(("model", "profile"), PROFILES)
def test_every_mode_of_the_table_comes_back_from_the_driver(model: str, profile: str) -> None:
    with amd_node(EmulatedAmdGpu(model, profile)) as driver:
        found = inventory(driver)
    (gpu,) = found.gpus
    assert gpu.board == board(model)
    layout = frozenset(one.placement for one in gpu.instances)
    assert {one.profile for one in layout} == {profile}
    assert layout in geometry(gpu.board).maximal
    assert (faults(found), table_differences(gpu.board)) == ((), ())
    assert inventory_of(json.dumps(asdict(found))) == found


def test_holders_are_seen_by_partition(node: EmulatedAmdDriver) -> None:
    cgroup = node.host_root / "proc" / "4711" / "cgroup"
    cgroup.parent.mkdir(parents=True)
    cgroup.write_text("0::/system.slice/slurmstepd.scope/job_77/step_0\n")
    node.hold(0, 3, 4711, 512)
    found = inventory(node)
    cpx, spx = found.gpus
    assert [one.holders for one in cpx.instances if one.holders] == [(GpuProcess(4711, 512, 77),)]
    assert cpx.instances[3].holders
    assert cpx.memory_used_mib == 512
    assert inventory_of(json.dumps(asdict(found))) == found
    assert not spx.instances[0].holders


def test_a_gpu_without_modes_is_whole() -> None:
    with amd_node(replace(SPX, profile="")) as driver:
        (gpu,) = gpus(driver)
    assert (gpu.board, gpu.mig, gpu.mig_pending, gpu.instances) == (None, False, False, ())
    assert (gpu.minor, gpu.memory_mib) == (128, 196_592)


def test_modes_beside_the_table_are_read_and_named() -> None:
    with amd_node(EmulatedAmdGpu("MI300X-192GB", "dpx.nps2", partitions=2)) as driver:
        found = inventory(driver)
    (gpu,) = found.gpus
    assert [one.placement for one in gpu.instances] == [
        Placement("dpx.nps2", 0, 4),
        Placement("dpx.nps2", 4, 4),
    ]
    assert gpu.board is not None
    assert table_differences(gpu.board) == ("the table lacks dpx.nps2",)


def test_a_gpu_with_too_few_partitions_is_a_fault_and_others_are_shown() -> None:
    with amd_node(replace(CPX, partitions=5), SPX) as driver:
        found = inventory(driver)
    assert [one.index for one in found.gpus] == [1]
    assert found.lost == (LostGpu(0, "CPX with NPS4 has 8 partitions, but the driver shows 5"),)


def test_a_gpu_that_does_not_answer_is_lost(node: EmulatedAmdDriver) -> None:
    node.fail("amdsmi_get_gpu_asic_info", IO)
    found = inventory(node)
    assert found.gpus == ()
    assert [one.error for one in found.lost] == ["AMDSMI_STATUS_IO - I/O Error"] * 2


def test_what_is_not_answered_is_unknown(node: EmulatedAmdDriver) -> None:
    node.fail("amdsmi_get_gpu_total_ecc_count", NO_PERMISSION)
    assert [gpu.health.ecc_uncorrected for gpu in gpus(node)] == [None, None]


def test_without_a_right_it_says_so(node: EmulatedAmdDriver) -> None:
    node.fail("amdsmi_get_gpu_asic_info", NO_PERMISSION)
    with pytest.raises(OutsideError, match=r"NO_PERM.*Run it as root.*SW-DRIVER"):
        inventory(node)


def test_a_gpu_is_never_cut(node: EmulatedAmdDriver) -> None:
    uuid = gpus(node)[1].uuid
    state = (node.host_root.parent / "state").read_text()
    with pytest.raises(OutsideError, match=r"one mode for all of it.*not touched") as refused:
        cut(uuid, "spx.nps1@0", "cpx.nps1@0,cpx.nps1@1", node.host_root)
    assert refused.value.refusal.code == "SW-NODE-GPU"
    with pytest.raises(OutsideError, match=r"one mode for all of it.*SW-NODE-GPU"):
        amd_smi.change(uuid, [0], [Placement("cpx.nps1", 0, 1)], node.host_root)
    assert (node.host_root.parent / "state").read_text() == state


def test_a_driver_that_is_not_loaded_is_none(node: EmulatedAmdDriver) -> None:
    node.fail("amdsmi_init", NOT_LOADED)
    with pytest.raises(UnreachableError, match="SW-DRIVER-MISSING"), amd_smi.opened():
        pass
    # The first vendor's words are said where none answers.
    with pytest.raises(UnreachableError, match="SW-DRIVER-MISSING"):
        inventory(node)


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)


@pytest.mark.usefixtures("without_package")
def test_a_host_without_amd_s_gpus_needs_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files, "ROOT", tmp_path)
    with pytest.raises(UnreachableError, match="SW-DRIVER-MISSING"):
        read_inventory(tmp_path)


@pytest.mark.usefixtures("without_package")
def test_a_host_with_them_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    monkeypatch.setattr(node_files, "ROOT", tmp_path)
    # It may as well be a login host whose CPU has graphics, which scripts then pass over.
    said = r"No NVIDIA driver.*its AMD GPU can't be read.*/opt/rocm/share/amd_smi.*Else run it on"
    with pytest.raises(UnreachableError, match=said) as refused:
        read_inventory(tmp_path)
    assert refused.value.refusal.code == "SW-DRIVER-MISSING"
