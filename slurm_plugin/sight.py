"""What is seen of Slurm at one moment; each array's script and directory are read once."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.errors import InvalidInputError
from cluster.service import directives_of_script, head_lines
from cluster.slurm.interface import Slurm
from slurm_plugin.decide.services import Observation, service_arrays
from slurm_plugin.observe import report_failure


@dataclass(frozen=True)
class _Submitted:
    """What never changes of an array."""

    directives: Mapping[str, str] = field(default_factory=dict, hash=False)
    directory: str = ""


class Sight:
    """Looks at Slurm."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._known: dict[int, _Submitted] = {}

    async def look(self) -> Observation:
        """Everything that services are made of. Raises SlicewiseError if Slurm does not answer, or
        does not hand out a script.
        """
        at_s = time.time()
        jobs, nodes, steps = await asyncio.gather(
            self._slurm.jobs(), self._slurm.nodes(), self._slurm.steps()
        )
        arrays = service_arrays(jobs)
        known = {array: one for array, one in self._known.items() if array in arrays}
        self._known = known
        for array in sorted(arrays.keys() - known.keys()):
            known[array] = await self._read(array)
        return Observation(
            at_s,
            jobs,
            nodes,
            steps,
            {array: one.directives for array, one in known.items()},
            {array: one.directory for array, one in known.items()},
        )

    async def _read(self, array_job_id: int) -> _Submitted:
        """Nothing if admission would not have let the script through: then it is no service.

        A script that Slurm does not hand out now says nothing; the array may be gone at the next
        look, or the script be there. Until then the look is not complete.
        """
        script = await self._slurm.batch_script(array_job_id)
        try:
            directives = directives_of_script(head_lines(script))
        except InvalidInputError as error:
            report_failure("script_unreadable", error, array=array_job_id)
            return _Submitted()
        return _Submitted(directives, await self._slurm.work_directory(array_job_id))
