"""Looks at Slurm, and reads only once what never changes: each array's script and directory, and
the ports of each run.
"""

import asyncio
import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.jobs import JobState, JobView, NodeView, StepView, as_known
from slicewise.cluster.language.service import directives_of_script, head_lines
from slicewise.cluster.language.slurm.interface import CLOCK_KNOWN_S, SlurmReader, Submission
from slicewise.cluster.language.slurm.node_states import OUT_OF_USE, RESERVED, UNFIT
from slicewise.cluster.language.slurm.values import hosts
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.rules.quota.waits import NODES_AWAY
from slicewise.slurm_plugin.rules.services.state import Observation, service_arrays, with_tasks

_LOOKS = 5
"""After this many looks without its script an array is not treated as a service. An array that
Slurm has lost for good would otherwise keep all others from being seen."""
_NODES_S = 60.0
"""Seconds for which nodes are not read again while nothing moves and no job has changed: what an
operator does with a node without jobs shows so late. ``scontrol`` asks for partitions each time."""
_UNAVAILABLE = re.compile(NODES_AWAY + r",[ _]UnavailableNodes:(\S+)")
_BUSY = "Resources"
_AWAY = OUT_OF_USE | RESERVED | frozenset(UNFIT)
_RunKey = tuple[int, int, int | None]
"""Job id, number of requeues, Unix second of the start."""


@dataclass(frozen=True)
class _Submitted:
    """The parts of an array's submission that never change."""

    directives: Mapping[str, str] = field(default_factory=dict, hash=False)
    directory: str = ""


class SlurmObserver:
    """Looks at Slurm."""

    def __init__(self, slurm: SlurmReader) -> None:
        self._slurm = slurm
        self._known: dict[int, _Submitted] = {}
        self._missed: dict[int, int] = {}
        # As Slurm showed them last, and as the last look has them.
        self._jobs: tuple[JobView, ...] = ()
        self._found: tuple[JobView, ...] = ()
        self._nodes: tuple[NodeView, ...] = ()
        self._nodes_due_s = float("-inf")
        self._steps: dict[_RunKey, tuple[StepView, ...]] = {}
        self._settled: frozenset[_RunKey] = frozenset()

    async def look(self, *, at_rest: bool = False) -> Observation:
        """Read everything that services are built from.

        ``at_rest``: nothing was under way at the last look, so nodes may be those of a minute
        ago if no job has changed since. Raises SlicewiseError if Slurm does not answer, or, at the
        first four looks for an array, does not hand out its script.
        """
        at_s = await self._slurm.clock_s(CLOCK_KNOWN_S)
        jobs, nodes = await self._jobs_and_nodes(at_rest=at_rest)
        self._found = jobs = as_known(self._found, _as_nodes_are(jobs, nodes))
        arrays = service_arrays(jobs)
        steps = await self._steps_of(jobs, arrays)
        submissions = {
            array: submission for array, submission in self._known.items() if array in arrays
        }
        self._known = submissions
        if unread := arrays.keys() - submissions.keys():
            await self._read(unread)
        return Observation(
            at_s,
            jobs,
            nodes,
            steps,
            {array: submission.directives for array, submission in submissions.items()},
            {array: submission.directory for array, submission in submissions.items()},
        )

    async def look_at(
        self, array_job_ids: Collection[int], seen: Observation
    ) -> Observation | None:
        """Read these arrays and all nodes; of all other jobs the look stays as it was ``seen``.

        None if only a look at all jobs can show these. Raises as ``look`` does.
        """
        at_s = await self._slurm.clock_s(CLOCK_KNOWN_S)
        try:
            tasks, nodes = await asyncio.gather(self.tasks(array_job_ids), self._slurm.nodes())
        except OutsideError:
            # So squeue answers where it is asked for an array alone that slurmctld has forgotten.
            return None
        jobs = with_tasks(seen.jobs, array_job_ids, tasks)
        if jobs is None:
            return None
        self._found = jobs = as_known(self._found, _as_nodes_are(jobs, nodes))
        # Beside older jobs: the next look reads them again.
        self._nodes_due_s = float("-inf")
        steps = await self._steps_of(jobs, service_arrays(jobs))
        return replace(seen, at_s=at_s, jobs=jobs, nodes=nodes, steps=steps)

    async def _jobs_and_nodes(
        self, *, at_rest: bool
    ) -> tuple[tuple[JobView, ...], tuple[NodeView, ...]]:
        now_s, before = time.monotonic(), self._jobs
        if at_rest and now_s < self._nodes_due_s:
            jobs = await self._slurm.jobs()
            if _places(before) == _places(jobs):
                self._jobs = jobs
                return jobs, self._nodes
            nodes = await self._slurm.nodes()
        else:
            jobs, nodes = await asyncio.gather(self._slurm.jobs(), self._slurm.nodes())
        # Together: after a failure between them, old nodes would stand beside new jobs.
        self._jobs, self._nodes = jobs, nodes
        self._nodes_due_s = now_s + _NODES_S
        return jobs, nodes

    async def _steps_of(
        self, jobs: Iterable[JobView], arrays: Collection[int]
    ) -> tuple[StepView, ...]:
        """Steps with ports of the replicas that run: the ports of other jobs are not needed.

        Slurm keeps the ports of a step until it ends, and a replica ends with its first one. So a
        run's steps are no longer asked for once two looks have found the same ones.
        """
        running = (job for job in jobs if job.state is JobState.RUNNING)
        runs = {_run(job): job for job in running if job.array_job_id in arrays}
        self._settled &= runs.keys()
        found: dict[int, list[StepView]] = {}
        if asked := [job for run, job in runs.items() if run not in self._settled]:
            for step in await self._slurm.steps(asked):
                found.setdefault(step.job_id, []).append(step)
        before = self._steps
        self._steps = {
            run: before[run] if run in self._settled else tuple(found.get(job.job_id, ()))
            for run, job in runs.items()
        }
        self._settled |= {
            run for run, steps in self._steps.items() if steps and before.get(run) == steps
        }
        return tuple(step for steps in self._steps.values() for step in steps)

    async def look_again(self, seen: Observation, array_job_id: int) -> Observation:
        """Read the jobs of that array alone, now; SlicewiseError if Slurm does not answer."""
        return replace(seen, jobs=await self.tasks({array_job_id}))

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        """Read the jobs of these arrays alone, now; SlicewiseError if Slurm does not answer."""
        return await self._slurm.tasks(array_job_ids)

    async def _read(self, arrays: Collection[int]) -> None:
        """Read the scripts of these arrays.

        A missing script decides nothing: at the next look the array may be gone or the script
        available. Until then the look is not complete.
        """
        submissions = await self._slurm.submissions(arrays)
        self._known.update(
            {array: _submitted(array, submission) for array, submission in submissions.items()}
        )
        missing = set(arrays) - submissions.keys()
        self._missed = {array: self._missed.get(array, 0) + 1 for array in missing}
        for array, looks in sorted(self._missed.items()):
            error = OutsideError(
                Code.SLURM_FAILED, f"Slurm does not hand out the script of job {array}."
            )
            if looks < _LOOKS:
                raise error
            if looks == _LOOKS:
                report_failure("script_missing", error, array=array)


