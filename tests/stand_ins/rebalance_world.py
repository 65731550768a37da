"""What runs of rebalancing see: a borrower with a service, a lender with new jobs, a midnight.

Each call of a run to Slurm or the ledger may be the last of its process.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from builders.jobs import a_job
from builders.ledger_parts import PARTS
from builders.tenants import tenant
from no_threads import no_threads

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
)
from slicewise.cluster.language.jobs import JobState, JobView, NodeView, PartitionView, RunRecord
from slicewise.cluster.language.periods import Period, next_start_s
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepName,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.language.slurm.interface import Association, Changed, Qos
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.rpc.messages import StatusAnswer
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rebalance.run import run
from slicewise.slurm_plugin.rebalance.site_look import RunContext
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.quota.types import Budget, KnownLimit, LimitKey
from stand_ins.repartition_world import Killed
from stand_ins.scripted import FreeLock, ScriptedLedger, ScriptedSlurm
from stand_ins.slurm_database import CLUSTER, COSTS, Row, SlurmDatabase

START_S = 1_800_000_000
MIDNIGHT_S = next_start_s(Period.DAY, START_S, "UTC") or 0
AMOUNT = MillisliceSeconds(10**8)
"""Millislice-seconds of nlp's daily budget: enough for all of nlp's jobs."""
GRACE_S = 60

TOML: Mapping[str, Any] = {
    "cluster": {"name": CLUSTER, "partitions": ["gpu"]},
    "gpus": {"A100-80GB": {"types": list(COSTS)}},
    "lending": {"grace_s": GRACE_S},
}
SCRIPT = "#!/bin/sh\n#SLICEWISE name=bert\n#SLICEWISE tenant=nlp\n#SLICEWISE max_replicas=4\n"


def settings(mode: str = "enforce", **sections: Any) -> Settings:
    return Settings.model_validate({**TOML, "daemon": {"mode": mode}, **sections})


# Jobs; their times are seconds since the story began, 600 s before midnight


BEGAN_S = MIDNIGHT_S - 600


def plain(
    number: int, account: str, start_s: int | None = None, end_s: int | None = None
) -> JobView:
    """A job on one slice, in its tenant's own QOS; it waits if it has not started."""
    return a_job(number, account, **_times(start_s, end_s))


def replica(index: int, start_s: int | None = None, end_s: int | None = None) -> JobView:
    """A replica of nlp's service, on borrowed quota."""
    return a_job(
        900 + index,
        "nlp",
        array_job_id=900,
        task_index=index,
        qos=borrowed_qos("nlp"),
        admin_comment="slicewise:1 token=ab13 tenant=nlp service=bert",
        **_times(start_s, end_s),
    )


def _times(start_s: int | None, end_s: int | None) -> Mapping[str, Any]:
    """What a job's times, in seconds since the story began, say of it."""
    fields: dict[str, Any] = {
        "submit_s": BEGAN_S - 400,
        "eligible_s": BEGAN_S - 400,
        "time_limit_s": 7200,
    }
    if start_s is None:
        return fields
    state = JobState.RUNNING if end_s is None else JobState.ENDED
    end_s = None if end_s is None else BEGAN_S + end_s
    run = {"state": state, "reason": "None", "nodes": ("n1",)}
    return fields | run | {"start_s": BEGAN_S + start_s, "end_s": end_s}


def record(one: JobView) -> RunRecord:
    state = "COMPLETED" if one.state is JobState.ENDED else "RUNNING"
    assert one.start_s is not None
    task = str(one.job_id) if one.task_index is None else f"900_{one.task_index}"
    known = one.start_s, one.end_s, state, one.time_limit_s, one.tres
    return RunRecord(one.job_id, task, "alice", one.account, one.partition, *known)


OWN = tuple(plain(number, "nlp", -300) for number in (1, 2, 3))
COMING = tuple(plain(number, "vision") for number in (21, 22, 23, 24, 25))
STAGES: Mapping[int, tuple[JobView, ...]] = {
    0: (*OWN, *map(replica, range(4))),
    60: (*OWN, *(replica(index, 10) for index in range(4)), *COMING),
    200: (
        *OWN,
        *(replica(index, 10, 130) for index in (0, 1)),
        *(replica(index, 10) for index in (2, 3)),
        *(plain(number, "vision", 131) for number in (21, 22, 23, 24, 25)),
    ),
    700: (
        *(plain(number, "nlp", -300, 590) for number in (1, 2, 3)),
        *(replica(index, 10, 130) for index in (0, 1)),
        *(replica(index, 10) for index in (2, 3)),
        *(plain(number, "vision", 131) for number in (21, 22, 23)),
        *(plain(number, "vision", 131, 650) for number in (24, 25)),
    ),
}
"""Jobs by the second of the story: nlp's service asks for more than nlp has; vision's jobs come,
and three of them find free instances; two replicas go; a day ends.
"""


