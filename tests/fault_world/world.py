"""Runs the world of a seed, and looks whether what must hold does."""

import asyncio
import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from model_daemon import SETTINGS, as_answered, submission
from model_slurm import PARTITION
from stand_ins.slurm_database import Row

from fault_world import rules
from fault_world.bounds import Bounds
from fault_world.daemon import WorldDaemon
from fault_world.exercises import Exercises, exercises
from fault_world.faults import CrashError, Faults, seeded
from fault_world.launcher import AppliedService, WorldLauncher, applied
from fault_world.ledger import LedgerConnection, SiteLedger
from fault_world.link import Link
from fault_world.site_plan import (
    BEGINS_S,
    Applied,
    BudgetIsSet,
    ClockIsSet,
    DaemonIsKilled,
    Event,
    LauncherIsKilled,
    NodeFails,
    NodeIsCut,
    QuotaIsPlanned,
    QuotaMoves,
    SitePlan,
    Submitted,
    drawn,
)
from fault_world.slurm import Site, SlurmLine
from fault_world.trace import Trace
from fault_world.virtual_time import START_S, VirtualLoop, WorldClock, clocks_of, owning
from slicewise.cluster.language.jobs import JobTag
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.slurm_plugin.rules.common.qos_names import qos_name
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate
from slicewise.slurm_plugin.rules.services.pace import PACE

_LOOK_S = 5.0
"""Seconds between looks at what must always hold."""
SETTLES_S = 2400.0
"""Seconds after the last fault within which all must be settled."""
_FILLING_S = 60.0
"""Seconds in which idle quota is borrowed, before a lender wants its own."""
_ROUNDS_S = 150.0
"""Seconds that rounds, their limits and Slurm's next runs may take beside the grace."""
_SCRIPT = "#!/bin/bash\nsrun true\n"


class FoundFaultError(AssertionError):
    """Something does not hold."""


def _settings(plan: SitePlan) -> Settings:
    lending = SETTINGS.lending.model_copy(update={"grace_s": plan.grace_s})
    return SETTINGS.model_copy(update={"lending": lending})


@dataclass
class Outcome:
    """What a world came to.

    Attributes:
        passed_s: seconds that it lasted.
    """

    passed_s: float
    jobs: int
    runs: int
    lives: int
    faults: int


