"""The Slurm of a world: the model of Slurm, and a process's line to it, over which calls fail."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import gt, lt
from random import Random
from typing import Any, TypeVar

from model_slurm import AccountedRun, ModelSite, ModelSlurm

from fault_world.link import Link
from fault_world.virtual_time import WorldClock
from slicewise.cluster.language.jobs import JobTag, JobView
from slicewise.cluster.language.slurm.interface import Association, Target, Tasks
from slicewise.cluster.slurm.run_command import waiting
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed

T = TypeVar("T")
LATE_END_S = 700.0
"""Seconds by which accounting shows the ends of some runs late that are in the books: more than
charging expects."""
_UNSEEN_END_S = 300.0
"""The same for a run that no turn of charging saw: of such a run nobody knows that its end is
awaited, so that accounting must show it within ``ACCOUNTING_DELAY_S``."""
_LONGEST_S = 0.08
"""Seconds that a sacctmgr takes whose caller waits for its end, pauses included."""
_BILLING = re.compile(r" name=(\S+) set .*grptres=billing=(\d+)")


@dataclass
class Site(ModelSite):
    """The model of Slurm, and what a world notes of how it is used.

    Attributes:
        random: draws by how much slurmdbd learns of an end late.
        lag_s: the most seconds of that.
        calls: told of each change: its words, and whether it has changed anything.
        looked_at: told that somebody looks at the jobs.
        asked_for: told of an array and how many slots the launcher asks for.
        requeued: told of an array when slots of it were requeued.
        released: told of an array when slots of it were released.
        asked_s: when slurmdbd was last asked, in seconds since the beginning.
        late_ends: jobs whose ends accounting shows ``LATE_END_S`` late.
        is_booked: whether a run of this job is in the books.
        changed_late_s: when slurmdbd last made a change late, in seconds since the beginning.
        blind: limits that grew though jobs were not looked at since one last shrank.
        shrank_s: when Slicewise last made one shrink, in seconds since the beginning.
        compiles_s: when the last compilation began, in seconds since the beginning.
        foreign: changes that were made to what is not Slicewise's.
    """

    clock: WorldClock
    random: Random = field(default_factory=Random)
    lag_s: float = 0.0
    foreign: list[str] = field(default_factory=list)
    late_ends: set[int] = field(default_factory=set)
    is_booked: Callable[[int], bool] = lambda _job_id: False
    blind: list[str] = field(default_factory=list)
    shrank_s: float = -inf
    compiles_s: Callable[[], float] = lambda: 0.0
    changed_late_s: float = -inf
    asked_s: float = -inf
    calls: Callable[[str, bool], None] = lambda _words, _has_changed: None
    requeued: Callable[[int], None] = lambda _array: None
    released: Callable[[int], None] = lambda _array: None
    looked_at: Callable[[], None] = lambda: None
    asked_for: Callable[[int, int], None] = lambda _array, _slots: None

    def late_s(self) -> float:
        return self.random.uniform(0.0, self.lag_s)

    def shows_end(self, one: AccountedRun) -> bool:
        late_s = one.late_s
        if one.run.job_id in self.late_ends:
            late_s = LATE_END_S if self.is_booked(one.run.job_id) else _UNSEEN_END_S
        return self.clock.now_s >= one.run.end_s + late_s

    def own(self, target: Target) -> None:
        """Note a change of a job that carries no tag of Slicewise."""
        for record in self.records(target):
            if JobTag.find(record.admin_comment) is None:
                self.foreign.append(f"job {target}")

    def on_loan(self, target: Target) -> None:
        """Note an end of a run that holds what is guaranteed to its tenant."""
        indices = target.indices if isinstance(target, Tasks) else {None}
        for record in self.records(target):
            if record.task_index in indices and not is_borrowed(record.qos):
                self.foreign.append(f"run of job {target}, within a guarantee")


class SlurmLine(ModelSlurm):
    """The door to a site for one process, whose calls fail as its link says."""

    _site: Site

    def __init__(self, site: Site, link: Link) -> None:
        super().__init__(site)
        self._link = link
        self._jobs_s = -inf

    async def _ctld(self, words: str, call: Callable[[], T], **more: Any) -> T:
        with waiting():
            return await self._link.ask("slurmctld", words, call, **more)

    async def _dbd(self, words: str, call: Callable[[], T], **more: Any) -> T:
        with waiting():
            return await self._link.ask("slurmdbd", words, call, **more)

    async def jobs(self) -> tuple[JobView, ...]:
        self._jobs_s = self._site.clock.passed_s
        self._site.looked_at()
        return await super().jobs()

    async def associations(self) -> tuple[Association, ...]:
        self._site.asked_s = self._site.clock.passed_s
        return await super().associations()

    def _made(self, words: str, target: Target, call: Callable[[], T]) -> T:
        """Make a change of jobs, and tell whether any job is another one by it."""
        self._site.own(target)
        before = self._site.model.jobs
        if words.startswith("requeue "):
            self._site.on_loan(target)
        done = call()
        if not isinstance(target, int) and words.startswith("release"):
            self._site.released(target.array_job_id)
        if words.startswith("requeue_hold"):
            self._site.requeued(target if isinstance(target, int) else target.array_job_id)
        self._site.calls(words, self._site.model.jobs != before)
        return done

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        # A change that slurmdbd makes long after may have lowered a limit since this looked.
        is_known = self._site.changed_late_s < self._site.compiles_s()
        if is_known and self._jobs_s < self._site.shrank_s:
            self._site.blind += [" ".join(one) for one in changes if self._is_to(one, gt)]
        return await super().sacctmgr(changes)

    def _set(self, change: tuple[str, ...], asked_s: float) -> str:
        if self._site.clock.now_s - asked_s > _LONGEST_S:
            self._site.changed_late_s = self._site.clock.passed_s
        if self._is_to(change, lt):
            self._site.shrank_s = self._site.clock.passed_s
        before = self._site.database.state()
        refusal = super()._set(change, asked_s)
        words = "sacctmgr " + " ".join(change)
        self._site.calls(words, self._site.database.state() != before)
        return refusal

    def _is_to(self, change: tuple[str, ...], than: Callable[[int, int], bool]) -> bool:
        """Whether the new limit of a QOS is greater or less ``than`` the one that it has."""
        found = _BILLING.search(" ".join(change))
        if change[:2] != ("modify", "qos") or found is None:
            return False
        names, amount = found[1].split(","), int(found[2])
        known = (self._site.database.known.get(name) for name in names)
        return any(one and than(amount, one.grp_tres.get("billing", 0)) for one in known)
