"""What the vendors' accelerators say, and that the table of profiles agrees with them."""

import re

import pytest

from slicewise.cluster.language.gpus.mig_profiles import board, boards
from slicewise.cluster.language.gpus.vendors import ACCELERATORS, accelerator

NVIDIA, AMD = accelerator("NVIDIA"), accelerator("AMD")


@pytest.mark.parametrize("model", sorted(boards()))
def test_a_board_s_profiles_are_called_as_its_vendor_calls_them(model: str) -> None:
    on = board(model)
    names = [name for one in on.profiles.values() for name in (one.name, *one.aliases)]
    assert {one.vendor for one in ACCELERATORS for name in names if fits(one.profile, name)} == {
        on.vendor
    }
    assert all(fits(accelerator(on.vendor).profile, name) for name in names)


def fits(form: str, text: str) -> bool:
    return re.fullmatch(form, text) is not None


def test_a_whole_gpu_has_one_file_and_an_instance_its_capabilities_too() -> None:
    assert NVIDIA.files("/dev", 3, ()) == ("/dev/nvidia3",)
    assert NVIDIA.files("/dev", 3, (66, 67)) == (
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    )


def test_no_two_pads_have_one_name() -> None:
    for vendor in ACCELERATORS:
        if vendor.has_parts:
            assert len({vendor.pad_file("/dev", nth) for nth in range(100)}) == 100


def test_a_partition_of_amd_s_has_its_own_render_node_and_no_other_file() -> None:
    assert AMD.files("/dev", 128, ()) == ("/dev/dri/renderD128",)
    assert AMD.files("/dev", 128, (131, 131)) == ("/dev/dri/renderD131",)


@pytest.mark.parametrize("model", [name for name, on in boards().items() if on.vendor == "AMD"])
def test_amd_s_partitions_are_equal_parts_of_a_gpu_that_exclude_other_modes(model: str) -> None:
    on = board(model)
    whole = on.profiles[AMD.uncut]
    assert (whole.compute_slices, whole.max_instances) == (on.compute_slices, 1)
    extras = AMD.extras(on.memory_slices, tuple(on.profiles.values()))
    for one in on.profiles.values():
        assert one.compute_slices * one.max_instances == on.compute_slices
        assert one.multiprocessors is not None
        assert one.multiprocessors * one.max_instances == whole.multiprocessors
        assert (one.memory_mib or 0) * one.max_instances <= (whole.memory_mib or 0)
        first = extras[one.name, one.starts[0]].takes
        for other in on.profiles.values():
            last = extras[other.name, other.starts[-1]].takes
            assert bool(first & last) == (one != other) or one.max_instances == 1


def test_profiles_that_differ_in_their_engines_only_have_an_extension() -> None:
    found = {one.extension for on in boards().values() for one in on.profiles.values()}
    assert found == {"", "+me", "-me", "+me.all", "+gfx"}
    assert board("A100-80GB").profiles["1g.10gb+me"].extension == "+me"
    assert board("A100-80GB").profiles["1g.10gb"].extension == ""