class World:
    """A site with its daemon, from its beginning until all is settled.

    Attributes:
        plan: what was drawn.
        site: Slurm.
        daemon: the daemon that runs, or ran last.
        jobs: ids of the batch jobs that were submitted.
        services: those that were applied.
        launcher: the launcher that runs, or ran last.
        highest: the largest nominal that each tenant has had, in millislices.
    """

    def __init__(self, plan: SitePlan) -> None:
        self.plan = plan
        self.settings = _settings(plan)
        self._pace = replace(PACE, moving_s=plan.moving_s)
        self.clock = WorldClock()
        self.trace = Trace(self.clock)
        pauses = seeded("pauses", plan.seed)
        self.faults = Faults(seeded("faults", plan.seed), plan.rates, pauses, plan.pause_s)
        self.random = seeded("world", plan.seed)
        rows = [Row(name, parent="root", own=frozenset({"normal"})) for name in plan.policy]
        self.site = Site(
            plan.cluster, self.clock, rows, random=seeded("lag", plan.seed), lag_s=plan.lag_s
        )
        self.ledger = SiteLedger(clock=self.clock, tenants_now=plan.policy)
        self.daemon: WorldDaemon | None = None
        self.jobs: list[int] = []
        self.services: list[AppliedService] = []
        self.launcher: WorldLauncher | None = None
        self.lives = 0
        self.highest = {
            name: tenant.quota.nominal_millislices for name, tenant in plan.policy.items()
        }
        self.is_calm = False
        self.exercises = Exercises(self, exercises(plan, plan.undecided))
        self.faults.failed_once = self.exercises.write_failed
        self._bounds = Bounds(self)
        self.ledger.refuses = self._refuses
        self.site.compiles_s = lambda: self.ledger.locked_s
        self.site.is_booked = lambda job_id: any(key.job_id == job_id for key in self.ledger.booked)
        self.has_moved_quota = False
        self._token = 0
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self) -> Outcome:
        """Live; raise FoundFaultError if something does not hold."""
        loop = VirtualLoop(self.clock)
        with clocks_of(self.clock, self._threaded), self.trace.listening():
            try:
                loop.run_until_complete(self._live())
            finally:
                loop.close()
        drawn_faults = sum(self.faults.drawn.values())
        return Outcome(
            self.clock.passed_s, len(self.jobs), len(self.site.runs), self.lives, drawn_faults
        )

    async def _threaded(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """In place of a thread: so the loop goes on meanwhile."""
        await asyncio.sleep(self.faults.takes_s("postgresql") + self.faults.pause_s())
        done = call(*args, **options)
        if pause_s := self.faults.pause_s():
            await asyncio.sleep(pause_s)
        return done

    async def _live(self) -> None:
        self.faults.is_over = True
        parts = [
            asyncio.ensure_future(one)
            for one in (self._keep_daemon(), self._keep_launcher(), self._watch(), self._pass())
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*parts, *self._tasks):
                task.cancel()
            ended = await asyncio.gather(*parts, return_exceptions=True)
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one

    async def _pass(self) -> None:
        await asyncio.sleep(BEGINS_S)
        self.faults.is_over = False
        await self._happen()
        self._mend()
        await self._settle()

    async def _keep_daemon(self) -> None:
        """systemd: start the daemon whenever it has died."""
        while True:
            self.lives += 1
            who = f"daemon {self.lives}"
            link = Link(who, self.faults, self.clock, self.trace)
            ledger = LedgerConnection(self.ledger, link)
            self.daemon = WorldDaemon(
                self.settings, SlurmLine(self.site, link), ledger, link, self._pace
            )
            self.trace.note(who, "starts")
            with owning() as self._tasks:
                life = asyncio.ensure_future(self.daemon.run())
            try:
                await life
            except CrashError:
                self.trace.note(who, "is dead")
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(self.random.uniform(0.5, self.plan.restart_s))

    async def _keep_launcher(self) -> None:
        """systemd: start the launcher whenever it has died."""
        for life in count(1):
            link = Link(f"launcher {life}", self.faults, self.clock, self.trace)
            self.launcher = WorldLauncher(
                self.services, self.site, link, self.faults, lambda: self.daemon
            )
            with suppress(CrashError):
                await self.launcher.run()
            await asyncio.sleep(self.random.uniform(0.5, self.plan.restart_s))
            await asyncio.sleep(max(0.0, self.exercises.away_until_s - self.clock.passed_s))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._check([*rules.always(self), *self.exercises.broken, *self._bounds.broken()])

    def _check(self, broken: list[str]) -> None:
        if broken:
            raise FoundFaultError("; ".join(broken))

    async def _happen(self) -> None:
        for event in self.plan.events:
            await asyncio.sleep(max(0.0, event.at_s - self.clock.passed_s))
            self._do(event)
        await asyncio.sleep(max(0.0, self.plan.ends_s - self.clock.passed_s))

    def _do(self, event: Event) -> None:
        match event:
            case Submitted():
                self.submit(event)
            case NodeFails():
                self.trace.note("world", f"node {event.node} fails")
                self.site.model.fail_node(event.node)
                loop = asyncio.get_running_loop()
                loop.call_later(event.back_s - event.at_s, self._restore, event.node)
            case NodeIsCut():
                self._cut(event.node, event.gpus)
            case QuotaMoves() | BudgetIsSet() | QuotaIsPlanned():
                self._change_policy(event)
            case ClockIsSet():
                self.trace.note("world", f"the daemon's clock is set by {event.by_s} s")
                self.clock.ahead_s += event.by_s
            case Applied():
                self.apply(event.service)
            case LauncherIsKilled():
                self.kill_launcher()
            case DaemonIsKilled():
                self._kill("daemon", self.daemon)

    def apply(self, service: SimulatedService) -> AppliedService:
        """Its owner applies a service."""
        one = applied(service, len(self.services) + 1, self.site)
        self.services.append(one)
        self.trace.note("world", f"service {one.array}: {service.spec.values()}")
        return one

    def kill_launcher(self) -> None:
        self._kill("launcher", self.launcher)

    def _kill(self, name: str, process: WorldDaemon | WorldLauncher | None) -> None:
        if process is not None and process.link.is_alive:
            self.trace.note("world", f"kill -9 of the {name}")
            process.link.is_alive = False

    def _cut(self, node: str, gpus: Mapping[str, int]) -> None:
        self.trace.note("world", f"node {node} gets {gpus}")
        self.site.model.set_node_gpus(node, gpus)

    def _move_quota(self, giver: str, taker: str, amount: int) -> None:
        policy = self.ledger.policy()
        amount = min(amount, policy[giver].quota.nominal_millislices)
        self.has_moved_quota = True
        self.trace.note("world", f"{giver} gives {amount} of its quota to {taker}")
        for name, more in ((giver, -amount), (taker, amount)):
            nominal = policy[name].quota.nominal_millislices + more
            self.ledger.change(TenantUpdate(name, nominal_millislices=Millislices(nominal)))
            self.highest[name] = max(self.highest[name], nominal)

    def _change_policy(self, event: QuotaMoves | BudgetIsSet | QuotaIsPlanned) -> None:
        match event:
            case QuotaMoves():
                self._move_quota(event.giver, event.taker, event.millislices)
            case BudgetIsSet():
                self.trace.note("world", event)
                budget = Budget(Period.NONE, MillisliceSeconds(event.amount_millislice_s))
                self.ledger.change(TenantUpdate(event.tenant, budget=budget))
            case QuotaIsPlanned():
                self._plan_quota(event)

    def _plan_quota(self, event: QuotaIsPlanned) -> None:
        self.trace.note("world", event)
        self.has_moved_quota = True
        window = Window(
            1,
            event.tenant,
            WindowKind.NOMINAL,
            Millislices(event.millislices),
            first_s=int(START_S + event.first_s),
            last_s=int(START_S + event.last_s) + 1,
        )
        self.ledger.windows_now = (window,)

    def _refuses(self, job_id: int) -> bool:
        refusal, at_s = self.plan.refusal, self.clock.passed_s
        if refusal is None or job_id % 3 != refusal.rest:
            return False
        return refusal.first_s <= at_s < refusal.last_s and not self.is_calm

    def _mend(self) -> None:
        """From now on nothing fails, and the site is again as it was drawn."""
        self.faults.is_over = self.is_calm = True
        self.trace.note("world", "no more faults")
        self.clock.ahead_s = 0.0
        self.ledger.windows_now = ()
        shown = {node.name: dict(node.gpus) for node in self.site.model.nodes}
        for node in self.plan.cluster.nodes:
            if shown[node.name] != dict(node.gpus):
                self._cut(node.name, node.gpus)
        for name, tenant in self.plan.policy.items():
            nominal = tenant.quota.nominal_millislices
            now = self.ledger.policy()[name]
            if now.quota.nominal_millislices != nominal:
                self.ledger.change(TenantUpdate(name, nominal_millislices=nominal))
            if now.budget is not None:
                self.ledger.change(TenantUpdate(name, budget="off"))

    def _restore(self, node: str) -> None:
        self.trace.note("world", f"node {node} is back")
        self.site.model.restore_node(node)

    def submit(self, job: Submitted, *, unanswered: bool = False) -> None:
        """As slicewise.lua does: ask the daemon, or, ``unanswered``, have it decided later."""
        self._token += 1
        token = f"{self._token:016x}"
        request = ModelRequest(
            user=f"user_{job.account}",
            uid=1000,
            account=job.account,
            partition=PARTITION,
            qos=qos_name(job.account),
            gpus=job.gpus,
            run_s=job.run_s,
            time_limit_s=job.limit_s,
            requeues=job.requeues,
            admin_comment=JobTag(token, job.account, is_undecided=True).text(),
        )
        daemon = self.daemon
        if daemon is not None and daemon.answers and not unanswered:
            answer = daemon.admission.submit(submission(request, token))
            if answer.action != "admit":
                self.trace.note("world", f"{job} is refused: {answer.code}")
                return
            request = as_answered(request, answer)
        job_id = self.site.submit(request, _SCRIPT)
        self.jobs.append(job_id)
        self.trace.note("world", f"job {job_id}: {job} in {request.qos}")

    async def _settle(self) -> None:
        """Wait until all is as it should be; FoundFaultError names what is not in time."""
        self.exercises.begin()
        await self._until(lambda: rules.served(self))
        if self.exercises.lose_slot():
            await self._until(lambda: rules.served(self))
        await self.exercises.release_slot()
        if self.plan.guest is not None:
            await self.exercises.take_back(self.plan.guest)
        await self._probe()
        await self.exercises.scaled_down()
        for one in self.services:
            self.exercises.cancel(one.array)
        await self._until(lambda: rules.settled(self))
        self._check(rules.at_the_end(self))

    async def _probe(self) -> None:
        """A lender's job comes while others borrow all that they get: it starts within the grace.

        Its tenant waits for nothing else then, and what others hold by right leaves it an instance.
        """
        before = len(self.jobs)
        self.exercises.burst()
        for job in self.plan.borrowers:
            self.submit(job)
        borrowers = self.jobs[before:]
        await asyncio.sleep(_FILLING_S)
        self.exercises.begin_probe()
        if self.plan.probe is not None and rules.is_due(self, self.plan.probe, borrowers):
            await self._start(self.plan.probe)
        self.exercises.end_probe()
        for job_id in borrowers:
            self.site.model.cancel(job_id)

    async def _start(self, probe: Submitted) -> None:
        self.trace.note("world", "the probe of the guarantee")
        self.submit(probe)
        job_id = self.jobs[-1]
        within_s = self.plan.grace_s + _ROUNDS_S
        until_s = self.clock.passed_s + within_s
        while not rules.has_started(self, job_id):
            if self.clock.passed_s >= until_s:
                raise FoundFaultError(f"job {job_id}, within its guarantee, waits for {within_s} s")
            await asyncio.sleep(_LOOK_S)

    async def _until(self, still: Callable[[], list[str]]) -> None:
        until_s = self.clock.passed_s + SETTLES_S
        while broken := still():
            if self.clock.passed_s >= until_s:
                raise FoundFaultError("never settled: " + "; ".join(broken))
            await asyncio.sleep(_LOOK_S)


def live(seed: int) -> Outcome:
    """Run the world of a seed; FoundFaultError, with the trace, if something does not hold."""
    world = World(drawn(seed))
    # A world leaves little behind, and looking for that takes a twentieth of its time.
    gc.disable()
    try:
        return world.run()
    except FoundFaultError as error:
        error.add_note("\n".join(world.trace.lines))
        raise
    finally:
        gc.enable()
