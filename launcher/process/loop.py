"""The launcher's main loop: repeats turns until it is told to end.

Beside the turns it saves what was learnt, keeps the gateway's API keys current, and tells the
daemon what users may see of their services.
"""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.leader import ALONE, Leader
from slicewise.cluster.runtime import log
from slicewise.cluster.runtime.leadership import led_only
from slicewise.cluster.runtime.systemd import tell_systemd
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import LauncherSettings, Settings
from slicewise.launcher.gateway.haproxy import HaproxyRuntime
from slicewise.launcher.gateway.identity import require_key
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.probing.prober import (
    Prober,
    Replica,
    engine_metrics,
    fit_adapters,
    fit_models,
    probe,
    statistics,
)
from slicewise.launcher.process.adapter_watch import AdapterWatch
from slicewise.launcher.process.allowance_watch import renew
from slicewise.launcher.process.daemon_calls import DaemonCalls
from slicewise.launcher.process.fair_queues import ORDER_EVERY_S, FairQueues
from slicewise.launcher.process.leadership import leadership, own_store
from slicewise.launcher.process.metrics import Metrics
from slicewise.launcher.process.model_watch import ModelWatch
from slicewise.launcher.process.pool_watch import PoolWatch
from slicewise.launcher.process.reporter import ServiceReporter
from slicewise.launcher.process.saved_state import SavedRows, SavedState
from slicewise.launcher.process.saved_state import saved_curves as kept_curves
from slicewise.launcher.process.start_watch import StartWatch
from slicewise.launcher.process.statistics import ServiceStatistics
from slicewise.launcher.process.statistics_socket import StatisticsSocket
from slicewise.launcher.process.store import StateStore
from slicewise.launcher.process.token_watch import TokenWatch
from slicewise.launcher.process.turn import Daemon, Replicas, Runtime, Turned, turn
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.engines.registry import ENGINES, unknown_engines
from slicewise.launcher.rules.gateway.start_lines import parse_start_line
from slicewise.launcher.rules.turn.clock_step import STEP_S, after_step
from slicewise.launcher.rules.turn.curves import Curves, KeptCurve, kept
from slicewise.launcher.rules.turn.outliers import Verdict
from slicewise.launcher.rules.turn.plan import NO_RESTS, TurnPlan
from slicewise.launcher.rules.turn.service import Heard, ServicePlan
from slicewise.launcher.rules.turn.slots import loss_text
from slicewise.launcher.rules.turn.state import State, with_saved
from slicewise.launcher.rules.turn.suspects import suspect_nodes, suspects_text

INTERVAL_S = 0.25
"""Seconds between turns while nothing happens: a request for a service without replicas is met
within it. A turn that takes longer is followed by a pause as long."""
BUSY_S = 0.15
"""Seconds until the next turn while requests wait or something has just been changed."""
LONGEST_S = 1.0
SIDE_EVERY_S = 2.0
"""Seconds between two saves of the state, and between two updates of the gateway's API keys."""
GARBAGE_AFTER = 50_000
"""New objects after which Python looks for garbage. What a turn sees of thousands of services lives
until the next turn; to search all of it took twice as long as to decide."""
_USES_EVERY_S = 60.0
"""Seconds between two looks at which API keys were used; less than the gateway remembers it."""
_HEAR_AGAIN_S = 0.02
"""Seconds between two connections by which the gateway tells of its requests."""
_POST_EVERY_S = 0.15
"""Seconds between two batches of what requests have used."""
_POOLS_EVERY_S = 10.0
"""Seconds between two reports of who has used pools' replicas: what a launcher that is killed has
not reported is the service's whose slot it was."""
_RENEW_EVERY_S = 0.5
"""Seconds between two questions for tokens of limits."""
FIT_EVERY_S = 0.5
"""Seconds between two looks at which replicas lack an adapter."""
TELL_EVERY_S = 1.0
"""Seconds between two updates of what users can see of their services."""
_ANY_GROUP = (
    "a tenant's server may choose TLS's largest group, which costs HAProxy 160 ms a handshake: "
    "install etc/haproxy-openssl.cnf with its drop-in (docs/how-to/gateway.md) and restart HAProxy"
)
_DAEMON_CHANGES = frozenset(
    {
        "set_desired_slots",
        "retire",
        "report_services",
        "note_uses",
        "note_engine_counters",
    }
)
_RUNTIME_CHANGES = frozenset({"apply", "keep", "set_grants", "set_priorities"})

