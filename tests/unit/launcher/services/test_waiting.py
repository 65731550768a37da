"""Tests when a service is as it is waited for, and when it never will be."""

from dataclasses import replace

import pytest
from builders.service_views import a_report

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.launcher.services.overview import ReplicaView, ServiceObservation
from slicewise.launcher.services.waiting import (
    WaitGoal,
    Waiting,
    is_reached,
    last_log_line,
    progress,
)

REPORT = a_report(array_job_id=814)
READY, STARTS, HELD = (ReplicaView(814, 0, state) for state in ("ready", "starting", "held"))
LOADS = replace(STARTS, slot=1, last_log_line="loading: llama")
OUTDATED = ReplicaView(800, 0, "ready", is_outdated=True)


def seen(
    *replicas: ReplicaView, least: int = 0, failures: int = 0, wanted: int = 0, note: str = ""
) -> ServiceObservation:
    return ServiceObservation(
        array_job_id=814,
        older=(),
        tenant="vision",
        name="chat",
        user="alice",
        url="http://gw/vision/chat",
        api="/v2",
        is_routed=True,
        shape=ReplicaShape("1g.10gb"),
        min_replicas=least,
        max_replicas=4,
        is_scaled=False,
        is_ending=False,
        load=None,
        report=REPORT.model_copy(update={"failed_starts": failures, "desired_replicas": wanted}),
        every_slot=replicas,
        objective="",
        quota=None,
        note=note,
    )


def waiting(goal: WaitGoal = WaitGoal.READY, array: int = 814, *, is_seen: bool = True) -> Waiting:
    return Waiting("vision/chat", goal, array, is_seen=is_seen)


@pytest.mark.parametrize(
    ("goal", "service", "reached"),
    [
        (WaitGoal.READY, seen(READY), True),
        (WaitGoal.READY, seen(STARTS, wanted=1), False),
        (WaitGoal.READY, seen(HELD), False),
        (WaitGoal.READY, seen(READY, OUTDATED), False),
        (WaitGoal.READY, seen(READY, least=2), False),
        (WaitGoal.READY, seen(READY, replace(READY, slot=1), least=2), True),
        (WaitGoal.READY, seen(STARTS, failures=2), False),
        (WaitGoal.ASLEEP, seen(HELD), True),
        (WaitGoal.ASLEEP, seen(READY), False),
        (WaitGoal.FAILING, seen(HELD, failures=1), True),
        (WaitGoal.FAILING, seen(READY), False),
        (WaitGoal.GONE, seen(READY), False),
        (WaitGoal.GONE, None, True),
    ],
)
def test_a_goal_is_reached_when_the_service_is_so(
    goal: WaitGoal, service: ServiceObservation | None, reached: bool
):
    assert is_reached(waiting(goal), service) is reached


def test_a_service_that_needs_no_replica_may_sleep_where_that_is_enough():
    may = replace(waiting(), may_sleep=True)
    assert is_reached(may, seen(HELD))
    assert not is_reached(may, seen(HELD, least=1))
    assert not is_reached(may, seen(STARTS))
    assert not is_reached(may, replace(seen(HELD), is_routed=False))


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (seen(HELD, failures=3, note="3 starts have failed"), "does not start: 3 starts have"),
        (
            seen(
                replace(HELD, slot=1),
                replace(HELD, why='ended with 1: "No module named x"'),
                failures=3,
                note="3 starts have failed",
            ),
            'does not start: 3 starts have failed. ended with 1: "No module named x"',
        ),
        (replace(seen(READY), is_ending=True), "vision/chat is being deleted"),
        (None, "vision/chat has ended"),
        (
            replace(seen(OUTDATED, note="aborted"), array_job_id=800),
            r"Array job 814 .* ended, and 800 before it stays: aborted.* chat.logs/814_SLOT.log",
        ),
    ],
)
def test_what_will_not_get_ready_is_not_waited_for(service: ServiceObservation | None, said: str):
    with pytest.raises(OutsideError, match=said) as caught:
        is_reached(waiting(), service)
    assert caught.value.refusal.code == "SW-SERVICE-FAILING"


def test_what_was_just_submitted_may_not_be_seen_yet():
    for service in (None, replace(seen(READY), array_job_id=800)):
        assert not is_reached(waiting(is_seen=False), service)


def test_failed_starts_of_the_generation_before_count_for_nothing():
    old = REPORT.model_copy(update={"failed_starts": 5, "array_job_id": 800})
    assert replace(seen(HELD), report=old).state == "waking"
    assert not is_reached(waiting(), replace(seen(STARTS), report=old))


def test_a_service_whose_budget_is_used_up_rests_too():
    rests = waiting(goal=WaitGoal.ASLEEP)
    unpaid = REPORT.model_copy(update={"is_unpaid": True})
    assert is_reached(rests, replace(seen(HELD), report=unpaid))
    assert not is_reached(rests, replace(seen(STARTS), report=unpaid))


def test_apply_does_not_wait_for_a_budget_where_no_replica_is_needed_now():
    """It waited for all of its ten minutes."""
    unpaid = REPORT.model_copy(update={"is_unpaid": True})
    applied = replace(waiting(), may_sleep=True)
    assert is_reached(applied, replace(seen(HELD), report=unpaid))
    assert not is_reached(waiting(), replace(seen(HELD), report=unpaid))
    assert not is_reached(applied, replace(seen(HELD, least=1), report=unpaid))


def test_progress_is_one_line():
    assert progress(None) == "not there yet"
    assert progress(seen(HELD)) == "asleep"
    said = progress(seen(READY, LOADS, OUTDATED, note="quota: vision holds 4 of 4 slices"))
    assert said == "rolling (1 ready, 1 starting, 1 outdated); quota: vision holds 4 of 4 slices"


def test_the_log_of_a_replica_that_starts_is_named():
    assert last_log_line(seen(READY, STARTS, LOADS)) == "814_1: loading: llama"
    assert last_log_line(seen(READY)) == last_log_line(None) == ""
