"""``slicewise daemon``: builds and connects the daemon's parts, starts them and ends them."""

import asyncio
import fcntl
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.rpc.message import Message, build
from slicewise.cluster.rpc.messages import StatusAnswer
from slicewise.cluster.runtime.systemd import tell_systemd
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm.unread_log import UnreadLog
from slicewise.slurm_plugin.admission_server.pipe import Decided
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.api.desk import Desk, roles
from slicewise.slurm_plugin.api.desks import operators_handlers
from slicewise.slurm_plugin.api.energy import EnergyBooks
from slicewise.slurm_plugin.api.generations import ServiceGenerations
from slicewise.slurm_plugin.api.guests import GuestLogins
from slicewise.slurm_plugin.api.keys import ServiceKeys
from slicewise.slurm_plugin.api.marketplace import MarketplaceDoor
from slicewise.slurm_plugin.api.orders import ServiceOrders
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.remote_socket import RemoteSocket
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.api.usage import UsageBooks
from slicewise.slurm_plugin.api.user_socket import UserSocket, user_limits
from slicewise.slurm_plugin.api.web_logins import WebLogins
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.common.sockets import own_directory
from slicewise.slurm_plugin.daemon.deciding_loops import DecidingLoops
from slicewise.slurm_plugin.daemon.history_loop import HistoryLoop
from slicewise.slurm_plugin.daemon.leadership import Leadership, led_slurm
from slicewise.slurm_plugin.daemon.metrics import Metrics
from slicewise.slurm_plugin.daemon.money_loop import MoneyLoop
from slicewise.slurm_plugin.daemon.node_weight_loop import NodeWeightLoop
from slicewise.slurm_plugin.daemon.observations import ObservationLoop
from slicewise.slurm_plugin.daemon.periodic import PeriodicLoops, Step, until_done
from slicewise.slurm_plugin.daemon.retention import RetentionLoop
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.services.pace import PACE, Pace
from slicewise.slurm_plugin.state.cluster_state import ClusterState
from slicewise.slurm_plugin.state.pacing import Pacing

_KEYS_S = 2.0
"""Seconds between reads of the keys in the database, which another daemon may have taken. This
daemon knows the keys that it took itself immediately."""


async def serve(
    settings: Settings, slurm: Slurm, ledger: Ledger, unread: UnreadLog, pace: Pace = PACE
) -> None:
    """Run until SIGTERM or SIGINT. All state that must last is in Slurm and PostgreSQL.

    ``unread`` counts the values that ``slurm`` can't read.
    """
    build(Message)
    with _only_one(settings.daemon.run_dir):
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        work = asyncio.create_task(_Daemon(settings, slurm, ledger, unread, pace).run())
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            tell_systemd("STOPPING=1")
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        except BaseExceptionGroup as group:
            own_errors = group.subgroup(SlicewiseError)
            raise (own_errors.exceptions[0] if own_errors else group) from None
        finally:
            stop.cancel()
        report("daemon_ended")


