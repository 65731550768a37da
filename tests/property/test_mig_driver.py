"""Property: the emulated driver makes instances exactly where the layouts allow them."""

from ctypes import byref

import pynvml
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.emulated_gpus import gpu_node

from slicewise.cluster.gpu.nvml import opened
from slicewise.cluster.language.gpus.layouts import Placement, geometry
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.sandbox.nvml.driver import EmulatedGpu


def is_made(device: object, profile_id: int, one: Placement) -> bool:
    where = pynvml.c_nvmlGpuInstancePlacement_t(one.start, one.size)
    try:
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, byref(where))
    except pynvml.NVMLError_InsufficientResources:
        return False
    return True


@pytest.mark.parametrize("model", ["A30-24GB", "A100-80GB", "RTX-PRO-6000-Blackwell-96GB"])
@settings(max_examples=examples(20))
@given(data=st.data())
def test_what_the_driver_makes_is_legal_and_what_it_refuses_is_not(
    model: str, data: st.DataObject
) -> None:
    on = board(model)
    desired_slots = data.draw(st.lists(st.sampled_from(geometry(on).placements), max_size=10))
    there: set[Placement] = set()
    with gpu_node(EmulatedGpu(model)), opened():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for one in desired_slots:
            legal = one not in there and geometry(on).is_legal({*there, one})
            assert is_made(device, on.profiles[one.profile].gi_profile_id, one) == legal
            there |= {one} if legal else set()