def _run(job: JobView) -> _RunKey:
    return job.job_id, job.restarts, job.start_s


def _as_nodes_are(jobs: tuple[JobView, ...], nodes: Iterable[NodeView]) -> tuple[JobView, ...]:
    """The jobs; those that name nodes as unavailable which are all there wait for what is busy.

    While a job that must have a busy node waits, slurmctld keeps the node from all jobs behind it,
    and calls it unavailable to them.
    """
    named = {job.reason for job in jobs if job.reason.startswith(NODES_AWAY)}
    if not named:
        return jobs
    names = frozenset(node.name for node in nodes if not node.states & _AWAY)
    kept = {reason for reason in named if names >= _unavailable(reason) != frozenset()}
    return tuple(replace(job, reason=_BUSY) if job.reason in kept else job for job in jobs)


def _unavailable(reason: str) -> frozenset[str]:
    """The nodes that a reason names as unavailable; none if it says something else."""
    match = _UNAVAILABLE.fullmatch(reason)
    with suppress(OutsideError):
        return frozenset(hosts(match[1]) if match else ())
    return frozenset()


def _places(jobs: Iterable[JobView]) -> frozenset[tuple[int, JobState, tuple[str, ...], int, str]]:
    """What nodes show of jobs, too, and which nodes jobs say are away."""
    away = ((job, job.reason if job.reason.startswith(NODES_AWAY) else "") for job in jobs)
    return frozenset((job.job_id, job.state, job.nodes, job.restarts, why) for job, why in away)


def _submitted(array_job_id: int, submission: Submission) -> _Submitted:
    """Directives and directory; empty if admission would refuse the script: it is no service."""
    try:
        directives = directives_of_script(head_lines(submission.script))
    except InvalidInputError as error:
        report_failure("script_unreadable", error, array=array_job_id)
        return _Submitted()
    return _Submitted(directives, submission.directory)
