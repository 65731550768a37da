"""Asks replicas for what their models have counted, while clients ask for a service's statistics.

Clients ask as they would ask one server, and take the difference of two answers. Services that no
client asks about are not asked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import TypeVar

from slicewise.cluster.language.service import tenant_of
from slicewise.launcher.probing.engine_failures import ENGINE_FAILURES
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process import saved_statistics
from slicewise.launcher.process.counted_service import CountedService
from slicewise.launcher.process.saved_statistics import Run, SavedService, SavedStatistics
from slicewise.launcher.process.tenant_share import CpuTimed, TenantShare
from slicewise.launcher.rules.engines.engine import CountedEngine, Engine
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.statistics import Counts, StatisticsAnswer, bounded
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.state import ServiceState, State

Ask = Callable[[Replica], Awaitable[Counts | None]]

_APART_S = 0.25
"""Seconds at least between two looks at one service, however many clients ask."""
_ASKED_IN_ALL = 256
"""Replicas that are asked in parallel: each takes an open file."""
_ASKED_S = 600.0
"""Seconds after a question for which a service is looked at from time to time: a replica that ends
then has just said what it has counted."""
_KEPT_S = 86_400.0
"""Seconds after a question for which it is known what ended replicas have counted."""

_Result = TypeVar("_Result")


class ServiceStatistics:
    """Asks the replicas of a service while clients ask for its statistics."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._services: dict[str, CountedService] = {}
        self._tenants: dict[str, TenantShare] = {}
        self._restored: dict[str, SavedService] = {}
        self._asking = asyncio.Semaphore(_ASKED_IN_ALL)

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas each service has."""
        plans = {service.service: service for service in plan.services}
        engines = {
            engine.group: engine for engine in ENGINES.values() if isinstance(engine, CountedEngine)
        }
        for key in self._services.keys() - state.keys():
            del self._services[key]
        for key in self._restored.keys() - state.keys():
            del self._restored[key]
        tenants = set(map(tenant_of, state))
        self._tenants = {name: tenant for name, tenant in self._tenants.items() if name in tenants}
        for key, service_state in state.items():
            service_plan = plans.get(key)
            engine = engines.get(service_plan.route.group) if service_plan is not None else None
            if service_plan is not None and engine is not None:
                try:
                    service = self._services.get(key) or self._new(key, engine)
                    service.engine = engine
                    service.model = service_plan.spec.model if service_plan.members else None
                    members = [state[member] for member in service_plan.members if member in state]
                    runs = (replicas_of(member, engine) for member in members or [service_state])
                    service.goes_on(dict(chain.from_iterable(runs)))
                except Exception as error:  # noqa: BLE001 -- an engine of the site's: others go on
                    ENGINE_FAILURES.failed(engine, error)

    def _new(self, key: str, engine: CountedEngine) -> CountedService:
        tenant = self._tenants.setdefault(tenant_of(key), TenantShare())
        service = self._services[key] = CountedService(engine, tenant)
        if (saved := self._restored.pop(key, None)) is not None:
            service.ended = bounded(saved.ended)
            service.counts = {run: bounded(counts) for run, counts in saved.runs}
            service.asked_s = time.monotonic()
        return service

    async def saved(self) -> SavedStatistics:
        """Return what is known of the services about which clients have asked, to be saved.

        Of a service there is a bounded part. If all is too much, the tenants with least come first.
        """
        texts: dict[str, dict[str, str]] = {}
        left_out: list[str] = []
        for key, service in list(self._services.items()):
            if service.asked_s is None:
                continue
            try:
                text, is_all = await service.saved()
            except Exception as error:  # noqa: BLE001 -- what its engine counts is no text
                ENGINE_FAILURES.failed(service.engine, error)
                continue
            texts.setdefault(tenant_of(key), {})[key] = text
            left_out += [] if is_all else [key]
        for key, saved in self._restored.items():
            texts.setdefault(tenant_of(key), {})[key] = saved_statistics.one_text(saved)
        return saved_statistics.all_text(texts.values(), left_out)

    def restore(self, saved: str) -> None:
        """Go on with what another launcher, or this one before its restart, has saved.

        What can't be read is left out: those counts begin again.
        """
        if (restored := saved_statistics.read(saved)) is not None:
            self._restored, self._services = restored, {}

    async def answer(self, key: str, path: str, frame: bytes | None) -> StatisticsAnswer | None:
        """Answer a client that asks for ``path``, or by gRPC with ``frame``.

        None if no replica has ever said anything. One that does not answer counts with what it
        said last.
        """
        return await self._seen(key, lambda service: service.answer(path, frame))

    async def _seen(
        self, key: str, told: Callable[[CountedService], Awaitable[_Result | None]]
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
        now_s, due = time.monotonic(), list[CountedService]()
        for service in self._services.values():
            if service.asked_s is None:
                continue
            if now_s - service.asked_s > _KEPT_S:
                service.forget()
            elif now_s - service.asked_s <= _ASKED_S and not service.lock.locked():
                due.append(service)
        await asyncio.gather(*map(self._look_on, due))

    async def _look_on(self, service: CountedService) -> None:
        async with service.lock:
            try:
                await self._look(service)
            except Exception as error:  # noqa: BLE001 -- an engine of the site's: others go on
                ENGINE_FAILURES.failed(service.engine, error)

    async def _look(self, service: CountedService) -> None:
        tenant = service.tenant
        async with tenant.looking:
            begins_s = max(service.looked_s + _APART_S, tenant.rests_until_s)
            await asyncio.sleep(max(0.0, begins_s - time.monotonic()))
            service.looks += 1
            service.looked_s = time.monotonic()
            asked = dict(service.replicas)
            asking = [CpuTimed(self._said(tenant, replica)) for replica in asked.values()]
            said = await asyncio.gather(*asking)
            tenant.has_taken(sum(question.cpu_s for question in asking))
            answers = zip(asked, said, strict=True)
            await service.take({run: counts for run, counts in answers if counts is not None})

    async def _said(self, tenant: TenantShare, replica: Replica) -> Counts | None:
        async with tenant.asking, self._asking:
            return await self._ask(replica)


def replicas_of(service_state: ServiceState, engine: Engine) -> Iterator[tuple[Run, Replica]]:
    """Yield the runs of a service that have proved to be ours, with how to ask each."""
    for array, generation in service_state.generations.items():
        for index, verified in generation.verified.items():
            start_s, to = verified.run.start_s, verified.run.endpoint
            name = f"{array}.{index}"
            replica = Replica(
                to.address,
                to.http_port,
                to.certificate,
                start_s,
                "",
                name,
                engine,
                grpc_port=to.grpc_port,
            )
            yield (array, index, start_s), replica
