"""The loop between ledger and Slurm: compiles quotas, charges runs; nobody waits for it."""

import asyncio
import pwd
import time
from collections.abc import Iterable, Mapping

from cluster.errors import UnreachableError
from cluster.jobs import JobView, RunRecord
from cluster.settings import Settings
from cluster.slurm.interface import Association, Slurm
from slurm_plugin.compile import compile_limits
from slurm_plugin.decide.charging import ACCOUNTING_DELAY_S, Tariff, charge, next_watermark_s
from slurm_plugin.decide.gone import Gone, gone_runs, lost_ends
from slurm_plugin.decide.model import RunKey
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.observe import report, report_failure, warn
from slurm_plugin.sync import Sync

_RECOMPILE_S = 15.0
"""How often limits and associations are looked at though no quota changed: others change them."""

_SETTLE_S = 5.0
"""How often accounting is asked though no run is known to have ended."""

_LATE_S = 60
"""Accounting that does not show an end so long after it is asked no more often than that."""


class Bookkeeping:
    """Keeps Slurm's limits as the ledger says, and the ledger as Slurm's accounting says."""

    def __init__(self, settings: Settings, slurm: Slurm, ledger: Ledger, sync: Sync) -> None:
        self._cluster = settings.cluster.name
        self._compiles = settings.daemon.mode == "enforce"
        self._tariff = Tariff(self._cluster, frozenset(settings.cluster.partitions), settings.costs)
        self._slurm = slurm
        self._ledger = ledger
        self._sync = sync
        self._compiled_change = -1
        self._compile_due_s = 0.0
        self._settle_due_s = 0.0
        self._gone: Mapping[RunKey, Gone] = {}
        self._answering_since_s: int | None = None

    async def start(self) -> None:
        """Check the ledger's version; from now on every run's end is charged."""
        await asyncio.to_thread(self._ledger.require_current)
        await asyncio.to_thread(self._ledger.accounted_until_s)

    async def turn(self) -> None:
        """Charge, then compile if quotas changed or it is time to look again."""
        await self._charge()
        change_id = await asyncio.to_thread(self._ledger.change_id)
        if change_id != self._compiled_change or time.monotonic() >= self._compile_due_s:
            await self.compile()

    async def compile(self) -> None:
        """Bring Slurm's limits to the ledger's quotas, and admission with them."""
        change_id = await asyncio.to_thread(self._ledger.change_id)
        quotas = await asyncio.to_thread(self._ledger.quotas)
        if self._compiles:
            for change in await compile_limits(self._slurm, quotas, self._cluster):
                report("limit_set", sacctmgr=" ".join(change))
        accounts = await asyncio.to_thread(accounts_by_uid, await self._slurm.associations())
        nominal = {tenant: quota.nominal_millislices for tenant, quota in quotas.items()}
        self._sync.set_policy(nominal, accounts)
        if self._compiles:
            # Last: who reads "in force" may submit at once.
            await asyncio.to_thread(self._ledger.mark_compiled, change_id)
        self._compiled_change = change_id
        self._compile_due_s = time.monotonic() + _RECOMPILE_S

    async def _charge(self) -> None:
        """Reserve for what runs, settle what has ended."""
        jobs, looked_s = self._sync.jobs, int(self._sync.view.observed_s)
        reservations = await asyncio.to_thread(self._ledger.open_reservations)
        since_s = await asyncio.to_thread(self._ledger.accounted_until_s)
        self._gone = gone_runs(self._gone, looked_s, jobs, reservations)
        records = await self._records(since_s, looked_s)
        lost = {} if records is None else lost_ends(self._gone, looked_s)
        decided = charge(self._tariff, jobs, records or (), reservations, lost)
        if decided.charges:
            booked = await asyncio.to_thread(self._ledger.apply, decided.charges)
            if booked:
                report("charged", runs=len(booked))
        for odd in decided.observations:
            warn("charge_odd", job=odd.key.job_id, text=odd.text)
        if records is not None:
            await self._move_watermark(since_s, looked_s, jobs)

    async def _records(self, since_s: int, looked_s: int) -> tuple[RunRecord, ...] | None:
        """Accounting's runs if some may be new; None if not, or if it does not answer."""
        ended = any(looked_s - gone.since_s < _LATE_S for gone in self._gone.values())
        if not ended and time.monotonic() < self._settle_due_s:
            return None
        try:
            records = await self._slurm.runs(since_s)
        except UnreachableError as error:
            report_failure("accounting_unreachable", error)
            self._answering_since_s = None
            return None
        if self._answering_since_s is None:
            self._answering_since_s = looked_s
        self._settle_due_s = time.monotonic() + _SETTLE_S
        return records

    async def _move_watermark(self, since_s: int, looked_s: int, jobs: tuple[JobView, ...]) -> None:
        """Not before accounting has answered long enough to have caught up with slurmctld."""
        if looked_s - (self._answering_since_s or looked_s) < ACCOUNTING_DELAY_S:
            return
        still_open = await asyncio.to_thread(self._ledger.open_reservations)
        until_s = next_watermark_s(since_s, looked_s, jobs, still_open)
        if until_s > since_s:
            await asyncio.to_thread(self._ledger.set_accounted_until_s, until_s)


def accounts_by_uid(associations: Iterable[Association]) -> Mapping[int, frozenset[str]]:
    """Accounts of each user that this host knows; reads the user database."""
    accounts: dict[str, set[str]] = {}
    for association in associations:
        if association.user:
            accounts.setdefault(association.user, set()).add(association.account)
    found = ((_uid(user), frozenset(names)) for user, names in accounts.items())
    return {uid: names for uid, names in found if uid is not None}


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
