"""Tests that slots are moved, released and held in Slurm, and moved again if Slurm did nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from log_lines import lines
from stand_ins.scripted import ScriptedSlurm, job, sync_of

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.slurm_plugin.rules.services.slot_actions import SlotActions
from slicewise.slurm_plugin.state.actuator import Actuator

pytestmark = pytest.mark.usefixtures("clock")

BORROWED = "slicewise_vision_borrowed"


class FirstOnly(ScriptedSlurm):
    """As Slurm since 24.11 with a list of tasks: it says nothing, and changes the first."""

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        for target, change in changes.items():
            assert isinstance(target, Tasks)
            first = min(target.indices)
            self.shown = tuple(
                replace(one, qos=change.qos or one.qos) if one.task_index == first else one
                for one in self.shown
            )
        return await super().update(changes)


async def moved(slurm: ScriptedSlurm, plan: SlotActions) -> list[Any]:
    cluster_state = sync_of(ScriptedSlurm(*slurm.shown))
    await cluster_state.turn()
    await Actuator(slurm).apply(cluster_state.view.services[0], plan)
    return [target for what, target in slurm.done if str(what).startswith("update")]


async def test_what_slurm_left_where_it_was_is_moved_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slurm = FirstOnly(*(job(index, qos="slicewise_vision") for index in range(3)))
    some = frozenset({0, 1, 2})
    said = await moved(slurm, SlotActions(borrow=some, release=some))
    assert said == [[0, 1, 2], [1], [2]]
    assert [one.qos for one in slurm.shown] == [BORROWED] * 3
    assert "slots_not_moved array=814 again=2 refused=0" in caplog.text


async def test_what_is_done_for_a_service_says_whose_it_is() -> None:
    with lines() as caught:
        await moved(FirstOnly(job(0)), SlotActions(release=frozenset({0})))
    (told,) = caught.events("release")
    assert (told["array"], told["service"], told["tenant"]) == (814, "vision/bert", "vision")


async def test_what_has_moved_or_started_is_left_alone() -> None:
    running = job(2, JobState.RUNNING, qos="slicewise_vision")
    slurm = FirstOnly(job(0), job(1, qos=BORROWED), running)
    said = await moved(slurm, SlotActions(borrow=frozenset({0, 1, 2})))
    assert said == [[0, 1, 2]]
    alone = await moved(FirstOnly(job(0)), SlotActions(guarantee=frozenset({0})))
    assert alone == [[0]]