class World(ScriptedSlurm):
    """Slurm, with slurmdbd's limits, at one of the moments of ``STAGES``."""

    def __init__(self) -> None:
        super().__init__()
        self.script = SCRIPT
        self.database = SlurmDatabase([Row("vision", parent="root"), Row("nlp", parent="root")])
        self.at(0)

    def ledger_clock_s(self) -> float:
        return self.now_s

    def at(self, stage: int) -> None:
        self.now_s = float(BEGAN_S + stage)
        self.shown = STAGES[stage]
        self.records = tuple(record(one) for one in self.shown if one.start_s is not None)

    async def associations(self) -> tuple[Association, ...]:
        return await self.database.associations()

    async def qos(self) -> tuple[Qos, ...]:
        return await self.database.qos()

    def held_at_most(self, tenant: str) -> int:
        """The most that the limits of a tenant's two QOS let it hold."""
        return sum(limit or 0 for limit in self.database.limits(tenant))

    async def config(self) -> Mapping[str, str]:
        return await self.database.config()

    async def partitions(self) -> tuple[PartitionView, ...]:
        return await self.database.partitions()

    async def nodes(self) -> tuple[NodeView, ...]:
        held = sum(one.state is JobState.RUNNING for one in self.shown)
        (one,) = await self.database.nodes()
        return (replace(one, gpus={"1g.10gb": 10}, gpus_allotted={"1g.10gb": held}),)

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        return await self.database.sacctmgr(changes)

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        return await self.database.set_limits(changes)


@dataclass
class RebalanceLedger(ScriptedLedger):
    """A ledger with the journal of runs, and with what is known of Slurm's limits."""

    runs: dict[int, RebalanceRun] = field(default_factory=dict)
    remembered: dict[LimitKey, KnownLimit] = field(default_factory=dict)
    is_free: bool = True
    clock: Callable[[], float] = field(default=float, repr=False)
    begun_s: list[float] = field(default_factory=list)
    """When runs began, by PostgreSQL's clock."""

    def __post_init__(self) -> None:
        borrower = tenant("nlp", 3000, borrowing_limit_millislices=7000)
        budget = Budget(Period.DAY, AMOUNT)
        lender = tenant("vision", 7000, lending_limit_millislices=7000)
        self.shown = {"nlp": replace(borrower, budget=budget), "vision": lender}
        self.watermark_s = BEGAN_S - 3600

    def last_accounted_s(self) -> int | None:
        return self.watermark_s

    def known(self) -> Mapping[LimitKey, KnownLimit]:
        return dict(self.remembered)

    def know(self, known: Mapping[LimitKey, KnownLimit]) -> None:
        self.remembered |= known

    def rebalancing(self, host: str) -> Any:
        return FreeLock() if self.is_free else TakenLock()

    def repartitioning(self, host: str) -> Any:
        return FreeLock() if self.is_free else TakenLock()

    def open(self, author: str, host: str) -> int:
        for one in self.runs.values():
            if one.outcome is RunOutcome.RUNNING:
                self.runs[one.run_id] = _abandoned(one)
        run_id = len(self.runs) + 1
        self.begun_s.append(self.clock())
        self.runs[run_id] = RebalanceRun(run_id, author, host, RunOutcome.RUNNING, 0.0)
        return run_id

    def now_s(self) -> int:
        return int(self.clock())

    def begun_before_s(self, at_s: float) -> float | None:
        return max((one for one in self.begun_s if one <= at_s), default=None)

    def begin_step(self, run_id: int, step: StepName) -> int:
        one = self.runs[run_id]
        record_id = 100 * run_id + len(one.steps)
        begun = StepRecord(step, StepOutcome.RUNNING, 0.0, record_id=record_id)
        self.runs[run_id] = replace(one, steps=(*one.steps, begun))
        return record_id

    def end_step(
        self,
        record_id: int,
        outcome: StepOutcome,
        saw: Mapping[str, object],
        did: Sequence[str],
        why: str,
    ) -> None:
        run_id, index = divmod(record_id, 100)
        records = list(self.runs[run_id].steps)
        begun = records[index]
        ended = StepRecord(begun.step, outcome, 0.0, 1.0, saw, tuple(did), why, record_id)
        records[index] = ended
        self.runs[run_id] = replace(self.runs[run_id], steps=tuple(records))

    def finish(self, run_id: int, outcome: RunOutcome) -> None:
        self.runs[run_id] = replace(self.runs[run_id], outcome=outcome, ended_s=1.0)

    def find(self, run_id: int) -> RebalanceRun:
        if run_id not in self.runs:
            raise InvalidInputError("SW-NAME-UNKNOWN", "none")
        return self.runs[run_id]

    def history(self, limit: int, before: int | None = None) -> tuple[RebalanceRun, ...]:
        newest = (self.runs[one] for one in sorted(self.runs, reverse=True))
        return tuple(one for one in newest if before is None or one.run_id < before)[:limit]

    @property
    def repartitions(self) -> "NothingCut":  # type: ignore[override]
        return NothingCut()


class NothingCut:
    """The journal of repartitions before the first one."""

    def unfinished(self) -> tuple[Repartition, ...]:
        return ()

    def history(self, limit: int) -> tuple[Repartition, ...]:
        return ()

    def inventories(self) -> Mapping[str, object]:
        return {}

    def step_seconds(self) -> Mapping[object, Sequence[float]]:
        return {}


