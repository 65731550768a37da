"""The Slurm of a world: a model of slurmctld, a slurmdbd, and a process's line to both."""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any, TypeVar

from slurm_database import COSTS, Row, SlurmDatabase

from cluster.language.gres import tres_name
from cluster.language.jobs import (
    JobState,
    JobTag,
    JobView,
    NodeView,
    PartitionView,
    PlannedStart,
    ReservationView,
    RunRecord,
    StepView,
)
from cluster.slurm.interface import (
    Association,
    Changed,
    JobChange,
    JobRequest,
    PriorityRow,
    Qos,
    Submission,
    Target,
    Tasks,
)
from cluster.slurm_client.batch import named_qos
from fault_world.link import Link
from fault_world.virtual_time import WorldClock
from simulation.cluster import SimulatedCluster
from simulation.slurm_model.model import SlurmModel
from simulation.slurm_model.records import EndedRun, JobRecord
from simulation.slurm_model.requests import AccountLimits, ModelRequest, QosLimits
from slurm_plugin.common.costs import run_cost
from slurm_plugin.common.qos_names import GATE_QOS, borrowed_qos, qos_name

T = TypeVar("T")
PARTITION = "gpu"
PORT = 20_000
LATE_END_S = 700.0
"""Seconds by which accounting shows the ends of some runs late that are in the books: more than
charging expects."""
_UNSEEN_END_S = 300.0
"""The same for a run that no turn of charging saw: of such a run nobody knows that its end is
awaited, so that accounting must show it within ``ACCOUNTING_DELAY_S``."""
_LONGEST_WAIT_S = 2.0
_LONGEST_S = 0.08
"""Seconds that a sacctmgr takes whose caller waits for its end, pauses included."""
_BILLING = re.compile(r" name=(\S+) set .*grptres=billing=(\d+)")
_ISOLATED = {
    "TaskPlugin": "task/cgroup",
    "ProctrackType": "proctrack/cgroup",
    "ConstrainDevices": "yes",
}


@dataclass(frozen=True)
class AccountedRun:
    """A run that has ended, and by how many seconds accounting shows that late."""

    run: EndedRun
    late_s: float


