"""Asks replicas how long their tokens take, where a service has an objective of that."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from launcher.engines.engine import TokenCounts, TokenEngine
from launcher.engines.registry import ENGINES
from launcher.probing.prober import Replica
from launcher.process.saved_statistics import Run
from launcher.process.statistics import replicas_of
from launcher.turn.plan import TurnPlan
from launcher.turn.state import State

_ASKED_AT_ONCE = 16
"""Replicas that are asked at the same time at most."""

Ask = Callable[[Replica], Awaitable[TokenCounts | None]]


class TokenWatch:
    """Adds up what the replicas of a service have counted while this launcher led."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._places = asyncio.Semaphore(_ASKED_AT_ONCE)
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
        self.counts = {key: one for key, one in self.counts.items() if key in self._replicas}
        self._before = {
            (key, run): one
            for (key, run), one in self._before.items()
            if run in self._replicas.get(key, {})
        }

    async def look(self) -> None:
        """Ask each replica once."""
        asked = [(key, *one) for key, found in self._replicas.items() for one in found.items()]
        said = await asyncio.gather(*(self._said(replica) for _, _, replica in asked))
        for (key, run, _), now in zip(asked, said, strict=True):
            if now is None:
                continue
            # What a replica had counted before it was first asked was long ago, perhaps.
            before = self._before.get((key, run), now)
            self._before[key, run] = now
            if now.first_s >= before.first_s and now.tokens >= before.tokens:
                self.counts[key] = _added(self.counts.get(key), before, now)

    async def _said(self, replica: Replica) -> TokenCounts | None:
        async with self._places:
            return await self._ask(replica)


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
    )
