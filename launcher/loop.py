"""The launcher: turns, one after another, until it is told to end."""

import asyncio
import logging
import signal

from cluster import events
from cluster.daemon_client import DaemonClient
from cluster.errors import SlicewiseError
from cluster.settings import Settings
from launcher.decide.services import Plan, ServicePlan, State
from launcher.decide.slots import loss_text
from launcher.haproxy import HaproxyRuntime
from launcher.render import services_map
from launcher.tick import Daemon, Runtime, Turned, turn

_LOG = logging.getLogger("slicewise.launcher")


def configure_logging(level: str) -> None:
    """From ``level`` up, to stderr."""
    events.configure_logging(_LOG, level)


async def serve(settings: Settings) -> None:
    """Turn every ``interval_s`` until SIGTERM or SIGINT.

    Nothing that matters is kept here: after a kill the next launcher finds routes and draining
    servers at HAProxy, and slots at the daemon.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    daemon = DaemonClient(settings.daemon)
    runtime = HaproxyRuntime(settings.gateway.runtime_socket, services_map(settings.gateway))
    await Launcher(daemon, runtime).run(settings.launcher.interval_s, ended)


class Launcher:
    """Keeps the state between turns and reports what changes."""

    def __init__(self, daemon: Daemon, runtime: Runtime) -> None:
        self._daemon = daemon
        self._runtime = runtime
        self._state: State = {}
        self._reporter = Reporter()

    async def run(self, interval_s: float, ended: asyncio.Event) -> None:
        """Turn until ``ended``; a failed look changes nothing and is tried again."""
        report("started", interval_s=interval_s)
        while not ended.is_set():
            await self.turn()
            try:
                await asyncio.wait_for(ended.wait(), interval_s)
            except TimeoutError:
                continue
        report("ended")

    async def turn(self) -> None:
        """One turn, reported."""
        try:
            turned = await turn(self._daemon, self._runtime, self._state)
        except SlicewiseError as error:
            self._reporter.failed(str(error))
        except Exception as error:  # noqa: BLE001 -- one bad turn must not end the launcher
            _LOG.exception("turn_failed")
            self._reporter.failed(type(error).__name__)
        else:
            self._state = turned.state
            self._reporter.turned(turned)


class Reporter:
    """Logs what is new, not what is."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[object, ...]] = {}
        self._warned: dict[tuple[str, str], str] = {}
        self._trouble = ""

    def failed(self, why: str) -> None:
        """A turn that could not look or change; said once until it changes."""
        if why != self._trouble:
            report("no_decision", logging.WARNING, why=why)
        self._trouble = why

    def turned(self, turned: Turned) -> None:
        """A turn's decisions and what came of the wishes."""
        if turned.plan is None:
            self.failed("the daemon can't see all of Slurm")
            return
        if self._trouble:
            report("deciding_again")
        self._trouble = ""
        for service in turned.plan.services:
            self._service(service, turned)
        self._troubles(turned.plan)
        self._once("", "routes_not_kept", turned.unkept)
        for array, error in turned.failures.items():
            report("wish_failed", logging.WARNING, array=array, why=str(error))

    def _service(self, service: ServicePlan, turned: Turned) -> None:
        answer = turned.answers.get(service.array_job_id)
        note = answer.note if answer is not None else ""
        news = (service.array_job_id, service.decision.wanted, service.wish, note)
        if service.wish is None or self._said.get(service.service) == news:
            return
        self._said[service.service] = news
        report(
            "decided",
            service=service.service,
            array=service.array_job_id,
            wanted=service.decision.wanted,
            run=service.wish,
            reason=service.decision.reason,
            kept_back=note or "-",
        )

    def _troubles(self, plan: Plan) -> None:
        for name in plan.routes.unrouted:
            self._once(name, "no_backend_free", "raise gateway.backends and render again")
        for name, why in plan.unreadable.items():
            self._once(name, "service_unreadable", why)
        for service in plan.services:
            self._once(service.service, "slots_lost", loss_text(service.lost))

    def _once(self, service: str, event: str, why: str) -> None:
        """A warning, once until it changes; "" is no trouble."""
        if why and self._warned.get((service, event)) != why:
            report(event, logging.WARNING, service=service or "-", why=why)
        self._warned[service, event] = why


def report(event: str, level: int = logging.INFO, **fields: object) -> None:
    """One line of the log."""
    _LOG.log(level, "%s", events.event_line(event, fields))
