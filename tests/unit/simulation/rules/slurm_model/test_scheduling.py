"""In which order jobs start: priority, backfill, preemption and the choice of nodes."""

from dataclasses import replace

import pytest
from builders.model_world import COSTS, QUICK, START_S, after, job, model, started, states

from slicewise.cluster.language.slurm.interface import JobChange
from slicewise.simulation.rules.cluster import (
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.slurm_model.job_requests import QosLimits
from slicewise.simulation.rules.slurm_model.model import SlurmModel

HOUR_S = 3600


def waiting(one: SlurmModel) -> set[str]:
    """The jobs that wait."""
    return {task for task, (state, _) in states(one).items() if state == "PENDING"}


def test_a_short_job_starts_before_one_that_waits_for_all_gpus():
    one = model({"a100": 4})
    one.submit(job(2, limit_s=HOUR_S))
    one.submit(job(4))
    one.submit(job(2, limit_s=HOUR_S + 60))
    one.submit(job(2, limit_s=HOUR_S - 60))
    after(one, 30)
    assert started(one) == {"1": 0, "4": 30}


def test_a_job_on_other_nodes_than_the_reserved_ones_starts():
    one = model({"a100": 4}, {"1g.10gb": 7})
    one.submit(job(2))
    one.submit(job(4))
    one.submit(job({"1g.10gb": 1}, limit_s=10 * HOUR_S))
    after(one, 30)
    assert started(one) == {"1": 0, "3": 30}


def test_reservations_follow_one_another():
    """Two that want all GPUs; the gap before the second is as long as the first."""
    one = model({"a100": 4})
    one.submit(job(2, limit_s=HOUR_S))
    one.submit(job(4, limit_s=HOUR_S))
    one.submit(job(4, limit_s=HOUR_S))
    one.submit(job(2, limit_s=2 * HOUR_S))
    after(one, 30)
    assert started(one) == {"1": 0}


def test_a_job_that_limits_keep_from_its_start_reserves_nothing():
    one = model({"a100": 4})
    one.set_qos("full", QosLimits(grp_tres={"billing": 0}))
    one.submit(job(1))
    one.submit(job(4))
    one.cancel(1)
    one.submit(job(4, qos="full"))
    after(one, 30)
    assert started(one) == {"2": 0}
    one.cancel(2)
    one.submit(job(2, limit_s=100 * HOUR_S))
    after(one, 30)
    assert "4" in started(one)


@pytest.mark.parametrize("backfills", [True, False])
@pytest.mark.parametrize("bound", [Scheduling(reserve_age_s=60), Scheduling(reserve_priority=500)])
def test_a_job_keeps_nodes_only_once_it_has_waited_or_has_the_priority(
    bound: Scheduling, *, backfills: bool
) -> None:
    """Until the job that waits for all GPUs keeps them, others pass it."""
    scheduling = replace(
        QUICK,
        backfills=backfills,
        reserve_age_s=bound.reserve_age_s,
        reserve_priority=bound.reserve_priority,
    )
    one = model({"a100": 4}, scheduling=scheduling)
    one.submit(job(2))
    after(one, 5)
    one.submit(job(4, site_factor=100))
    after(one, 5)
    one.submit(job(1, limit_s=10 * HOUR_S))
    after(one, 70)
    one.update(2, JobChange(site_factor=1000))
    one.submit(job(1, limit_s=10 * HOUR_S))
    after(one, 200)
    assert set(started(one)) == {"1", "3"}


def test_slurm_plans_no_nearer_than_its_windows():
    """Running jobs end after 65 and 130 s. The first window is over 100 s after the first whole
    half minute, so both are in it, and the job is planned for the minute in which the second ends.
    """
    one = model({"a100": 4})
    one.submit(job(2, limit_s=65))
    one.submit(job(1, limit_s=90))
    one.submit(job(3))
    after(one, 1)
    # 20 s after a whole minute: planned at 90 s, reserved from 40 s on, which is a whole minute.
    assert int(START_S) % 60 == 20
    one.submit(job(1, limit_s=38))
    one.submit(job(1, limit_s=60))
    after(one, 30)
    assert waiting(one) == {"3", "4", "5"}
    after(one, 10)
    assert waiting(one) == {"3", "4", "5"}


def test_a_job_in_a_window_that_is_over_late_lets_shorter_ones_pass():
    """The last end of the window counts, and not the one at which the job would first fit."""
    one = model({"a100": 4}, scheduling=replace(QUICK, backfill_s=1.0))
    one.submit(job(2, limit_s=70))
    one.submit(job(1, limit_s=101))
    one.submit(job(3))
    one.submit(job(1, limit_s=79))
    after(one, 1)
    # It would fit at 70 s (90 s after a minute); it is planned at 101 s, reserved from 100 s on.
    assert started(one) == {"1": 0, "2": 0, "4": 1}


def test_nothing_starts_on_a_node_on_which_a_job_completes():
    scheduling = replace(QUICK, backfill_s=1.0, complete_s=20.0)
    one = model({"a100": 4}, {"1g.10gb": 7}, scheduling=scheduling)
    one.submit(job(2, run_s=10.0))
    after(one, 12)
    one.submit(job(1))
    one.submit(job({"1g.10gb": 1}))
    after(one, 17)
    assert started(one) == {"1": 0, "3": 12}
    after(one, 5)
    assert started(one)["2"] == 30


def test_a_job_gets_the_fewest_cpus_that_are_enough_among_neighbours():
    """Nodes 0 and 1, and node 3, have room: the set with fewer CPUs left in all goes first, and in
    a set the node with the fewest, or the first ones for a job of several nodes.
    """
    each = {"a100": 4}
    one = model(each, each, {"1g.10gb": 7}, each, cpus=16)
    one.submit(job(3, cpus=1))
    one.submit(job(2, cpus=6))
    one.submit(job(1, cpus=7))
    one.submit(job(1, cpus=1))
    one.submit(job(4, cpus=1))
    one.submit(job(1, nodes=2, cpus=1))
    after(one, 1)
    assert [task.nodes for task in one.jobs] == [
        *(("n3",), ("n0",), ("n3",), ("n0",), ("n1",)),
        (),
    ]


def test_without_backfill_nobody_passes():
    one = model({"a100": 4}, scheduling=replace(QUICK, backfills=False))
    one.submit(job(2))
    one.submit(job(4))
    one.submit(job(1, limit_s=60))
    after(one, 300)
    assert started(one) == {"1": 0}


def test_backfill_looks_at_no_more_jobs_than_it_may():
    one = model({"a100": 4}, scheduling=replace(QUICK, backfill_jobs=1))
    one.submit(job(2))
    one.submit(job(4))
    one.submit(job(1, limit_s=60))
    after(one, 300)
    assert started(one) == {"1": 0}


def test_the_site_s_factor_decides_who_goes_first():
    one = model({"a100": 1})
    first = one.submit(job(run_s=10))
    after(one, 0)
    one.submit(job(site_factor=1))
    one.submit(job(site_factor=100))
    one.submit(job(site_factor=50))
    one.cancel(first)
    after(one, 0)
    assert [shown.priority for shown in one.jobs] == [1, 1, 100, 50]
    assert started(one) == {"1": 0, "3": 0}


def test_age_and_qos_make_a_priority():
    weights = PriorityWeights(age=1000, qos=500, max_age_s=HOUR_S)
    one = model({"a100": 1}, scheduling=replace(QUICK, weights=weights))
    one.set_qos("own", QosLimits(priority=5))
    one.set_qos("top", QosLimits(priority=10))
    one.submit(job())
    after(one, 0)
    one.submit(job())
    one.submit(job(qos="top"))
    after(one, HOUR_S // 2)  # They were computed 200 s before.
    assert [shown.priority for shown in one.jobs[1:]] == [694, 944]
    after(one, 2 * HOUR_S)
    assert one.jobs[0].priority == 1250


def test_who_has_used_less_goes_first():
    weights = PriorityWeights(fair_share=1000)
    accounts = {"a": "root", "b": "root"}
    one = model({"a100": 2}, scheduling=replace(QUICK, weights=weights), accounts=accounts)
    one.submit(job(1, run_s=HOUR_S))
    one.submit(job(1, run_s=HOUR_S, account="b", user="bob"))
    after(one, 2 * HOUR_S)
    one.submit(job(2, run_s=HOUR_S))
    after(one, HOUR_S - 10)
    one.submit(job(2))
    one.submit(job(2, account="b", user="bob"))
    after(one, 20)
    assert states(one)["5"] == ("RUNNING", "None")


def test_a_preempted_job_waits_again_and_the_other_starts():
    one = model({"a100": 2})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job(1, qos="loan"))
    one.submit(job(1, qos="loan", requeues=False))
    after(one, 10)
    one.submit(job(2))
    after(one, 0)
    assert states(one) == {
        "1": ("PENDING", "BeginTime"),
        "2": ("ENDED", "None"),
        "3": ("RUNNING", "None"),
    }
    assert {run.state for run in one.take_ended()} == {"PREEMPTED"}
    assert one.jobs[0].restarts == 1


def test_who_finishes_what_it_has_holds_its_gpus_for_kill_wait_at_most():
    one = model({"a100": 2}, scheduling=replace(QUICK, kill_wait_s=30.0))
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    for _ in range(2):
        one.submit(job(1, qos="loan", finishes=True))
    after(one, 10)
    one.submit(job(2))
    after(one, 12)
    assert {states(one)[task][0] for task in ("1", "2")} == {"COMPLETING"}
    one.finish(1)
    after(one, 0)
    assert [states(one)[task][0] for task in ("1", "2")] == ["PENDING", "COMPLETING"]
    after(one, 17)
    assert states(one)["3"][0] == "PENDING"
    after(one, 1)
    assert started(one)["3"] == 40


def test_who_finishes_what_it_has_can_t_on_a_node_that_fails_and_comes_back_held_at_its_limit():
    one = model({"a100": 1}, {"a100": 1})
    for _ in range(2):
        one.submit(job(1, limit_s=60, finishes=True))
    after(one, 10)
    one.fail_node("n0")
    after(one, 0)
    assert [state for state, _ in states(one).values()] == ["PENDING", "RUNNING"]
    after(one, 50)
    assert states(one)["2"][0] == "COMPLETING"
    after(one, 30)
    assert states(one)["2"] == ("PENDING", "job requeued in held state")


def test_who_preempts_waits_for_kill_wait_before_another_must_go():
    one = model({"a100": 4}, scheduling=replace(QUICK, kill_wait_s=120.0))
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    for _ in range(4):
        one.submit(job(1, qos="loan", finishes=True))
    after(one, 10)
    one.submit(job(1))
    after(one, 119)
    assert [task for task, (state, _) in states(one).items() if state == "COMPLETING"] == ["1"]
    after(one, 2)
    assert states(one)["5"] == ("RUNNING", "None")
    assert [state for state, _ in states(one).values()].count("RUNNING") == 4


def test_no_more_jobs_are_preempted_than_must_be():
    one = model({"a100": 2}, {"a100": 2})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job(1, qos="other"))
    for _ in range(3):
        one.submit(job(1, qos="loan"))
    after(one, 0)
    one.submit(job(2))
    after(one, 0)
    assert waiting(one) == {"3", "4"}


