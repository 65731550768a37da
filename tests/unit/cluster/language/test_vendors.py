"""What the vendors' accelerators say, and that the table of profiles agrees with them."""

import re

import pytest

from cluster.language.mig_profiles import board, boards
from cluster.language.vendors import ACCELERATORS, accelerator

NVIDIA = accelerator("NVIDIA")


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
        assert len({vendor.pad_file("/dev", nth) for nth in range(100)}) == 100


def test_profiles_that_differ_in_their_engines_only_have_an_extension() -> None:
    found = {one.extension for on in boards().values() for one in on.profiles.values()}
    assert found == {"", "+me", "-me", "+me.all", "+gfx"}
    assert board("A100-80GB").profiles["1g.10gb+me"].extension == "+me"
    assert board("A100-80GB").profiles["1g.10gb"].extension == ""
