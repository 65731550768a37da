"""Tests when Slurm is looked at next."""

from dataclasses import replace

import pytest
from builders.jobs import a_job, a_running_job
from builders.service_views import a_service

from slicewise.cluster.rpc.messages import SlotView
from slicewise.slurm_plugin.rules.services.pace import (
    LONGEST_S,
    Allowance,
    Looked,
    Pace,
    is_moving,
    next_look_s,
    spent,
    waits,
)

PACE = Pace(moving_s=1.0, waiting_s=5.0, rest_s=10.0, requests_per_min=1200)
FULL = Allowance(1200, 100.0)
LOOKED = Looked(ended_s=100.0, took_s=0.05, answered_s=0.04)
SLOW = replace(LOOKED, took_s=2.0, answered_s=2.0)


@pytest.mark.parametrize(
    ("looked", "pause_s"),
    [
        (LOOKED, 10),
        # What ends beside them may let them start.
        (replace(LOOKED, waits=True), 5),
        (replace(LOOKED, moves=True), 1),
        # A job was submitted: Slurm shows it a moment later, and starts it within some seconds.
        (replace(LOOKED, stirred_s=102.0, stirred_last_s=102.0), 2.2),
        (replace(LOOKED, stirred_s=100.1, stirred_last_s=100.1), 1),
        (replace(LOOKED, stirred_s=100.1, stirred_last_s=104.0), 1),
        (replace(LOOKED, stirred_last_s=98.0), 1),
        (replace(LOOKED, stirred_last_s=96.0), 10),
        # Whatever Slurm was told is looked at at once.
        (replace(LOOKED, acted=True), 0),
        (replace(LOOKED, acted=True, moves=True), 0),
        # slurmctld is slow: 50,000 jobs.
        (SLOW, 10),
        (replace(SLOW, moves=True), 10),
        (replace(SLOW, stirred_s=102.0, stirred_last_s=102.0), 10),
        (replace(SLOW, acted=True), 2),
        (replace(SLOW, took_s=9.0, answered_s=9.0), LONGEST_S),
        # Only the reading of its answer takes long: meanwhile slurmctld rests.
        (replace(LOOKED, took_s=2.0, moves=True), 2),
        (replace(LOOKED, took_s=2.0, answered_s=0.45, moves=True), 2.25),
        (replace(LOOKED, took_s=2.0, acted=True), 0),
    ],
)
def test_the_pause_until_the_next_look(looked: Looked, pause_s: float) -> None:
    assert next_look_s(looked, FULL, PACE) == pytest.approx(looked.ended_s + pause_s)


def test_where_the_allowance_is_used_up_even_a_change_is_looked_at_later() -> None:
    acted = replace(LOOKED, acted=True)
    for left, pause_s in ((4, 0), (0, 0.2), (-36, 2), (-4000, LONGEST_S)):
        assert next_look_s(acted, Allowance(left, 100.0), PACE) == pytest.approx(100 + pause_s)


def test_what_is_saved_of_the_allowance_is_a_minutes_worth() -> None:
    assert spent(Allowance(0, 100.0), 0, PACE, 130.0) == Allowance(600, 130.0)
    assert spent(Allowance(0, 100.0), 200, PACE, 900.0) == Allowance(1000, 900.0)
    assert spent(Allowance(100, 100.0), 150, PACE, 100.0) == Allowance(-50, 100.0)


@pytest.mark.parametrize(
    ("slot", "moves"),
    [
        (SlotView(index=0, state="held"), False),
        (SlotView(index=0, state="gone"), False),
        (SlotView(index=0, state="released"), True),
        (SlotView(index=0, state="starting"), True),
        (SlotView(index=0, state="ending"), True),
        (SlotView(index=0, state="running", start_s=1000), True),
        (SlotView(index=0, state="running", start_s=900), False),
        (SlotView(index=0, state="running", certificate="M", time_left_s=900), False),
        (SlotView(index=0, state="running", certificate="M", time_left_s=30), True),
        (SlotView(index=0, state="running", certificate="M", ends_in_s=30), True),
        (SlotView(index=0, state="running", certificate="M", ends_in_s=3600), False),
    ],
)
def test_replicas_that_start_end_or_wait_move(slot: SlotView, moves: bool) -> None:
    assert is_moving([a_service(slots=(slot,))], 1005.0) is moves


def test_jobs_wait_unless_they_are_held() -> None:
    assert waits([a_running_job(1), a_job(2)])
    assert not waits([a_running_job(1), a_job(2, held=True)])
