"""What the models of each service have counted: its replicas' statistics, added up.

Clients ask as they would ask one server, and take the difference of two answers. So no count may
become less when a replica ends: what it last said still counts. Services that no client asks about
are not asked.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from launcher.engines.engine import CountedEngine, Engine
from launcher.engines.failures import ENGINE_FAILURES
from launcher.engines.registry import ENGINES
from launcher.engines.statistics import (
    Counts,
    Kind,
    StatisticsAnswer,
    bounded,
    followed,
    lasting,
    together,
)
from launcher.gateway.types import tenant_of
from launcher.probing.prober import Replica
from launcher.turn.plan import TurnPlan
from launcher.turn.state import ServiceState, State

Ask = Callable[[Replica], Awaitable[Counts | None]]
_Run = tuple[int, int, int]
"""A run of a replica: its array job id, slot index, and when it began."""

_APART_S = 0.25
"""Seconds at least between two looks at one service, however many clients ask."""
_LOOKS = 2
"""Services of one tenant that are looked at in parallel: each of their replicas is asked for a
second at most. No other tenant's wait for them."""
_ASKED, _ASKED_IN_ALL = 32, 256
"""Replicas of one tenant, and of all, that are asked in parallel: each takes an open file."""
_REST = 10.0
"""Seconds without a look at a tenant's services for each second of CPU that they took."""
_ASKED_S = 600.0
"""Seconds after a question for which a service is looked at from time to time: a replica that ends
then has just said what it has counted."""
_KEPT_S = 86_400.0
"""Seconds after a question for which it is known what ended replicas have counted."""
_MOST_ENDED = 32
"""Runs that have ended and are still known one by one: none that is seen again is added twice."""
_MOST_ENDED_KEYS = 20_000
"""Keys of those runs together."""
_MOST_SAVED_BYTES = 1024 * 1024
"""Bytes that are saved of a service at most."""
_MOST_SAVED_IN_ALL_BYTES = 16 * 1024 * 1024
_BESIDE_BYTES = 4
"""Bytes that JSON has beside each word of a key, and beside its count."""


@dataclass(frozen=True)
class _Saved:
    """What is known of a service, as it is saved: counts are pairs of a key and a number."""

    ended: list[tuple[tuple[str, ...], int]]
    runs: list[tuple[_Run, list[tuple[tuple[str, ...], int]]]]


@dataclass(frozen=True)
class SavedStatistics:
    """What is to be saved.

    Attributes:
        left_out: services of which not all is saved: there is too much of it.
    """

    text: str
    left_out: tuple[str, ...]


_SAVED = TypeAdapter(dict[str, _Saved])
_SAVED_ONE = TypeAdapter(_Saved)
_Result = TypeVar("_Result")


class _Stepped:
    """Awaits, and adds up the CPU that this takes the loop's thread."""

    def __init__(self, awaited: Awaitable[Counts | None]) -> None:
        self._awaited = awaited
        self.cpu_s = 0.0

    def __await__(self) -> Generator[Any, Any, Counts | None]:
        steps = self._awaited.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            begin_s = time.thread_time()
            try:
                waits_for = step()
            except StopIteration as ended:
                said: Counts | None = ended.value
                return said
            finally:
                self.cpu_s += time.thread_time() - begin_s
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 -- whoever is awaited is cancelled, too
                step = partial(steps.throw, error)
            else:
                step = partial(next, steps)


@dataclass
class _Tenant:
    """What a tenant's services take of the launcher.

    Attributes:
        looking: lets so many looks go on in parallel.
        asking: lets so many replicas be asked in parallel.
        rests_until_s: when the next look may begin.
    """

    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LOOKS))
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ASKED))
    rests_until_s: float = 0.0

    def has_taken(self, cpu_s: float) -> None:
        """Let others have the CPU for a multiple of what was taken."""
        self.rests_until_s = max(self.rests_until_s, time.monotonic()) + _REST * cpu_s

    async def apart(self, work: Callable[[], _Result]) -> _Result:
        """Work in a thread: the event loop goes on meanwhile."""

        def measured() -> tuple[_Result, float]:
            begin_s = time.thread_time()
            return work(), time.thread_time() - begin_s

        found, cpu_s = await asyncio.to_thread(measured)
        self.has_taken(cpu_s)
        return found


@dataclass
class _Derived:
    """What follows from a service's counts as long as they stay as they are."""

    all: Counts | None = None
    answers: dict[tuple[str, bytes | None], StatisticsAnswer] = field(default_factory=dict)
    saved: tuple[str, bool] | None = None


