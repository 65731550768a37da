"""Decides which of several processes acts: the one that has the lock in PostgreSQL."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

from slicewise.cluster.language.leader import Leader
from slicewise.cluster.runtime.log import emit

T = TypeVar("T")

_TURN_S = 0.3
_VALID_S = 1.5
_SETTLE_S = 1.7


class Lock(Protocol):
    """What is needed of ``leader_lock.LeaderLock``."""

    def hold(self) -> bool:
        """Take the lock, or make sure that it is held; may raise SlicewiseError."""
        ...

    def holder(self) -> str:
        """The host of the process that has the lock, or ""."""
        ...


class Lead:
    """Takes the lock and keeps it.

    In a pair, this process leads only while its lock was confirmed within the last 1.5 s, counted
    from before the question was sent. A process that has just got the lock waits 1.7 s before it
    leads. The lock may have become free because its holder died, its connection broke, or
    PostgreSQL was restarted or ended the session. In each case the earlier holder has stopped by
    then, even one that hangs or can't reach PostgreSQL, because it looks at its own clock before
    each action. So no two processes lead at any moment, provided that PostgreSQL gives the lock to
    one session at a time. The clock counts while the host sleeps. What was sent before can't be
    called back: one action may end late.

    Alone (not in a pair), the lock guards against a second process that was started by mistake.
    Once it is taken, PostgreSQL may go away; the lead ends only if another process has the lock
    when PostgreSQL is back.

    Attributes:
        holder: the host of the process that has the lock, where it is another; else "".
        denied: whether PostgreSQL's last answer was that another process has the lock.
    """

    def __init__(
        self,
        lock: Lock,
        log: logging.Logger,
        *,
        pair: bool,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._lock = lock
        self._log = log
        self._pair = pair
        self._now_s = now_s or _now_s
        self._held = False
        self._failed = False
        self._leads_alone = False
        self._confirmed_s = float("-inf")
        self._from_s = float("inf")
        self._led = False
        self.holder = ""
        self.denied = False

    def leads(self) -> bool:
        """Whether this process may act now."""
        if not self._pair:
            return self._leads_alone
        return self._held and self._from_s <= self._now_s() < self._confirmed_s + _VALID_S

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take turns in a separate thread, as reading many jobs holds up the loop for seconds."""
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
        """Take the lock, or make sure that it is held."""
        asked_s = self._now_s()
        try:
            held = self._lock.hold()
            self.holder = "" if held else self._lock.holder()
        except Exception as error:  # noqa: BLE001 -- the thread that keeps the lead must not end
            if self._held or not self._failed:
                self._report(logging.WARNING, "leader_lock_failed", error=error)
            self._held, self._failed = False, True
        else:
            self._note(held, asked_s)
        self._tell()

    def _note(self, held: bool, asked_s: float) -> None:
        if held and not self._held:
            self._from_s = self._now_s() + _SETTLE_S
        if held:
            self._confirmed_s = asked_s
        self.denied = not held
        # Set last, because another thread asks whether this process leads.
        self._held = self._leads_alone = held
        self._failed = False

    def _tell(self) -> None:
        if self.leads() != self._led:
            self._led = not self._led
            event = "leads" if self._led else "stands_by"
            self._report(logging.INFO, event, leader=self.holder or "-")

    def _report(self, level: int, event: str, **fields: object) -> None:
        emit(self._log, level, event, fields)


def led_only(target: T, leader: Leader, changes: frozenset[str]) -> T:
    """Wrap ``target`` so that the calls named in ``changes`` are made only while ``leader`` leads.

    The leader is asked right before each of these calls, which may raise what ``require`` raises.
    """
    return cast("T", _LedOnly(target, leader, changes))


class _LedOnly:
    def __init__(self, target: object, leader: Leader, changes: frozenset[str]) -> None:
        self._target = target
        self._leader = leader
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._target, name)
        return self._guarded(call) if name in self._changes else call

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            self._leader.require()
            return call(*arguments, **options)

        return guarded


def _now_s() -> float:
    """Seconds of a clock that also counts while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
