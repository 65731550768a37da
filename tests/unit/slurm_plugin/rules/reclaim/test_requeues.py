"""Tests what is remembered of batch jobs that were requeued for lenders."""

from dataclasses import replace

from builders.jobs import a_job, a_running_job

from slicewise.cluster.language.slurm.interface import Requeued
from slicewise.slurm_plugin.rules.reclaim.requeues import Requeues

BATCH = a_running_job(1, "nlp", start_s=500, restarts=2)
RUN = 1, 500
WHY = {RUN: "vision takes back 1 slice: job 12 waits"}
AGAIN = replace(a_job(1, "nlp"), restarts=3)


def test_a_run_that_was_requeued_is_leaving_until_a_later_look() -> None:
    requeues = Requeues()
    requeues.note(Requeued(frozenset({RUN})), WHY, [BATCH], at_s=20.0)
    assert requeues.count == 1
    assert requeues.ending(looked_s=19.0) == {RUN}
    assert requeues.ending(looked_s=21.0) == frozenset()


def test_for_whom_it_went_is_said_while_the_job_waits_for_its_next_run() -> None:
    requeues = Requeues()
    requeues.note(Requeued(frozenset({RUN})), WHY, [BATCH], at_s=20.0)
    assert requeues.why([BATCH]) == {}
    requeues.follow([BATCH], 19.0)
    assert requeues.why([AGAIN]) == {1: WHY[RUN]}
    requeues.follow([AGAIN], 21.0)
    runs = replace(BATCH, start_s=700, restarts=3)
    requeues.follow([runs], 22.0)
    assert requeues.why([runs]) == {}
    # Whoever ended that run, it was not Slicewise.
    later = replace(AGAIN, restarts=4)
    assert requeues.why([later]) == {}
    requeues.follow([later], 23.0)
    assert requeues.why([AGAIN]) == {}


def test_of_a_job_that_slurm_has_forgotten_nothing_is_kept() -> None:
    requeues = Requeues()
    requeues.note(Requeued(frozenset({RUN}), {(2, 9): "no"}), WHY, [BATCH], at_s=20.0)
    requeues.follow([], 21.0)
    assert (requeues.why([AGAIN]), requeues.refused) == ({}, frozenset())


def test_what_slurm_refused_holds_for_that_run_alone() -> None:
    requeues = Requeues()
    requeues.note(Requeued(refused={RUN: "disabled"}), WHY, [BATCH], at_s=20.0)
    requeues.follow([BATCH], 21.0)
    assert (requeues.refused, requeues.ending(0.0)) == ({RUN}, frozenset())
    assert requeues.why([AGAIN]) == {}
    requeues.follow([replace(BATCH, start_s=700)], 22.0)
    assert requeues.refused == frozenset()
