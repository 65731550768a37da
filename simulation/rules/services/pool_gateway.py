"""What a service of a pool has at the gateway, and the models of its replicas."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean

from slicewise.cluster.language.service import MAX_SLOTS
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import Server, ServerMode
from slicewise.launcher.rules.pools.busy import Parts, Run
from slicewise.launcher.rules.pools.types import Placement, ReplicaModels
from slicewise.simulation.rules.services.gateway_place import (
    PORT,
    ReplicaAtGateway,
    ServiceGateway,
    requests_of,
)
from slicewise.simulation.rules.services.pool_requests import PoolRequests, SharedServer
from slicewise.simulation.rules.services.request_queue import RunningReplica
from slicewise.simulation.rules.services.service import SimulatedService


@dataclass(slots=True, eq=False)
class _Line:
    """Another service's line at a replica."""

    mode: ServerMode
    requests: RunningReplica


@dataclass(slots=True, eq=False)
class _Server(SharedServer):
    """The server of one run, with its models.

    Attributes:
        ready: models that answer, beside its own.
        loaded_s: when the models that it loads answer, in Unix seconds.
        loads: how many models it has loaded, its own included.
        load_s: seconds that the last load of each took.
        lines: what it has of other services, by ``tenant/service``.
    """

    ready: set[str] = field(default_factory=set)
    loaded_s: dict[str, float] = field(default_factory=dict)
    loads: int = 1
    load_s: dict[str, float] = field(default_factory=dict)
    lines: dict[str, _Line] = field(default_factory=dict)


class PoolGateway(ServiceGateway):
    """One service's requests, the runs of its slots, and what these are for others of its pool.

    Attributes:
        key: ``tenant/service``.
        model_load_s: seconds until a replica that runs has loaded its model.
        loads_s: when replicas that ran began to load its model, in Unix seconds.
        server_of: the server of each of its runs.
    """

    requests: PoolRequests

    def __init__(self, service: SimulatedService, pool: "dict[str, PoolGateway]") -> None:
        """``pool``: those of all services that share replicas, by ``tenant/service``; it adds
        itself.
        """
        # Replicas of a pool are told apart by node and port, whose slots they are.
        port = PORT + MAX_SLOTS * len(pool)
        super().__init__(service, requests_of(service, PoolRequests), port)
        self.key, self.model = service.key, service.spec.model
        self.model_load_s = service.engine.model_load_s or mean(service.engine.loads_s)
        self.loads_s: list[float] = []
        self.server_of: dict[ReplicaAtGateway, _Server] = {}
        self._pool = pool
        pool[self.key] = self

    def follow(self, view: ServiceView) -> ServiceView:
        """Take the runs that Slurm shows now, and the models that have been loaded meanwhile."""
        view = super().follow(view)
        now_s = self.requests.now_s
        for server in self.server_of.values():
            loaded = {name for name, at_s in server.loaded_s.items() if at_s <= now_s}
            server.ready |= loaded
            for name in loaded:
                del server.loaded_s[name]
        return view

    @property
    def is_loading(self) -> bool:
        """Whether a replica loads another service's model."""
        return any(server.loaded_s for server in self.server_of.values())

    def models(self, array_job_id: int) -> Mapping[Run, ReplicaModels]:
        """What replicas that have loaded their model say of all models."""
        now_s = self.requests.now_s
        return {
            (array_job_id, index, run.start_s or 0): ReplicaModels(
                ready=frozenset((*server.ready, self.model)),
                loads=server.loads,
                load_s=dict(server.load_s),
            )
            for index, run in self.runs.items()
            for server in (self.server_of[run],)
            if run.loaded_s <= now_s
        }

    def load(self, array_job_id: int, models: Placement) -> None:
        """Tell replicas which models they are to have; the others they give up now."""
        for index, run in self.runs.items():
            to_have = models.get((array_job_id, index))
            if to_have is None:
                continue
            server = self.server_of[run]
            server.ready &= to_have
            for model in sorted(to_have - server.ready - server.loaded_s.keys() - {self.model}):
                self._load(server, model)

    def _load(self, server: _Server, model: str) -> None:
        now_s = self.requests.now_s
        owner = next(gateway for gateway in self._pool.values() if gateway.model == model)
        server.loaded_s[model] = now_s + owner.model_load_s
        server.load_s[model] = owner.model_load_s
        server.loads += 1
        owner.loads_s.append(now_s)

    def apply(self, route: Route) -> None:
        """Carry out what the launcher wants, at replicas of other services, too."""
        targets = route.targets or {}
        for other in self._others:
            for run in other.runs.values():
                mode = targets.get(run.endpoint, ServerMode.MAINT)
                self._apply_at(other.server_of[run], mode)
        super().apply(route)

    def _apply_at(self, server: _Server, mode: ServerMode) -> None:
        line = server.lines.get(self.key)
        if line is None:
            if mode is ServerMode.MAINT:
                return
            line = _Line(mode, self.requests.line_at(server))
            server.lines[self.key] = line
        line.mode = mode
        is_open = mode is ServerMode.READY
        if is_open and not line.requests.is_open:
            self.requests.open(line.requests)
        elif line.requests.is_open and not is_open:
            self.requests.close(line.requests)
        if mode is ServerMode.MAINT:
            self.requests.end(server.lines.pop(self.key).requests)

    def parts(self, array_job_id: int) -> Mapping[Run, Parts]:
        """Of each replica that works for others, their parts of all that it works on."""
        return {
            (array_job_id, index, run.start_s or 0): {
                key: line.requests.in_flight / server.in_flight
                for key, line in server.lines.items()
                if line.requests.in_flight
            }
            for index, run in self.runs.items()
            for server in (self.server_of[run],)
            if server.in_flight > run.requests.in_flight
        }

    @property
    def _others(self) -> Iterator["PoolGateway"]:
        return (gateway for gateway in self._pool.values() if gateway is not self)

    def _begun(self, slot: SlotView) -> ReplicaAtGateway:
        run, server = super()._begun(slot), _Server()
        run.requests = self.requests.line_at(server)
        self.server_of[run] = server
        return run

    def _end(self, run: ReplicaAtGateway) -> None:
        super()._end(run)
        for key, line in self.server_of.pop(run).lines.items():
            self._pool[key].requests.end(line.requests)

    def _works(self, run: ReplicaAtGateway) -> bool:
        return self.server_of[run].in_flight > 0

    def _lines(self) -> Iterator[Server]:
        yield from super()._lines()
        for other in self._others:
            for _, run in sorted(other.runs.items()):
                line = other.server_of[run].lines.get(self.key)
                if line is not None:
                    place, working = run.endpoint.place, line.requests.in_flight
                    yield Server(*place, line.mode, True, working, 0, run.digest)
