"""Tests a node's GPUs as lines for Slurm, and differences to what slurmctld has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from builders.nodes import a_node
from stand_ins.emulated_gpus import amd_node, gpu_node

from slicewise.cluster.gpu.driver import read_inventory as read_any
from slicewise.cluster.gpu.nvml import create_instance, read_inventory
from slicewise.cluster.language.gpus import vendors
from slicewise.cluster.language.gpus.accelerator import Extra
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import MigProfile, board
from slicewise.cluster.language.jobs import NodeView
from slicewise.sandbox.amd_smi.driver import EmulatedAmdGpu
from slicewise.sandbox.nvml.driver import EmulatedGpu
from slicewise.slurm_plugin.rules.slurm_config.gres import (
    Device,
    ProfileKind,
    devices,
    gres_conf,
    gres_findings,
    node_gres,
    types_by_kind,
    unmanaged,
)
from slicewise.slurm_plugin.rules.slurm_config.node_lines import padded, room


@pytest.fixture(scope="module")
def inventory() -> Iterator[Inventory]:
    gpus = (
        EmulatedGpu("A100-80GB"),
        EmulatedGpu("H100-80GB"),
        EmulatedGpu("H200-141GB", mig=False),
    )
    with gpu_node(*gpus) as node:
        a100, h100, _ = read_inventory(node.host_root).gpus
        create_instance(a100.uuid, Placement("3g.40gb", 4, 4), node.host_root)
        create_instance(a100.uuid, Placement("1g.10gb", 0, 1), node.host_root)
        create_instance(h100.uuid, Placement("1g.10gb", 6, 1), node.host_root)
        yield read_inventory(node.host_root)


TYPES = types_by_kind({"1g.10gb": board("A100-80GB"), "h100_1g.10gb": board("H100-80GB")})


def test_the_site_s_types_come_first_and_others_are_full_names(inventory: Inventory) -> None:
    assert [one.gres_type for one in devices(inventory, TYPES)] == [
        "1g.10gb",
        "nvidia_a100_3g.40gb",
        "h100_1g.10gb",
        "nvidia_h200",
    ]


def test_a_whole_gpu_has_the_site_s_type_for_its_model(inventory: Inventory) -> None:
    types = types_by_kind({}, {"H200-141GB": "h200", "A100-80GB": "a100"})
    assert [one.gres_type for one in devices(inventory, types)][-1] == "h200"


def test_a_type_is_found_by_the_name_that_another_driver_has_for_its_profile() -> None:
    found = types_by_kind({"1g.23gb": board("GB200-186GB")})
    assert found[ProfileKind("GB200-186GB", "1g.24gb")] == "1g.23gb"


def test_an_instance_is_its_gpu_and_both_capabilities(inventory: Inventory) -> None:
    one_g, three_g, *_, whole = gres_conf("gpu07", devices(inventory, TYPES))
    assert one_g == (
        "NodeName=gpu07 AutoDetect=off Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,"
        "/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67"
    )
    assert three_g.endswith("/dev/nvidia-caps/nvidia-cap12,/dev/nvidia-caps/nvidia-cap13")
    assert whole == "NodeName=gpu07 AutoDetect=off Name=gpu Type=nvidia_h200 File=/dev/nvidia2"


class Other:
    """A vendor of GPUs that are one file each, and whose instances are one file each."""

    vendor, gpu_uuid, instance_uuid, profile = "Other", "", "", ""
    variables: tuple[str, ...] = ()
    uncut, has_parts, gres_flags = "", True, ""

    def files(self, directory: str, gpu: int, instance: Sequence[int]) -> tuple[str, ...]:
        return (f"{directory}/render{instance[0] if instance else gpu}",)

    def pad_file(self, directory: str, nth: int) -> str:
        return f"{directory}/none{nth}"

    def extras(
        self, memory_slices: int, profiles: Sequence[MigProfile]
    ) -> Mapping[tuple[str, int], Extra]:
        raise NotImplementedError


def test_device_files_and_pads_are_those_of_the_vendor(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vendors._BY_VENDOR, "Other", Other())
    found = devices(replace(inventory, vendor="Other"), TYPES, "/dev/dri")
    one_g, *_, whole = (one.files for one in padded((*found, None), "Other", "/dev/dri"))
    assert (one_g, whole) == (("/dev/dri/render66",), ("/dev/dri/none0",))
    assert found[-1].files == ("/dev/dri/render2",)


@pytest.fixture
def amd() -> Iterator[Inventory]:
    """A GPU of four partitions, one that is a single partition, one that has no modes."""
    profiles = ("qpx.nps1", "spx.nps1", "")
    with amd_node(*(EmulatedAmdGpu("MI300X-192GB", one) for one in profiles)) as driver:
        yield read_any(driver.host_root)


def test_amd_s_partitions_are_render_nodes_and_only_rocr_counts_them(amd: Inventory) -> None:
    types = types_by_kind({"qpx.nps1": board("MI300X-192GB")}, {"MI300X-192GB": "mi300x"})
    lines = gres_conf("gpu07", devices(amd, types))
    assert lines[:4] == tuple(
        "NodeName=gpu07 AutoDetect=off Name=gpu Type=qpx.nps1"
        f" File=/dev/dri/renderD{minor} Flags=amd_gpu_env"
        for minor in range(128, 132)
    )
    # A partition of a whole GPU has the type of a whole GPU.
    assert lines[4].endswith("Type=mi300x File=/dev/dri/renderD136 Flags=amd_gpu_env")
    assert lines[5].endswith("Type=amd_instinct_mi300x File=/dev/dri/renderD144 Flags=amd_gpu_env")


def test_without_types_amd_s_partitions_have_full_names(amd: Inventory) -> None:
    assert node_gres(devices(amd, {})) == (
        "gpu:amd_instinct_mi300x_qpx.nps1:4,gpu:amd_instinct_mi300x_spx.nps1:1,"
        "gpu:amd_instinct_mi300x:1"
    )


def test_a_node_with_amd_s_gpus_has_room_for_no_pad(amd: Inventory) -> None:
    assert room(amd) == len(devices(amd, {})) == 6


def test_slurm_conf_counts_types(inventory: Inventory) -> None:
    found = devices(inventory, {})
    assert node_gres(found) == (
        "gpu:nvidia_a100_1g.10gb:1,gpu:nvidia_a100_3g.40gb:1,"
        "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1,gpu:nvidia_h200:1"
    )


TWO = (Device("1g.10gb", ("/dev/a",)), Device("1g.10gb", ("/dev/b",)))


def node(**gpus: int) -> NodeView:
    counts = {kind.replace("_", "."): count for kind, count in gpus.items()}
    return a_node("gpu07", gpus={f"1{k}": n for k, n in counts.items()})


def gres_texts(name: str, node: NodeView | None, found: tuple[Device, ...]) -> tuple[str, ...]:
    return tuple(one.text.rpartition(" [")[0] for one in gres_findings(name, node, found))


def test_a_node_that_slurm_has_as_it_is_has_no_fault() -> None:
    assert gres_findings("gpu07", node(g_10gb=2), TWO) == ()


def test_fewer_more_and_other_instances_are_faults() -> None:
    (fewer,) = gres_texts("gpu07", node(g_10gb=3), TWO)
    assert fewer.startswith("Slurm expects 3 gpu:1g.10gb, but the node has 2:")
    (more,) = gres_texts("gpu07", node(g_10gb=1), TWO)
    assert more == "The node has 2 gpu:1g.10gb, but Slurm expects 1: the rest lies idle."
    both = gres_texts("gpu07", node(g_20gb=1), TWO)
    assert [fault.split()[0] for fault in both] == ["The", "Slurm"]
    assert gres_texts("gpu07", None, TWO) == (
        "Slurm has no node gpu07. Name the node with --node, as slurm.conf does.",
    )


def test_pads_are_no_fault() -> None:
    slurm = a_node("gpu07", gpus={"1g.10gb": 2, "pad2": 5})
    assert gres_texts("gpu07", slurm, TWO) == ()


def test_types_without_a_cost_are_named_once() -> None:
    assert unmanaged(TWO, {"1g.10gb": 1000}) == ()
    assert tuple(one.text for one in unmanaged(TWO, {})) == (
        "gpu:1g.10gb is not a type of [gpus] in slicewise.toml: it is not charged. [SW-NODE-PRICE]",
    )
