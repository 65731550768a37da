"""What the model of slurmctld does with jobs: from their submission to their end."""

from dataclasses import replace

import pytest
from builders.model_world import QUICK, START_S, after, job, model, started, states

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.interface import JobChange, Tasks
from slicewise.simulation.rules.cluster import Scheduling
from slicewise.simulation.rules.slurm_model.job_requests import QosLimits


def test_a_job_starts_runs_and_ends():
    one = model({"a100": 2})
    number = one.submit(job(2, run_s=100, limit_s=3600))
    after(one, 0)
    (shown,) = one.jobs
    assert (shown.job_id, shown.state, shown.nodes) == (number, JobState.RUNNING, ("n0",))
    assert shown.end_s == int(START_S) + 3600
    after(one, 100)
    assert one.jobs[0].ended == "COMPLETED"
    (run,) = one.take_ended()
    assert (run.start_s, run.end_s, run.state) == (START_S, START_S + 100, "COMPLETED")
    assert run.gpus == {"a100": 2}
    assert one.take_ended() == ()


def test_a_job_that_reaches_its_limit_ends_there():
    one = model({"a100": 1})
    one.submit(job(run_s=7200, limit_s=600))
    after(one, 600)
    assert one.jobs[0].ended == "TIMEOUT"


def test_ended_jobs_are_forgotten_after_a_while():
    one = model({"a100": 1})
    one.submit(job(run_s=10))
    after(one, 309)
    assert len(one.jobs) == 1
    after(one, 1)
    assert one.jobs == ()


def test_gpus_are_held_until_a_job_has_completed():
    one = model({"a100": 1}, scheduling=Scheduling(interval_s=0, start_s=0, complete_s=30))
    one.submit(job(run_s=10))
    one.submit(job())
    after(one, 20)
    assert one.jobs[0].state is JobState.COMPLETING
    assert one.nodes[0].gpus_allotted == {"a100": 1}
    after(one, 20)
    assert started(one) == {"1": 0, "2": 40}


def test_the_start_is_part_of_a_jobs_time():
    one = model({"a100": 1}, scheduling=Scheduling(interval_s=0, start_s=5, complete_s=0))
    one.submit(job(run_s=10))
    after(one, 14)
    assert one.jobs[0].state is JobState.RUNNING
    after(one, 1)
    assert one.jobs[0].state is JobState.ENDED


def test_the_main_scheduler_pauses_between_its_runs():
    one = model({"a100": 4}, scheduling=Scheduling(interval_s=3, start_s=0, complete_s=0))
    one.submit(job())
    after(one, 1)
    one.submit(job())
    after(one, 5)
    assert started(one) == {"1": 0, "2": 3}


def test_what_is_submitted_waits_for_batch_sched_delay_and_what_ends_makes_room_at_once():
    scheduling = Scheduling(interval_s=0, batch_delay_s=3, start_s=0, complete_s=0)
    one = model({"a100": 2}, scheduling=replace(scheduling, backfills=False))
    one.submit(job(run_s=10))
    after(one, 1)
    one.submit(job())
    one.submit(job())
    after(one, 10)
    assert started(one) == {"1": 0, "2": 3, "3": 10}


def test_the_first_that_waits_for_resources_makes_the_others_wait():
    one = model({"a100": 4}, scheduling=Scheduling(interval_s=0, backfills=False))
    for gpus in (3, 2, 1):
        one.submit(job(gpus))
    after(one, 90)
    assert states(one) == {
        "1": ("RUNNING", "None"),
        "2": ("PENDING", "Resources"),
        "3": ("PENDING", "Priority"),
    }


def test_a_job_that_waits_for_a_limit_lets_others_pass():
    one = model({"a100": 8})
    one.set_qos("own", QosLimits(grp_tres={"billing": 2000}))
    for gpus in (2, 1):
        one.submit(job(gpus))
    one.submit(job(qos="other"))
    after(one, 0)
    assert states(one) == {
        "1": ("RUNNING", "None"),
        "2": ("PENDING", "QOSGrpBilling"),
        "3": ("RUNNING", "None"),
    }
    one.set_qos("own", QosLimits(grp_tres={"billing": 3000}))
    after(one, 0)
    assert states(one)["2"] == ("RUNNING", "None")


def test_who_is_held_by_the_user_waits_until_the_release():
    one = model({"a100": 1})
    number = one.submit(job(held=True))
    after(one, 100)
    assert states(one) == {"1": ("PENDING", "JobHeldUser")}
    assert one.jobs[0].held
    one.hold(number)
    assert states(one) == {"1": ("PENDING", "JobHeldAdmin")}
    one.release(number, limit_min=7)
    after(one, 0)
    assert one.jobs[0].state is JobState.RUNNING
    assert one.jobs[0].time_limit_s == 420