@pytest.mark.parametrize(("youngest_first", "goes"), [(False, {"1"}), (True, {"3"})])
def test_who_goes_first_has_the_lowest_id_or_started_last(youngest_first: bool, goes: set[str]):
    one = model({"a100": 3}, scheduling=replace(QUICK, preempts_youngest_first=youngest_first))
    one.set_qos("own", QosLimits(preempts=frozenset({"loan", "other"})))
    one.set_qos("loan", QosLimits(priority=1))
    one.submit(job(qos="other"))
    one.submit(job(qos="loan"))
    after(one, 5)
    one.submit(job(qos="loan"))
    after(one, 5)
    one.submit(job())
    after(one, 0)
    assert waiting(one) == goes


def test_who_has_to_go_goes_first_so_that_others_stay():
    one = model({"a100": 3})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job(1, qos="loan"))
    one.submit(job(2, qos="loan"))
    after(one, 0)
    one.submit(job(2))
    after(one, 0)
    assert waiting(one) == {"2"}


def test_who_did_not_have_to_go_does_not_go_for_holding_more_of_the_nodes():
    one = model({"a100": 2}, {"a100": 2})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job(1, qos="loan", nodes=2))
    for _ in range(2):
        one.submit(job(1, qos="loan"))
    after(one, 0)
    one.submit(job(1, nodes=2))
    after(one, 0)
    assert waiting(one) == {"2", "3"}


