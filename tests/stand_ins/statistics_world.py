"""Replicas that are asked what their models have counted, without servers."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.counted_service import CountedService
from slicewise.launcher.process.statistics import ServiceStatistics
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.statistics import Counts
from slicewise.launcher.rules.gateway.types import Endpoint
from slicewise.launcher.rules.turn.endpoints import ReplicaRun, Verified
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState

KEY = ("m", "1", "inference_count")
NO_POOL: Mapping[str, str] = {}


async def counts(of: ServiceStatistics, service: str) -> Counts | None:
    """What its models have counted until now, as an answer to a client would say it."""
    return await of._seen(service, CountedService.all)


def verified(ports: tuple[int, ...]) -> dict[int, Verified]:
    runs = [ReplicaRun(port, 1, Endpoint("10.0.0.1", port, port, "C")) for port in ports]
    return {run.job_id: Verified(run, 1.0) for run in runs}


class World:
    """Replicas by port: what each has counted; None is silence."""

    def __init__(self) -> None:
        self.said: dict[int, Counts | None] = {}
        self.asked: list[int] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.hung: dict[int, asyncio.Event] = {}
        self.statistics = ServiceStatistics(self.ask)

    async def ask(self, replica: Replica) -> Counts | None:
        self.asked.append(replica.port)
        await self.goes_on.wait()
        if replica.port in self.hung:
            await self.hung[replica.port].wait()
        return self.said[replica.port]

    def turned(self, *ports: int, services: tuple[str, ...] = ("t/a",)) -> None:
        self.turned_to(dict.fromkeys(services, ports))

    def turned_to(
        self, services: Mapping[str, tuple[int, ...]], pool: Mapping[str, str] = NO_POOL
    ) -> None:
        """Those in the pool share replicas; it has their models."""
        route = SimpleNamespace(group=ENGINES["triton"].group)
        plan: Any = SimpleNamespace(
            services=[
                SimpleNamespace(
                    service=service,
                    route=route,
                    spec=SimpleNamespace(model=pool.get(service, "m")),
                    members=tuple(pool) if service in pool else (),
                )
                for service in services
            ]
        )
        state = {
            one: ServiceState(generations={7: GenerationState(verified=verified(ports))})
            for one, ports in services.items()
        }
        self.statistics.turned(plan, state)

    async def count(self) -> int | None:
        found = await counts(self.statistics, "t/a")
        return None if found is None else found.get(KEY)
