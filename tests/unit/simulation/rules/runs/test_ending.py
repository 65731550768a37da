"""Tests that no process of a simulation outlives it, and what figures are made of."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders.small_site import EXPERIMENT, JOBS
from simulation_figures import CHANGED, PRESENT

from slicewise.simulation.rules.runs.summary import difference_estimates
from slicewise.simulation.runs import simulate as runs

pytestmark = pytest.mark.usefixtures("clock")


class EndedError(Exception):
    """Stands for the end of a process."""


def ended(code: int) -> None:
    raise EndedError(code)


@pytest.mark.parametrize(
    ("is_told", "lives", "ends"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_a_process_ends_when_told_or_when_its_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch, is_told: bool, lives: bool, ends: bool
):
    looks = [is_told]

    def wait(_seconds: float) -> bool:
        if not looks:
            raise TimeoutError
        return looks.pop()

    parent = SimpleNamespace(is_alive=lambda: lives)
    monkeypatch.setattr(runs, "parent_process", lambda: parent)
    monkeypatch.setattr(runs.os, "_exit", ended)
    with pytest.raises(EndedError if ends else TimeoutError):
        runs._end_in_time(SimpleNamespace(wait=wait, set=lambda: None))


def test_what_a_change_adds_is_estimated_from_pairs():
    found = difference_estimates([PRESENT, CHANGED], [CHANGED, PRESENT])["wait_mean_s"]
    step = CHANGED.wait_mean_s - PRESENT.wait_mean_s
    assert (found.mean, found.low) == (0.0, -found.high)
    assert difference_estimates([PRESENT], [CHANGED])["wait_mean_s"].mean == step


def test_gpus_without_a_type_count_in_the_use_of_the_past():
    untyped = tuple(replace(job, gpus={"": 1}) for job in JOBS[:20])
    known, found = (
        runs.simulate(replace(EXPERIMENT, jobs=jobs, offsets=1), processes=1).self_check
        for jobs in (JOBS[:20], untyped)
    )
    assert known is not None
    assert found is not None
    assert found.utilisation_of_history == known.utilisation_of_history > 0