def test_nobody_is_preempted_in_vain():
    one = model({"a100": 2})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job(1, qos="other"))
    one.submit(job(1, qos="loan"))
    after(one, 0)
    one.submit(job(2))
    after(one, 60)
    assert states(one)["2"] == ("RUNNING", "None")


def test_a_job_is_exempt_from_preemption_for_a_while():
    one = model({"a100": 1})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.set_qos("loan", QosLimits(preempt_exempt_s=500))
    one.submit(job(qos="loan"))
    after(one, 0)
    one.submit(job())
    after(one, 499)
    assert states(one)["2"] == ("PENDING", "Resources")
    after(one, 1)
    assert states(one)["2"] == ("RUNNING", "None")


def test_who_preempts_goes_before_the_others_whatever_their_priority():
    one = model({"a100": 1})
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job(qos="loan", held=True, site_factor=1000))
    one.submit(job())
    one.release(1)
    after(one, 0)
    assert started(one) == {"2": 0}


def test_tasks_of_a_rejected_array_are_not_tried():
    one = model({"a100": 8}, scheduling=replace(QUICK, backfills=False))
    one.set_qos("own", QosLimits(grp_tres={"billing": 2000}))
    one.submit(job(tasks=5))
    one.submit(job(qos="other"))
    after(one, 0)
    assert states(one)["1"] == ("PENDING", "QOSGrpBilling")
    assert one.jobs[0].untouched == {2, 3, 4}
    assert states(one)["2"] == ("RUNNING", "None")


