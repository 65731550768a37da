"""Tests how many GPUs stay wholly free: by Slurm's own order of nodes, and by changed weights."""

import pytest

from studies.placement.pods import Request
from studies.placement.whole import Nodes, Services, slurms_choice

ALIKE = dict.fromkeys("012345", 1)


@pytest.mark.parametrize(
    ("nodes", "weights", "free_cores", "chosen"),
    [
        ((0, 1, 2), ALIKE, (9, 4, 7), 1),
        ((0, 1, 2), ALIKE | {"1": 2}, (9, 4, 7), 2),
        ((0, 1, 3), ALIKE, (2, 3, 0, 4), 3),
        ((0, 1, 3), ALIKE, (1, 2, 0, 4), 0),
    ],
)
def test_slurm_takes_the_lightest_then_the_shortest_row_then_the_fullest(
    nodes: tuple[int, ...], weights: dict[str, int], free_cores: tuple[int, ...], chosen: int
):
    assert slurms_choice(nodes, weights, free_cores) == chosen


def test_a_job_that_ends_gives_its_gpu_back():
    requests = [Request(float(at_s), "1g.10gb", 1.0) for at_s in range(0, 101, 10)]
    layouts = [["1g.10gb"] * 7, ["1g.10gb"] * 7]
    for weighs in (False, True):
        assert Nodes(layouts, 1, weighs=weighs).run(requests) == pytest.approx(2 - 8 / 80)


def test_with_weights_a_node_in_use_comes_before_an_empty_one_that_stands_alone():
    """Once the short jobs on node 0 have ended, Slurm starts again there, beside node 2."""
    small = ["1g.10gb"] * 7
    layouts = [small, ["7g.80gb"], small, small]
    short = [Request(0.0, "1g.10gb", 10.0)] * 7
    long = [Request(at_s, "1g.10gb", 1000.0) for at_s in (1.0, 20.0)]
    last = Request(100.0, "7g.80gb", 1.0)
    free = [Nodes(layouts, 1, weighs=how).run([*short, *long, last]) for how in (False, True)]
    assert free == pytest.approx([2, 3])


def test_who_knows_what_is_held_of_nodes_keeps_more_gpus_free():
    unknown, known = (Services(1, 24, is_known=known).run(1) for known in (False, True))
    assert known > unknown
