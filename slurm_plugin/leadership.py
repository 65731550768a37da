"""Which of a cluster's daemons acts: the one that has the lock in PostgreSQL."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

from cluster.errors import UnreachableError
from cluster.slurm.interface import Slurm
from slurm_plugin.observe import report, report_failure

_TURN_S = 0.3
_VALID_S = 1.5
_SETTLE_S = 1.7
_CHANGES = frozenset({"hold", "release", "requeue_hold", "cancel", "update", "sacctmgr"})
"""What changes something in Slurm."""


class Lock(Protocol):
    """As ``ledger.lock.LeaderLock``."""

    def hold(self) -> bool:
        """Take it, or make sure of it; may raise SlicewiseError."""
        ...

    def holder(self) -> str:
        """The host of the daemon that has it, or ""."""
        ...


class Leader(Protocol):
    """Says whether this daemon may act."""

    def leads(self) -> bool:
        """Whether it may act now."""
        ...

    def require(self) -> None:
        """Raises UnreachableError (SW-DAEMON-STANDBY) unless it may."""
        ...


class Alone:
    """The leader where there is no other."""

    def leads(self) -> bool:
        """Always."""
        return True

    def require(self) -> None:
        """Raises nothing."""


ALONE = Alone()


class Leadership:
    """Takes the lock and keeps it.

    A pair (``daemon.pair``): this daemon leads only while its lock was confirmed within the last
    1.5 s, counted from before the question was sent, and one that has just got the lock waits 1.7 s
    before it leads. However the lock became free (its daemon died, the connection broke, PostgreSQL
    was restarted or ended the session), whoever had it before has stopped by then, even one that
    hangs or can't reach PostgreSQL: it looks at its own clock before each action. So no two lead at
    any moment, as long as PostgreSQL gives the lock to one session at a time. The clock counts
    while the host sleeps. What was sent to slurmctld before can't be called back: one action may
    end late.

    Alone (the default): the lock guards against a second daemon by mistake. Taken once, PostgreSQL
    may go away; only a lock that somebody else has when it is back ends the lead.
    """

    def __init__(self, lock: Lock, *, pair: bool, now_s: Callable[[], float] | None = None) -> None:
        self._lock = lock
        self._pair = pair
        self._now_s = now_s or _now_s
        self._held = False
        self._failed = False
        self._leads_alone = False
        self._confirmed_s = float("-inf")
        self._from_s = float("inf")
        self._led = False
        self.holder = ""
        """The host of the daemon that has the lock, where it is another."""

    def leads(self) -> bool:
        """Whether this daemon may act now."""
        if not self._pair:
            return self._leads_alone
        return self._held and self._from_s <= self._now_s() < self._confirmed_s + _VALID_S

    def require(self) -> None:
        """Raises UnreachableError (SW-DAEMON-STANDBY) unless it leads."""
        if not self.leads():
            who = f"the one on {self.holder} does" if self.holder else "none does now"
            raise UnreachableError(
                "SW-DAEMON-STANDBY",
                f"This daemon changes nothing in Slurm: {who}.",
                "Ask that one, or try again in a few seconds.",
            )

    async def start(self) -> None:
        """One turn; alone, raises UnreachableError (SW-DAEMON-STANDBY) until it has the lock."""
        await asyncio.to_thread(self.turn)
        if not self._pair:
            self.require()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take turns in a thread of its own: reading many jobs holds up the loop for seconds."""
        stopping = threading.Event()

        def keep() -> None:
            while not stopping.wait(_TURN_S):
                self.turn()

        threading.Thread(target=keep, name="leader", daemon=True).start()
        try:
            yield
        finally:
            stopping.set()

    def turn(self) -> None:
        """Take the lock, or make sure of it."""
        asked_s = self._now_s()
        try:
            held = self._lock.hold()
            self.holder = "" if held else self._lock.holder()
        except Exception as error:  # noqa: BLE001 -- the thread that keeps the lead must not end
            if self._held or not self._failed:
                report_failure("leader_lock_failed", error)
            self._held, self._failed = False, True
        else:
            self._note(held, asked_s)
        self._tell()

    def _note(self, held: bool, asked_s: float) -> None:
        if held and not self._held:
            self._from_s = self._now_s() + _SETTLE_S
        if held:
            self._confirmed_s = asked_s
        # Last: another thread asks whether it leads.
        self._held = self._leads_alone = held
        self._failed = False

    def _tell(self) -> None:
        if self.leads() != self._led:
            self._led = not self._led
            report("leads" if self._led else "stands_by", leader=self.holder or "-")


def led_only(slurm: Slurm, leader: Leader) -> Slurm:
    """Slurm, which changes nothing unless ``leader`` leads: asked right before each change."""
    return cast("Slurm", _LedOnly(slurm, leader))


class _LedOnly:
    def __init__(self, slurm: Slurm, leader: Leader) -> None:
        self._slurm = slurm
        self._leader = leader

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._slurm, name)
        return self._guarded(call) if name in _CHANGES else call

    def _guarded(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def guarded(*arguments: Any) -> Any:
            self._leader.require()
            return await call(*arguments)

        return guarded


def _now_s() -> float:
    """Also counts while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
