"""Asks replicas how long their tokens take, where a service has an objective of that."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from cluster.language.service import tenant_of
from launcher.autoscale.histogram import added_bins, counted_since
from launcher.engines.engine import TokenCounts, TokenEngine
from launcher.engines.registry import ENGINES
from launcher.probing.prober import Replica
from launcher.process.saved_statistics import Run
from launcher.process.statistics import replicas_of
from launcher.process.tenant_share import CpuTimed, TenantShare
from launcher.turn.plan import TurnPlan
from launcher.turn.state import State

_ASKED_IN_ALL = 256
"""Replicas that are asked in parallel: each takes an open file. A tenant has a share of that."""

Ask = Callable[[Replica], Awaitable[TokenCounts | None]]


class TokenWatch:
    """Adds up what the replicas of a service have counted while this launcher led."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._places = asyncio.Semaphore(_ASKED_IN_ALL)
        self._tenants: dict[str, TenantShare] = {}
        self._asking: dict[tuple[str, Run], asyncio.Task[None]] = {}
        self._replicas: Mapping[str, Mapping[Run, Replica]] = {}
        self._before: dict[tuple[str, Run], TokenCounts] = {}
        self.counts: dict[str, TokenCounts] = {}

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas serve services with such an objective."""
        engines = {one.pool: one for one in ENGINES.values() if isinstance(one, TokenEngine)}
        self._replicas = {
            one.service: dict(replicas_of(state[one.service], engine))
            for one in plan.services
            if one.times_tokens and (engine := engines.get(one.route.pool)) is not None
        }
        tenants = set(map(tenant_of, state))
        self._tenants = {name: one for name, one in self._tenants.items() if name in tenants}
        self.counts = {key: one for key, one in self.counts.items() if key in self._replicas}
        self._before = {
            (key, run): one
            for (key, run), one in self._before.items()
            if run in self._replicas.get(key, {})
        }

    def look(self) -> None:
        """Begin to ask each replica that is not being asked; what it says is added when it comes.

        None waits for those of other tenants, nor for the slow ones of its own service.
        """
        now_s = time.monotonic()
        for key, replicas in self._replicas.items():
            tenant = self._tenants.setdefault(tenant_of(key), TenantShare())
            if now_s < tenant.rests_until_s:
                continue
            for run, replica in replicas.items():
                if (key, run) not in self._asking:
                    asked = self._asked(tenant, key, run, replica)
                    self._asking[key, run] = asyncio.create_task(asked)

    async def _asked(self, tenant: TenantShare, key: str, run: Run, replica: Replica) -> None:
        try:
            async with tenant.asking, self._places:
                asking = CpuTimed(self._ask(replica))
                now = await asking
            tenant.has_taken(asking.cpu_s)
        finally:
            del self._asking[key, run]
        if now is not None and run in self._replicas.get(key, {}):
            self._take(key, run, now)

    def _take(self, key: str, run: Run, now: TokenCounts) -> None:
        # What a replica had counted before it was first asked was long ago, perhaps.
        before = self._before.get((key, run), now)
        self._before[key, run] = now
        if now.first_s >= before.first_s and now.tokens >= before.tokens:
            self.counts[key] = _added(self.counts.get(key), before, now)


def _added(total: TokenCounts | None, before: TokenCounts, now: TokenCounts) -> TokenCounts:
    known = total or TokenCounts(0.0, 0.0, 0.0, None if now.requests is None else 0.0)
    requests = None
    if known.requests is not None and now.requests is not None:
        requests = known.requests + max(0.0, now.requests - (before.requests or 0.0))
    return TokenCounts(
        known.first_s + now.first_s - before.first_s,
        known.tokens + now.tokens - before.tokens,
        known.token_s + max(0.0, now.token_s - before.token_s),
        requests,
        added_bins(known.firsts, counted_since(before.firsts, now.firsts)),
    )
