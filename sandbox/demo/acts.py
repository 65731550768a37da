"""What users and the operator do beside the load: batch jobs, and one GPU that is cut again."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from slicewise.sandbox.demo.commands import Commands, JobTimes
from slicewise.sandbox.demo.record import Acts, BatchJob, Repartition, TaskRun
from slicewise.sandbox.demo.scenario import (
    ACT_TIMEOUT_S,
    CHAT,
    FILLER,
    FILLER_TASK_S,
    FILLER_TASKS,
    FULL_S,
    GIVES_WAY_S,
    GUEST,
    LENDER_JOB_S,
    LENDER_JOBS,
    LENT_S,
    NLP,
    SHAPE,
    SHAPE_JOB_S,
    VISION,
    TenantPlan,
)

_WHOLE_DEMO_S = 500
"""The job that is in the other's way works this long, and is cancelled before."""
_POLL_S = 0.5
_NOT_ENDED = "PENDING,RUNNING,COMPLETING"


class Stage(Protocol):
    """What the acts see of the story, and tell it."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first request."""
        ...

    def borrowed(self, service: str) -> int:
        """How many replicas of a service hold GPUs on borrowed quota now."""
        ...

    def tell(self, news: str) -> None:
        """Show what happens now beside the load."""
        ...


def let_the_guest_in(commands: Commands, chat_file: Path) -> tuple[BatchJob, BatchJob]:
    """Give the guest its quota, submit two jobs for a shape of which the cluster has one, and apply
    the chat service. Let its user borrow for another tenant, too.

    Meanwhile look up how all GPUs are cut, as the operator's cron job would have done before.
    """
    with ThreadPoolExecutor() as beside:
        survey = beside.submit(commands.survey)
        commands.set_quota(CHAT)
        commands.open_account(FILLER)
        commands.set_quota(FILLER)
        jobs = (
            _submit(commands, GUEST, SHAPE, _WHOLE_DEMO_S),
            _submit(commands, GUEST, SHAPE, SHAPE_JOB_S),
        )
        commands.apply(CHAT, chat_file)
        survey.result()
    return jobs


def _submit(commands: Commands, plan: TenantPlan, profile: str, seconds: int) -> BatchJob:
    return BatchJob(commands.sbatch(plan, profile, seconds), plan.user, plan.tenant, profile)


