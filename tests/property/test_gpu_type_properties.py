"""Property: the chosen type fits, none that fits is cheaper, and order does not matter."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.gpu_type import choose_type
from slicewise.slurm_plugin.rules.admission.snapshot import GpuType

PARTITIONS = st.frozensets(st.sampled_from(["gpu", "mig"]))
NAMES = "abcdef"


@st.composite
def gpu_types(draw: st.DrawFn) -> list[GpuType]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    return [
        GpuType(
            name,
            Millislices(draw(st.integers(1, 4)) * 500),
            draw(st.none() | st.integers(1, 5)),
            total=8,
            free=draw(st.integers(0, 8)),
            waiting=draw(st.integers(0, 20)),
            partitions=draw(PARTITIONS),
        )
        for name in names
    ]


@st.composite
def desired_by_array(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "count": draw(st.integers(1, 4)),
        "need_mib": draw(st.none() | st.integers(1, 5)),
        "limits": draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 4))),
        "partitions": draw(PARTITIONS),
    }


def fits(one: GpuType, desired: dict[str, Any]) -> bool:
    need, count = desired["need_mib"], desired["count"]
    has_memory = need is None or (one.memory_mib is not None and one.memory_mib >= need)
    is_allowed = desired["limits"].get(one.name, count) >= count
    return has_memory and is_allowed and bool(one.partitions & desired["partitions"])


@given(gpu_types(), desired_by_array(), st.randoms())
def test_it_fits_and_none_that_fits_is_cheaper(
    types: list[GpuType], desired: dict[str, Any], random: Random
) -> None:
    best = choose_type(types, **desired)
    fitting = [one for one in types if fits(one, desired)]
    assert (best is None) == (fitting == [])
    if best is None:
        return
    assert best in fitting
    cheapest = [one for one in fitting if one.cost_millislices <= best.cost_millislices]
    assert all(one.cost_millislices == best.cost_millislices for one in cheapest)
    if best.free < desired["count"]:
        assert all(one.free < desired["count"] for one in cheapest)
        assert best.waiting == min(one.waiting for one in cheapest)
    assert choose_type(random.sample(types, len(types)), **desired) == best