def test_a_running_job_is_not_held():
    one = model({"a100": 1})
    number = one.submit(job())
    after(one, 0)
    one.hold(number)
    assert states(one) == {"1": ("RUNNING", "None")}


def test_a_job_begins_no_earlier_than_it_asks():
    one = model({"a100": 1})
    one.submit(job(begin_s=START_S + 50))
    after(one, 10)
    assert states(one) == {"1": ("PENDING", "BeginTime")}
    after(one, 50)
    assert started(one) == {"1": 50}
    assert one.jobs[0].eligible_s == int(START_S) + 50


def test_cancelled_jobs_end():
    one = model({"a100": 1})
    running, waiting = one.submit(job()), one.submit(job())
    after(one, 1)
    one.cancel(waiting)
    one.cancel(running)
    after(one, 0)
    assert [shown.ended for shown in one.jobs] == ["CANCELLED", "CANCELLED"]
    assert [run.start_s for run in one.take_ended()] == [None, START_S]


def test_tasks_get_records_of_their_own_once_touched():
    one = model({"a100": 2})
    array = one.submit(job(tasks=4, held=True))
    (whole,) = one.jobs
    assert (whole.array_job_id, whole.untouched) == (array, frozenset(range(4)))
    one.release(Tasks(array, frozenset({1, 3})))
    after(one, 0)
    found = {shown.task: (shown.job_id, shown.state, shown.held) for shown in one.jobs}
    assert found == {
        "1": (1, JobState.PENDING, True),
        "1_1": (2, JobState.RUNNING, False),
        "1_3": (3, JobState.RUNNING, False),
    }
    assert one.jobs[0].untouched == {0, 2}


def test_the_last_task_keeps_the_arrays_number():
    one = model({"a100": 4})
    array = one.submit(job(tasks=3))
    after(one, 0)
    assert {shown.task: shown.job_id for shown in one.jobs} == {
        f"{array}_0": 2,
        f"{array}_1": 3,
        f"{array}_2": array,
    }


def test_the_arrays_number_addresses_all_of_its_tasks():
    one = model({"a100": 2})
    array = one.submit(job(tasks=3))
    after(one, 0)
    one.cancel(array)
    after(one, 0)
    assert {shown.ended for shown in one.jobs} == {"CANCELLED"}
    assert one.nodes[0].gpus_allotted == {}


def test_a_requeued_task_comes_back_held():
    one = model({"a100": 1})
    array = one.submit(job(tasks=2))
    after(one, 5)
    task = Tasks(array, frozenset({0}))
    one.requeue_hold(task)
    after(one, 0)
    shown = next(shown for shown in one.jobs if shown.task == f"{array}_0")
    assert (shown.held, shown.restarts) == (True, 1)
    assert shown.reason == "job requeued in held state"
    assert started(one) == {f"{array}_1": 5}
    one.cancel(Tasks(array, frozenset({1})))
    one.release(task)
    after(one, 0)
    assert started(one)[f"{array}_0"] == 5
    assert [run.state for run in one.take_ended()] == ["REQUEUED", "CANCELLED"]


def test_a_job_is_requeued_or_gone_as_after_a_preemption():
    one = model({"a100": 2})
    again, gone = one.submit(job()), one.submit(job(requeues=False))
    after(one, 5)
    for number in (again, gone):
        one.requeue(number)
    after(one, 1)
    states = {shown.job_id: shown.state for shown in one.jobs}
    assert (states[again], states[gone]) == (JobState.PENDING, JobState.ENDED)
    one.requeue(again)
    assert next(shown for shown in one.jobs if shown.job_id == again).restarts == 1


def test_a_job_that_may_not_be_requeued_runs_on():
    one = model({"a100": 1})
    number = one.submit(job(requeues=False))
    after(one, 0)
    one.requeue_hold(number)
    assert one.jobs[0].state is JobState.RUNNING


def test_a_task_whose_run_has_ended_comes_back_held():
    one = model({"a100": 1}, scheduling=Scheduling(interval_s=0, start_s=0, complete_s=5))
    array = one.submit(job(limit_s=60, tasks=1))
    task = Tasks(array, frozenset({0}))
    after(one, 62)
    assert one.jobs[0].state is JobState.COMPLETING
    one.requeue_hold(task)
    after(one, 10)
    assert (one.jobs[0].held, one.jobs[0].restarts, one.jobs[0].ended) == (True, 1, "")
    one.release(task)
    after(one, 100)
    assert one.jobs[0].ended == "TIMEOUT"
    one.requeue_hold(task)
    after(one, 400)
    assert (one.jobs[0].held, one.jobs[0].restarts) == (True, 2)