_LOG = logging.getLogger("slicewise.launcher")


async def serve(settings: Settings) -> None:
    """Run turns until SIGTERM or SIGINT, while this launcher leads.

    Nothing that matters is kept in this process: after a kill the next launcher finds routes and
    draining servers at HAProxy, slots and orders at the daemon, and what was learnt in its
    database. Raises InvalidInputError (SW-SETTINGS, SW-GATEWAY-IDENTITY).
    """
    gc.set_threshold(GARBAGE_AFTER)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    store = own_store(settings)
    async with HaproxyRuntime(settings.gateway) as runtime:
        await _serve(settings, store, runtime, ended)


async def _serve(
    settings: Settings, store: StateStore | None, runtime: HaproxyRuntime, ended: asyncio.Event
) -> None:
    daemon = DaemonCalls(settings.daemon)
    require_key(settings.gateway)
    report_broken_engines(settings.engines)
    if await runtime.takes_any_group():
        report("tls_groups_unbounded", logging.WARNING, why=_ANY_GROUP)
    directory = settings.gateway.directory
    usage = UsageWatch(daemon, UsageJournal(directory), _kept_lines(settings.gateway.kept_lines))
    launcher = partial(
        Launcher,
        replicas=partial(Prober, ask=partial(probe, directory)),
        statistics=StatisticsSocket(directory, ServiceStatistics(partial(statistics, directory))),
        tokens=TokenWatch(partial(engine_metrics, directory), usage.counted),
        adapters=AdapterWatch(partial(fit_adapters, directory)),
        models=ModelWatch(partial(fit_models, directory)),
        usage=usage,
        pools=PoolWatch(daemon.note_pool_uses),
        renew=partial(renew, daemon, runtime, usage.unposted),
        fair_queues=FairQueues(settings.ledger.output_weights),
    )
    if store is None:
        report("no_database", state="in memory only")
        await launcher(daemon, runtime).serve(settings.launcher, ended)
        return
    leader = leadership(store, pair=settings.launcher.pair)
    await asyncio.to_thread(leader.turn)
    with leader.kept():
        leading = launcher(
            led_only(daemon, leader, _DAEMON_CHANGES),
            led_only(runtime, leader, _RUNTIME_CHANGES),
            leader=leader,
            saved=SavedState(store),
            saved_curves=kept_curves(store.curves),
        )
        await leading.serve(settings.launcher, ended)


def _kept_lines(path: Path) -> KeptLines | None:
    try:
        return KeptLines(path)
    except OSError as error:
        report("usage_not_kept", logging.WARNING, why=str(error))
        return None


def report_broken_engines(sections: Iterable[str]) -> None:
    """Warn of engines that can't be used: services of theirs never become ready.

    They are those of the site that can't be loaded, and ``sections`` of slicewise.toml's [engines]
    that are of none.
    """
    unknown = dict.fromkeys(unknown_engines(sections), "there is no such engine here")
    for name, why in {**ENGINES.broken, **unknown}.items():
        report("engine_broken", logging.WARNING, engine=name, why=why)


