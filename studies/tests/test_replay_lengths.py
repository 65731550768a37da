"""Tests what policies are told of the lengths of requests in the replay."""

import numpy as np
import pytest

from studies.autoscale import lengths
from studies.autoscale.lengths import (
    POLICIES,
    TokenRequests,
    counted,
    known,
    point,
    ratios,
    turns,
)
from studies.autoscale.workload import Starts, Workload
from studies.autoscale.world import World

STARTS = Starts(np.full(50, 1.0), np.full(50, 5.0))


def workload(arrivals_s: list[float], service_s: float, replicas: int = 1) -> Workload:
    count = len(arrivals_s)
    return Workload(
        *("few", np.array(arrivals_s), np.full(count, service_s), int(arrivals_s[-1]) + 20),
        concurrency=2,
        starts=STARTS,
        first_replicas=replicas,
        warm_s=0,
    )


def test_prompts_count_when_they_begin_and_answers_when_they_end():
    told = workload([0.0, 0.0, 0.0], 10.0)
    requests = TokenRequests(told, np.array([[4.0, 6.0]] * 3))
    world = World(told, requests)
    found = []
    for second in (1, 9, 10, 20):
        world.pass_until(second)
        seen = world.look()
        found.append((counted(requests, seen), known(requests, seen)))
    came = (30.0, 3)
    assert [one for _, one in found] == [came] * 4
    assert [one for one, _ in found] == [(8.0, 0), (8.0, 0), (24.0, 2), (30.0, 3)]


def test_lengths_change_every_ten_minutes():
    tokens = np.array([(10, 2), (10, 4), (10, 6), (10, 4)])
    arrivals = np.array([0.0, 599.0, 600.0, 1200.0])
    assert turns(1, 100, 2_000)(arrivals, tokens).tolist() == [
        *([10, 50], [10, 100], [10, 3000], [10, 100])
    ]
    assert lengths.as_they_are(arrivals, tokens) is tokens


def test_what_is_told_does_not_matter_where_all_requests_are_alike():
    told = workload([float(number) / 2 for number in range(600)], 4.0, replicas=2)
    seconds = np.full((600, 2), 2.0)
    found = {policy: point(told, seconds, policy, 0.9) for policy in POLICIES}
    ours = found["slicewise"]
    assert found["one_memory"] == ours
    for policy in ("tokens", "known"):
        assert found[policy]["slice_hours"] == pytest.approx(ours["slice_hours"], rel=0.1)


def test_costs_stand_beside_the_product_s_where_both_attain_as_much():
    points = {
        "slicewise": [{"target": 0.9, "attainment": 0.96, "slice_hours": 10.0}],
        "tokens": [{"target": 0.9, "attainment": 0.995, "slice_hours": 12.0}],
    }
    assert ratios(points) == {"tokens": {"90": 1.2, "95": 1.2, "99": None, "99.9": None}}
