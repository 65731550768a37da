"""A site that Kueue's rules admit to: jobs are submitted held, and released when admitted.

Slurm's model only places what was admitted, as the scheduler of Kubernetes does, with backfill
where it is tight: an admitted job waits where no nodes have its GPUs together. Each type of GPU has
quotas of its own, as each is a resource of Kueue's. Replicas of services are workloads, too: pods
that come and go as the HPA wants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.simulation.rules.site.past_requests import Replay
from slicewise.simulation.rules.site.records import ReplayedRun, SiteRecord, replayed
from slicewise.simulation.rules.site.simulated_site import SiteTimes
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from studies.headline.hpa_pods import HpaPods
from studies.headline.kueue import Workload, cycle

_CYCLE_S = 1.0
"""Seconds at least between two cycles."""
_LOOK_S = 1.0
"""Seconds between two looks at services."""
_REQUEUED = "REQUEUED"
"""The state of a run after which its job waits again, as only a preemption ends one here."""


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
    """One site; ``quotas`` are the queues' nominal millislices by type, one queue an account.

    Attributes:
        services: the pods of each service.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        costs: Mapping[str, Millislices],
        quotas: Mapping[str, Mapping[str, int]],
        jobs: Sequence[Replay],
        times: SiteTimes,
        *,
        services: Sequence[HpaPods] = (),
    ) -> None:
        at_once = replace(cluster.scheduling, requeue_wait_s=0.0)
        cluster = replace(cluster, scheduling=at_once)
        self._model = SlurmModel(cluster, start_s=times.begin_s, costs=costs)
        self._quotas, self._times, self._costs = quotas, times, costs
        self._coming = sorted(jobs, key=lambda one: one.at_s)
        self._next = 0
        self._jobs: dict[int, _Job] = {}
        self._waiting: dict[int, _Job] = {}
        self._admitted: dict[int, _Job] = {}
        self._give_up: list[tuple[float, int]] = []
        self._is_changed = False
        self._cycle_s = times.begin_s - _CYCLE_S
        self.services = services
        self._pods: dict[int, HpaPods] = {}
        self._look_s = times.begin_s

    def run(self) -> SiteRecord:
        """Simulate all of it."""
        model, times = self._model, self._times
        while model.now_s < times.last_s:
            if model.now_s >= times.end_s and not self._waiting.keys() - self._pods.keys():
                break
            model.advance(min(self._due_s(), times.last_s))
            self._submit_due()
            self._cancel_due()
            self._collect()
            if self.services and model.now_s >= self._look_s:
                self._look_at_services()
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
        if self.services:
            due.append(self._look_s)
        return max(self._model.now_s, min(one for one in due if one is not None))

    def _submit_due(self) -> None:
        now_s = self._model.now_s
        while self._next < len(self._coming) and self._coming[self._next].at_s <= now_s:
            replay = self._coming[self._next]
            self._next += 1
            job_id = self._submit(replay)
            if replay.gives_up_s is not None:
                heappush(self._give_up, (replay.gives_up_s, job_id))

    def _submit(self, replay: Replay) -> int:
        job_id = self._model.submit(replace(replay.request, held=True))
        queue = replay.request.account
        waits = Workload(job_id, queue, replay.cost_millislices, replay.at_s)
        self._jobs[job_id] = self._waiting[job_id] = _Job(replay, waits)
        self._is_changed = True
        return job_id

    def _look_at_services(self) -> None:
        """Let each service's pods serve until now, come, and go."""
        now_s = self._model.now_s
        self._look_s = now_s + _LOOK_S
        running_s = {
            job.job_id: max(float(job.start_s), self._jobs[job.job_id].admitted_s)
            for job in self._model.jobs
            if job.job_id in self._pods and job.state is JobState.RUNNING and job.start_s
        }
        for service in self.services:
            service.follow(running_s, now_s)
            more = service.more(now_s)
            for _ in range(more):
                replay = _pod(service.service, self._costs, now_s)
                job_id = self._submit(replay)
                self._pods[job_id] = service
                service.came(job_id)
            for job_id in service.leaving(max(0, -more)):
                service.gone(job_id, now_s)
                self._drop(job_id)

    def _drop(self, job_id: int) -> None:
        """End a pod that has left."""
        self._model.cancel(job_id)
        self._waiting.pop(job_id, None)
        self._admitted.pop(job_id, None)
        del self._jobs[job_id], self._pods[job_id]
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
            job = self._jobs.get(run.job_id)
            if job is None:
                continue
            if run.start_s is not None:
                job.runs.append(ReplayedRun(run.start_s, run.end_s))
            if run.state != _REQUEUED:
                job.is_over = True
                self._admitted.pop(run.job_id, None)
                self._is_changed = True

    def _decide(self) -> None:
        self._cycle_s, self._is_changed = self._model.now_s, False
        for kind, nominal in self._quotas.items():
            self._decide_of(kind, nominal)

    def _decide_of(self, kind: str, nominal: Mapping[str, int]) -> None:
        """Decide for the workloads that ask for GPUs of that type."""
        admitted = (
            replace(job.waits, since_s=job.admitted_s)
            for job in self._admitted.values()
            if kind in job.replay.request.gpus
        )
        waiting = (job.waits for job in self._waiting.values() if kind in job.replay.request.gpus)
        found = cycle(nominal, waiting, admitted)
        for job_id in found.preempted:
            self._preempt(job_id)
        for job_id in found.admitted:
            job = self._waiting.pop(job_id)
            job.admitted_s = self._model.now_s
            self._admitted[job_id] = job
            self._model.release(job_id)

    def _preempt(self, job_id: int) -> None:
        self._waiting[job_id] = self._admitted.pop(job_id)
        # One of both does nothing: it runs, or it is admitted and waits for nodes.
        self._model.requeue_hold(job_id)
        self._model.hold(job_id)
        pods = self._pods.get(job_id)
        if pods is not None and not pods.preempted(job_id, self._model.now_s):
            self._drop(job_id)

    def _record(self) -> SiteRecord:
        """What the jobs that are no pods left behind."""
        jobs = {job_id: job for job_id, job in self._jobs.items() if job_id not in self._pods}
        running = {
            job.job_id: ReplayedRun(job.start_s, None)
            for job in self._model.jobs
            if job.start_s is not None and job.job_id in jobs and job.state is JobState.RUNNING
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
                for job_id, job in jobs.items()
            ),
        )


def _pod(service: SimulatedService, costs: Mapping[str, Millislices], now_s: float) -> Replay:
    """A pod of the service as a workload that ends when it is told to."""
    spec = service.spec
    request = ModelRequest(
        user=service.user,
        uid=service.uid,
        account=spec.tenant,
        partition=service.partition,
        qos="",
        gpus={spec.profile or "": spec.gpus},
        run_s=inf,
    )
    return Replay(-1, now_s, request, spec.replica_shape.cost_millislices(costs))
