"""Looks at the cluster's figures each ten seconds, and has the ledger keep and sum them up.

What was seen and is not written yet is lost with the daemon: one look, or a minute of them while
PostgreSQL does not answer. Such a time is a gap, which is never filled.
"""

import asyncio
import time
from collections import deque

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.overview_facts import facts_now
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.history import KEPT_S, MINUTE_S, TEN_S, HistorySample
from slicewise.slurm_plugin.rules.overview.samples import history_sample
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_UNWRITTEN = 6
"""Looks that wait for PostgreSQL at most: of a minute."""
_AT_ONCE = 20_000
"""Old rows that one statement deletes at most."""
_STATEMENTS = 50
"""Times that so many are deleted in one minute, at most."""
_DAY_S = 86_400.0
_RETRY_S = 600.0
"""Seconds until another try after PostgreSQL refused one, such as for want of a right."""
_EVERYBODY = Principal(0, "root", None)


class HistoryLoop:
    """Takes looks in the loop's thread's pauses: figures and rows are made in other threads."""

    def __init__(self, settings: Settings, ledger: Ledger, cluster_state: ClusterState) -> None:
        self._settings = settings
        self._most_services = settings.gateway.services
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._unwritten: deque[HistorySample] = deque(maxlen=_UNWRITTEN)
        self._seen_s = self._summed_s = 0
        self._names_due_s = self._due_s = 0.0

    async def look(self) -> None:
        """Keep in memory what is to be seen, once in ten seconds; nothing while Slurm is away."""
        state = self._cluster_state
        at_s = int(state.clock.shown_s) // TEN_S * TEN_S
        was_set_back_s = self._seen_s - at_s
        if 0 <= was_set_back_s < MINUTE_S or not state.view.complete:
            return
        self._seen_s = at_s
        facts = facts_now(
            *(self._settings, state, state.jobs), seats={}, resets_s={}, surveyed={}, indices={}
        )
        self._unwritten.append(
            await asyncio.to_thread(history_sample, facts, _EVERYBODY, at_s, self._most_services)
        )

    async def turn(self) -> None:
        """Write what was seen; once a minute sum up and delete. Raises what the ledger raises.

        What can't be written stays for the next turn, up to a minute of it.
        """
        if time.monotonic() < self._due_s:
            return
        try:
            await self._write()
        except OutsideError:
            self._due_s = time.monotonic() + _RETRY_S
            raise

    async def _write(self) -> None:
        if samples := tuple(self._unwritten):
            await asyncio.to_thread(self._ledger.history.add, samples)
            for sample in samples:
                # Of those that were written some may have made room for newer ones meanwhile.
                if self._unwritten and self._unwritten[0] is sample:
                    self._unwritten.popleft()
        now_s = int(self._cluster_state.clock.shown_s)
        if now_s // MINUTE_S != self._summed_s // MINUTE_S and not self._unwritten:
            await asyncio.to_thread(self._tidy, now_s)
            self._summed_s = now_s

    def _tidy(self, now_s: int) -> None:
        history = self._ledger.history
        history.sum_up(now_s)
        for _ in range(_STATEMENTS):
            if history.forget(now_s, KEPT_S, _AT_ONCE):
                break
        if time.monotonic() >= self._names_due_s:
            history.forget_names()
            self._names_due_s = time.monotonic() + _DAY_S