def _abandoned(one: RebalanceRun) -> RebalanceRun:
    why = "The run ended in the middle of this step."
    records = tuple(
        replace(step, outcome=StepOutcome.FAILED, ended_s=1.0, why=why)
        if step.outcome is StepOutcome.RUNNING
        else step
        for step in one.steps
    )
    return replace(one, outcome=RunOutcome.ABANDONED, ended_s=1.0, steps=records)


class TakenLock(FreeLock):
    """A lock that another process holds."""

    def hold(self) -> bool:
        return False

    def holder(self) -> str:
        return "head, process 4711"


@dataclass
class Calls:
    """Counts calls from 1 on, and lets the process die in one or calls fail.

    Attributes:
        kill_at: the number of the call in which the process dies; 0 for none.
        after: whether the call has had its effect before.
        fail: errors by the names of the calls that fail.
        is_dead: whether the process has died; then every call dies.
    """

    kill_at: int = 0
    after: bool = False
    fail: Mapping[str, Exception] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    is_dead: bool = False

    def begin(self, name: str) -> int:
        """Count a call, and return its number."""
        if self.is_dead:
            raise Killed
        self.made.append(name)
        if not self.after:
            self._die(len(self.made))
        if name in self.fail:
            raise self.fail[name]
        return len(self.made)

    def end(self, number: int) -> None:
        if self.is_dead or self.after:
            self._die(number)

    def _die(self, number: int) -> None:
        if self.is_dead or number == self.kill_at:
            self.is_dead = True
            raise Killed


class Watched:
    """Stands for a target, and counts the calls to it."""

    def __init__(self, target: object, calls: Calls) -> None:
        self._target, self._calls = target, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in PARTS:
            return Watched(found, self._calls)
        if not callable(found):
            return found
        return (
            self._waited(name, found)
            if inspect.iscoroutinefunction(found)
            else self._at_once(name, found)
        )

    def _at_once(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            number = self._calls.begin(name)
            answer = call(*args, **options)
            self._calls.end(number)
            return answer

        return watched

    def _waited(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*args: Any, **options: Any) -> Any:
            number = self._calls.begin(name)
            answer = await call(*args, **options)
            self._calls.end(number)
            return answer

        return watched


@dataclass
class Daemon:
    """A daemon that answers with a status, or does not answer if that is None."""

    answer: StatusAnswer | None = None

    async def ask(self, _request: object) -> Any:
        if self.answer is None:
            raise UnreachableError("SW-DAEMON-DOWN", "nothing listens there")
        return self.answer


def leading(*, leads: bool = True, complete: bool = True, mode: str = "enforce") -> Daemon:
    words = {"version": "1", "mode": mode, "host": "head", "module": "", "module_mode": ""}
    seen = {"is_leader": leads, "complete": complete, "observed_s": 0.0, "module_asked_s": None}
    return Daemon(StatusAnswer.model_validate({**words, **seen, "decisions": {}}))


@dataclass
class Story:
    """What outlives the processes that run and die.

    Attributes:
        configured: the settings of slicewise.toml.
        host_ahead_s: seconds by which the host's clock is ahead.
    """

    world: World = field(default_factory=World)
    ledger: RebalanceLedger = field(default_factory=RebalanceLedger)
    daemon: Daemon = field(default_factory=Daemon)
    configured: Settings = field(default_factory=settings)
    is_root: bool = True
    host_ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self.ledger.clock = self.world.ledger_clock_s

    def site(self, calls: Calls | None = None) -> RunContext:
        calls = calls or Calls()
        return RunContext(
            settings=self.configured,
            slurm=Watched(self.world, calls),  # type: ignore[arg-type]
            ledger=Watched(self.ledger, calls),  # type: ignore[arg-type]
            daemon=self.daemon,
            author="root",
            host="head",
            is_root=self.is_root,
            now_s=lambda: self.world.now_s + self.host_ahead_s,
        )

    def run(self, calls: Calls | None = None, *, is_ours: bool = True) -> RebalanceRun:
        with self.clock(), no_threads():
            return asyncio.run(run(self.site(calls), lambda: is_ours))

    def clock(self) -> Any:
        """Patch the clock of limits that follow from budgets, so that it shows the world's time."""
        stopped = SimpleNamespace(time=lambda: self.world.now_s, monotonic=lambda: 0.0)
        return patch("slicewise.slurm_plugin.quota_cycle.compile.time", stopped)

    def state(self) -> tuple[object, ...]:
        """Everything but the journal, to compare."""
        ledger = self.ledger
        books = ledger.booked, tuple(ledger.entered), ledger.remembered
        return *books, ledger.lent, ledger.recalled, self.world.database.state()


def step(ended: RebalanceRun, name: StepName) -> StepRecord:
    (found,) = (one for one in ended.steps if one.step is name)
    return found


def changed(ended: RebalanceRun) -> dict[StepName, tuple[str, ...]]:
    """What each step did, without steps that did nothing."""
    return {one.step: one.did for one in ended.steps if one.did}