class Launcher:
    """Runs turns, keeps the state between them, and reports what changes."""

    def __init__(
        self,
        daemon: Daemon,
        runtime: Runtime,
        *,
        replicas: Callable[[asyncio.Event], Replicas],
        leader: Leader = ALONE,
        saved: SavedState | None = None,
        saved_curves: SavedRows[KeptCurve] | None = None,
        statistics: StatisticsSocket | None = None,
        tokens: TokenWatch | None = None,
        adapters: AdapterWatch | None = None,
        models: ModelWatch | None = None,
        usage: UsageWatch | None = None,
        pools: PoolWatch | None = None,
        renew: Callable[[], Awaitable[None]] | None = None,
        fair_queues: FairQueues | None = None,
    ) -> None:
        self._daemon = daemon
        self._runtime = runtime
        self._due = asyncio.Event()
        self._held_s = 0.0
        self._replicas = replicas(self._due)
        self._leader = leader
        self._saved = saved or SavedState(None)
        self._saved_curves = saved_curves or kept_curves(None)
        self._curves: Curves = {}
        self._state: State | None = None
        self._late: State = {}
        self._cycle = 0
        self._left: frozenset[str] = frozenset()
        self._clock_offset_s = _clock_offset_s()
        self._rests = NO_RESTS
        self._reporter = Reporter()
        self._metrics = Metrics(leader)
        self._statistics = statistics
        self._tokens = tokens or TokenWatch(_never)
        self._adapters = adapters or AdapterWatch(_never)
        self._models = models or ModelWatch(_never)
        self._usage = usage or UsageWatch()
        self._pools = pools or PoolWatch()
        self._starts = StartWatch()
        self._renew = renew
        self._limits_tokens = self._renewed_with_limits = True
        self._fair_queues = fair_queues or FairQueues()
        self._reporter_of_services = ServiceReporter(daemon, runtime.timings)

    async def serve(self, settings: LauncherSettings, ended: asyncio.Event) -> None:
        """Run turns until ``ended`` is set, and answer Prometheus meanwhile.

        Raises SlicewiseError (SW-SETTINGS).
        """
        with self._metrics.served(settings.metrics):
            await self.run(INTERVAL_S, ended)

    async def run(self, interval_s: float, ended: asyncio.Event) -> None:
        """Run turns until ``ended`` is set; a failed look changes nothing and is tried again."""
        report("started", leads=self._leader.leads())
        tell_systemd("READY=1")
        steps = {
            self.save: SIDE_EVERY_S,
            self.tell_keys: SIDE_EVERY_S,
            self.tell_users: TELL_EVERY_S,
            self.tell_key_uses: _USES_EVERY_S,
            self.hear: _HEAR_AGAIN_S,
            self.write_usage: _POST_EVERY_S,
            self.post_usage: _POST_EVERY_S,
            self.renew_allowances: _RENEW_EVERY_S,
            self.report_counters: SIDE_EVERY_S,
            self.report_pools: _POOLS_EVERY_S,
            self.serve_statistics: SIDE_EVERY_S,
            self.time_tokens: SIDE_EVERY_S,
            self.fit_adapters: FIT_EVERY_S,
            self.order_queues: ORDER_EVERY_S,
        }
        beside = [asyncio.create_task(_repeat(step, every_s)) for step, every_s in steps.items()]
        end = asyncio.create_task(ended.wait())
        while not ended.is_set():
            began_s = time.monotonic()
            is_busy = await self.turn()
            # A loop that hangs does not send this, and systemd then restarts the launcher.
            tell_systemd(f"WATCHDOG=1\nSTATUS={'leads' if self._leader.leads() else 'stands by'}")
            # On a large cluster a turn takes long: pause for as long as it took (LONGEST_S at
            # most), so that other work gets as much time.
            pause_s = max(BUSY_S if is_busy else interval_s, time.monotonic() - began_s)
            await self._pause(min(pause_s, LONGEST_S), end)
        for task in beside:
            task.cancel()
        await self.save()
        report("ended")

    async def _pause(self, pause_s: float, end: "asyncio.Task[Literal[True]]") -> None:
        due = asyncio.create_task(self._due.wait())
        await asyncio.wait({due, end}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        due.cancel()
        self._due.clear()

    async def turn(self) -> bool:
        """Run and report one turn; return whether the next is due soon. On standby, do nothing.

        Events of a turn carry its number.
        """
        self._cycle += 1
        with log.bound(cycle=self._cycle):
            return await self._turn()

    async def _turn(self) -> bool:
        self._follow_clock()
        if not self._leader.leads():
            self._state = None
            self._replicas.look(())
            self._metrics.stands_by()
            return False
        if self._state is None:
            self._state, self._late = await self._saved.load(), {}
            self._curves = await self._saved_curves.load()
        if self._late:
            self._state, self._late = with_saved(self._state, self._late), {}
        begin_s, is_busy = time.monotonic(), False
        try:
            heard = self._heard_of_services()
            turned = await turn(
                *(self._daemon, self._runtime, self._replicas, self._state),
                left=self._left,
                rests=self._rests,
                heard=heard,
                curves=self._curves,
                now_s=self._now_s,
            )
            self._turned(turned, heard, time.monotonic() - begin_s)
            is_busy = turned.is_busy
        except SlicewiseError as error:
            self._failed(str(error), error.refusal.code, time.monotonic() - begin_s)
        except Exception as error:  # noqa: BLE001 -- one bad turn must not end the launcher
            report_error("round_failed", error)
            name = type(error).__name__
            self._failed(name, name, time.monotonic() - begin_s)
        if self._leader.leads():
            # Requests may wait for a model that a replica is to load, also while turns fail.
            try:
                self._models.look()
            except Exception as error:  # noqa: BLE001 -- as above
                report_error("round_failed", error)
        return is_busy

    def _heard_of_services(self) -> Heard:
        return Heard(
            tokens=self._tokens.counts,
            loads=self._tokens.loads,
            adapters=self._adapters.tried,
            models=self._models.models,
            starts=self._starts.heard,
            adapter_reports=self._adapters.reports,
            old_engines=self._replicas.old_engines,
        )

    def _turned(self, turned: Turned, heard: Heard, took_s: float) -> None:
        """Take over what a turn found, and what it had heard."""
        self._state, self._left = turned.state, turned.left
        self._metrics.turned(turned, took_s)
        self._reporter.turned(turned)
        if turned.plan is not None:
            self._rests = turned.plan.rests
            self._reporter_of_services.turned(turned.plan, turned.state, heard)
            self._tokens.turned(turned.plan, turned.state)
            self._usage.turned(turned.state)
            self._pools.turned(turned.plan.pools)
            self._adapters.turned(turned.plan, turned.state, turned.requests)
            self._models.turned(turned.plan, turned.state)
            self._fair_queues.turned(turned.plan)
            self._metrics.counted(self._adapters.requests)
            if self._statistics is not None:
                self._statistics.turned(turned.plan, turned.state)

    def _follow_clock(self) -> None:
        """Move what is remembered if the host's clock was set since the last turn."""
        before_s, self._clock_offset_s = self._clock_offset_s, _clock_offset_s()
        step_s = self._clock_offset_s - before_s
        if abs(step_s) > STEP_S and self._state is not None:
            self._state = after_step(self._state, step_s)
            report("clock_stepped", logging.WARNING, ahead_s=round(step_s))

    def _now_s(self) -> float:
        """Return the time by the host's clock as it was set when the turn began.

        If it is set while the turn waits for an answer, the next turn moves all times that this one
        has remembered.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self._clock_offset_s

    def _failed(self, why: str, code: str, took_s: float) -> None:
        self._metrics.failed(code, took_s)
        self._reporter.failed(why)

    async def save(self) -> None:
        """Save what was learnt, for the launcher that leads next.

        What the previous launcher saved is read and merged first, so that it is not overwritten.
        """
        if self._state is None or not self._leader.leads():
            return
        if not self._saved.is_loaded:
            self._late = await self._saved.load()
        elif not self._late:
            await self._saved.save(self._state)
        if not self._saved_curves.is_loaded:
            self._curves = {**await self._saved_curves.load(), **self._curves}
        self._curves = kept(self._curves, self._state, wall_s())
        await self._saved_curves.save(self._curves)

    async def hear(self) -> None:
        """Let the gateway tell which requests it holds, and what those that have ended used.

        While it holds one, the next turn is due immediately.
        """
        if not self._leader.leads():
            await asyncio.sleep(LONGEST_S)
            return
        hearing = asyncio.create_task(self._runtime.hear(self._heard))
        try:
            while self._leader.leads() and not hearing.done():
                await asyncio.wait({hearing}, timeout=LONGEST_S)
            if hearing.done():
                hearing.result()
        except SlicewiseError as error:
            self._reporter.once("", "gateway_not_heard", str(error))
            await asyncio.sleep(LONGEST_S)
        finally:
            hearing.cancel()

    def _heard(self, line: str) -> None:
        self._reporter.once("", "gateway_not_heard", "")
        if (told := parse_start_line(line)) is None:
            self._hear_usage(line)
            return
        self._starts.hear(told)
        if told.replica is None:
            self._held()

    def _hear_usage(self, line: str = "") -> None:
        for service, run in self._usage.hear(line):
            self._tokens.ask_run(service, run)

    def _held(self) -> None:
        """Make a turn due, but not more often than while requests wait: many backends say it."""
        now_s = time.monotonic()
        if now_s - self._held_s >= BUSY_S:
            self._held_s = now_s
            self._due.set()

    async def tell_keys(self) -> None:
        """Tell the gateway what each API key opens, and which tenants require one."""
        if self._state is None or not self._leader.leads():
            return
        with self._reporter.tried("keys_not_set"):
            granted = await self._daemon.grants()
            if self._statistics is not None:
                self._statistics.told(granted.models, granted.limits)
            await self._runtime.set_grants(granted)
            self._limits_tokens = granted.limits_tokens

    async def tell_key_uses(self) -> None:
        """Tell the daemon when API keys last let a request in."""
        if not self._leader.leads():
            return
        with self._reporter.tried("key_uses_not_told"):
            now_s, ages_s = wall_s(), await self._runtime.key_ages()
            await self._daemon.note_uses({key: now_s - age for key, age in ages_s.items()})

    async def serve_statistics(self) -> None:
        """Answer clients that ask for a service's statistics."""
        if self._statistics is None:
            return
        with self._reporter.tried("statistics_not_served"):
            await self._statistics.step(leads=self._leader.leads())
            self._reporter.once("", "statistics_not_saved", self._statistics.not_saved)

    async def time_tokens(self) -> None:
        """Ask replicas what they work on, and how long their tokens take."""
        if self._leader.leads():
            self._tokens.look()

    async def write_usage(self) -> None:
        """Write down what requests have used."""
        with self._reporter.tried("usage_not_written"):
            try:
                if self._leader.leads():
                    self._hear_usage()
            finally:
                await self._usage.write()

    async def post_usage(self) -> None:
        """Let the daemon book what requests have used, also of a gateway that leads no more."""
        usage, why = self._usage, ""
        try:
            await usage.post()
        except (SlicewiseError, OSError) as error:
            why = str(error)
        self._reporter.once("", "usage_not_posted", why)
        self._reporter.once("", "usage_refused", usage.refused)
        self._reporter.once("", "usage_unreadable", usage.unreadable)
        missed = f"{usage.missed} requests are not booked" if usage.missed else ""
        self._reporter.once("", "usage_missed", missed)
        self._metrics.used(usage.missed, usage.waiting)
        if why:
            await asyncio.sleep(LONGEST_S)

    async def renew_allowances(self) -> None:
        """Let the gateway take tokens of limits: until it has heard that there are none."""
        limits = self._limits_tokens
        if self._renew is None or not self._leader.leads():
            return
        if not limits and not self._renewed_with_limits:
            return
        with self._reporter.tried("allowances_not_renewed"):
            await self._renew()
            self._renewed_with_limits = limits

    async def report_counters(self) -> None:
        """Tell the daemon what engines have counted."""
        if not self._leader.leads():
            return
        with self._reporter.tried("engine_counters_not_told"):
            await self._usage.report_counters()

    async def report_pools(self) -> None:
        """Tell the daemon who has used pools' replicas, also what was seen while this led."""
        with self._reporter.tried("pool_uses_not_told"):
            await self._pools.report()

    async def fit_adapters(self) -> None:
        """Let replicas load and unload adapters, where their service says others."""
        if self._leader.leads():
            self._adapters.look()

    async def order_queues(self) -> None:
        """Tell the gateway what requests count where those who share a service wait."""
        used = self._usage.take_since()
        if self._state is None or not self._leader.leads():
            return
        with self._reporter.tried("queues_not_ordered"):
            await self._fair_queues.order(self._runtime, used, 1000 * wall_s())

    async def tell_users(self) -> None:
        """Tell the daemon what users may see of their services."""
        if not self._leader.leads():
            return
        reporter = self._reporter_of_services
        with self._reporter.tried("service_reports_failed"):
            await reporter.report_services()
            self._metrics.measured(reporter.qualities, reporter.counts, self._tokens.loads)


async def _never(_replica: Replica) -> None:
    """Ask no replica."""


def _clock_offset_s() -> float:
    """Seconds by which the host's clock is ahead of one that is never set, nor stops in suspend."""
    return wall_s() - time.clock_gettime(time.CLOCK_BOOTTIME)


async def _repeat(step: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        try:
            await step()
        except Exception as error:  # noqa: BLE001 -- as for a turn
            report_error("step_failed", error)
        await asyncio.sleep(pause_s)


class Reporter:
    """Logs changes only: what has been logged once is not logged again while it stays the same."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[object, ...]] = {}
        self._warned: dict[tuple[str, str], str] = {}
        self._trouble = ""

    def failed(self, why: str) -> None:
        """Log that a turn could not look or change something; the same reason is logged once."""
        if why != self._trouble:
            report("no_decision", logging.WARNING, why=why)
        self._trouble = why

    def turned(self, turned: Turned) -> None:
        """Log a turn's decisions, and what the daemon answered to desired slots."""
        if turned.plan is None:
            self.failed("the daemon can't see all of Slurm")
            return
        if self._trouble:
            report("deciding_again")
        self._trouble = ""
        self._forget_all_but(turned.state.keys())
        for service in turned.plan.services:
            self._service(service, turned)
            self._outliers(service)
        self._troubles(turned.plan)
        self.once("", "routes_not_kept", turned.unkept)
        self.once("", "nodes_suspected", suspects_text(suspect_nodes(turned.state, wall_s())))
        slow = "the daemon answers slowly: the next round continues" if turned.left else ""
        self.once("", "desired_slots_left", slow)
        if turned.retired:
            report("retired", arrays=frozenset(turned.retired))
        for array, error in turned.failures.items():
            report("desired_slots_failed", logging.WARNING, array=array, why=str(error))

    def _service(self, service: ServicePlan, turned: Turned) -> None:
        answer = turned.answers.get(service.array_job_id)
        note = answer.note if answer is not None else ""
        news = (service.array_job_id, service.decision.wanted, service.desired, note)
        if service.desired is None or self._said.get(service.service) == news:
            return
        self._said[service.service] = news
        with _of(service.service):
            report(
                "decided",
                service=service.service,
                array=service.array_job_id,
                desired_replicas=service.decision.wanted,
                desired_slots=service.desired,
                reason=service.decision.reason,
                kept_back=note or "-",
            )

    def _outliers(self, service: ServicePlan) -> None:
        for array, outlier in service.outliers:
            level = logging.INFO if outlier.verdict is Verdict.PASSED else logging.WARNING
            fields = {"service": service.service, "array": array, "slot": outlier.index}
            with _of(service.service):
                report(f"replica_{outlier.verdict}", level, **fields, why=outlier.why)

    def _troubles(self, plan: TurnPlan) -> None:
        more = "raise gateway.{} and render again"
        lineless = {
            service.service: service.lineless for service in plan.services if service.lineless
        }
        reasons: Mapping[str, Mapping[str, str]] = {
            "no_backend_free": {
                name: f"{why}; {more.format('services, backends or services_per_tenant')}"
                for name, why in {**lineless, **plan.routes.unrouted}.items()
            },
            "no_server_free": dict.fromkeys(plan.routes.crowded, more.format("servers")),
            "service_unreadable": plan.unreadable,
            "slots_lost": {service.service: loss_text(service.lost) for service in plan.services},
        }
        # A warning about a service that was not decided in this turn stays: it may not be over.
        decided = {service.service: "" for service in plan.services}
        for event, whys in reasons.items():
            for name, why in {**decided, **whys}.items():
                self.once(name, event, why)

    def _forget_all_but(self, services: Collection[str]) -> None:
        self._said = {name: words for name, words in self._said.items() if name in services}
        self._warned = {
            (name, event): why
            for (name, event), why in self._warned.items()
            if not name or name in services
        }

    def once(self, service: str, event: str, why: str) -> None:
        """Log a warning once until ``why`` changes; "" means that there is no trouble."""
        if not why:
            self._warned.pop((service, event), None)
        elif self._warned.get((service, event)) != why:
            with _of(service) if service else nullcontext():
                report(event, logging.WARNING, service=service or "-", why=why)
            self._warned[service, event] = why

    @contextmanager
    def tried(self, event: str) -> Iterator[None]:
        """Log, as ``once`` does, why what is done meanwhile fails."""
        why = ""
        try:
            yield
        except (SlicewiseError, OSError) as error:
            why = str(error)
        self.once("", event, why)


def _of(service: str) -> AbstractContextManager[None]:
    """Let events name the tenant of TENANT/NAME, too."""
    return log.bound(tenant=service.partition("/")[0])


def report(event: str, level: int = logging.INFO, **fields: object) -> None:
    """Log an event."""
    log.emit(_LOG, level, event, fields)


def report_error(event: str, error: Exception) -> None:
    """Log an error that is unexpected, with its traceback."""
    log.emit(_LOG, logging.ERROR, event, {}, error)
