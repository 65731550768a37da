"""The loop that decides jobs which got no answer at their submission."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

from slicewise.cluster.language.errors import OutsideError, Refusal, SlicewiseError
from slicewise.cluster.language.jobs import JobView, is_of_service
from slicewise.cluster.language.service import directive_lines, head_lines
from slicewise.cluster.language.slurm.interface import (
    JobChange,
    JobRequest,
    Slurm,
    Target,
    target_of,
)
from slicewise.cluster.runtime.log import bound
from slicewise.cluster.runtime.together import together
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.common.log import report, warn
from slicewise.slurm_plugin.rules.admission.deferred import (
    CLEAR,
    DeferredDecision,
    begun,
    deferred_decision,
    is_undecided,
    submission_of,
)
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_CALLS = 8
_AGAIN_S = 5.0
"""Seconds between new decisions on refused jobs: each asks Slurm for all jobs that wait."""
_LATE_S = 60.0
"""Seconds for which Slurm may still make a hold that got no answer."""


class DeferredLoop:
    """Decides undecided jobs as if they were submitted now, repeatedly until each is admitted.

    Attributes:
        refusals: why jobs that stay undecided are held, by job id.
    """

    def __init__(self, settings: Settings, slurm: Slurm, cluster_state: ClusterState) -> None:
        self._mode = settings.daemon.mode
        self._partitions = frozenset(settings.cluster.partitions)
        self._slurm = slurm
        self._cluster_state = cluster_state
        self._directives: dict[int, tuple[str, ...] | None] = {}
        self._decided_at_s = self._again_s = 0.0
        self._late_until_s: dict[int, float] = {}
        self.refusals: dict[int, Refusal] = {}

    async def turn(self) -> None:
        """Decide once on the last look at Slurm. Raises SlicewiseError if Slurm fails."""
        looked_s = self._cluster_state.looked_monotonic_s
        # A look that began before the last turn ended may show jobs as they were before that turn.
        if not self._cluster_state.acts or looked_s <= self._decided_at_s:
            return
        waiting = {
            job.job_id: job
            for job in self._cluster_state.jobs
            if is_undecided(job, self._partitions)
        }
        self.refusals = {job: why for job, why in self.refusals.items() if job in waiting}
        self._cluster_state.refusals = self.refusals
        self._directives = {
            job: directive for job, directive in self._directives.items() if job in waiting
        }
        if started := begun(self._cluster_state.jobs):
            await self._slurm.update(started)
        is_due = looked_s >= self._again_s or waiting.keys() - self.refusals.keys()
        if waiting and is_due:
            await self._decide_all(waiting)
            self._again_s = looked_s + _AGAIN_S
        await self._undo_late_holds(looked_s, waiting.keys())
        self._decided_at_s = time.monotonic()

    async def _decide_all(self, waiting: Mapping[int, JobView]) -> None:
        requests = await self._slurm.requests(waiting.keys())
        jobs = [waiting[job_id] for job_id in sorted(requests)]
        await _side_by_side(self._read(job) for job in jobs)
        admission = Admission(self._mode)
        if self._cluster_state.snapshot is not None:
            admission.publish(self._cluster_state.snapshot, self._cluster_state.looked_monotonic_s)
        # Jobs are decided in order of submission: quota that one takes the next does not have.
        decided = [(job, self._decide(job, requests[job.job_id], admission)) for job in jobs]
        await self._admit([each for each in decided if each[1].refusal is None])
        await _side_by_side(
            self._refuse(job, what.refusal) for job, what in decided if what.refusal is not None
        )

    def _decide(self, job: JobView, asked: JobRequest, admission: Admission) -> DeferredDecision:
        request = submission_of(job, asked, self._directives[job.job_id])
        return deferred_decision(job, asked, admission.submit(request), request.directives)

    async def _read(self, job: JobView) -> None:
        """Read the script's directives once; a job of srun or salloc has none."""
        if job.job_id in self._directives:
            return
        try:
            script = await self._slurm.batch_script(job.array_job_id or job.job_id)
        except OutsideError:
            self._directives[job.job_id] = None
        else:
            self._directives[job.job_id] = directive_lines(head_lines(script))

    async def _admit(self, decided: Sequence[tuple[JobView, DeferredDecision]]) -> None:
        cleared = {target_of(job): CLEAR for job, what in decided if what.clear}
        refused = await self._changed(cleared)
        changes = {target_of(job): what.change for job, what in decided}
        refused |= await self._changed({t: c for t, c in changes.items() if t not in refused})
        done = [(job, what) for job, what in decided if target_of(job) not in refused]
        await _side_by_side(
            self._slurm.release(target_of(job)) for job, what in done if what.release
        )
        await self._changed({target_of(job): what.mark for job, what in done if what.mark})
        for job, what in done:
            self.refusals.pop(job.job_id, None)
            report("decided_late", job_id=job.job_id, qos=what.change.qos)
            self._cluster_state.acted.set()

    async def _changed(self, changes: Mapping[Target, JobChange]) -> set[Target]:
        """Make the changes; return the targets that Slurm refused.

        Such a job has started or ended, or is tried again.
        """
        refused = await self._slurm.update(changes) if changes else {}
        for target, words in refused.items():
            warn("late_change_refused", target=target, words=words)
        return set(refused)

    async def _refuse(self, job: JobView, refusal: Refusal) -> None:
        """Hold the job as administrator, so that its user can't release it, and keep the reason."""
        with bound(job_id=job.job_id):
            if job.reason != "JobHeldAdmin":
                await self._hold(job)
                self._cluster_state.acted.set()
            if self.refusals.get(job.job_id) != refusal:
                report("refused_late", code=refusal.code, message=refusal.message)
        self.refusals[job.job_id] = refusal

    async def _hold(self, job: JobView) -> None:
        try:
            await self._slurm.hold(target_of(job))
        except SlicewiseError:
            self._late_until_s[job.job_id] = time.monotonic() + _LATE_S
            raise

    async def _undo_late_holds(self, looked_s: float, waiting: Collection[int]) -> None:
        """Release decided jobs that Slurm holds because of a refusal before, long after it was
        asked to: nobody else would.

        A hold of an administrator within that minute looks the same, and does not last. Slots of
        services are held anyway until they are wanted.
        """
        late = {job: until_s for job, until_s in self._late_until_s.items() if looked_s < until_s}
        self._late_until_s = late
        for job in self._cluster_state.jobs if late else ():
            is_late = job.job_id in late and job.job_id not in waiting
            if is_late and job.held and job.reason == "JobHeldAdmin" and not is_of_service(job):
                await self._slurm.release(target_of(job))
                report("late_hold_undone", job_id=job.job_id)
                self._cluster_state.acted.set()


async def _side_by_side(calls: Iterable[Awaitable[None]]) -> None:
    """Await the calls, a few at a time: each is a command of its own, which mostly waits."""
    turn = asyncio.Semaphore(_CALLS)

    async def one(call: Awaitable[None]) -> None:
        async with turn:
            await call

    await together(*map(one, calls))
