"""Tests how much memory a replica of a pool has for models."""

import pytest
from builders.service_views import a_service

from slicewise.launcher.rules.pools.room import memory_mib

HOST, GPU = 8000, 16_000


@pytest.mark.parametrize(
    ("engine", "host_mib", "gpu_mib", "has_mib"),
    [
        ("triton", HOST, GPU, 14_400),
        ("triton", HOST, None, None),
        # Its weights lie in memory of the node, too: the kernel would kill it, or read them again.
        ("llamacpp", HOST, GPU, 7200),
        ("llamacpp", 4 * HOST, GPU, 14_400),
        ("llamacpp", HOST, None, 7200),
        ("llamacpp", None, GPU, 921),
    ],
)
def test_models_fit_the_gpu_and_where_weights_lie_there_the_job_too(
    engine: str, host_mib: int | None, gpu_mib: int | None, has_mib: int | None
):
    values = {"engine": engine} | ({} if host_mib is None else {"memory_mib": str(host_mib)})
    view = a_service(directives=values, memory_mib=gpu_mib)
    assert memory_mib(view) == has_mib


def test_of_several_gpus_all_count():
    values = {"engine": "triton", "gpus": "2"}
    view = a_service(directives=values, memory_mib=GPU)
    assert memory_mib(view) == 28_800
