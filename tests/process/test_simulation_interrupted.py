"""Tests that no process of a simulation outlives it."""

import multiprocessing
from dataclasses import replace

import pytest
from builders.small_site import EXPERIMENT, JOBS, START_S

from slicewise.simulation.runs import simulate as runs

LONG = replace(
    EXPERIMENT,
    jobs=tuple(
        replace(JOBS[1], job_id=number, submit_s=START_S + number * 900.0) for number in range(500)
    ),
)
"""Some ten seconds of work."""


def test_an_interruption_ends_every_process_at_once():
    children: list[multiprocessing.Process] = []

    def interrupted(_share: float) -> None:
        children.extend(multiprocessing.active_children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.simulate(LONG, processes=2, progress=interrupted)
    codes = [child.exitcode for child in children]
    assert len(codes) == 2
    assert 0 not in codes
    assert multiprocessing.active_children() == []