def test_the_first_nodes_are_those_of_low_weight_then_the_fullest():
    one = model({"a100": 4}, {"a100": 4})
    one.submit(job(1))
    one.submit(job(3))
    one.submit(job(1))
    after(one, 0)
    assert [shown.nodes for shown in one.jobs] == [("n0",), ("n0",), ("n1",)]


def test_a_job_of_several_nodes_has_its_gpus_on_each():
    one = model({"a100": 4}, {"a100": 3}, {"a100": 4})
    one.submit(job(4, nodes=2))
    after(one, 0)
    assert one.jobs[0].nodes == ("n0", "n2")
    assert one.jobs[0].gpus == {"a100": 8}
    assert one.jobs[0].tres["node"] == "2"


def test_the_depth_of_the_scheduler_is_that_of_a_run_that_is_not_full():
    scheduling = replace(QUICK, depth=1, backfills=False)
    one = model({"a100": 8}, scheduling=scheduling)
    one.set_qos("none", QosLimits(grp_tres={"billing": 0}))
    after(one, 1)
    for _ in range(2):
        one.submit(job(qos="none"))
    one.submit(job())
    after(one, 1)
    assert started(one) == {}
    after(one, 60)
    assert started(one) == {"3": 60}


def test_behind_a_job_that_waits_for_room_nobody_of_its_partition_starts():
    one = model({"a100": 2}, scheduling=Scheduling(interval_s=0, backfills=False))
    one.submit(job(1))
    one.submit(job(2))
    one.submit(job(1))
    after(one, 60)
    assert started(one) == {"1": 0}


def test_jobs_of_two_partitions_share_no_node_that_the_first_waits_for():
    nodes = (
        SimulatedNode("n0", frozenset({"gpu", "short"}), {"a100": 2}),
        SimulatedNode("n1", frozenset({"short"}), {"a100": 2}),
    )
    one = SlurmModel(
        SimulatedCluster("test", nodes, replace(QUICK, backfills=False)),
        start_s=START_S,
        costs=COSTS,
    )
    one.submit(job(1))
    one.submit(job(2))
    one.submit(job(1, partition="short"))
    one.submit(job(2, partition="short"))
    after(one, 60)
    assert started(one) == {"1": 0, "3": 0}
    assert one.jobs[2].nodes == ("n1",)


def test_jobs_without_gpus_are_preempted_for_their_cpus():
    one = model({}, cpus=16)
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.submit(job({}, cpus=16, qos="loan"))
    after(one, 0)
    one.submit(job({}, cpus=8))
    after(one, 0)
    assert states(one)["2"] == ("RUNNING", "None")


def test_a_job_that_asks_for_no_time_gets_the_partition_s_default():
    longest = {"gpu": 7200}
    one = model({"a100": 1}, max_time_s=longest, default_time_s={"gpu": 1800})
    one.submit(job(limit_s=None))
    assert one.jobs[0].time_limit_s == 1800
    other = model({"a100": 1}, max_time_s=longest)
    other.submit(job(limit_s=None))
    assert other.jobs[0].time_limit_s == 7200


def test_a_job_above_max_time_waits_and_keeps_nobody_from_starting():
    one = model({"a100": 1}, max_time_s={"gpu": 3600})
    long = one.submit(job(limit_s=3660))
    one.submit(job(run_s=60, limit_s=3600))
    after(one, 0)
    assert states(one) == {"1": ("PENDING", "PartitionTimeLimit"), "2": ("RUNNING", "None")}
    one.update(long, JobChange(time_limit_min=60))
    after(one, 120)
    assert states(one)["1"] == ("RUNNING", "None")
