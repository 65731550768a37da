"""Deletes what is old in the ledger's journals, once a day, some rows in each turn.

Charges, budgets, quotas, sums of usage, keys and generations that ran are never deleted.
"""

import asyncio
import time

from slicewise.cluster.language.errors import OutsideError
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.observations import DAY_S
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_RETRY_S = 3600.0
"""Seconds until another try after PostgreSQL refused one, such as for want of a right."""

_AT_ONCE = 5000
"""Changes of loans in one statement, which takes some 50 ms."""

_REPARTITIONS_AT_ONCE, _GENERATIONS_AT_ONCE, _RECORDS_AT_ONCE = 100, 5000, 5000


class RetentionLoop:
    """Goes through changes of loans, repartitions, records of usage, then generations.

    A change is compared with the newer ones of the same statement: what a day leaves of them is
    looked at again the next day.
    """

    def __init__(self, ledger: Ledger, cluster_state: ClusterState, kept_days: int) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._kept_s = kept_days * DAY_S
        self._seen_id = 0
        self._due_s = 0.0

    async def turn(self) -> None:
        """Delete the next rows, unless all that is old was deleted today.

        Raises what the ledger raises.
        """
        if time.monotonic() < self._due_s:
            return
        # A clock that was set ahead makes nothing old: this one follows it an hour later.
        before_s = self._cluster_state.looked_s - self._kept_s
        try:
            if await asyncio.to_thread(self._is_done, before_s):
                self._seen_id, self._due_s = 0, time.monotonic() + DAY_S
        except OutsideError:
            self._due_s = time.monotonic() + _RETRY_S
            raise

    def _is_done(self, before_s: float) -> bool:
        seen_id = self._ledger.loans.forget(before_s, self._seen_id, _AT_ONCE)
        if seen_id is not None:
            self._seen_id = seen_id
            return False
        forgotten = self._ledger.repartitions.forget(before_s, _REPARTITIONS_AT_ONCE)
        if forgotten == _REPARTITIONS_AT_ONCE:
            return False
        if self._ledger.usage.forget(before_s, _RECORDS_AT_ONCE) == _RECORDS_AT_ONCE:
            return False
        view = self._cluster_state.view
        if not view.complete:
            return False
        living = [service.array_job_id for service in view.services]
        generations = self._ledger.generations.forget(before_s, living, _GENERATIONS_AT_ONCE)
        return generations < _GENERATIONS_AT_ONCE
