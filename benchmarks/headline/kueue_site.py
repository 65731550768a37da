"""A site that Kueue's rules admit to: jobs are submitted held, and released when admitted.

Slurm's model only places what was admitted, as the scheduler of Kubernetes does, with backfill
where it is tight: an admitted job waits where no nodes have its GPUs together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from benchmarks.headline.kueue import Workload, cycle
from cluster.language.units import Millislices
from simulation.cluster import SimulatedCluster
from simulation.site.loop import SiteTimes
from simulation.site.records import ReplayedRun, SiteRecord, replayed
from simulation.site.requests import Replay
from simulation.slurm_model.model import SlurmModel

_CYCLE_S = 1.0
"""Seconds at least between two cycles."""


@dataclass
class _Job:
    """A job: when it was last admitted, and its runs so far."""

    replay: Replay
    waits: Workload
    admitted_s: float = 0.0
    runs: list[ReplayedRun] = field(default_factory=list)
    is_over: bool = False
    given_up_s: float | None = None


class KueueSite:
    """One site; ``quotas`` are the queues' nominal millislices, one queue for each account."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        costs: Mapping[str, Millislices],
        quotas: Mapping[str, int],
        jobs: Sequence[Replay],
        times: SiteTimes,
    ) -> None:
        self._model = SlurmModel(cluster, start_s=times.begin_s, costs=costs, requeue_wait_s=0.0)
        self._quotas, self._times = quotas, times
        self._coming = sorted(jobs, key=lambda one: one.at_s)
        self._next = 0
        self._jobs: dict[int, _Job] = {}
        self._waiting: dict[int, _Job] = {}
        self._admitted: dict[int, _Job] = {}
        self._give_up: list[tuple[float, int]] = []
        self._is_changed = False
        self._cycle_s = times.begin_s - _CYCLE_S

    def run(self) -> SiteRecord:
        """Simulate all of it."""
        model, times = self._model, self._times
        while model.now_s < times.last_s:
            if model.now_s >= times.end_s and not self._waiting:
                break
            model.advance(min(self._due_s(), times.last_s))
            self._submit_due()
            self._cancel_due()
            self._collect()
            if self._is_changed and model.now_s >= self._cycle_s + _CYCLE_S:
                self._decide()
        return self._record()

    def _due_s(self) -> float:
        due = [self._model.next_s(), self._times.last_s]
        if self._next < len(self._coming):
            due.append(self._coming[self._next].at_s)
        if self._give_up:
            due.append(self._give_up[0][0])
        if self._is_changed:
            due.append(self._cycle_s + _CYCLE_S)
        return max(self._model.now_s, min(one for one in due if one is not None))

    def _submit_due(self) -> None:
        now_s = self._model.now_s
        while self._next < len(self._coming) and self._coming[self._next].at_s <= now_s:
            replay = self._coming[self._next]
            self._next += 1
            job_id = self._model.submit(replace(replay.request, held=True))
            queue = replay.request.account
            waits = Workload(job_id, queue, replay.cost_millislices, replay.at_s)
            self._jobs[job_id] = self._waiting[job_id] = _Job(replay, waits)
            if replay.gives_up_s is not None:
                heappush(self._give_up, (replay.gives_up_s, job_id))
            self._is_changed = True

    def _cancel_due(self) -> None:
        while self._give_up and self._give_up[0][0] <= self._model.now_s:
            job_id = heappop(self._give_up)[1]
            if self._waiting.pop(job_id, None) is not None:
                self._model.cancel(job_id)
                self._jobs[job_id].given_up_s = self._model.now_s
                self._is_changed = True

    def _collect(self) -> None:
        """Take the runs that have ended; one that was preempted waits as the rest of its queue."""
        for run in self._model.take_ended():
            job = self._jobs[run.job_id]
            if run.start_s is not None:
                job.runs.append(ReplayedRun(run.start_s, run.end_s))
            if run.state == "COMPLETED":
                job.is_over = True
                self._admitted.pop(run.job_id, None)
                self._is_changed = True

    def _decide(self) -> None:
        self._cycle_s, self._is_changed = self._model.now_s, False
        admitted = (replace(job.waits, since_s=job.admitted_s) for job in self._admitted.values())
        waiting = (job.waits for job in self._waiting.values())
        found = cycle(self._quotas, waiting, admitted)
        for job_id in found.preempted:
            job = self._admitted.pop(job_id)
            self._waiting[job_id] = job
            # One of both does nothing: it runs, or it is admitted and waits for nodes.
            self._model.requeue_hold(job_id)
            self._model.hold(job_id)
        for job_id in found.admitted:
            job = self._waiting.pop(job_id)
            job.admitted_s = self._model.now_s
            self._admitted[job_id] = job
            self._model.release(job_id)

    def _record(self) -> SiteRecord:
        running = {
            job.job_id: ReplayedRun(job.start_s, None)
            for job in self._model.jobs
            if job.start_s is not None and job.job_id in self._jobs and job.state.name == "RUNNING"
        }
        return SiteRecord(
            begin_s=self._times.begin_s,
            stopped_s=self._model.now_s,
            jobs=tuple(
                replayed(
                    job.replay,
                    job.runs,
                    running.get(job_id),
                    job.given_up_s,
                    waits=job_id not in running and not job.is_over,
                )
                for job_id, job in self._jobs.items()
            ),
        )
