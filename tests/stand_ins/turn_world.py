"""All that one turn of the launcher asks and changes, in memory."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from builders.gateways import NOWHERE
from builders.service_views import a_service

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.rpc.key_messages import GrantsAnswer
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, ServiceView, SlotView, ViewAnswer
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.fair_queue import Position
from slicewise.launcher.rules.gateway.routing import GatewayChange
from slicewise.launcher.rules.gateway.timings import Timings
from slicewise.launcher.rules.gateway.types import Backend, Gateway

GATEWAY = Gateway({}, {f"triton{n}": Backend(0, 0, (NOWHERE,) * 2) for n in (1, 2)}, True)


def service(array: int, name: str, slot: SlotView) -> ServiceView:
    return a_service(
        array_job_id=array,
        tenant="t",
        name=name,
        user="u",
        submit_s=0,
        directives={
            "name": name,
            "tenant": "t",
            "model_repository": "/m",
            "model": "model",
            "profile": "1g.10gb",
            "min_replicas": "1",
        },
        slots=(slot,),
    )


class World:
    """Daemon, gateway and replicas that write down what is asked of them; all are ready."""

    def __init__(self, *services: ServiceView, complete: bool = True) -> None:
        self.log: list[object] = []
        self.asked: list[Replica] = []
        self.services = services
        self.complete = complete
        self.failure: Exception | None = None
        self.refused: set[int] = set()
        self.silent = False
        self.kept: Mapping[str, str] = {}
        self.may_write = True
        self.seen_s = 1.0
        self.numbers: dict[int, int] = {}
        self.after: list[int] = []

    async def view(self) -> ViewAnswer:
        if self.failure is not None:
            raise self.failure
        return ViewAnswer(
            observed_s=self.seen_s,
            complete=self.complete,
            services=self.services,
            tenants=(),
            desired_slots_versions=self.numbers,
        )

    async def set_desired_slots(
        self,
        array_job_id: int,
        run: frozenset[int],
        note: str,
        urgency: float,
        avoid: tuple[str, ...] = (),
        *,
        after: int,
    ) -> DesiredSlotsAnswer:
        if array_job_id in self.refused:
            raise InvalidInputError("SW-SERVICE-UNKNOWN", "No such service.")
        self.log.append((array_job_id, run))
        self.avoided = avoid
        self.after.append(after)
        if self.silent:
            raise UnreachableError("SW-DAEMON-DOWN", "No answer.")
        return DesiredSlotsAnswer(released=tuple(run))

    async def retire(self, array_job_id: int) -> None:
        if array_job_id in self.refused:
            raise InvalidInputError("SW-SERVICE-UNKNOWN", "No such service.")
        self.log.append(("retire", array_job_id))

    async def grants(self) -> GrantsAnswer:
        return GrantsAnswer()

    async def note_uses(self, used_s: Mapping[str, float]) -> None:
        self.used_s = used_s

    async def key_ages(self) -> Mapping[str, float]:
        return {"a" * 64: 5.0}

    async def fair_positions(self) -> Mapping[str, Position]:
        return {}

    async def set_priorities(self, entries: Mapping[str, str]) -> None:
        self.priorities = entries

    async def set_grants(self, grants: GrantsAnswer) -> None:
        self.granted = grants

    def look(self, replicas: Collection[Replica]) -> Mapping[Replica, Answer]:
        self.asked.extend(replicas)
        return dict.fromkeys(replicas, Answer(Probe.OURS))

    @property
    def old_engines(self) -> Mapping[str, str]:
        return {}

    async def observe(self) -> Gateway:
        return GATEWAY

    async def timings(self) -> Mapping[str, Timings]:
        return {}

    async def hear(self, told: Callable[[str], None]) -> None:
        self.told = told
        await asyncio.Event().wait()

    async def apply(self, changes: Sequence[GatewayChange]) -> None:
        self.log.extend(changes)

    def keep(self, routes: Mapping[str, str]) -> None:
        if not self.may_write:
            raise PermissionError(13, "Permission denied", "services.map")
        self.kept = routes