@dataclass
class Site:
    """slurmctld and slurmdbd, and all that they remember.

    Attributes:
        scripts: of submitted jobs, by id.
        runs: every run that has ended.
        calls: told of each change: its words, and whether it has changed anything.
        looked_at: told that somebody looks at the jobs.
        asked_for: told of an array and how many slots the launcher asks for.
        requeued: told of an array when slots of it were requeued.
        released: told of an array when slots of it were released.
        asked_s: when slurmdbd was last asked, in seconds since the beginning.
        late_ends: jobs whose ends accounting shows ``LATE_END_S`` late.
        is_booked: whether a run of this job is in the books.
        late_s: when slurmdbd last made a change late, in seconds since the beginning.
        blind: limits that grew though jobs were not looked at in that compilation.
        compiles_s: when the last compilation began, in seconds since the beginning.
        foreign: changes that were made to what is not Slicewise's.
        lag_s: the most seconds by which slurmdbd learns of an end late.
    """

    cluster: SimulatedCluster
    clock: WorldClock
    random: Random
    rows: Iterable[Row]
    lag_s: float = 0.0
    scripts: dict[int, str] = field(default_factory=dict)
    runs: list[AccountedRun] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    late_ends: set[int] = field(default_factory=set)
    is_booked: Callable[[int], bool] = lambda _job_id: False
    blind: list[str] = field(default_factory=list)
    compiles_s: Callable[[], float] = lambda: 0.0
    late_s: float = -inf
    asked_s: float = -inf
    calls: Callable[[str, bool], None] = lambda _words, _has_changed: None
    requeued: Callable[[int], None] = lambda _array: None
    released: Callable[[int], None] = lambda _array: None
    looked_at: Callable[[], None] = lambda: None
    asked_for: Callable[[int, int], None] = lambda _array, _slots: None

    def __post_init__(self) -> None:
        self._model = SlurmModel(self.cluster, start_s=self.clock.now_s, costs=COSTS)
        gate = Qos(GATE_QOS, {"billing": 0}, frozenset())
        self.database = SlurmDatabase(self.rows, [gate])
        self._told: dict[str, Qos] = {}
        for row in self.rows:
            for name in (qos_name(row.account), borrowed_qos(row.account)):
                self._model.remove_qos(name)

    @property
    def model(self) -> SlurmModel:
        """The model, as it is now."""
        model = self._model
        if model.now_s < self.clock.now_s:
            model.advance(self.clock.now_s)
        for run in model.take_ended():
            self.runs.append(AccountedRun(run, self.random.uniform(0.0, self.lag_s)))
        return model

    def shows_end(self, one: AccountedRun) -> bool:
        """Whether accounting shows the end of the run by now."""
        late_s = one.late_s
        if one.run.job_id in self.late_ends:
            late_s = LATE_END_S if self.is_booked(one.run.job_id) else _UNSEEN_END_S
        return self.clock.now_s >= one.run.end_s + late_s

    def record(self, job_id: int) -> JobRecord | None:
        return self.model._state.records.get(job_id)

    def submit(self, request: ModelRequest, script: str) -> int:
        job_id = self.model.submit(request)
        self.scripts[job_id] = script
        return job_id

    def limits(self) -> Mapping[str, int]:
        """GrpTRES of billing, of each of the tenants' QOS."""
        return {
            name: one.grp_tres["billing"]
            for name, one in self.database.known.items()
            if name.startswith("slicewise_") and name != GATE_QOS and "billing" in one.grp_tres
        }

    def tell(self) -> None:
        """Let slurmctld know what slurmdbd has."""
        model = self.model
        for name, one in self.database.known.items():
            if name != GATE_QOS and self._told.get(name) != one:
                model.set_qos(name, _limits_of(one))
                self._told[name] = one
        for (account, user), row in self.database.rows.items():
            types = {tres: most for tres, most in row.grp_tres.items() if tres != "billing"}
            known = model._state.limits.accounts.get(account)
            limits = AccountLimits(row.parent or "root", types)
            if not user and account != "root" and known != limits:
                model.set_account(account, limits)

    def own(self, target: Target) -> None:
        """Note a change of a job that carries no tag of Slicewise."""
        for record in self.records(target):
            if JobTag.find(record.admin_comment) is None:
                self.foreign.append(f"job {target}")

    def records(self, target: Target) -> list[JobRecord]:
        found = self.model._state.records.values()
        if isinstance(target, int):
            return [one for one in found if target in {one.job_id, one.array_job_id}]
        return [one for one in found if one.array_job_id == target.array_job_id]


def _limits_of(one: Qos) -> QosLimits:
    return QosLimits(
        grp_tres=dict(one.grp_tres),
        grp_run_mins=dict(one.grp_tres_run_mins),
        max_tres_per_account=dict(one.max_tres_per_account),
        preempts=one.preempt,
        preempt_exempt_s=one.preempt_exempt_s or 0,
        preempt_requeues=one.preempt_mode in {"requeue", "cluster"},
    )


