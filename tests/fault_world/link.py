"""The line between one process and a server: what is asked over it may fail, and be late."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from fault_world.faults import CrashError, Fault, Faults, down
from fault_world.trace import Trace
from fault_world.virtual_time import WorldClock
from slicewise.cluster.language.errors import SlicewiseError

T = TypeVar("T")
_TAKES_S = 0.01
"""Seconds that a call takes at least."""


class Link:
    """What one process asks, until it dies.

    Attributes:
        is_alive: false once the process has died: nothing that it still does has any effect.
    """

    def __init__(self, who: str, faults: Faults, clock: WorldClock, trace: Trace) -> None:
        self._who, self._faults, self._clock, self._trace = who, faults, clock, trace
        self.is_alive = True

    async def ask(
        self,
        server: str,
        words: str,
        call: Callable[[], T],
        *,
        changes: bool = False,
        part: Callable[[Callable[[int], int]], Any] | None = None,
    ) -> T:
        """Have the server do ``call``; ``part`` does only a part of it.

        Raises UnreachableError without an answer, and CrashError where the process dies.
        """
        self._require_life()
        fault = self._faults.of_call(server, words, self._clock.passed_s, changes=changes)
        await asyncio.sleep(_TAKES_S + self._faults.pause_s() + self._faults.takes_s(server))
        self._require_life()
        if fault is Fault.CRASH_BEFORE:
            self._die(f"before {words}")
        if fault is Fault.DOWN:
            raise self._no_answer(server, words, fault)
        if fault is Fault.AFTERWARDS:
            loop = asyncio.get_running_loop()
            loop.call_later(self._faults.later_s(), self._afterwards, words, call)
            raise self._no_answer(server, words, fault)
        if fault is Fault.PARTLY and part is not None:
            part(self._faults.part)
            raise self._no_answer(server, words, fault)
        if changes:
            self._trace.note(self._who, words)
        done = call()
        if fault is Fault.CRASH_AFTER:
            self._die(f"after {words}")
        if late_s := self._faults.takes_s(server) + self._faults.pause_s():
            await asyncio.sleep(late_s)
            self._require_life()
        if fault in {Fault.LOST, Fault.PARTLY}:
            raise self._no_answer(server, words, Fault.LOST)
        return done

    def call(self, server: str, words: str, call: Callable[[], T], *, changes: bool) -> T:
        """Do the same for a caller that does not wait by the loop, as in a thread."""
        self._require_life()
        fault = self._faults.of_call(server, words, self._clock.passed_s, changes=changes)
        if fault is Fault.CRASH_BEFORE:
            self._die(f"before {words}")
        if fault in {Fault.DOWN, Fault.AFTERWARDS, Fault.PARTLY}:
            raise self._no_answer(server, words, Fault.DOWN)
        if changes:
            self._trace.note(self._who, words)
        done = call()
        if fault is Fault.CRASH_AFTER:
            self._die(f"after {words}")
        if fault is Fault.LOST:
            raise self._no_answer(server, words, fault)
        return done

    def _require_life(self) -> None:
        if not self.is_alive:
            raise CrashError

    def _die(self, when: str) -> None:
        self._trace.note(self._who, f"DIES {when}")
        self.is_alive = False
        raise CrashError

    def _no_answer(self, server: str, words: str, fault: Fault) -> Exception:
        self._trace.note(server, f"{fault}: {words}")
        return down(server)

    def _afterwards(self, words: str, call: Callable[[], Any]) -> None:
        self._trace.note(self._who, f"long after: {words}")
        with suppress(SlicewiseError):
            call()