@dataclass
class ActsPerformance:
    """The acts of one demo; ``perform`` is called once, while the load is replayed.

    A step that is not done within ``ACT_TIMEOUT_S`` is left: the report then says what was not
    shown.

    Attributes:
        in_the_way, waits: the guest's jobs, of which the second one waits for a shape.
    """

    commands: Commands
    stage: Stage
    in_the_way: BatchJob
    waits: BatchJob
    _lender_jobs: list[BatchJob] = field(default_factory=list)
    _repartitions: list[Repartition] = field(default_factory=list)
    _filler: int | None = None

    async def perform(self) -> None:
        """Play both acts, one after the other."""
        await self._repartition()
        await self._take_lent_slices_back()
        await self._until(lambda: self._has_ended(self.waits))
        await asyncio.to_thread(self.commands.cancel, self.in_the_way.job_id)

    async def record(self) -> Acts:
        """Return what was done, with the jobs' times from Slurm's accounting."""
        jobs = (self.in_the_way, self.waits, *self._lender_jobs)
        times = await asyncio.to_thread(self.commands.job_times, [job.job_id for job in jobs])
        begin_s = time.time() - self.stage.elapsed_s
        runs: Sequence[TaskRun] = ()
        if self._filler is not None:
            runs = await asyncio.to_thread(self.commands.task_runs, self._filler)
        return Acts(
            tuple(_timed(job, times, begin_s) for job in jobs),
            tuple(self._repartitions),
            tuple(_moved(run, begin_s) for run in runs),
        )

    async def fill_all(self) -> None:
        """Wait, for at most ``FULL_S``, until the job that fills has all that the services left.

        None of its tasks is about to end then: whoever wakes would have that one's slice, and none
        would give way.
        """
        self.stage.tell(f"{FILLER.tenant}'s batch job fills what both leave idle")
        await self._until(self._has_filled, FULL_S)

    async def stop_filling(self) -> None:
        """Wait until all tasks of the job that fills have ended, and cancel those that have not."""
        if self._filler is not None:
            job_id = self._filler
            await self._until(lambda: not self.commands.is_in_queue(job_id, _NOT_ENDED))
            await asyncio.to_thread(self.commands.cancel, job_id)

    async def _fill(self) -> None:
        """Submit the job that fills what is idle.

        It comes when the first load is over: a service that borrows would wait for its tasks.
        """
        asked = (FILLER, FILLER.profile, FILLER_TASK_S, FILLER_TASKS)
        self._filler = await asyncio.to_thread(self.commands.sbatch, *asked)

    def _has_filled(self) -> bool:
        since_s = [] if self._filler is None else self.commands.running_since_s(self._filler)
        is_full = len(since_s) >= int(FILLER.borrows)
        return is_full and min(since_s) + FILLER_TASK_S >= time.time() + GIVES_WAY_S

    async def _repartition(self) -> None:
        """Let the operator repartition a GPU, and wait until the job that asks for it runs."""
        user = self.waits.user
        self.stage.tell(f"{user}'s batch job waits for {SHAPE}: the operator repartitions a GPU")
        await self._until(self._is_cut)
        await self._until(lambda: self._has_started(self.waits))
        self.stage.tell(f"{user}'s batch job has its {SHAPE} and runs")

    async def _take_lent_slices_back(self) -> None:
        """Submit the lender's jobs once its idle slices are lent, and wait until they run."""
        await self._until(lambda: self.stage.borrowed(VISION.service) > 0)
        self.stage.tell(f"{VISION.tenant} is lent what {NLP.tenant} leaves idle of its quota")
        await asyncio.sleep(LENT_S)
        for _ in range(LENDER_JOBS):
            job = await asyncio.to_thread(_submit, self.commands, NLP, NLP.profile, LENDER_JOB_S)
            self._lender_jobs.append(job)
        self.stage.tell(f"{NLP.user}'s batch jobs take slices back that {NLP.tenant} has lent")
        await self._fill()
        await self._until(lambda: all(map(self._has_started, self._lender_jobs)))
        self.stage.tell(f"{NLP.user}'s batch jobs run on slices that came back")

    def _has_started(self, job: BatchJob) -> bool:
        return not self.commands.is_in_queue(job.job_id, "PENDING")

    def _has_ended(self, job: BatchJob) -> bool:
        return not self.commands.is_in_queue(job.job_id, _NOT_ENDED)

    def _is_cut(self) -> bool:
        begun_s = self.stage.elapsed_s
        done = self.commands.repartition()
        self._repartitions += [
            Repartition(**act, begun_s=begun_s, ended_s=self.stage.elapsed_s) for act in done
        ]
        return any(act["state"] == "done" for act in done)

    async def _until(self, is_so: Callable[[], bool], most_s: float = ACT_TIMEOUT_S) -> None:
        """Ask in a thread until it is so, for at most so long."""
        deadline_s = self.stage.elapsed_s + most_s
        while self.stage.elapsed_s < deadline_s:
            if await asyncio.to_thread(is_so):
                return
            await asyncio.sleep(_POLL_S)


def _moved(run: TaskRun, begin_s: float) -> TaskRun:
    ended_s = None if run.ended_s is None else run.ended_s - begin_s
    return replace(run, started_s=run.started_s - begin_s, ended_s=ended_s)


def _timed(job: BatchJob, times: Mapping[int, JobTimes], begin_s: float) -> BatchJob:
    """Return the job with its times on the load's time axis, which began at ``begin_s``."""
    submitted_s, started_s, ended_s = (
        None if at_s is None else at_s - begin_s for at_s in times[job.job_id]
    )
    return replace(job, submitted_s=submitted_s, started_s=started_s, ended_s=ended_s)
