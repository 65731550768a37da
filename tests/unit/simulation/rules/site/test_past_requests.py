"""Jobs of the past as they are submitted to the model."""

from dataclasses import replace

import pytest
from builders.site_world import BEGIN_S, COSTS, GPU, cluster, past

from slicewise.simulation.rules.cluster import SimulatedNode
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import (
    NO_NODES,
    NO_PARTITION,
    Replay,
    Replayable,
    chosen_gpus,
    replays,
    submission,
)

ONCE = Replayable(cluster(2, 4), COSTS)


def replay(job: HistoryJob, can: Replayable = ONCE) -> Replay:
    found = can.of(0, job, job.submit_s)
    assert isinstance(found, Replay)
    return found


def test_what_is_asked_for_on_all_nodes_is_divided_among_them() -> None:
    found = replay(past("A", 8, nodes=2, cpus=5, memory_mib=100))
    request = found.request
    assert (request.gpus, request.cpus, request.memory_mib) == ({"a100": 4}, 3, 50)
    # Slurm stores account names in small letters.
    assert (request.account, request.nodes, found.cost_millislices) == ("a", 2, 8 * GPU)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (past("a", partition="elsewhere"), NO_PARTITION),
        (past("a", 5), NO_NODES),
        (past("a", 12, nodes=3), NO_NODES),
        (past("a", gpus={"h100": 1}), NO_NODES),
    ],
)
def test_a_job_that_the_cluster_can_t_have_is_left_out_for_a_reason(
    job: HistoryJob, why: str
) -> None:
    assert ONCE.of(0, job, job.submit_s) == why


def test_cpus_and_memory_count_where_the_nodes_say_what_they_have() -> None:
    node = SimulatedNode("n0", frozenset({"gpu"}), {"a100": 4}, cpus=8, memory_mib=1000)
    can = Replayable(replace(cluster(), nodes=(node,)), COSTS)
    assert isinstance(can.of(0, past("a", cpus=8), 0.0), Replay)
    assert can.of(0, past("a", cpus=9), 0.0) == NO_NODES
    assert can.of(0, past("a", memory_mib=1001), 0.0) == NO_NODES


def test_of_several_partitions_the_first_that_there_is_counts() -> None:
    assert replay(past("a", partition="old,gpu")).request.partition == "gpu"


def test_gpus_without_a_type_cost_what_the_cheapest_costs() -> None:
    assert replay(past("a", gpus={"": 3})).cost_millislices == 3 * GPU


def test_jobs_come_in_order_and_not_after_the_end() -> None:
    jobs = past("a", 1, 20), past("a", 1, 10), past("a", 1, 30), past("a", 9, 15)
    found = replays(enumerate(jobs), ONCE, begin_s=BEGIN_S, end_s=BEGIN_S + 30)
    assert [one.number for one in found] == [1, 0]


def test_admission_is_asked_what_the_user_asked_slurm() -> None:
    request = replay(past("a", 8, nodes=2, run_s=100.0)).request
    asked = submission(request, "1f")
    assert (asked.gres, asked.min_nodes, asked.time_limit_min) == ("gpu:a100:4", 2, 3)
    assert (asked.account, asked.partition, asked.token) == ("a", "gpu", "1f")


@pytest.mark.parametrize(
    ("qos", "asked"), [("slicewise_a_borrowed", ""), ("slicewise_a", ""), ("normal", "normal")]
)
def test_a_qos_that_slicewise_chose_was_not_the_user_s_wish(qos: str, asked: str) -> None:
    assert submission(replay(past("a", qos=qos)).request, "1f").qos == asked


def test_a_chosen_type_is_read_from_what_admission_writes() -> None:
    assert chosen_gpus("gpu:1g.10gb:2,gpu:3g.40gb:1") == {"1g.10gb": 2, "3g.40gb": 1}
