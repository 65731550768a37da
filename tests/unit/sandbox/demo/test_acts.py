"""The acts beside the load, with commands that only remember how they were called."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slicewise.sandbox.demo import acts as acts_module
from slicewise.sandbox.demo.acts import ActsPerformance, let_the_guest_in
from slicewise.sandbox.demo.commands import Commands, JobTimes
from slicewise.sandbox.demo.record import TaskRun
from slicewise.sandbox.demo.scenario import (
    CHAT,
    FILLER,
    FILLER_TASK_S,
    FILLER_TASKS,
    GUEST,
    LENDER_JOBS,
    NLP,
    SHAPE,
    TenantPlan,
)

pytestmark = pytest.mark.usefixtures("clock")

CUT = {"node": "gpu01", "before": "1g.10gb@0", "after": "3g.40gb@4", "state": "done"}


class Remembering(Commands):
    """Answers as a cluster on which each step is done when asked for the second time."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.cuts: list[tuple[Mapping[str, str], ...]] = [(), ({**CUT, "state": "rolled back"},)]
        self.asked = 0
        self.running: list[list[float]] = []

    def set_quota(self, plan: TenantPlan) -> None:
        self.calls.append(f"quota {plan.tenant} {plan.nominal}")

    def open_account(self, plan: TenantPlan) -> None:
        self.calls.append(f"account {plan.tenant}")

    def sbatch(self, plan: TenantPlan, profile: str, seconds: int, tasks: int = 0) -> int:
        self.calls.append(f"sbatch {plan.user} {profile}" + f" x {tasks}" * bool(tasks))
        return len(self.calls)

    def running_since_s(self, job_id: int) -> Sequence[float]:
        return self.running.pop(0)

    def task_runs(self, job_id: int) -> tuple[TaskRun, ...]:
        return (TaskRun(f"{job_id}_1", 1001.0, 1004.0, gave_way=True),)

    def apply(self, plan: TenantPlan, service_file: Path) -> None:
        self.calls.append(f"apply {plan.service} {service_file}")

    def survey(self) -> None:
        pass

    def repartition(self) -> tuple[Mapping[str, str], ...]:
        return self.cuts.pop(0) if self.cuts else (CUT,)

    def is_in_queue(self, job_id: int, state: str) -> bool:
        self.asked += 1
        return bool(self.asked % 2)

    def cancel(self, job_id: int) -> None:
        self.calls.append(f"cancel {job_id}")

    def job_times(self, jobs: Iterable[int]) -> Mapping[int, JobTimes]:
        return dict.fromkeys(jobs, (1000.0, 1007.0, None))


class Stage:
    """Time goes on by a second each time it is read."""

    def __init__(self, borrowed: int = 1) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        self._borrowed = borrowed

    @property
    def elapsed_s(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def borrowed(self, service: str) -> int:
        return self._borrowed

    def tell(self, news: str) -> None:
        self.told.append(news)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts_module, "_POLL_S", 0.0)
    monkeypatch.setattr(acts_module, "LENT_S", 0.0)


def played(commands: Remembering, stage: Any) -> ActsPerformance:
    performance = ActsPerformance(commands, stage, *let_the_guest_in(commands, Path("/talk.toml")))
    asyncio.run(performance.perform())
    return performance


def test_the_acts_are_played_in_order_and_the_job_in_the_way_is_cancelled_last() -> None:
    commands, stage = Remembering(), Stage()
    performance = played(commands, stage)
    shape, own = f"sbatch {GUEST.user} {SHAPE}", f"sbatch {NLP.user} {NLP.profile}"
    first, *rest = commands.calls
    assert first == f"quota {GUEST.tenant} {CHAT.nominal}"
    opened = (f"account {FILLER.tenant}", f"quota {FILLER.tenant} 0")
    applied = f"apply {CHAT.service} /talk.toml"
    fills = f"sbatch {FILLER.user} {FILLER.profile} x {FILLER_TASKS}"
    cancelled = f"cancel {performance.in_the_way.job_id}"
    assert rest == [*opened, shape, shape, applied, *[own] * LENDER_JOBS, fills, cancelled]
    assert len(stage.told) == 5


def test_the_job_that_fills_has_all_before_the_wake_and_is_recorded_with_what_gave_way() -> None:
    commands, stage = Remembering(), Stage()
    performance = played(commands, stage)
    all_slices, now_s = int(FILLER.borrows), time.time()
    commands.running = [
        [now_s] * (all_slices - 1),
        [now_s + 1 - FILLER_TASK_S] + [now_s] * (all_slices - 1),
        [now_s + 10 - FILLER_TASK_S] * all_slices,
        [now_s] * all_slices,
    ]
    asyncio.run(performance.fill_all())
    assert len(commands.running) == 1, "nothing wakes while a task is about to end"
    asyncio.run(performance.stop_filling())
    assert commands.calls[-1].startswith("cancel")
    (run,) = asyncio.run(performance.record()).filler_runs
    assert (run.ended_s, run.gave_way) == (run.started_s + 3, True)


def test_a_repartition_is_tried_until_one_is_done_and_each_try_is_recorded() -> None:
    commands = Remembering()
    performance = played(commands, Stage())
    done = asyncio.run(performance.record()).repartitions
    assert [one.state for one in done] == ["rolled back", "done"]
    assert all(one.begun_s < one.ended_s for one in done)


def test_a_step_that_does_not_come_is_left_and_the_demo_goes_on() -> None:
    """Without a loan the lender's jobs are submitted all the same, and the report says so."""
    commands, stage = Remembering(), Stage(borrowed=0)
    played(commands, stage)
    assert commands.calls[-1].startswith("cancel")
    assert stage.now_s > acts_module.ACT_TIMEOUT_S


def test_jobs_have_slurm_s_times_on_the_load_s_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    commands, stage = Remembering(), Stage()
    performance = played(commands, stage)
    stage.now_s = 9.0
    monkeypatch.setattr(acts_module.time, "time", lambda: 1010.0)
    jobs = asyncio.run(performance.record()).batch_jobs
    assert [job.tenant for job in jobs] == [GUEST.tenant] * 2 + [NLP.tenant] * LENDER_JOBS
    assert {(job.submitted_s, job.started_s, job.ended_s) for job in jobs} == {(0.0, 7.0, None)}
    assert {job.waited_s for job in jobs} == {7.0}
