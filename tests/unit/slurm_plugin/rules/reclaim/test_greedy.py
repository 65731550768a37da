"""Tests room for several jobs: what goes for one job also serves the next."""

import pytest

from slicewise.slurm_plugin.rules.quota.jobs import Shape, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity
from slicewise.slurm_plugin.rules.reclaim.greedy import fill
from slicewise.slurm_plugin.rules.reclaim.running import Running

PAIR = (("1g.10gb", 2),)


def run(job_id: int, node: str, count: int) -> Running:
    return Running(job_id, "nlp", 1000 * count, None, True, {node: {"1g.10gb": count}})


def wants(job_id: int, shape: Shape, nodes: int) -> WaitingJob:
    return WaitingJob(job_id, "vision", 0, shape, nodes)


def room(*runs: Running, above: int = 100_000) -> Capacity:
    return Capacity({}, runs, {"nlp": above}, {}, {})


def test_what_is_left_of_a_run_goes_to_the_next_job() -> None:
    found = room(run(1, "n1", 4), run(2, "n2", 4))
    places, out = fill(found, [wants(10, PAIR, 1), wants(11, PAIR, 1)])
    assert (places, out) == ({(10, 0): ("n1",), (11, 0): ("n1",)}, set())
    assert found.taken.keys() == {1}


@pytest.mark.parametrize(
    ("second", "large"),
    [("n2", wants(10, PAIR, 2)), ("n1", wants(10, (("1g.10gb", 3),), 1))],
    ids=["two nodes", "one node"],
)
def test_what_was_taken_in_vain_is_there_for_the_next_job(second: str, large: WaitingJob) -> None:
    found = room(run(1, "n1", 2), run(2, second, 2), above=2000)
    places, out = fill(found, [large, wants(11, PAIR, 1)])
    assert (places, out) == ({(11, 0): ("n1",)}, {(10, 0)})
    assert found.taken.keys() == {1}
    assert found.lacks() == {}


def test_whose_tenant_gives_no_more_is_passed_over() -> None:
    found = room(run(1, "n1", 2), run(2, "n2", 2), above=2000)
    places, out = fill(found, [wants(10, PAIR, 1), wants(11, PAIR, 1)])
    assert (places, out) == ({(10, 0): ("n1",)}, {(11, 0)})
