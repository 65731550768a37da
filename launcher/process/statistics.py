"""What the models of each service have counted: its replicas' statistics, added up.

Clients ask as they would ask one server, and take the difference of two answers. So no count may
become less when a replica ends: what it last said still counts. Services that no client asks about
are not asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from launcher.engines.engine import CountedEngine, Engine
from launcher.engines.registry import ENGINES
from launcher.engines.statistics import Counts, followed, lasting, together
from launcher.probing.prober import Replica
from launcher.turn.plan import TurnPlan
from launcher.turn.state import ServiceState, State

Ask = Callable[[Replica], Awaitable[Counts | None]]
_Run = tuple[int, int, int]
"""A run of a replica: its array job id, slot index, and when it began."""

_APART_S = 0.25
"""Seconds at least between two looks at one service, however many clients ask."""
_LOOKS = 4
"""Services that are looked at in parallel; each of their replicas is asked for a second at most."""
_ASKED_S = 600.0
"""Seconds after a question for which a service is looked at from time to time: a replica that ends
then has just said what it has counted."""
_KEPT_S = 86_400.0
"""Seconds after a question for which it is known what ended replicas have counted."""
_MOST_ENDED = 32
"""Runs that have ended and are still known one by one: none that is seen again is added twice."""


@dataclass(frozen=True)
class _Saved:
    """What is known of a service, as it is saved: counts are pairs of a key and a number."""

    ended: list[tuple[tuple[str, ...], int]]
    runs: list[tuple[_Run, list[tuple[tuple[str, ...], int]]]]


_SAVED = TypeAdapter(dict[str, _Saved])


@dataclass
class _Service:
    """What is known of a service.

    Attributes:
        counts: what each run of a replica has said last, also of those that have ended.
        ended: the counts together of runs that ended before those.
        asked_s: when a client last asked; None: not yet, or long ago.
        looks: how many looks have begun, the last one at ``looked_s``.
    """

    engine: CountedEngine
    replicas: Mapping[_Run, Replica] = field(default_factory=dict)
    counts: dict[_Run, Counts] = field(default_factory=dict)
    ended: Counts = field(default_factory=dict)
    asked_s: float | None = None
    looked_s: float = 0.0
    looks: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def goes_on(self, replicas: Mapping[_Run, Replica]) -> None:
        """Take over which replicas there are."""
        if replicas.keys() == self.replicas.keys():
            return
        self.replicas, kind = replicas, self.engine.statistics_kind
        gone = [run for run in self.counts if run not in replicas]
        for run in gone:
            self.counts[run] = lasting(self.counts[run], kind)
        for run in gone[: max(0, len(gone) - _MOST_ENDED)]:
            self.ended = together([self.ended, self.counts.pop(run)], kind)

    def forget(self) -> None:
        """Forget all counts: no client has asked for long."""
        self.asked_s, self.counts, self.ended = None, {}, {}

    @property
    def all(self) -> Counts | None:
        """Counts of all replicas together; None if none has ever said any."""
        if not self.counts and not self.ended:
            return None
        return together([self.ended, *self.counts.values()], self.engine.statistics_kind)

    @property
    def saved(self) -> _Saved:
        """What is known, to be saved."""
        runs = [(run, list(counts.items())) for run, counts in self.counts.items()]
        return _Saved(list(self.ended.items()), runs)


class ServiceStatistics:
    """Asks the replicas of a service while clients ask for its statistics."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._services: dict[str, _Service] = {}
        self._restored: Mapping[str, _Saved] = {}
        self._looking = asyncio.Semaphore(_LOOKS)

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas each service has."""
        pools = {one.service: one.route.pool for one in plan.services}
        engines = {one.pool: one for one in ENGINES.values() if isinstance(one, CountedEngine)}
        for key in self._services.keys() - state.keys():
            del self._services[key]
        for key, known in state.items():
            if (engine := engines.get(pools.get(key, ""))) is not None:
                service = self._services.get(key) or self._new(key, engine)
                service.engine = engine
                service.goes_on(dict(_replicas(known, engine)))

    def _new(self, key: str, engine: CountedEngine) -> _Service:
        service = self._services[key] = _Service(engine)
        if saved := self._restored.get(key):
            service.ended = dict(saved.ended)
            service.counts = {run: dict(counts) for run, counts in saved.runs}
            service.asked_s = time.monotonic()
        return service

    def saved(self) -> str:
        """Return what is known of the services about which clients have asked, to be saved."""
        asked = {key: one.saved for key, one in self._services.items() if one.asked_s is not None}
        return _SAVED.dump_json(asked).decode()

    def restore(self, saved: str) -> None:
        """Go on with what another launcher, or this one before its restart, has saved.

        What can't be read is left out: those counts begin again.
        """
        with suppress(ValidationError):
            self._restored, self._services = _SAVED.validate_json(saved), {}

    def engine_of(self, key: str) -> CountedEngine | None:
        """Return the engine of ``tenant/service``; None if there is none that counts."""
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
            asked = dict(service.replicas)
            said = await asyncio.gather(*map(self._ask, asked.values()))
        kind = service.engine.statistics_kind
        for run, counts in zip(asked, said, strict=True):
            # One that has ended meanwhile has its last word in what was known of it.
            if counts is not None and run in service.replicas:
                service.counts[run] = followed(service.counts.get(run, {}), counts, kind)


def _replicas(known: ServiceState, engine: Engine) -> Iterator[tuple[_Run, Replica]]:
    for array, generation in known.generations.items():
        for index, verified in generation.verified.items():
            start_s, to = verified.run.start_s, verified.run.endpoint
            name = f"{array}.{index}"
            replica = Replica(to.address, to.http_port, to.certificate, start_s, "", name, engine)
            yield (array, index, start_s), replica
