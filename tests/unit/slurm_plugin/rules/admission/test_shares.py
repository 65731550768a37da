"""Tests the CPUs and memory that a job may have beside its GPUs, by what the nodes have."""

from dataclasses import replace

import pytest
from builders.nodes import a_node

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.shares import GpuSize, PerSlice, shares

SIZES = {
    "1g.10gb": GpuSize("A100", 1000),
    "3g.40gb": GpuSize("A100", 3500),
    "7g.141gb": GpuSize("H200", 7000),
}


def node(gpus: dict[str, int], cpus: int, memory_mib: int, threads: int = 1) -> NodeView:
    return a_node("n", gpus=gpus, cpus=cpus, threads_per_core=threads, memory_mib=memory_mib)


def test_all_gpus_of_a_node_fit_with_their_shares() -> None:
    nodes = (node({"1g.10gb": 7}, 16, 16000), node({"1g.10gb": 3, "3g.40gb": 1}, 64, 64000))
    found = shares(SIZES, nodes, None, None)
    assert found == {
        "1g.10gb": {"cpus": 2, "memory_mib": 2285},
        "3g.40gb": {"cpus": 8, "memory_mib": 8000},
    }
    for one in nodes:
        for what, has in (("cpus", one.cpus), ("memory_mib", one.memory_mib)):
            assert sum(found[kind][what] * count for kind, count in one.gpus.items()) <= has


def test_a_share_does_not_grow_because_a_gpu_is_cut_otherwise() -> None:
    board = WholeBoard(7, Millislices(7000))
    sizes = {kind: replace(size, board=board) for kind, size in SIZES.items()}
    whole = shares(sizes, [node({"1g.10gb": 7}, 14, 14000)], None, None)
    cut = shares(sizes, [node({"1g.10gb": 1, "pad1": 6}, 14, 14000)], None, None)
    assert cut == whole
    assert whole["1g.10gb"] == {"cpus": 2, "memory_mib": 2000}


def test_whole_cores_are_given() -> None:
    """Slurm gives a job of 3 CPUs 4 of them where a core has two threads."""
    found = shares(SIZES, [node({"1g.10gb": 7}, 24, 0, threads=2)], None, None)
    assert found == {"1g.10gb": {"cpus": 2, "threads": 2}, "3g.40gb": {"cpus": 12, "threads": 2}}


def test_a_share_says_how_many_threads_a_core_has_at_most() -> None:
    """As the share is: of all nodes of its model."""
    nodes = (node({"1g.10gb": 7}, 14, 0), node({"3g.40gb": 2}, 56, 0, threads=4))
    said = shares(SIZES, nodes, 2, None)
    assert said["1g.10gb"] == {"cpus": 2, "threads": 4}
    assert "threads" not in shares(SIZES, nodes, "any", 4)["1g.10gb"]


def test_a_poor_node_bounds_its_own_model_only() -> None:
    nodes = (node({"3g.40gb": 2}, 7, 7000), node({"7g.141gb": 8}, 192, 2_000_000))
    found = shares(SIZES, nodes, None, None)
    assert found["3g.40gb"] == {"cpus": 3, "memory_mib": 3500}
    assert found["7g.141gb"] == {"cpus": 24, "memory_mib": 250_000}


def test_each_job_may_have_a_core() -> None:
    assert shares(SIZES, [node({"1g.10gb": 7}, 4, 4)], None, None)["1g.10gb"] == {
        "cpus": 1,
        "memory_mib": 1,
    }


@pytest.mark.parametrize(
    ("cpus", "memory_mib", "expected"),
    [
        (2.5, 4096.0, {"cpus": 3, "memory_mib": 4096}),
        (2.5, "any", {"cpus": 3}),
        ("any", None, {"memory_mib": 2285}),
        ("any", "any", None),
    ],
)
def test_what_the_settings_say_counts(
    cpus: PerSlice, memory_mib: PerSlice, expected: dict[str, int] | None
) -> None:
    nodes = [node({"1g.10gb": 7}, 16, 16000)]
    assert shares(SIZES, nodes, cpus, memory_mib).get("1g.10gb") == expected


def test_nothing_is_bound_by_what_nobody_knows() -> None:
    """RealMemory is 1 where slurm.conf says none; a node without GPUs has no share of them."""
    nodes = (node({"1g.10gb": 7}, 0, 1), node({}, 64, 64000), node({"other": 4}, 1, 100))
    assert shares(SIZES, nodes, None, None) == {}


def test_a_part_of_a_shared_gpu_has_its_share_of_a_node_that_has_such() -> None:
    sizes = {**SIZES, "shard": GpuSize("", Millislices(875))}
    shared = replace(node({"7g.141gb": 1}, 16, 16000), shared={"shard": 8})
    found = shares(sizes, (shared, node({"1g.10gb": 7}, 7, 7000)), None, None)
    assert found["shard"] == {"cpus": 2, "memory_mib": 2000}
    assert "shard" not in shares(sizes, (node({"1g.10gb": 7}, 7, 7000),), None, None)
    # Its GPU has no price, so nothing says what a slice of the node is.
    other = replace(shared, gpus={"unpriced": 1})
    assert "shard" not in shares(sizes, (other,), None, None)