class _Daemon:
    """The daemon's parts, connected to each other."""

    def __init__(
        self, settings: Settings, slurm: Slurm, ledger: Ledger, unread: UnreadLog, pace: Pace
    ) -> None:
        own = settings.daemon
        self._every_s = pace.moving_s
        self._own = own
        self._host = socket.gethostname()
        self._who = roles(own, settings.web)
        self._metrics = Metrics()
        self._seeing: set[asyncio.Task[None]] = set()
        self._turns = PeriodicLoops(self._turned)
        self._leader = Leadership(ledger.locks.leader(self._host), pair=own.pair)
        slurm = led_slurm(slurm, self._leader)
        self._admission = AdmissionProcess(
            *(own.admission_socket, own.mode, self._who.administrators),
            on_decided=self._decided,
            log=settings.log,
        )
        self._cluster_state = ClusterState(settings, slurm, self._admission, self._leader, pace)
        kept_days = settings.ledger.journal_days
        self._observations = ObservationLoop(ledger, self._cluster_state.clock, kept_days)
        self._retention = RetentionLoop(ledger, self._cluster_state, kept_days)
        self._money = MoneyLoop(settings, ledger, self._cluster_state)
        self._history = HistoryLoop(settings, ledger, self._cluster_state)
        self._deciding = DecidingLoops(
            *(settings, slurm, ledger, self._cluster_state, self._leader),
            on_imagined=self._observations.imagined,
        )
        self._weights = NodeWeightLoop(settings, slurm, self._cluster_state)
        reads = Reads(settings, slurm, ledger, self._cluster_state)
        rates, cluster_state, leader = RateLimiter(), self._cluster_state, self._leader
        self._orders = ServiceOrders(ledger, cluster_state, reads, leader, rates=rates)
        self._generations = ServiceGenerations(ledger, cluster_state, reads)
        guests = GuestLogins(ledger, settings.web.oidc, leader, rates)
        self._keys = ServiceKeys(
            *(ledger, cluster_state, reads, leader),
            guests=guests,
            rates=rates,
            operators=self._who.administrators,
            aliases=settings.gateway.aliases,
        )
        slurm_tokens = SlurmTokens(own.slurm_jwt_key)
        desk = Desk(
            self._cluster_state,
            self._admission.preview,
            self._who,
            reads=reads,
            orders=self._orders,
            generations=self._generations,
            keys=self._keys,
            guests=guests,
            usage=UsageBooks(ledger, leader, settings.ledger.time_zone),
            energy=EnergyBooks(ledger, cluster_state, leader, settings.ledger.time_zone),
            web_logins=WebLogins(settings.web, slurm_tokens),
            operators=operators_handlers(settings, slurm, ledger, cluster_state, reads),
            daemon=self,
        )
        self._user_socket = UserSocket(own.user_socket, desk.routes, user_limits(self._who))
        self._remote_socket = RemoteSocket(own, desk.routes, self._who, slurm_tokens)
        self._marketplace = MarketplaceDoor(
            *(settings.marketplace, ledger, reads, leader),
            on_change=self._keys.turn,
            requires_keys=settings.gateway.require_keys,
            time_zone=settings.ledger.time_zone,
            is_tenant=lambda tenant: tenant in cluster_state.quotas.policy,
        )
        self._metrics.watch(settings, self._admission, self._cluster_state, self._leader, unread)

    async def run(self) -> None:
        """Start the parts one after the other, then run all loops.

        The sockets open once Slurm has been seen whole and the quotas are in force in it, or can't
        be put in force now. Until then slicewise.lua gets no answer, and the limits compiled before
        hold.
        """
        own_directory(self._own.admission_socket.parent, 0o700)
        interval_s = self._every_s
        with self._metrics.served(self._own.metrics):
            await until_done("start_ledger", self._deciding.charging.start, interval_s)
            await until_done("start_orders", self._orders.start, interval_s)
            await until_done("start_keys", self._keys.turn, interval_s)
            await until_done("start_leader", self._leader.start, interval_s)
            with self._leader.kept():
                await self._deciding.start(interval_s)
                async with asyncio.TaskGroup() as loops:
                    loops.create_task(self._admission.run())
                    await self._admission.listening.wait()
                    loops.create_task(self._answer_users())
                    self._begin(loops)

    def _begin(self, loops: asyncio.TaskGroup) -> None:
        def repeat(
            name: str, turn: Step, every_s: float = self._every_s, pacing: Pacing | None = None
        ) -> None:
            self._metrics.begins(name)
            news = self._deciding.news.get(name)
            loops.create_task(self._turns.repeat(name, turn, every_s, pacing, news))

        repeat("sync", self._cluster_state.turn, pacing=self._cluster_state.pacing)
        repeat("limits", self._deciding.limits.turn)
        repeat("orders", self._orders.turn)
        repeat("keys", self._keys.turn, _KEYS_S)
        repeat("observations", self._observations.turn)
        led: Mapping[str, Step] = {
            **self._deciding.led_turns,
            "generations": self._generations.turn,
            "node_weights": self._weights.turn,
            "retention": self._retention.turn,
            "money": self._money.turn,
            "history_looks": self._history.look,
            "history": self._history.turn,
        }
        otherwise: Mapping[str, Step] = {
            "bookkeeping": self._deciding.charging.stand_by,
            "priorities": self._deciding.priorities.start,
        }
        for name, turn in led.items():
            repeat(name, self._led(turn, otherwise.get(name)))

    def _led(self, turn: Step, otherwise: Step | None) -> Step:
        """A step that takes ``turn`` while this daemon leads, else ``otherwise``, if given."""

        async def led_turn() -> None:
            if self._leader.leads():
                await turn()
            elif otherwise is not None:
                await otherwise()

        return led_turn

    async def _answer_users(self) -> None:
        try:
            await self._user_socket.start()
            await self._remote_socket.start()
            await self._marketplace.start()
            report("daemon_ready", mode=self._own.mode, run_dir=self._own.run_dir)
            tell_systemd("READY=1")
            await asyncio.Event().wait()
        finally:
            await self._marketplace.stop()
            await self._remote_socket.stop()
            await self._user_socket.stop()

    def _turned(self, loop: str, took_s: float, failed: bool) -> None:
        self._metrics.turned(loop, took_s, failed=failed)
        if loop == "sync":
            # A loop that hangs sends no watchdog message, and systemd restarts the daemon.
            tell_systemd(f"WATCHDOG=1\nSTATUS={self._state()}")

    def _state(self) -> str:
        part = "leads" if self._leader.leads() else f"stands by for {self._leader.holder or 'none'}"
        looked = time.strftime("%H:%M:%S", time.localtime(self._cluster_state.view.observed_s))
        mode = "uninstalled" if self._cluster_state.is_uninstalled else f"mode {self._own.mode}"
        return f"{part}, {mode}, last look at Slurm {looked}"

    async def see_accounts(self) -> None:
        """Look at the accounts of Slurm's users again, but for some seconds after such a look."""
        await self._deciding.limits.see_accounts()

    def _decided(self, decided: Decided) -> None:
        self._metrics.decided(decided)
        if decided.verdict is not None:
            mode = self._cluster_state.mode
            self._observations.decided(decided.verdict, mode, decided.uid, decided.at_s)
        # A node that was added since the last look may raise the limit that was too small.
        if decided.action in {"admit", "pass"} or decided.code == Code.QUOTA_EXCEEDED:
            self._cluster_state.pacing.stir()
        # slurmctld does not wait for a look: whoever was added just now is admitted the next time.
        if decided.code == Code.TENANT_UNKNOWN and not self._seeing:
            seeing = asyncio.create_task(self.see_accounts())
            self._seeing.add(seeing)
            seeing.add_done_callback(self._seeing.discard)

    def status(self) -> StatusAnswer:
        """The daemon's state, as ``slicewise`` shows it to any user."""
        newest = self._admission.newest
        by_action: Counter[str] = Counter()
        for (action, _), count in self._admission.decisions.items():
            by_action[action] += count
        return StatusAnswer(
            version=version("slicewise"),
            mode=self._own.mode,
            host=self._host,
            is_leader=self._leader.leads(),
            is_uninstalled=self._cluster_state.is_uninstalled,
            complete=self._cluster_state.view.complete,
            observed_s=self._cluster_state.view.observed_s,
            module_asked_s=newest.at_s if newest else None,
            module=newest.module if newest else "",
            module_mode=newest.module_mode if newest else "",
            decisions=dict(by_action),
            unadmitted=self._cluster_state.unadmitted.count,
            unadmitted_s=self._cluster_state.unadmitted.newest_s,
        )


@contextmanager
def _only_one(run_dir: Path) -> Iterator[None]:
    """Hold the lock of ``run_dir``; SlicewiseError (SW-DAEMON-RUNNING) if another daemon has it.

    The kernel releases the lock however the daemon ends.
    """
    own_directory(run_dir, 0o755)
    # Whoever can read it can lock it, and so keep the daemon from starting.
    lock = os.open(run_dir / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(lock, "w") as file:
        os.fchmod(lock, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SlicewiseError(
                Code.DAEMON_RUNNING, f"A daemon runs already in {run_dir}.", "Stop it first."
            ) from None
        yield