def test_a_task_that_was_cancelled_before_it_ran_stays_away():
    one = model({"a100": 1})
    array = one.submit(job(tasks=3, held=True))
    one.cancel(array)
    for change in (one.release, one.hold, one.requeue_hold):
        change(Tasks(array, frozenset({0})))
    assert one.update(Tasks(array, frozenset({1})), JobChange(qos="b")) != ""
    after(one, 0)
    assert [shown.ended for shown in one.jobs] == ["CANCELLED"]


def test_a_waiting_job_can_be_changed():
    one = model({"a100": 1, "3g.40gb": 1})
    one.submit(job())
    number = one.submit(job())
    after(one, 0)
    change = JobChange(qos="b", gres="gpu:3g.40gb:1", admin_comment="x", time_limit_min=5)
    assert one.update(number, change) == ""
    after(one, 0)
    shown = one.jobs[1]
    assert (shown.state, shown.qos, shown.gpus) == (JobState.RUNNING, "b", {"3g.40gb": 1})
    assert (shown.admin_comment, shown.time_limit_s) == ("x", 300)
    assert shown.tres["billing"] == "3500"


def test_of_a_running_job_little_changes():
    one = model({"a100": 1})
    number = one.submit(job(limit_s=600))
    after(one, 0)
    assert one.update(number, JobChange(qos="b")) == "Job is no longer pending execution"
    assert one.update(number, JobChange(admin_comment="x", site_factor=5)) == ""
    assert one.jobs[0].admin_comment == "x"
    assert one.update(number, JobChange(time_limit_min=20)) == ""
    after(one, 1199)
    assert one.jobs[0].state is JobState.RUNNING
    after(one, 1)
    assert one.jobs[0].ended == "TIMEOUT"


def test_excluded_nodes_are_not_taken():
    one = model({"a100": 1}, {"a100": 1})
    number = one.submit(job(held=True))
    one.update(number, JobChange(excluded_nodes=frozenset({"n0"})))
    one.release(number)
    after(one, 0)
    assert one.jobs[0].nodes == ("n1",)


def test_jobs_of_a_failed_node_wait_again():
    one = model({"a100": 1}, {"a100": 1})
    one.submit(job())
    one.submit(job(requeues=False))
    after(one, 10)
    one.fail_node("n0")
    one.fail_node("n1")
    after(one, 10)
    assert states(one) == {"1": ("PENDING", "BeginTime"), "2": ("ENDED", "None")}
    assert [run.state for run in one.take_ended()] == ["NODE_FAIL", "NODE_FAIL"]
    after(one, 120)
    assert states(one)["1"] == ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n0,n1")
    one.restore_node("n1")
    after(one, 0)
    assert states(one)["1"] == ("RUNNING", "None")


def test_a_node_gets_other_gpus():
    one = model({"1g.10gb": 7})
    one.submit(job({"3g.40gb": 1}))
    after(one, 0)
    assert states(one)["1"] == ("PENDING", "ReqNodeNotAvail, UnavailableNodes:slicewise-shapes")
    one.set_node_gpus("n0", {"3g.40gb": 2, "1g.10gb": 1})
    after(one, 0)
    assert one.jobs[0].state is JobState.RUNNING
    assert one.nodes[0].gpus_held == {0}


def test_views_are_the_same_objects_until_they_change():
    one = model({"a100": 1}, {"a100": 1})
    one.submit(job(run_s=50))
    one.submit(job())
    after(one, 1)
    jobs, nodes = one.jobs, one.nodes
    after(one, 10)
    assert one.jobs is jobs
    after(one, 50)
    assert one.jobs[1] is jobs[1]
    assert one.nodes[1] is nodes[1]
    assert one.jobs[0] is not jobs[0]
    assert one.nodes[0] is not nodes[0]


def test_next_s_says_when_something_happens():
    one = model({"a100": 1}, scheduling=Scheduling(backfills=False, start_s=0))
    after(one, 70)
    assert one.next_s() is None
    one.submit(job(run_s=30))
    assert one.next_s() == one.now_s
    after(one, 0)
    assert one.next_s() == START_S + 100


def test_gpus_of_any_type_are_taken_as_they_come():
    one = model({"1g.10gb": 1, "3g.40gb": 2})
    one.submit(job({"": 2}))
    after(one, 0)
    assert one.jobs[0].gpus == {"1g.10gb": 1, "3g.40gb": 1}
    assert one.jobs[0].tres["billing"] == "4500"