@dataclass
class _Service:
    """What is known of a service.

    Attributes:
        counts: what each run of a replica has said last, also of those that have ended.
        ended: the counts together of runs that ended before those.
        asked_s: when a client last asked; None: not yet, or long ago.
        looks: how many looks have begun, the last one at ``looked_s``.
        derived: what follows from ``counts`` and ``ended``; another object once these are others.
    """

    engine: CountedEngine
    tenant: _Tenant
    replicas: Mapping[_Run, Replica] = field(default_factory=dict)
    counts: dict[_Run, Counts] = field(default_factory=dict)
    ended: Counts = field(default_factory=dict)
    asked_s: float | None = None
    looked_s: float = 0.0
    looks: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    derived: _Derived = field(default_factory=_Derived)

    def goes_on(self, replicas: Mapping[_Run, Replica]) -> None:
        """Take over which replicas there are."""
        if replicas.keys() == self.replicas.keys():
            return
        self.replicas, kind = replicas, self.engine.statistics_kind
        gone = [run for run in self.counts if run not in replicas]
        for run in gone:
            self.counts[run] = lasting(self.counts[run], kind)
        keys = sum(len(self.counts[run]) for run in gone)
        for number, run in enumerate(gone):
            if len(gone) - number <= _MOST_ENDED and keys <= _MOST_ENDED_KEYS:
                break
            keys -= len(self.counts[run])
            self.ended = together([self.ended, self.counts.pop(run)], kind)
        self.derived = _Derived()

    def forget(self) -> None:
        """Forget all counts: no client has asked for long."""
        self.asked_s, self.counts, self.ended = None, {}, {}
        self.derived = _Derived()

    async def all(self) -> Counts | None:
        """Return the counts of all replicas together; None if none has ever said any."""
        if not self.counts and not self.ended:
            return None
        derived = self.derived
        if derived.all is None:
            found, kind = [self.ended, *self.counts.values()], self.engine.statistics_kind
            derived.all = await self.tenant.apart(partial(together, found, kind))
        return derived.all

    async def answer(self, path: str, frame: bytes | None) -> StatisticsAnswer | None:
        """Return the answer to a client; ``frame`` is that of gRPC's call."""
        derived, engine, counts = self.derived, self.engine, await self.all()
        if counts is None:
            return None
        if (found := derived.answers.get((path, frame))) is not None:
            return found
        if frame is None:
            work = partial(engine.statistics_by_http, path, counts)
        else:
            work = partial(engine.statistics_by_grpc, frame, counts)
        found = derived.answers[path, frame] = await self.tenant.apart(work)
        return found

    async def saved(self) -> tuple[str, bool]:
        """Return what is known, to be saved, and whether that is all."""
        derived = self.derived
        if derived.saved is None:
            work = partial(_to_save, self.ended, dict(self.counts))
            derived.saved = await asyncio.to_thread(work)
        return derived.saved