class SlurmLine:
    """``cluster.slurm.interface.Slurm`` for one process, on a site."""

    def __init__(self, site: Site, link: Link) -> None:
        self._site, self._link = site, link
        self._jobs_s = -inf

    async def _ctld(self, words: str, call: Callable[[], T], **more: Any) -> T:
        return await self._link.ask("slurmctld", words, call, **more)

    async def _dbd(self, words: str, call: Callable[[], T], **more: Any) -> T:
        return await self._link.ask("slurmdbd", words, call, **more)

    # --- questions to slurmctld ------------------------------------------------------------------

    async def version(self) -> tuple[int, ...]:
        return (22, 5, 8)

    async def config(self) -> Mapping[str, str]:
        config = {**await self._site.database.config(), **_ISOLATED}
        return await self._ctld("config", lambda: config)

    async def partitions(self) -> tuple[PartitionView, ...]:
        partitions = await self._site.database.partitions()
        return await self._ctld("partitions", lambda: partitions)

    async def jobs(self) -> tuple[JobView, ...]:
        self._jobs_s = self._site.clock.passed_s
        self._site.looked_at()
        return await self._ctld("jobs", lambda: self._site.model.jobs)

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        def found() -> tuple[JobView, ...]:
            jobs = self._site.model.jobs
            return tuple(job for job in jobs if job.array_job_id in array_job_ids)

        return await self._ctld("tasks", found)

    async def nodes(self) -> tuple[NodeView, ...]:
        return await self._ctld("nodes", lambda: self._site.model.nodes)

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        asked = {job.job_id for job in jobs}

        def found() -> tuple[StepView, ...]:
            return tuple(
                StepView(job.job_id, "0", job.nodes, (PORT + (job.task_index or 0),))
                for job in self._site.model.jobs
                if job.job_id in asked and job.state is JobState.RUNNING
            )

        return await self._ctld("steps", found)

    async def plans(self) -> tuple[PlannedStart, ...]:
        return ()

    async def reservations(self) -> tuple[ReservationView, ...]:
        return await self._ctld("reservations", lambda: ())

    async def reserved(self) -> Mapping[int, frozenset[str]]:
        return {}

    async def cores(self, jobs: Collection[JobView]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        return {}

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        return {}

    async def batch_script(self, job_id: int) -> str:
        return await self._ctld("script", lambda: self._site.scripts[job_id])

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        scripts = self._site.scripts
        return await self._ctld(
            "submissions", lambda: {one: Submission(scripts[one], "/home") for one in job_ids}
        )

    async def requests(self, job_ids: Collection[int]) -> Mapping[int, JobRequest]:
        def found() -> Mapping[int, JobRequest]:
            records = ((one, self._site.record(one)) for one in sorted(job_ids))
            return {
                job_id: _request_of(record)
                for job_id, record in records
                if record is not None and record.state is JobState.PENDING
            }

        return await self._ctld("requests", found)

    async def excluded_nodes(self, array_job_id: int) -> Mapping[int, frozenset[str]]:
        def found() -> Mapping[int, frozenset[str]]:
            model = self._site.model
            return {
                record.job_id: frozenset(
                    name for name, i in model._state.nodes.index.items() if record.excluded >> i & 1
                )
                for record in self._site.records(Tasks(array_job_id, frozenset()))
                if record.state is JobState.PENDING
            }

        return await self._ctld("excluded_nodes", found)

    async def priorities(self, job_ids: Collection[int]) -> tuple[PriorityRow, ...]:
        def found() -> tuple[PriorityRow, ...]:
            records = (self._site.record(one) for one in sorted(job_ids))
            return tuple(
                PriorityRow(one.job_id, one.priority, one.site_factor)
                for one in records
                if one is not None and one.state is JobState.PENDING and not one.held
            )

        return await self._ctld("priorities", found)

    # --- changes in slurmctld --------------------------------------------------------------------

    async def hold(self, target: Target) -> None:
        await self._act("hold", target, lambda: self._site.model.hold(target))

    async def release(
        self, target: Target, limit_min: int | None = None, ended_s: float | None = None
    ) -> None:
        if ended_s is not None:
            await asyncio.sleep(min(max(ended_s + 1 - time.time(), 0.0), _LONGEST_WAIT_S))

        def release() -> None:
            self._site.model.release(target, limit_min)
            if not isinstance(target, int):
                self._site.released(target.array_job_id)

        await self._act(f"release limit={limit_min}", target, release)

    async def requeue_hold(self, target: Target) -> None:
        array = target if isinstance(target, int) else target.array_job_id

        def requeue() -> None:
            self._site.model.requeue_hold(target)
            self._site.requeued(array)

        await self._act("requeue_hold", target, requeue)

    async def cancel(self, target: Target) -> None:
        await self._act("cancel", target, lambda: self._site.model.cancel(target))

    async def _act(self, name: str, target: Target, call: Callable[[], None]) -> None:
        words = f"{name} {_text(target)}"

        def act() -> None:
            self._site.own(target)
            self._counted(words, call)

        await self._ctld(words, act, changes=True)

    def _counted(self, words: str, call: Callable[[], T]) -> T:
        """Make a change of jobs, and tell whether any job is another one by it."""
        before = self._site.model.jobs
        done = call()
        self._site.calls(words, self._site.model.jobs != before)
        return done

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        done: dict[Target, str] = {}

        def make(some: Iterable[tuple[Target, JobChange]]) -> Mapping[Target, str]:
            for target, change in some:
                self._site.own(target)
                said = f"update {_text(target)} {_said(change)}"
                if words := self._counted(said, partial(self._site.model.update, target, change)):
                    done[target] = words
            return done

        each = list(changes.items())
        words = ", ".join(f"{_text(target)} {_said(change)}" for target, change in each)
        return await self._ctld(
            f"update {words}",
            lambda: make(each),
            changes=True,
            part=lambda drawn: make(each[: drawn(len(each))]),
        )

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None: ...

    # --- slurmdbd --------------------------------------------------------------------------------

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        def found() -> tuple[RunRecord, ...]:
            jobs = self._site.model.jobs
            shown = ((one.run, self._site.shows_end(one)) for one in self._site.runs)
            ended = (
                _ended_record(run, is_shown=is_shown)
                for run, is_shown in shown
                if run.start_s is not None and (int(run.end_s) > since_s or not is_shown)
            )
            running = (_running_record(job) for job in jobs if job.state is JobState.RUNNING)
            return (*ended, *running)

        return await self._dbd("runs", found)

    async def associations(self) -> tuple[Association, ...]:
        self._site.asked_s = self._site.clock.passed_s
        rows = await self._site.database.associations()
        return await self._dbd("associations", lambda: rows)

    async def qos(self) -> tuple[Qos, ...]:
        return await self._dbd("qos", lambda: tuple(self._site.database.known.values()))

    async def qos_elsewhere(self) -> frozenset[str]:
        return frozenset()

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        asked_s = self._site.clock.passed_s
        # A change that slurmdbd makes long after may have lowered a limit since this looked.
        is_known = self._site.late_s < self._site.compiles_s()
        if is_known and self._jobs_s < self._site.compiles_s():
            self._site.blind += [" ".join(one) for one in changes if self._grows(one)]

        def make(some: Iterable[tuple[str, ...]]) -> None:
            if self._site.clock.passed_s - asked_s > _LONGEST_S:
                self._site.late_s = self._site.clock.passed_s
            for change in some:
                self._site.database.commands.append(" ".join(change))
                before = self._site.database.state()
                self._site.database._take(list(change))
                words = "sacctmgr " + " ".join(change)
                self._site.calls(words, self._site.database.state() != before)
            self._site.tell()

        def part(drawn: Callable[[int], int]) -> None:
            # They run side by side, in any order.
            some = list(changes)
            for _ in range(drawn(len(some))):
                make([some.pop(drawn(len(some) - 1))])

        words = "; ".join(" ".join(change) for change in changes)
        await self._dbd(f"sacctmgr {words}", lambda: make(changes), changes=True, part=part)
        return {}

    def _grows(self, change: tuple[str, ...]) -> bool:
        found = _BILLING.search(" ".join(change))
        if change[:2] != ("modify", "qos") or found is None:
            return False
        names, amount = found[1].split(","), int(found[2])
        known = (self._site.database.known.get(name) for name in names)
        return any(one and one.grp_tres.get("billing", 0) < amount for one in known)

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        refused, named = await self.sacctmgr(changes), named_qos(changes)
        return Changed(refused, tuple(one for one in await self.qos() if one.name in named))


def _text(target: Target) -> str:
    if isinstance(target, int):
        return str(target)
    return f"{target.array_job_id}_{sorted(target.indices)}"


def _said(change: JobChange) -> str:
    return " ".join(f"{key}={value}" for key, value in vars(change).items() if value is not None)


def _request_of(record: JobRecord) -> JobRequest:
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in record.shape.gpus)
    return JobRequest(gres=gres, min_nodes=record.request.nodes, requeue=record.request.requeues)


def _tres(gpus: Mapping[str, int]) -> Mapping[str, str]:
    return {
        "billing": str(run_cost(gpus, COSTS)),
        **{tres_name(kind): str(count) for kind, count in gpus.items()},
    }


def _ended_record(run: EndedRun, *, is_shown: bool) -> RunRecord:
    task = str(run.job_id) if run.task is None else f"{run.array_job_id}_{run.task}"
    return RunRecord(
        job_id=run.job_id,
        task=task,
        user=run.user,
        account=run.account,
        partition=run.partition,
        start_s=int(run.start_s or 0.0),
        end_s=int(run.end_s) if is_shown else None,
        state=run.state if is_shown else "RUNNING",
        time_limit_s=None,
        tres=_tres(run.gpus),
    )


def _running_record(job: JobView) -> RunRecord:
    return RunRecord(
        job_id=job.job_id,
        task=job.task,
        user=job.user,
        account=job.account,
        partition=job.partition,
        start_s=job.start_s or 0,
        end_s=None,
        state="RUNNING",
        time_limit_s=job.time_limit_s,
        tres=_tres(job.gpus),
    )
