"""What the models of each service have counted: its replicas' statistics, added up.

Clients ask as they would ask one server, and take the difference of two answers. So no count may
become less when a replica ends: what it last said still counts. Services that no client asks about
are not asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from launcher.engines.engine import Engine
from launcher.engines.registry import ENGINES
from launcher.engines.statistics import Counts, followed, lasting, together
from launcher.probing.prober import Replica
from launcher.turn.plan import TurnPlan
from launcher.turn.state import ServiceState, State

Ask = Callable[[Replica], Awaitable[Counts | None]]

_APART_S = 0.25
"""Seconds at least between two looks at one service, however many clients ask."""
_LOOKS = 4
"""Services that are looked at in parallel; each of their replicas is asked for a second at most."""
_ASKED_S = 600.0
"""Seconds after a question for which a service is looked at from time to time: a replica that ends
then has just said what it has counted."""
_KEPT_S = 86_400.0
"""Seconds after a question for which it is known what ended replicas have counted."""


@dataclass
class _Service:
    engine: Engine
    replicas: frozenset[Replica] = frozenset()
    counts: dict[Replica, Counts] = field(default_factory=dict)
    ended: Counts = field(default_factory=dict)
    asked_s: float | None = None
    looked_s: float = 0.0
    looks: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def goes_on(self, replicas: frozenset[Replica]) -> None:
        """Take over which replicas there are; add up those that have ended."""
        gone = [self.counts.pop(one) for one in self.counts.keys() - replicas]
        kind = self.engine.statistics_kind
        self.ended = together([self.ended, *(lasting(one, kind) for one in gone)], kind)
        self.replicas = replicas

    def forget(self) -> None:
        """Forget all counts: no client has asked for long."""
        self.asked_s, self.counts, self.ended = None, {}, {}

    @property
    def all(self) -> Counts | None:
        """Counts of all replicas together; None if none has ever said any."""
        if not self.counts and not self.ended:
            return None
        return together([self.ended, *self.counts.values()], self.engine.statistics_kind)


class ServiceStatistics:
    """Asks the replicas of a service while clients ask for its statistics."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._services: dict[str, _Service] = {}
        self._looking = asyncio.Semaphore(_LOOKS)

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas each service has."""
        pools = {one.service: one.route.pool for one in plan.services}
        engines = {engine.pool: engine for engine in ENGINES.values()}
        for key in self._services.keys() - state.keys():
            del self._services[key]
        for key, known in state.items():
            if key in pools:
                engine = engines[pools[key]]
                service = self._services.setdefault(key, _Service(engine))
                service.engine = engine
                service.goes_on(frozenset(_replicas(known, engine)))

    def engine_of(self, key: str) -> Engine | None:
        """Return the engine of ``tenant/service``; None if there is no such service."""
        service = self._services.get(key)
        return service.engine if service is not None else None

    async def counts(self, key: str) -> Counts | None:
        """Return what a service's models have counted until now; None if no replica has ever said.

        A replica that does not answer counts with what it said last.
        """
        service = self._services.get(key)
        if service is None:
            return None
        service.asked_s = time.monotonic()
        seen = service.looks
        async with service.lock:
            # A look that has begun since then answers this question, too.
            if service.looks == seen:
                await self._look(service)
        return service.all

    async def look_on(self) -> None:
        """Look at services about which clients have asked lately; forget what no client asks."""
        now_s = time.monotonic()
        for service in list(self._services.values()):
            if service.asked_s is None:
                continue
            if now_s - service.asked_s > _KEPT_S:
                service.forget()
            elif now_s - service.asked_s <= _ASKED_S and not service.lock.locked():
                async with service.lock:
                    await self._look(service)

    async def _look(self, service: _Service) -> None:
        await asyncio.sleep(max(0.0, service.looked_s + _APART_S - time.monotonic()))
        async with self._looking:
            service.looks += 1
            service.looked_s = time.monotonic()
            asked = tuple(service.replicas)
            said = await asyncio.gather(*map(self._ask, asked))
        kind = service.engine.statistics_kind
        for replica, counts in zip(asked, said, strict=True):
            # One that has ended meanwhile is added up no more.
            if counts is not None and replica in service.replicas:
                before = service.counts.get(replica, {})
                service.counts[replica] = followed(before, counts, kind)


def _replicas(known: ServiceState, engine: Engine) -> Iterator[Replica]:
    for array, generation in known.generations.items():
        for index, verified in generation.verified.items():
            run, to = verified.run, verified.run.endpoint
            yield Replica(
                to.address,
                to.http_port,
                to.certificate,
                run.start_s,
                model="",
                identity=f"{array}.{index}",
                engine=engine,
            )
