"""Waits until Slurm is to be looked at again, as ``services/pace.py`` decides."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace

from slicewise.cluster.language.slurm.asked import RequestCount
from slicewise.slurm_plugin.rules.services.pace import (
    MOST_ALONE,
    QUICK_S,
    Allowance,
    Looked,
    Pace,
    next_look_s,
    spent,
)


class Pacing:
    """What has happened since the last look, and when the next one is due.

    Attributes:
        acted: set when something was changed in Slurm: the next look is then due immediately.
    """

    def __init__(self, pace: Pace, asked: RequestCount) -> None:
        """``asked`` has what this process has asked Slurm so far."""
        self._pace = pace
        self._asked = asked
        self._counted = asked.total
        self._allowance = Allowance(pace.requests_per_min, time.monotonic())
        self._looked = Looked(time.monotonic(), 0.0, 0.0)
        self._failed = False
        self._stirred = asyncio.Event()
        self._stirred_s: float | None = None
        self._stirred_last_s = float("-inf")
        self._changed = asyncio.Event()
        self._arrays: frozenset[int] = frozenset()
        self.acted = asyncio.Event()

    def touch(self, array: int) -> None:
        """Note that the array was changed since the last look: the next one at some shows it, too,
        whenever that is due.
        """
        self._arrays |= {array}

    def change(self, arrays: Collection[int]) -> None:
        """Note that these arrays alone were changed: a look at them, or at all, is due at once."""
        self._arrays |= frozenset(arrays)
        if self._looked.took_s <= QUICK_S or len(self._arrays) > MOST_ALONE:
            self.acted.set()
        else:
            self.stir()
            self._changed.set()

    def alone(self) -> frozenset[int]:
        """Return the arrays that are to be looked at now; none where a look at all jobs is due."""
        is_asked = self._changed.is_set() and not self.has_spent_all
        is_due = self._due_s() <= time.monotonic()
        arrays = self._arrays if is_asked and not is_due else frozenset()
        self._arrays -= arrays
        self._changed.clear()
        return arrays

    def stir(self) -> None:
        """Note that something was heard of which the next looks will show."""
        now_s = time.monotonic()
        if self._stirred_s is None:
            self._stirred_s = now_s
        self._stirred_last_s = now_s
        self._stirred.set()

    def begin(self) -> bool:
        """Note that a look begins: what was heard of until now, it shows.

        Return whether nothing was under way at the last look, which did not fail, and nothing was
        changed or heard of since.
        """
        is_quiet = not self.acted.is_set() and not self._stirred.is_set()
        at_rest = is_quiet and not self._failed and not self._looked.moves
        # Until it ends: what it was to show may still be unseen.
        self._failed = True
        self.acted.clear()
        self._stirred.clear()
        self._stirred_s = None
        self._arrays = frozenset()
        self._changed.clear()
        self._began_s = time.monotonic()
        return at_rest

    def end(self, waited_s: float, *, moves: bool, waits: bool) -> None:
        """Note that a look has ended, and whether it found something under way, or that waits.

        ``waited_s``: how long its questions waited for answers, all together.
        """
        ended_s = time.monotonic()
        took_s = ended_s - self._began_s
        # Some of them wait beside each other.
        answered_s = min(took_s, waited_s)
        self._looked = Looked(ended_s, took_s, answered_s, moves, waits)
        self._failed = False

    @property
    def has_spent_all(self) -> bool:
        """Whether questions that can wait must wait now."""
        self._count()
        return self._allowance.left <= 0

    @property
    def may_look_now(self) -> bool:
        """Whether a look is so quick that a request may wait for one."""
        return self._looked.took_s <= QUICK_S and not self.has_spent_all

    async def wait(self) -> None:
        """Wait until the next look is due, at all jobs or at some arrays."""
        while (left_s := self._due_s() - time.monotonic()) > 0:
            if self._changed.is_set() and not self.has_spent_all:
                return
            known = (self.acted, self._stirred, self._changed)
            events = [event for event in known if not event.is_set()]
            waits = [asyncio.create_task(event.wait()) for event in events]
            try:
                if waits:
                    await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(left_s)
            finally:
                for wait in waits:
                    wait.cancel()

    def _due_s(self) -> float:
        self._count()
        looked = replace(
            self._looked,
            stirred_s=self._stirred_s,
            stirred_last_s=self._stirred_last_s,
            acted=self.acted.is_set(),
        )
        return next_look_s(looked, self._allowance, self._pace)

    def _count(self) -> None:
        asked = self._asked.total
        self._allowance = spent(
            self._allowance, asked - self._counted, self._pace, time.monotonic()
        )
        self._counted = asked
