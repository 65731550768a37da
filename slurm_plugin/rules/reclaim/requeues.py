"""Remembers which batch jobs were requeued for lenders, and why: in memory only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.jobs import WAITING, JobView, RunOfJob
from slicewise.cluster.language.slurm.interface import Requeued


@dataclass(frozen=True)
class _Told:
    """A run that was ended: how often its job had been requeued before, and the reason."""

    restarts: int
    why: str


class Requeues:
    """Runs of batch jobs that Slurm was told to requeue.

    Attributes:
        refused: those that Slurm refused to requeue and that still run.
        count: how many it has requeued since the start.
    """

    def __init__(self) -> None:
        self.refused: frozenset[RunOfJob] = frozenset()
        self.count = 0
        self._ending: dict[RunOfJob, float] = {}
        self._told: dict[int, _Told] = {}

    def note(
        self, done: Requeued, why: Mapping[RunOfJob, str], jobs: Iterable[JobView], at_s: float
    ) -> None:
        """Note what Slurm made of the requeues; ``at_s`` is when it had answered, by the monotonic
        clock, and ``jobs`` is what the look before showed.
        """
        self.refused |= done.refused.keys()
        self.count += len(done.ended)
        self._ending |= dict.fromkeys(done.ended, at_s)
        for job in jobs:
            if (run := (job.job_id, job.start_s)) in done.ended:
                self._told[job.job_id] = _Told(job.restarts, why[run])

    def ending(self, looked_s: float) -> frozenset[RunOfJob]:
        """The runs that were requeued after this moment of the monotonic clock, when the last look
        began.
        """
        return frozenset(run for run, at_s in self._ending.items() if at_s >= looked_s)

    def follow(self, jobs: Iterable[JobView], looked_s: float) -> None:
        """Forget what no longer holds, by the jobs of a new look."""
        self._ending = {run: at_s for run, at_s in self._ending.items() if at_s >= looked_s}
        if not self.refused and not self._told:
            return
        jobs_by_id = {job.job_id: job for job in jobs}
        self.refused = frozenset(
            run
            for run in self.refused
            if run[0] in jobs_by_id and jobs_by_id[run[0]].start_s == run[1]
        )
        self._told = {
            job_id: told
            for job_id, told in self._told.items()
            if job_id in jobs_by_id and jobs_by_id[job_id].restarts <= told.restarts + 1
        }

    def why(self, jobs: Iterable[JobView]) -> Mapping[int, str]:
        """For whom the last run of each of these waiting jobs was ended, by job id."""
        return {
            job.job_id: told.why
            for job in (jobs if self._told else ())
            if (told := self._told.get(job.job_id)) is not None
            if job.state in WAITING and job.restarts == told.restarts + 1
        }
