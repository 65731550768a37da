"""The daemon's own loops on the model of Slurm and a ledger in memory, in virtual time.

No second passes: a test makes a change, lets time pass, and judges what Slurm and the ledger have.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from fault_world.ledger import SiteLedger
from fault_world.virtual_time import VirtualLoop, WorldClock, clocks_of
from model_slurm import PARTITION, ModelSite, ModelSlurm
from stand_ins.slurm_database import CLUSTER, FreeLock, Row

from slicewise.cluster.language.gres import parse_gpu_requests
from slicewise.cluster.language.jobs import WAITING, JobState, JobView
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.service import COMMENT
from slicewise.cluster.language.slurm.interface import JobChange, Slurm, Target
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.messages import (
    VERSION,
    DesiredSlotsAnswer,
    SlotView,
    SubmitAnswer,
    SubmitRequest,
)
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import Scheduling, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.daemon.deciding_loops import DecidingLoops
from slicewise.slurm_plugin.daemon.periodic import PeriodicLoops, Step, until_done
from slicewise.slurm_plugin.quota_cycle.compile import Compiled, compile_limits
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry, StatementRow
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate
from slicewise.slurm_plugin.rules.services.pace import PACE, Pace
from slicewise.slurm_plugin.state.cluster_state import ClusterState

T = TypeVar("T")
SETTINGS = Settings.model_validate(
    {
        "cluster": {"name": CLUSTER, "partitions": [PARTITION]},
        "gpus": {"A100-80GB": {"types": ["1g.10gb", "3g.40gb"]}},
        "daemon": {"mode": "enforce"},
        "ledger": {"time_zone": "UTC"},
    }
)
QUICK = Scheduling(
    interval_s=0.0,
    backfill_s=1.0,
    requeue_wait_s=5.0,
    preempts_youngest_first=True,
    start_s=0.0,
    complete_s=0.0,
)
NODES = (
    SimulatedNode("gpu01", frozenset({PARTITION}), {"1g.10gb": 7}),
    SimulatedNode("gpu02", frozenset({PARTITION}), {"1g.10gb": 3, "3g.40gb": 1}),
    SimulatedNode("gpu03", frozenset({PARTITION}), {"3g.40gb": 2}),
)
"""Ten small instances and three large ones."""
PATIENCE_S = 300.0
"""Virtual seconds within which the daemon and Slurm bring about what they should."""
_LOOK_S = 1.0
_SCRIPT = "#!/bin/bash\nsrun true\n"
_SERVICE = """#!/bin/bash
#SLICEWISE name=bert
#SLICEWISE tenant={tenant}
#SLICEWISE model_repository=/models
#SLICEWISE model=bert
#SLICEWISE profile=1g.10gb
#SLICEWISE max_replicas={slots}
#SLICEWISE lease_s={lease_s}
srun --resv-ports=3 server
exit 187
"""


class ModelLedger(SiteLedger):
    """A ledger in memory that one process uses."""

    def compiling(self) -> FreeLock:
        return FreeLock()

    def mark_uninstalled(self) -> None:
        self.compiled_id = UNINSTALLED_ID

    def mark_wanted(self) -> None:
        self.compiled_id = 0

    def forget(self) -> None:
        self.remembered = {}


class ModelDaemon:
    """One life of the daemon, as ``daemon/main.py`` puts it together, without sockets.

    Attributes:
        is_ready: whether it has started.
    """

    state_class = ClusterState

    def __init__(self, settings: Settings, slurm: Slurm, ledger: Any, pace: Pace = PACE) -> None:
        self._interval_s = pace.moving_s
        self.is_ready = False
        self.admission = Admission(settings.daemon.mode)
        self.state = self.state_class(settings, slurm, self.admission, ALONE, pace)
        self._loops = DecidingLoops(settings, slurm, ledger, self.state, ALONE)
        self._turns = PeriodicLoops(lambda *_: None)

    async def run(self) -> None:
        """Run until something ends it."""
        each_s = self._interval_s
        await until_done("start_ledger", self._loops.charging.start, each_s)
        await self._loops.start(each_s)
        self.is_ready = True
        async with asyncio.TaskGroup() as loops:

            def repeat(name: str, turn: Step) -> None:
                pacing = self.state.pacing if name == "sync" else None
                news = self._loops.news.get(name)
                loops.create_task(self._turns.repeat(name, turn, each_s, pacing, news))

            repeat("sync", self.state.turn)
            repeat("limits", self._loops.limits.turn)
            for name, turn in self._loops.led_turns.items():
                repeat(name, turn)


def submission(request: ModelRequest, token: str, **more: Any) -> SubmitRequest:
    """What slicewise.lua asks of the daemon when this job is submitted."""
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in request.gpus.items())
    values: dict[str, Any] = {
        "uid": request.uid,
        "account": request.account,
        "partition": request.partition,
        "gres": gres,
        "requeue": request.requeues,
        "time_limit_min": None if request.time_limit_s is None else request.time_limit_s // 60,
    }
    return SubmitRequest(v=VERSION, op="submit", token=token, **(values | more))


def as_answered(request: ModelRequest, answer: SubmitAnswer) -> ModelRequest:
    """The job as slicewise.lua lets it into Slurm, where the daemon admits it."""
    gpus = {one.gres_type or "": one.count for one in parse_gpu_requests(answer.gres or "")}
    return replace(
        request,
        gpus=gpus or request.gpus,
        qos=answer.qos or request.qos,
        site_factor=answer.site_factor or 0,
        admin_comment=answer.tag or "",
    )


class RefusedError(Exception):
    """The daemon refuses a submission."""


class DaemonOnModel:
    """A site whose daemon runs as long as it is told to.

    Attributes:
        site: Slurm; ``slurm`` is the door to it.
        daemon: the daemon that runs, or ran last.
    """

    def __init__(
        self, accounts: Mapping[str, str], settings: Settings, nodes: Collection[SimulatedNode]
    ) -> None:
        self.clock = WorldClock()
        self.settings = settings
        rows = [Row("root", own=frozenset({"normal"}), default="normal")]
        rows += [Row(name, parent=parent) for name, parent in accounts.items()]
        rows += [Row(name, user=f"user_{name}") for name in accounts]
        cluster = SimulatedCluster("model", tuple(nodes), QUICK, dict(accounts))
        self.site = ModelSite(cluster, self.clock, rows)
        self.slurm = ModelSlurm(self.site)
        self.ledger = ModelLedger(clock=self.clock)
        self.daemon = ModelDaemon(settings, self.slurm, self.ledger)
        self._loop = VirtualLoop(self.clock)
        self._life: asyncio.Task[None] | None = None
        self._token = 0

    # --- time ------------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work, while the daemon goes on."""
        done = self._loop.run_until_complete(work)
        if self._life is not None and self._life.done():
            self._life.result()
        return done

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.do(asyncio.sleep(seconds))

    def until(self, happened: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
        """Let time pass until this holds."""
        until_s = self.clock.passed_s + patience_s
        while not happened():
            assert self.clock.passed_s < until_s, f"not within {patience_s:g} s"
            self.wait(_LOOK_S)

    def until_is(self, look: Callable[[], T], wanted: T, patience_s: float = PATIENCE_S) -> None:
        """Let time pass until the look shows what is wanted."""
        until_s = self.clock.passed_s + patience_s
        while (shown := look()) != wanted:
            assert self.clock.passed_s < until_s, f"{shown} is not {wanted}"
            self.wait(_LOOK_S)

    def always(self, holds: Callable[[], Any], seconds: float) -> None:
        """Let time pass, in which this holds at each look."""
        until_s = self.clock.passed_s + seconds
        while self.clock.passed_s < until_s:
            assert holds()
            self.wait(_LOOK_S)

    # --- the daemon ------------------------------------------------------------------------------

    def start(self, settings: Settings | None = None) -> None:
        """Start a daemon, and wait until it is ready."""
        self.settings = settings or self.settings
        self.daemon = ModelDaemon(self.settings, self.slurm, self.ledger)
        self._life = self._loop.create_task(self.daemon.run())
        self.until(lambda: self.daemon.is_ready)

    def stop(self) -> None:
        """Kill the daemon."""
        self._life = None
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.daemon.is_ready = False

    def compile(self) -> Compiled:
        """Do what ``slicewise compile`` does."""
        return self.do(compile_limits(self.slurm, self.ledger, self.settings))

    @contextmanager
    def running(self) -> Iterator["DaemonOnModel"]:
        """Meanwhile the product's clocks are this site's, and the daemon runs at first."""
        with clocks_of(self.clock, _threaded):
            try:
                self.start()
                yield self
            finally:
                self.stop()
                self._loop.close()

    # --- what operators do -----------------------------------------------------------------------

    def set_quota(self, tenant: str, slices: float, **more: Any) -> None:
        """Set a quota, and wait until it is in force if the daemon runs."""
        nominal = Millislices(round(1000 * slices))
        self.ledger.change(TenantUpdate(tenant, nominal_millislices=nominal, **more))
        if self.daemon.is_ready:
            self.until(lambda: self.ledger.compiled_id == self.ledger.newest)

    def set_budget(self, tenant: str, slice_hours: float, period: Period = Period.NONE) -> None:
        amount = MillisliceSeconds(round(slice_hours * 3_600_000))
        self.ledger.change(TenantUpdate(tenant, budget=Budget(period, amount)))

    def grant(self, tenant: str, slice_hours: float) -> None:
        amount = round(slice_hours * 3_600_000)
        assert self.ledger.enter(BudgetEntry(tenant, "grant", amount, None, "op", "test"), None)

    def sacctmgr(self, *words: str) -> None:
        """Change slurmdbd by hand."""
        assert self.do(self.slurm.sacctmgr([words])) == {}

    # --- what users do ---------------------------------------------------------------------------

    def sbatch(
        self,
        account: str,
        gpus: Mapping[str, int] | None = None,
        *,
        qos: str = "",
        run_s: float = inf,
        minutes: int = 10,
        directives: tuple[str, ...] = (),
        **more: Any,
    ) -> int:
        """Submit a job; raise RefusedError with the daemon's code if it is refused.

        While no daemon runs it gets the QOS that is asked for, or Slurm's own.
        """
        asked = ModelRequest(
            user=f"user_{account}",
            uid=1000,
            account=account,
            partition=PARTITION,
            qos=qos or "normal",
            gpus={"1g.10gb": 1} if gpus is None else gpus,
            run_s=run_s,
            time_limit_s=60 * minutes,
            **more,
        )
        if self.daemon.is_ready and asked.gpus:
            self._token += 1
            words = submission(asked, f"{self._token:016x}", qos=qos, directives=directives)
            answer = self.daemon.admission.submit(words)
            # In other modes a refusal is advice.
            if answer.action == "refuse" and self.settings.daemon.mode == "enforce":
                raise RefusedError(answer.code)
            if answer.action == "admit":
                asked = as_answered(asked, answer)
        return self.site.submit(asked, _SCRIPT)

    def update(self, target: Target, **change: Any) -> None:
        """Change a job or tasks as an administrator, as ``scontrol update`` does."""
        assert self.do(self.slurm.update({target: JobChange(**change)})) == {}

    def apply(
        self, account: str, slots: int, *, run_s: float = inf, lease_s: int = 900, minutes: int = 30
    ) -> int:
        """Apply a service of small instances; return its array once all slots are held.

        Its replicas end with a code of RequeueExitHold after ``run_s``, and take KillWait when they
        are told to end. ``minutes`` is the time limit of its array.
        """
        script = _SERVICE.format(tenant=account, slots=slots, lease_s=lease_s)
        self._token += 1
        asked = ModelRequest(
            *(f"user_{account}", 1000, account, PARTITION, "normal", {"1g.10gb": 1}),
            run_s=run_s,
            time_limit_s=60 * minutes,
            name="bert",
            tasks=slots,
            held=True,
            exits_held=True,
            finishes=True,
            comment=COMMENT,
        )
        words = submission(
            *(asked, f"{self._token:016x}"),
            gres="",
            array=f"0-{slots - 1}",
            directives=tuple(one for one in script.splitlines() if one.startswith("#SLICEWISE")),
        )
        answer = self.daemon.admission.submit(words)
        if answer.action == "refuse":
            raise RefusedError(answer.code)
        if answer.action == "admit":
            asked = as_answered(asked, answer)
        array = self.site.submit(asked, script)
        self.until_is(lambda: [slot.reason for slot in self.slots(array)], ["JobHeldAdmin"] * slots)
        return array

    def wish(self, array: int, *slots: int, avoid: tuple[str, ...] = ()) -> DesiredSlotsAnswer:
        """Say which slots of a service are to run, as the launcher does."""
        state = self.daemon.state
        after = state.desired_slots_versions[array]
        return self.do(state.set_desired_slots(array, frozenset(slots), avoid=avoid, after=after))

    # --- what is seen ----------------------------------------------------------------------------

    def jobs(self, account: str) -> list[JobView]:
        """Jobs of an account that have not ended."""
        every = self.site.model.jobs
        return [one for one in every if one.account == account and one.state is not JobState.ENDED]

    def runs(self, account: str) -> Counter[str]:
        """How many jobs of the account run in which QOS."""
        return Counter(one.qos for one in self.jobs(account) if one.state is JobState.RUNNING)

    def reasons(self, account: str) -> set[str]:
        """Why its jobs wait."""
        return {one.reason for one in self.jobs(account) if one.state in WAITING}

    def limits(self, tenant: str, tres: str = "billing") -> tuple[int | None, int | None]:
        """GrpTRES of its own QOS and of its borrowed one; None where there is none."""
        known = self.site.database.known
        names = qos_name(tenant), borrowed_qos(tenant)
        own, borrowed = (known[one].grp_tres.get(tres) for one in names)
        return own, borrowed

    def run_minutes(self, tenant: str) -> tuple[int | None, int | None]:
        """GrpTRESRunMins of billing, of its own QOS and of its borrowed one."""
        known = self.site.database.known
        names = [one for one in (qos_name(tenant), borrowed_qos(tenant)) if one in known]
        found = [known[one].grp_tres_run_mins.get("billing") for one in names]
        return (found[0], found[1]) if found else (None, None)

    def statement(self, tenant: str) -> tuple[StatementRow, ...]:
        return self.ledger.statement(tenant, 0, int(self.clock.now_s)).rows

    def slots(self, array: int) -> list[SlotView]:
        shown = (one for one in self.daemon.state.view.services if one.array_job_id == array)
        return [slot for service in shown for slot in service.slots]

    def slot_states(self, array: int) -> list[str]:
        return [slot.state for slot in self.slots(array)]


async def _threaded(call: Callable[..., T], *args: Any, **options: Any) -> T:
    """In place of a thread."""
    await asyncio.sleep(0.001)
    return call(*args, **options)
