"""Tests the view of a slot: state, what it waits for, why it must end, its last words."""

from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import a_node
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import SlotView
from slicewise.slurm_plugin.rules.admission.snapshot import Living
from slicewise.slurm_plugin.rules.services.state import Observation, living, services

COSTS = {"1g.10gb": Millislices(1000)}
NOW_S = 2000.0
SAID = {"name": "bert", "tenant": "vision"}
RUN = {"nodes": ("gpu01",), "start_s": 1000, "end_s": 1600 + 1000, "time_limit_s": 1600}


def slot_of(one: JobView, node_state: str = "MIXED") -> SlotView:
    node = a_node("gpu01", address="10.0.0.11", states=frozenset(node_state.split("+")), gpus={})
    look = Observation(NOW_S, (one,), (node,), (), {814: SAID}, {814: "/home/alice"})
    (service,) = services(look, COSTS)
    assert service.directory == "/home/alice"
    return service.slots[0]


def running(**changes: Any) -> JobView:
    return job(0, JobState.RUNNING, **(RUN | changes))


def test_time_left_counts_to_the_end_that_slurm_shows() -> None:
    assert slot_of(running()).time_left_s == 600
    assert slot_of(running(end_s=2100)).time_left_s == 100


def test_a_preemption_with_grace_is_an_early_end() -> None:
    preempted = slot_of(running(end_s=2030))
    assert (preempted.ends_in_s, preempted.ends_why) == (30, "it is preempted")
    assert slot_of(running(end_s=1990)).ends_in_s == 0


@pytest.mark.parametrize("early_s", [0, 60, -500])
def test_rounding_and_a_suspension_are_no_preemption(early_s: int) -> None:
    assert slot_of(running(end_s=2600 - early_s)).ends_in_s is None


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "ALLOCATED+DRAIN"])
def test_on_a_drained_node_a_replica_leaves_when_it_is_replaced(state: str) -> None:
    drained = slot_of(running(), state)
    assert (drained.ends_in_s, drained.ends_why) == (3600, "node gpu01 is drained")


def test_what_ends_already_leaves_no_more() -> None:
    assert slot_of(job(0, JobState.COMPLETING, **RUN), "IDLE+DRAIN").ends_in_s is None


def test_since_when_it_may_start() -> None:
    assert slot_of(running(eligible_s=990)).released_s == 990
    assert slot_of(job(0, eligible_s=990, held=False, reason="Priority")).released_s == 990
    assert slot_of(job(0, eligible_s=990)).released_s is None


def test_where_it_waits_or_runs() -> None:
    for one in (running(), job(0)):
        assert not slot_of(one).is_borrowed
        assert slot_of(replace(one, qos="slicewise_vision_borrowed")).is_borrowed


COMMENT = "slicewise:run=2 ended with 1"


@pytest.mark.parametrize(
    ("comment", "restarts", "said"),
    [
        (COMMENT, 3, "ended with 1"),
        ("slicewise:run=2 ended with 137", 3, "ended with 137"),
        # It runs again, or its last run had nothing to say.
        (COMMENT, 4, ""),
        (COMMENT, 2, ""),
        ("my own words", 1, ""),
        # Its user wrote that, not the script.
        ("slicewise:run=2 all is well", 3, ""),
        (f"{COMMENT}: E1122 no such model", 3, ""),
        ("slicewise:run=2 ended with 1\x1b[2J", 3, ""),
        ("slicewise:run=2 \x1b[2Jall is well", 3, ""),
        ("slicewise:run=2 two\nlines", 3, ""),
        (f"slicewise:run=2 {'x' * 501}", 3, ""),
        (f"slicewise:run={'2' * 5000} x", 3, ""),
        ("", 1, ""),
    ],
)
def test_what_its_last_run_said(comment: str, restarts: int, said: str) -> None:
    """What everybody can see of it: no line of its log, and nothing that its user wrote."""
    assert slot_of(job(0, comment=comment, restarts=restarts)).last_failure == said


def test_a_task_that_ended_for_good_said_nothing_in_its_earlier_runs() -> None:
    def said(restarts: int) -> str:
        ended = job(0, JobState.ENDED, comment=COMMENT, restarts=restarts)
        look = Observation(NOW_S, (ended, job(1)), (), (), {814: SAID})
        (service,) = services(look, COSTS)
        return service.slots[0].last_failure

    assert (said(2), said(3)) == ("ended with 1", "")


def test_of_an_ended_task_the_record_is_known() -> None:
    ended = job(0, JobState.ENDED, ended="CANCELLED")
    others = job(1)
    look = Observation(NOW_S, (ended, others), (), (), {814: SAID | {"max_replicas": "3"}})
    (service,) = services(look, COSTS)
    assert [(s.state, s.job_id, s.slurm_state) for s in service.slots] == [
        ("gone", 900, "CANCELLED"),
        ("held", None, ""),
        ("gone", None, ""),
    ]


def test_a_service_is_whose_oldest_array_it_is() -> None:
    jobs = (job(0), job(0, array_job_id=815, uid=7), job(0, array_job_id=None))
    look = Observation(NOW_S, jobs, (), (), {814: SAID, 815: SAID})
    found = services(look, COSTS)
    assert [one.array_job_id for one in found] == [814, 815]
    assert living(found, jobs) == {("vision", "bert"): Living(814, 61001, arrays=2)}
