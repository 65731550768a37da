"""Looks at Slurm, and reads each array's script and directory only once."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cluster.language.errors import InvalidInputError, OutsideError
from cluster.language.jobs import JobState, JobView
from cluster.language.service import directives_of_script, head_lines
from cluster.slurm.interface import SlurmReader, Submission
from slurm_plugin.common.log import report_failure
from slurm_plugin.services.state import Observation, service_arrays

_LOOKS = 5
"""After this many looks without its script an array is not treated as a service. An array that
Slurm has lost for good would otherwise keep all others from being seen."""


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

    async def look(self) -> Observation:
        """Read everything that services are built from.

        Raises SlicewiseError if Slurm does not answer, or, at the first four looks for an array,
        does not hand out its script.
        """
        at_s = time.time()
        jobs, nodes = await asyncio.gather(self._slurm.jobs(), self._slurm.nodes())
        arrays = service_arrays(jobs)
        # Only replicas' steps are read: the ports of other jobs are not needed.
        running = (job for job in jobs if job.state is JobState.RUNNING)
        steps = await self._slurm.steps([job for job in running if job.array_job_id in arrays])
        known = {array: one for array, one in self._known.items() if array in arrays}
        self._known = known
        if unread := arrays.keys() - known.keys():
            await self._read(unread)
        return Observation(
            at_s,
            jobs,
            nodes,
            steps,
            {array: one.directives for array, one in known.items()},
            {array: one.directory for array, one in known.items()},
        )

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
        found = await self._slurm.submissions(arrays)
        self._known.update({array: _submitted(array, one) for array, one in found.items()})
        missing = set(arrays) - found.keys()
        self._missed = {array: self._missed.get(array, 0) + 1 for array in missing}
        for array, looks in sorted(self._missed.items()):
            error = OutsideError(
                "SW-SLURM-FAILED", f"Slurm does not hand out the script of job {array}."
            )
            if looks < _LOOKS:
                raise error
            if looks == _LOOKS:
                report_failure("script_missing", error, array=array)


def _submitted(array_job_id: int, submission: Submission) -> _Submitted:
    """Directives and directory; empty if admission would refuse the script: it is no service."""
    try:
        directives = directives_of_script(head_lines(submission.script))
    except InvalidInputError as error:
        report_failure("script_unreadable", error, array=array_job_id)
        return _Submitted()
    return _Submitted(directives, submission.directory)
