"""The one model of Slurm for tests: the simulator's slurmctld, a slurmdbd, and a door to both.

It stands for a real Slurm wherever a test needs what Slurm does and not Slurm itself: it passes the
same contract as the real doors (``slurm_contract.py``), and no second passes while it works.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from stand_ins.slurm_database import COSTS, Row, SlurmDatabase

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.gres import tres_name
from slicewise.cluster.language.jobs import (
    JobState,
    JobView,
    NodeView,
    PartitionView,
    PastRun,
    PlannedStart,
    ReservationView,
    RunOfJob,
    RunRecord,
    StepView,
)
from slicewise.cluster.language.slurm.interface import (
    CLOCK_KNOWN_S,
    Association,
    Changed,
    JobChange,
    JobRequest,
    PriorityRow,
    Qos,
    Requeued,
    Submission,
    Target,
    Tasks,
    target_of,
)
from slicewise.cluster.slurm.batch import named_qos
from slicewise.cluster.slurm.slurmctld_clock import SlurmctldClock
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.slurm_model.job_records import EndedRun, JobRecord
from slicewise.simulation.rules.slurm_model.job_requests import (
    AccountLimits,
    ModelRequest,
    QosLimits,
)
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS, borrowed_qos, qos_name

T = TypeVar("T")
PARTITION = "gpu"
PORT = 20_000
OVER_GATE = "overpartqos"
"""The flag of a QOS that is not bound by the partition's."""
_LONGEST_WAIT_S = 2.0
_ISOLATED = {
    "TaskPlugin": "task/cgroup",
    "ProctrackType": "proctrack/cgroup",
    "ConstrainDevices": "yes",
}
_PORTS = re.compile(r"--resv-ports=(\d+)")


class Clock(Protocol):
    """What tells the model the time.

    Attributes:
        now_s: Unix seconds.
    """

    @property
    def now_s(self) -> float: ...


@dataclass(frozen=True)
class AccountedRun:
    """A run that has ended, and by how many seconds accounting shows that late."""

    run: EndedRun
    late_s: float


