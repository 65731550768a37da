"""The loop that tags services' arrays in modes observe and advise."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.service import directive_lines, head_lines
from slicewise.cluster.language.slurm.interface import JobChange, Slurm
from slicewise.cluster.runtime.log import bound
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.rules.admission.service_tags import (
    submission_of,
    tag_decision,
    untagged_services,
)
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_AGAIN_S = 15.0
"""Seconds between new decisions on refused arrays: each asks Slurm for all jobs that wait."""


class ServiceTagLoop:
    """Decides on services' arrays that nobody has admitted, by the rules of mode enforce.

    One that is refused stays as its user holds it, and is decided again.
    """

    def __init__(self, settings: Settings, slurm: Slurm, cluster_state: ClusterState) -> None:
        self._partitions = frozenset(settings.cluster.partitions)
        self._slurm = slurm
        self._cluster_state = cluster_state
        # One for all turns: it remembers who submits too often.
        self._admission = Admission("enforce")
        self._directives: dict[int, tuple[str, ...]] = {}
        self._refusals: dict[int, Refusal] = {}
        self._decided_at_s = self._again_s = 0.0

    async def turn(self) -> None:
        """Decide once on the last look at Slurm. Raises SlicewiseError if Slurm fails."""
        state = self._cluster_state
        looked_s, snapshot = state.looked_monotonic_s, state.snapshot
        is_ours = state.mode != "enforce" and state.runs_services and snapshot is not None
        # A look that began before the last turn ended may show arrays as they were before.
        if not is_ours or snapshot is None or looked_s <= self._decided_at_s:
            return
        arrays = untagged_services(state.jobs, self._partitions)
        self._refusals = {array: why for array, why in self._refusals.items() if array in arrays}
        state.refusals = self._refusals
        if arrays.keys() - self._refusals.keys() or (arrays and looked_s >= self._again_s):
            # Services need none of the limits that an uninstall has removed.
            self._admission.publish(replace(snapshot, is_uninstalled=False), looked_s)
            await self._decide(arrays)
            self._again_s = looked_s + _AGAIN_S
        self._decided_at_s = time.monotonic()

    async def _decide(self, arrays: Mapping[int, JobView]) -> None:
        await self._read(arrays)
        requests = await self._slurm.requests([job.job_id for job in arrays.values()])
        # In order of submission: a name that one takes the next does not have.
        for array, job in sorted(arrays.items()):
            asked, directives = requests.get(job.job_id), self._directives.get(array)
            if asked is None or directives is None:
                continue
            request = submission_of(job, asked, directives, secrets.token_hex(8))
            answer = self._admission.preview(request)
            decision = tag_decision(job, asked, directives, answer, self._partitions)
            with bound(job_id=array):
                if decision.refusal is not None:
                    self._refuse(array, decision.refusal)
                    continue
                self._admission.submit(request)
                await self._tag(array, decision.changes)

    async def _read(self, arrays: Mapping[int, JobView]) -> None:
        """Read each script once."""
        before = self._directives
        self._directives = {array: read for array, read in before.items() if array in arrays}
        if unread := arrays.keys() - self._directives.keys():
            for array, submission in (await self._slurm.submissions(unread)).items():
                self._directives[array] = directive_lines(head_lines(submission.script))

    async def _tag(self, array: int, changes: tuple[JobChange, ...]) -> None:
        """Change the array as a whole: addressed by tasks Slurm would part them."""
        for change in changes:
            if refused := await self._slurm.update({array: change}):
                words = " ".join(refused.values())
                self._refuse(array, Refusal(Code.SLURM_FAILED, f"Slurm does not tag it: {words}"))
                return
        self._refusals.pop(array, None)
        report("decided_late", job_id=array, qos=None)
        self._cluster_state.acted.set()

    def _refuse(self, array: int, refusal: Refusal) -> None:
        if self._refusals.get(array) != refusal:
            report("refused_late", code=refusal.code, message=refusal.message)
        self._refusals[array] = refusal