class ServiceStatistics:
    """Asks the replicas of a service while clients ask for its statistics."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._services: dict[str, _Service] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._restored: dict[str, _Saved] = {}
        self._asking = asyncio.Semaphore(_ASKED_IN_ALL)

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas each service has."""
        pools = {one.service: one.route.pool for one in plan.services}
        engines = {one.pool: one for one in ENGINES.values() if isinstance(one, CountedEngine)}
        for key in self._services.keys() - state.keys():
            del self._services[key]
        for key in self._restored.keys() - state.keys():
            del self._restored[key]
        tenants = set(map(tenant_of, state))
        self._tenants = {name: one for name, one in self._tenants.items() if name in tenants}
        for key, known in state.items():
            if (engine := engines.get(pools.get(key, ""))) is not None:
                try:
                    service = self._services.get(key) or self._new(key, engine)
                    service.engine = engine
                    service.goes_on(dict(_replicas(known, engine)))
                except Exception as error:  # noqa: BLE001 -- an engine of the site's: others go on
                    ENGINE_FAILURES.failed(engine, error)

    def _new(self, key: str, engine: CountedEngine) -> _Service:
        tenant = self._tenants.setdefault(tenant_of(key), _Tenant())
        service = self._services[key] = _Service(engine, tenant)
        if (saved := self._restored.pop(key, None)) is not None:
            service.ended = bounded(saved.ended)
            service.counts = {run: bounded(counts) for run, counts in saved.runs}
            service.asked_s = time.monotonic()
        return service

    async def saved(self) -> SavedStatistics:
        """Return what is known of the services about which clients have asked, to be saved.

        Of a service there is a bounded part. If all is too much, the tenants with least come first.
        """
        found: dict[str, dict[str, str]] = {}
        left_out: list[str] = []
        for key, service in list(self._services.items()):
            if service.asked_s is None:
                continue
            try:
                text, is_all = await service.saved()
            except Exception as error:  # noqa: BLE001 -- what its engine counts is no text
                ENGINE_FAILURES.failed(service.engine, error)
                continue
            found.setdefault(tenant_of(key), {})[key] = text
            left_out += [] if is_all else [key]
        for key, saved in self._restored.items():
            text = _SAVED_ONE.dump_json(saved).decode()
            found.setdefault(tenant_of(key), {})[key] = text
        parts: list[str] = []
        left = _MOST_SAVED_IN_ALL_BYTES
        for texts in sorted(found.values(), key=lambda texts: sum(map(len, texts.values()))):
            for key, text in texts.items():
                if len(text) <= left:
                    left -= len(text)
                    parts.append(f"{json.dumps(key)}:{text}")
                else:
                    left_out.append(key)
        return SavedStatistics("{" + ",".join(parts) + "}", tuple(sorted(set(left_out))))

    def restore(self, saved: str) -> None:
        """Go on with what another launcher, or this one before its restart, has saved.

        What can't be read is left out: those counts begin again.
        """
        with suppress(ValidationError):
            self._restored, self._services = _SAVED.validate_json(saved), {}

    async def counts(self, key: str) -> Counts | None:
        """Return what a service's models have counted until now; None if no replica has ever said.

        A replica that does not answer counts with what it said last.
        """
        return await self._seen(key, _Service.all)

    async def answer(self, key: str, path: str, frame: bytes | None) -> StatisticsAnswer | None:
        """Answer a client that asks for ``path``, or by gRPC with ``frame``; None as in counts."""
        return await self._seen(key, lambda service: service.answer(path, frame))

    async def _seen(
        self, key: str, told: Callable[[_Service], Awaitable[_Result | None]]
    ) -> _Result | None:
        service = self._services.get(key)
        if service is None:
            return None
        service.asked_s = time.monotonic()
        seen = service.looks
        async with service.lock:
            try:
                # A look that has begun since then answers this question, too.
                if service.looks == seen:
                    await self._look(service)
                return await told(service)
            except Exception as error:  # noqa: BLE001 -- an engine of the site's: it has said none
                ENGINE_FAILURES.failed(service.engine, error)
                return None

    async def look_on(self) -> None:
        """Look at services about which clients have asked lately; forget what no client asks."""
        now_s, due = time.monotonic(), list[_Service]()
        for service in self._services.values():
            if service.asked_s is None:
                continue
            if now_s - service.asked_s > _KEPT_S:
                service.forget()
            elif now_s - service.asked_s <= _ASKED_S and not service.lock.locked():
                due.append(service)
        await asyncio.gather(*map(self._look_on, due))

    async def _look_on(self, service: _Service) -> None:
        async with service.lock:
            try:
                await self._look(service)
            except Exception as error:  # noqa: BLE001 -- an engine of the site's: others go on
                ENGINE_FAILURES.failed(service.engine, error)

    async def _look(self, service: _Service) -> None:
        tenant = service.tenant
        async with tenant.looking:
            begins_s = max(service.looked_s + _APART_S, tenant.rests_until_s)
            await asyncio.sleep(max(0.0, begins_s - time.monotonic()))
            service.looks += 1
            service.looked_s = time.monotonic()
            asked = dict(service.replicas)
            asking = [_Stepped(self._said(tenant, replica)) for replica in asked.values()]
            said = await asyncio.gather(*asking)
            tenant.has_taken(sum(one.cpu_s for one in asking))
            pairs = [
                (run, service.counts.get(run, {}), counts)
                for run, counts in zip(asked, said, strict=True)
                if counts is not None
            ]
            kind = service.engine.statistics_kind
            news = await tenant.apart(partial(_news, pairs, kind))
        # Answers that are still true go, too: clients choose how many different ones they ask for.
        service.derived.answers.clear()
        for run, counts in news.items():
            # One that has ended meanwhile has its last word in what was known of it.
            if run in service.replicas:
                service.counts[run] = counts
                service.derived = _Derived()

    async def _said(self, tenant: _Tenant, replica: Replica) -> Counts | None:
        async with tenant.asking, self._asking:
            return await self._ask(replica)


def _news(pairs: Iterable[tuple[_Run, Counts, Counts]], kind: Kind) -> Mapping[_Run, Counts]:
    """Return what the runs have counted that have counted more than before."""
    after = ((run, before, followed(before, now, kind)) for run, before, now in pairs)
    return {run: found for run, before, found in after if found != before or not before}


def _to_save(ended: Counts, runs: Mapping[_Run, Counts]) -> tuple[str, bool]:
    """Write what is known of a service, and say whether that is all: a tenant chooses how much."""
    left = _MOST_SAVED_BYTES - _bytes_of(ended)
    kept = _Saved(list(ended.items()) if left >= 0 else [], [])
    for run, counts in runs.items():
        size = _bytes_of(counts)
        if size <= left:
            left -= size
            kept.runs.append((run, list(counts.items())))
    is_all = len(kept.runs) == len(runs) and len(kept.ended) == len(ended)
    return _SAVED_ONE.dump_json(kept).decode(), is_all


def _bytes_of(counts: Counts) -> int:
    """Return about how many bytes counts take in JSON."""
    return sum(
        sum(len(word.encode()) + _BESIDE_BYTES for word in key) + len(str(count)) + _BESIDE_BYTES
        for key, count in counts.items()
    )


def _replicas(known: ServiceState, engine: Engine) -> Iterator[tuple[_Run, Replica]]:
    for array, generation in known.generations.items():
        for index, verified in generation.verified.items():
            start_s, to = verified.run.start_s, verified.run.endpoint
            name = f"{array}.{index}"
            replica = Replica(to.address, to.http_port, to.certificate, start_s, "", name, engine)
            yield (array, index, start_s), replica