def test_a_task_that_has_ended_comes_back_held_while_slurm_knows_it():
    one = model({"a100": 1})
    array = one.submit(job(tasks=2, run_s=10))
    after(one, 15)
    task = Tasks(array, frozenset({0}))
    one.requeue_hold(task)
    back = next(shown for shown in one.jobs if shown.task == f"{array}_0")
    assert (back.state, back.held, back.restarts, back.ended) == (JobState.PENDING, True, 1, "")
    assert back.start_s is None
    # It is not forgotten when it would have been.
    after(one, 400)
    one.release(task)
    after(one, 0)
    assert f"{array}_0" in started(one)
    one.requeue_hold(Tasks(array, frozenset({1})))
    assert [shown.task for shown in one.jobs] == [f"{array}_0"]


def test_a_job_that_may_not_be_requeued_stays_ended():
    one = model({"a100": 1})
    number = one.submit(job(run_s=10, requeues=False))
    after(one, 15)
    one.requeue_hold(number)
    assert one.jobs[0].state is JobState.ENDED


def test_an_array_is_shown_alone_as_among_all_jobs():
    one = model({"a100": 2})
    one.submit(job(tasks=3))
    array = one.submit(job(tasks=3))
    after(one, 5)
    one.hold(Tasks(array, frozenset({1})))
    assert one.array(array) == tuple(job for job in one.jobs if job.array_job_id == array)
    assert len(one.array(array)) == 2
    assert one.array(99) == ()


def test_of_an_array_that_is_over_nothing_is_left():
    one = model({"a100": 2})
    array = one.submit(job(run_s=10, tasks=3))
    after(one, 15)
    one.cancel(Tasks(array, frozenset({1, 7})))
    after(one, 1000)
    assert one.jobs == ()
    one.cancel(array)
    one.hold(Tasks(array, frozenset({0})))
    assert one.update(array, JobChange(qos="b")) == "Job is no longer pending execution"
    assert one.next_s() is None


def test_on_a_reserved_node_nothing_starts_and_what_runs_goes_on():
    one = model({"a100": 2})
    one.submit(job(run_s=100))
    after(one, 0)
    one.reserve_node("n0")
    one.submit(job(run_s=100))
    after(one, 50)
    assert started(one) == {"1": 0}
    assert states(one)["2"] == ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n0")
    assert one.nodes[0].states == {"MIXED", "MAINT", "RESERVED"}
    one.release_node("n0")
    after(one, 10)
    assert started(one) == {"1": 0, "2": 50}


def test_a_node_is_cut_beside_the_jobs_that_keep_their_gpus():
    one = model({"3g.40gb": 1, "1g.10gb": 4})
    for kind, run_s in (("1g.10gb", 500), ("1g.10gb", 100), ("3g.40gb", 100)):
        one.submit(job({kind: 1}, run_s=run_s))
    after(one, 0)
    assert one.devices("n0") == {1: {1}, 2: {2}, 3: {0}}
    after(one, 200)
    with pytest.raises(ValueError, match="job 1 holds"):
        one.cut_node("n0", {"3g.40gb": 2})
    with pytest.raises(ValueError, match="job 1 holds"):
        one.cut_node("n0", {"1g.10gb": 1, "3g.40gb": 1})
    one.cut_node("n0", {"pad0": 1, "1g.10gb": 2, "2g.20gb": 1})
    assert one.nodes[0].gpus_held == {1}
    for kind in ("2g.20gb", "1g.10gb", "3g.40gb", "1g.10gb"):
        one.submit(job({kind: 1}, run_s=100))
    after(one, 0)
    assert one.devices("n0") == {1: {1}, 4: {3}, 5: {2}}
    assert states(one)["6"][1].endswith("slicewise-shapes")
    after(one, 310)
    assert started(one)["7"] == 300
    assert one.nodes[0].gpus_allotted == {}


def test_a_job_that_completes_holds_its_gpus_through_a_cut():
    one = model({"1g.10gb": 2}, scheduling=replace(QUICK, complete_s=30.0))
    one.submit(job({"1g.10gb": 1}, run_s=10))
    after(one, 20)
    assert one.devices("n0") == {1: {0}}
    one.cut_node("n0", {"1g.10gb": 1, "pad1": 1})
    assert one.nodes[0].gpus_allotted == {"1g.10gb": 1}
    after(one, 30)
    assert one.nodes[0].gpus_allotted == {}
