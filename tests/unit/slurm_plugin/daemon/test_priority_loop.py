"""Tests the loop of priorities on a scripted Slurm: what it learns, writes and leaves alone."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from builders.jobs import a_job
from stand_ins.scripted import DOWN, ScriptedLedger, ScriptedSlurm, desire, job, settings, sync_of

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.slurm_plugin.daemon.priority_loop import PriorityLoop
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

_FACTOR = re.compile(r"site_factor=(\d+)")
START_S = 1_000_000
LIMIT_S = 600
WAIT_FULL_S = 12 * 3600 + 4 * LIMIT_S
HALF_LIFE_S = 7 * 24 * 3600
ALWAYS = 2000 * HALF_LIFE_S / math.log(2)
"""What vision would have used if it had always held its guaranteed quota."""


class World:
    def __init__(self, *jobs: JobView, mode: str = "enforce", weight: int = 0) -> None:
        self.slurm = ScriptedSlurm(*jobs)
        self.ledger = ScriptedLedger()
        self.now_s = float(START_S)
        self.cluster_state: ClusterState = sync_of(self.slurm, mode)
        chosen = settings(mode)
        priority = chosen.priority.model_copy(update={"smallness_weight": weight})
        chosen = chosen.model_copy(update={"priority": priority})
        self.loop = PriorityLoop(chosen, self.slurm, self.ledger, self.cluster_state)  # type: ignore[arg-type]

    async def turns(self, *moments_s: float) -> None:
        for moment_s in moments_s:
            self.now_s = START_S + moment_s
            await self.cluster_state.turn()
            await self.loop.turn()

    @property
    def told(self) -> list[tuple[object, int]]:
        """Which job got which site_factor."""
        said = ((target, _FACTOR.search(name)) for name, target in self.slurm.actions)
        return [(target, int(factor[1])) for target, factor in said if factor is not None]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def made(*jobs: JobView, mode: str = "enforce", weight: int = 0) -> World:
        one = World(*jobs, mode=mode, weight=weight)
        for clock in ("time", "monotonic"):
            monkeypatch.setattr(f"time.{clock}", lambda: one.now_s)
        return one

    return made


def waiting(job_id: int = 814, **changes: Any) -> JobView:
    """Of normal class and a tenant that has used nothing: 6500 at first."""
    fields = {"reason": "Priority", "priority": 0, "eligible_s": START_S, "time_limit_s": LIMIT_S}
    return a_job(job_id, **(fields | changes))


async def test_a_job_that_waits_gets_more_as_time_goes_by(world: Callable[..., World]) -> None:
    now = world(waiting())
    now.slurm.site_factors = {814: 6500}
    await now.turns(0, 1, WAIT_FULL_S / 2)
    assert now.told == [(814, 6937)]


async def test_after_a_restart_nothing_is_told_that_slurm_has_already(
    world: Callable[..., World],
) -> None:
    now = world(waiting(eligible_s=START_S - WAIT_FULL_S // 2))
    now.slurm.site_factors = {814: 6937}
    await now.turns(0, 1, 2)
    assert now.told == []
    assert now.slurm.done.count(("priorities", [814])) == 1


async def test_of_whom_slurm_shows_no_priority_is_asked_again(world: Callable[..., World]) -> None:
    now = world(waiting())
    await now.turns(0, 1, 4)
    assert (now.told, now.slurm.done.count(("priorities", [814]))) == ([], 1)
    now.slurm.site_factors = {814: 0}
    await now.turns(6)
    assert now.told == [(814, 6500)]


async def test_what_was_set_by_hand_is_found_after_a_while(world: Callable[..., World]) -> None:
    now = world(waiting())
    now.slurm.site_factors = {814: 6500}
    await now.turns(0, 100)
    now.slurm.site_factors = {814: 0}
    await now.turns(200, 301)
    assert now.told == [(814, 6500)]


async def test_no_more_a_second_than_the_settings_say(world: Callable[..., World]) -> None:
    """20: after a rest those of ten seconds at once."""
    now = world(*(waiting(number) for number in range(1000)))
    now.slurm.site_factors = dict.fromkeys(range(1000), 0)
    await now.turns(0)
    assert len(now.told) == 200
    await now.turns(1, 1.5, 1.52)
    assert len(now.told) == 230


async def test_an_arrays_untouched_tasks_are_one_change_and_its_others_are_left_out(
    world: Callable[..., World],
) -> None:
    rest = waiting(array_job_id=814, untouched=frozenset({2, 3, 4}))
    last = waiting(900, array_job_id=815, task_index=7)
    now = world(rest, last)
    now.slurm.site_factors = {814: 0, 900: 0}
    await now.turns(0)
    assert now.told == [([2, 3, 4], 6500), ([7], 6500)]


async def test_urgency_is_the_launchers_last_word(world: Callable[..., World]) -> None:
    slot = job(0, held=False, reason="Priority", eligible_s=START_S)
    now = world(slot)
    now.slurm.site_factors = {900: 6500}
    await now.cluster_state.turn()
    await desire(now.cluster_state, 814, frozenset({0}), "", 0.5)
    await now.turns(0)
    assert now.told == [([0], 7500)]


async def test_a_job_that_slurm_passes_over_gets_the_maximum_and_loses_it_again(
    world: Callable[..., World],
) -> None:
    now = world(waiting(814), waiting(815))
    now.slurm.site_factors = {814: 6500, 815: 6500}
    now.cluster_state.first_until_s = {815: START_S + 0.5}
    await now.turns(0, 1)
    assert now.told == [(815, 10_000), (815, 6500)]


async def test_what_a_job_asks_for_counts_by_the_site_s_costs(world: Callable[..., World]) -> None:
    now = world(waiting(tres={"gres/gpu:1g.10gb": "10"}, time_limit_s=36_000), weight=5)
    now.slurm.site_factors = {814: 0}
    await now.turns(0)
    assert now.told == [(814, 6333)]


async def test_use_lowers_the_share(world: Callable[..., World]) -> None:
    now = world(waiting())
    now.slurm.site_factors = {814: 6500}
    now.ledger.held_lately = (Holding("vision", 2000, START_S - 100 * HALF_LIFE_S, None),)
    await now.cluster_state.turn()
    await now.loop.start()
    assert now.cluster_state.shares == pytest.approx({"vision": 0.5})
    await now.turns(0)
    assert now.told == [(814, 4000)]


async def test_what_runs_is_followed_without_the_ledger(world: Callable[..., World]) -> None:
    now = world()
    await now.turns(0)
    running = waiting(1, state=JobState.RUNNING, start_s=START_S, tres={"gres/gpu:1g.10gb": "2"})
    now.slurm.shown = (running,)
    await now.turns(*range(50, 50 * 400, 50))
    passed_s = 50 * 398
    used = 2000 * HALF_LIFE_S / math.log(2) * -math.expm1(-math.log(2) * passed_s / HALF_LIFE_S)
    assert now.cluster_state.shares["vision"] == pytest.approx(2 ** (-used / ALWAYS), abs=2e-3)


async def test_without_postgresql_what_runs_counts_and_it_is_asked_again(
    world: Callable[..., World],
) -> None:
    running = waiting(
        1, state=JobState.RUNNING, start_s=START_S - HALF_LIFE_S, tres={"gres/gpu:1g.10gb": "2"}
    )
    now = world(running)
    now.ledger.failures["holdings"] = [DOWN]
    now.ledger.held_lately = (Holding("vision", 2000, START_S - 100 * HALF_LIFE_S, None),)
    await now.turns(0)
    assert now.cluster_state.shares == pytest.approx({"vision": 2**-0.5}, abs=1e-4)
    await now.turns(30, 59)
    assert now.cluster_state.shares == pytest.approx({"vision": 2**-0.5}, abs=1e-4)
    await now.turns(60)
    assert now.cluster_state.shares == pytest.approx({"vision": 0.5}, abs=1e-4)


async def test_without_postgresql_only_jobs_on_managed_partitions_count_as_use(
    world: Callable[..., World],
) -> None:
    gpus, start_s = {"gres/gpu:1g.10gb": "2"}, START_S - HALF_LIFE_S
    elsewhere = waiting(1, state=JobState.RUNNING, start_s=start_s, tres=gpus, partition="cpu")
    now = world(elsewhere)
    now.ledger.failures["holdings"] = [DOWN]
    await now.turns(0)
    assert now.cluster_state.shares == {"vision": 1.0}


async def test_after_a_gap_the_ledger_is_asked_what_was_held(world: Callable[..., World]) -> None:
    now = world()
    await now.turns(0)
    now.ledger.held_lately = (Holding("vision", 2000, START_S - 100 * HALF_LIFE_S, None),)
    await now.turns(30, 60)
    assert now.cluster_state.shares == {"vision": 1.0}
    await now.turns(200)
    assert now.cluster_state.shares == pytest.approx({"vision": 0.5}, abs=1e-4)


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_in_no_mode_but_enforce_anything_is_told(
    world: Callable[..., World], mode: str
) -> None:
    now = world(waiting(), mode=mode)
    now.slurm.site_factors = {814: 0}
    await now.turns(0, 10)
    assert now.slurm.actions == []


async def test_while_slurm_is_not_seen_whole_nothing_happens(world: Callable[..., World]) -> None:
    now = world(waiting())
    now.slurm.site_factors = {814: 0}
    now.cluster_state.view = replace_complete(now.cluster_state)
    await now.loop.turn()
    assert now.slurm.done == []


def replace_complete(cluster_state: ClusterState) -> Any:
    return cluster_state.view.model_copy(update={"complete": False})


async def test_what_slurm_refuses_is_not_tried_again_at_once(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = world(waiting())
    now.slurm.site_factors = {814: 0}
    tried: list[object] = []

    async def refuse(changes: Any) -> Any:
        tried.extend(changes)
        return dict.fromkeys(changes, "Job has already finished for job 814")

    monkeypatch.setattr(now.slurm, "update", refuse)
    await now.turns(0, 1, 2, 60)
    assert tried == [814]