@dataclass
class ModelSite:
    """slurmctld and slurmdbd, and all that they remember.

    Attributes:
        scripts: of submitted jobs, by id.
        runs: every run that has ended.
    """

    cluster: SimulatedCluster
    clock: Clock
    rows: Iterable[Row]
    scripts: dict[int, str] = field(default_factory=dict)
    runs: list[AccountedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._model = SlurmModel(self.cluster, start_s=self.clock.now_s, costs=COSTS)
        gate = Qos(GATE_QOS, {"billing": 0}, frozenset())
        self.database = SlurmDatabase(self.rows, [gate])
        self._told: dict[str, QosLimits] = {}
        for row in self.rows:
            for name in (qos_name(row.account), borrowed_qos(row.account)):
                self._model.remove_qos(name)
        self.tell()

    @property
    def model(self) -> SlurmModel:
        """The model, as it is now."""
        model = self._model
        if model.now_s < self.clock.now_s:
            model.advance(self.clock.now_s)
        for run in model.take_ended():
            self.runs.append(AccountedRun(run, self.late_s()))
        return model

    def late_s(self) -> float:
        """Seconds by which slurmdbd learns late of the next end."""
        return 0.0

    def shows_end(self, one: AccountedRun) -> bool:
        """Whether accounting shows the end of the run by now."""
        return self.clock.now_s >= one.run.end_s + one.late_s

    def record(self, job_id: int) -> JobRecord | None:
        return self.model._state.records.get(job_id)

    def records(self, target: Target) -> list[JobRecord]:
        found = self.model._state.records.values()
        if isinstance(target, int):
            return [one for one in found if target in {one.job_id, one.array_job_id}]
        return [one for one in found if one.array_job_id == target.array_job_id]

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
        model, known = self.model, self.database.known
        for name in self._told.keys() - known.keys():
            model.remove_qos(name)
            del self._told[name]
        for name, one in known.items():
            limits = self._limits_of(one)
            if name != GATE_QOS and self._told.get(name) != limits:
                model.set_qos(name, limits)
                self._told[name] = limits
        for (account, user), row in self.database.rows.items():
            types = {tres: most for tres, most in row.grp_tres.items() if tres != "billing"}
            before = model._state.limits.accounts.get(account)
            limits_of_account = AccountLimits(
                row.parent or "root", types, grp_tres_mins=dict(row.tres_mins)
            )
            if not user and account != "root" and before != limits_of_account:
                model.set_account(account, limits_of_account)

    def _limits_of(self, one: Qos) -> QosLimits:
        """The QOS's own limits, and those of the partition's QOS for which it has none."""
        gate = self.database.known.get(self.database.partition_qos)
        of_gate = {} if gate is None or OVER_GATE in one.flags else gate.grp_tres
        return QosLimits(
            grp_tres={**of_gate, **one.grp_tres},
            grp_run_mins=dict(one.grp_tres_run_mins),
            max_tres_per_account=dict(one.max_tres_per_account),
            preempts=one.preempt,
            preempt_exempt_s=one.preempt_exempt_s or 0,
            preempt_requeues=one.preempt_mode in {"requeue", "cluster"},
        )


class ModelSlurm:
    """``Slurm`` of ``interface.py`` on a site; every call is answered at once.

    Of the site's Slurm these never are: planned starts, reservations, cores of jobs.
    """

    def __init__(self, site: ModelSite) -> None:
        self._site = site
        self._clock = SlurmctldClock(lambda: self._ctld("time", lambda: self._site.clock.now_s))

    async def _ctld(self, _words: str, call: Callable[[], T], **_more: Any) -> T:
        """Have slurmctld do ``call``, which ``_words`` describe."""
        return call()

    async def _dbd(self, _words: str, call: Callable[[], T], **_more: Any) -> T:
        """Have slurmdbd do ``call``, which ``_words`` describe."""
        return call()

    def _made(self, _words: str, _target: Target, call: Callable[[], T]) -> T:
        """Make a change of jobs."""
        return call()

    # --- questions to slurmctld ------------------------------------------------------------------

    async def version(self) -> tuple[int, ...]:
        return (22, 5, 8)

    async def clock_s(self, known_for_s: float = 0.0) -> float:
        return await self._clock.now_s(known_for_s)

    async def config(self) -> Mapping[str, str]:
        config = {**await self._site.database.config(), **_ISOLATED}
        return await self._ctld("config", lambda: config)

    async def partitions(self) -> tuple[PartitionView, ...]:
        partitions = await self._site.database.partitions()
        return await self._ctld("partitions", lambda: partitions)

    async def jobs(self) -> tuple[JobView, ...]:
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
                StepView(job.job_id, "0", job.nodes, self._ports(job))
                for job in self._site.model.jobs
                if job.job_id in asked and job.state is JobState.RUNNING
            )

        return await self._ctld("steps", found)

    def _ports(self, job: JobView) -> tuple[int, ...]:
        script = self._site.scripts.get(job.array_job_id or job.job_id, "")
        found = _PORTS.search(script)
        count = 1 if found is None else int(found[1])
        first = PORT + count * (job.task_index or 0)
        return tuple(range(first, first + count))

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
        def found() -> Mapping[int, Mapping[str, frozenset[int]]]:
            of_node = self._site.model.devices
            return {
                job.job_id: {node: of_node(node).get(job.job_id, frozenset()) for node in job.nodes}
                for job in jobs
            }

        return await self._ctld("devices", found)

    async def batch_script(self, job_id: int) -> str:
        def found() -> str:
            if job_id not in self._site.scripts:
                raise OutsideError("SW-SLURM-FAILED", "job script retrieval failed: Invalid job id")
            return self._site.scripts[job_id]

        return await self._ctld("script", found)

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        scripts = self._site.scripts
        return await self._ctld(
            "submissions",
            lambda: {one: Submission(scripts[one], "/home") for one in job_ids if one in scripts},
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

    async def throttled(self, array_job_ids: Collection[int]) -> frozenset[int]:
        # The model has no throttle.
        return await self._ctld("throttled", frozenset[int])

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
        if ended_s:
            now_s = await self.clock_s(CLOCK_KNOWN_S)
            await asyncio.sleep(min(max(ended_s + 1 - now_s, 0.0), _LONGEST_WAIT_S))
        words = f"release limit={limit_min}"
        await self._act(words, target, lambda: self._site.model.release(target, limit_min))

    async def requeue_hold(self, target: Target) -> None:
        await self._act("requeue_hold", target, lambda: self._site.model.requeue_hold(target))

    async def requeue(self, runs: Collection[RunOfJob]) -> Requeued:
        asked = sorted(runs, key=lambda run: run[0])
        words = ", ".join(f"requeue {job_id}" for job_id, _ in asked)
        return await self._ctld(
            words,
            lambda: self._requeue(asked),
            changes=True,
            part=lambda drawn: self._requeue(asked[: drawn(len(asked))]),
        )

    def _requeue(self, runs: Iterable[RunOfJob]) -> Requeued:
        ended, refused = set[RunOfJob](), dict[RunOfJob, str]()
        model = self._site.model
        shown = {(job.job_id, job.start_s): job for job in model.jobs}
        for run in runs:
            job, record = shown.get(run), self._site.record(run[0])
            if job is None or record is None or job.state is not JobState.RUNNING:
                continue
            if not record.request.requeues:
                refused[run] = "Requested operation is presently disabled"
                continue
            target = target_of(job)
            self._made(f"requeue {text(target)}", target, partial(model.requeue, target))
            ended.add(run)
        return Requeued(frozenset(ended), refused)

    async def cancel(self, target: Target) -> None:
        await self._act("cancel", target, lambda: self._site.model.cancel(target))

    async def _act(self, name: str, target: Target, call: Callable[[], None]) -> None:
        words = f"{name} {text(target)}"
        await self._ctld(words, lambda: self._made(words, target, call), changes=True)

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        refused: dict[Target, str] = {}

        def make(some: Iterable[tuple[Target, JobChange]]) -> Mapping[Target, str]:
            for target, change in some:
                said = f"update {text(target)} {_said(change)}"
                if words := self._made(said, target, partial(self._update, target, change)):
                    refused[target] = words
            return refused

        each = list(changes.items())
        words = ", ".join(f"{text(target)} {_said(change)}" for target, change in each)
        return await self._ctld(
            f"update {words}",
            lambda: make(each),
            changes=True,
            part=lambda drawn: make(each[: drawn(len(each))]),
        )

    def _update(self, target: Target, change: JobChange) -> str:
        if change.qos is not None:
            accounts = {one.request.account for one in self._site.records(target)}
            if not all(self._site.database.may_have(one, change.qos) for one in accounts):
                return "Invalid qos specification"
        return self._site.model.update(target, change)

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None:
        def weigh() -> None:
            for name, weight in weights.items():
                self._site.model.weigh_node(name, weight)

        await self._ctld("weigh_nodes", weigh, changes=True)

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

    async def job_history(self, since_s: int, until_s: int) -> tuple[PastRun, ...]:
        def found() -> tuple[PastRun, ...]:
            self._site.model  # noqa: B018 -- takes note of the runs that have ended
            past = (_past_run(one.run) for one in self._site.runs if self._site.shows_end(one))
            return tuple(
                one for one in past if one.submit_s < until_s and (one.end_s or 0) >= since_s
            )

        return await self._dbd("job_history", found)

    async def associations(self) -> tuple[Association, ...]:
        rows = await self._site.database.associations()
        return await self._dbd("associations", lambda: rows)

    async def coordinators(self) -> Mapping[str, frozenset[str]]:
        return await self._dbd("coordinators", lambda: {"root": frozenset[str]()})

    async def qos(self) -> tuple[Qos, ...]:
        return await self._dbd("qos", lambda: tuple(self._site.database.known.values()))

    async def qos_elsewhere(self) -> frozenset[str]:
        return frozenset()

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        asked_s = self._site.clock.now_s

        def make(some: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
            refused = {one: words for one in some if (words := self._set(one, asked_s))}
            self._site.tell()
            return refused

        def part(drawn: Callable[[int], int]) -> None:
            # They run side by side, in any order.
            some = list(changes)
            for _ in range(drawn(len(some))):
                make([some.pop(drawn(len(some) - 1))])

        words = "; ".join(" ".join(change) for change in changes)
        return await self._dbd(f"sacctmgr {words}", lambda: make(changes), changes=True, part=part)

    def _set(self, change: tuple[str, ...], _asked_s: float) -> str:
        """Make one change by sacctmgr, which was asked for then; return its refusal, or ""."""
        return self._site.database.set(change)

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        refused, named = await self.sacctmgr(changes), named_qos(changes)
        return Changed(refused, tuple(one for one in await self.qos() if one.name in named))


def text(target: Target) -> str:
    """The target in words."""
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


def _task(run: EndedRun) -> str:
    return str(run.job_id) if run.task is None else f"{run.array_job_id}_{run.task}"


def _ended_record(run: EndedRun, *, is_shown: bool) -> RunRecord:
    return RunRecord(
        job_id=run.job_id,
        task=_task(run),
        user=run.user,
        account=run.account,
        partition=run.partition,
        start_s=int(run.start_s or 0.0),
        end_s=int(run.end_s) if is_shown else None,
        state=run.state if is_shown else "RUNNING",
        time_limit_s=None,
        tres=_tres(run.gpus),
        qos=run.qos,
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
        qos=job.qos,
    )


def _past_run(run: EndedRun) -> PastRun:
    start_s = None if run.start_s is None else int(run.start_s)
    return PastRun(
        job_id=run.job_id,
        task=_task(run),
        user=run.user,
        account=run.account,
        qos=run.qos,
        partition=run.partition,
        submit_s=int(run.submit_s),
        eligible_s=None if run.eligible_s is None else int(run.eligible_s),
        start_s=start_s,
        end_s=int(run.end_s),
        state=run.state,
        time_limit_s=None,
        elapsed_s=None if start_s is None else int(run.end_s) - start_s,
        nodes=1,
        requested=_tres(run.gpus),
        allotted={} if start_s is None else _tres(run.gpus),
    )
