"""Services that share replicas, in memory: Slurm, quota, the gateway, servers with models, clients.

It checks at once what must hold at any time: no request is cut, none reaches a replica that does
not have its model, no model with requests is unloaded, no memory is exceeded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from builders.gateways import NOWHERE
from builders.service_views import a_service, a_tenant_view
from pydantic import TypeAdapter

from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, ServiceView, SlotView, ViewAnswer
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
from slicewise.launcher.process.saved_state import taken_over
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.routing import (
    AddRoute,
    EndSessions,
    GatewayChange,
    RemoveRoute,
    SetHealthy,
    SetMode,
    SetTarget,
    SetTerms,
)
from slicewise.launcher.rules.gateway.types import (
    DEFAULT_TERMS,
    Backend,
    Endpoint,
    Gateway,
    Server,
    ServerMode,
    Terms,
)
from slicewise.launcher.rules.pools.server_memory import ServerMemory
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.pool_models import AGAIN_S
from slicewise.launcher.rules.turn.service import Heard
from slicewise.launcher.rules.turn.state import (
    ServiceState,
    State,
    after_answer,
    after_retirement,
)
from stand_ins.plain_scaling import decide

LINES, SLOTS = 8, 2
START_TICKS, END_TICKS, LOAD_TICKS, ASKS_TICKS = 2, 4, 3, 5
ROOM_MIB, CONTEXT_MIB = 100, 5
"""Memory for models, of a GPU that has a little more; what a server takes without any."""
_RUNS = count(1)
_STATE = TypeAdapter(ServiceState)
Place = tuple[int, int]
"""An array job id and a slot index."""


@dataclass
class Slot:
    """``comes_back``: Slurm requeues it as pending when it has ended: it was preempted."""

    state: str = "held"
    ticks: int = 0
    run: int = 0
    start_s: int = 0
    released_s: int = 0
    comes_back: bool = False


@dataclass
class Array:
    """One generation of a service, with what its file says of the pool."""

    directives: Mapping[str, str]
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(SLOTS)])
    desired: frozenset[int] = frozenset()


@dataclass
class Service:
    """A service, its backend at the gateway, and its clients; a request is its ticks left."""

    name: str
    model_mib: int
    arrays: dict[int, Array]
    order: ServiceOrder = NO_ORDER
    lines: list[Server] = field(default_factory=lambda: [NOWHERE] * LINES)
    work: list[list[int]] = field(default_factory=lambda: [[] for _ in range(LINES)])
    is_routed: bool = False
    terms: Terms = DEFAULT_TERMS
    waiting: int = 0
    arrived: int = 0
    answered: int = 0
    lost: int = 0

    @property
    def key(self) -> str:
        return f"t/{self.name}"

    @property
    def model(self) -> str:
        return f"m{self.name}"

    def lines_of(self, run: int) -> Iterator[int]:
        return (i for i, line in enumerate(self.lines) if line.port == 1000 + run)

    def in_flight(self, run: int) -> int:
        return sum(len(self.work[index]) for index in self.lines_of(run))


@dataclass
class Question:
    """What the launcher asks of a replica: to have ``models``; ``load`` comes last.

    ``loading`` are those that another question loads.
    """

    models: frozenset[str]
    loading: frozenset[str] = frozenset()
    ready: frozenset[str] | None = None
    load: str = ""
    ticks: int = 0


@dataclass
class ModelServer:
    """A replica's server. ``lost``: models that it had and has no more, without being told.

    ``loads`` are all that it has done, whichever launcher told it.
    """

    own: str
    ready: set[str]
    lost: set[str] = field(default_factory=set)
    questions: list[Question] = field(default_factory=list)
    loads: int = 1

    @property
    def loading(self) -> frozenset[str]:
        return frozenset(question.load for question in self.questions if question.load)


@dataclass
class Report:
    """What the launcher has heard of a replica."""

    told: frozenset[str]
    at_s: int
    models: ReplicaModels
    refused_s: Mapping[str, int]


@dataclass
class PoolWorld:
    """One tick is a second; a request takes ``work`` ticks in a replica."""

    quota: int
    work: int
    services: dict[str, Service]
    concurrency: int = 2
    is_memory_known: bool = True
    now_s: int = 1000
    servers: dict[int, ModelServer] = field(default_factory=dict)
    reports: dict[Place, Report] = field(default_factory=dict)
    orders: dict[str, Mapping[Place, frozenset[str]]] = field(default_factory=dict)
    proved: set[int] = field(default_factory=set)
    fails: int = 0
    broken: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()
    on_node: frozenset[str] = frozenset()
    starts: int = 0
    state: State = field(default_factory=dict)

    def slots(self) -> Iterator[tuple[Service, int, int, Slot]]:
        for service in self.services.values():
            for number, array in service.arrays.items():
                for index, slot in enumerate(array.slots):
                    yield service, number, index, slot

    def mib(self, models: frozenset[str] | set[str]) -> int:
        return sum(s.model_mib for s in self.services.values() if s.model in models)

    # What the launcher sees.

    def view(self) -> ViewAnswer:
        views = tuple(
            self._view(service, number, array)
            for service in self.services.values()
            for number, array in service.arrays.items()
        )
        used = sum(slot.state in {"running", "ending"} for *_, slot in self.slots())
        tenant = a_tenant_view(1000 * used, name="t", nominal_millislices=1000 * self.quota)
        return ViewAnswer(observed_s=self.now_s, complete=True, services=views, tenants=(tenant,))

    def _view(self, service: Service, number: int, array: Array) -> ServiceView:
        return a_service(
            array_job_id=number,
            tenant="t",
            name=service.name,
            user="u",
            directives=array.directives,
            slots=tuple(map(_slot_view, range(SLOTS), array.slots)),
            order=service.order,
            memory_mib=int(ROOM_MIB / 0.9) + 1 if self.is_memory_known else None,
        )

    def gateway(self) -> Gateway:
        routes, backends = {}, {}
        for number, service in enumerate(self.services.values()):
            name = f"triton{number + 1}"
            lines = tuple(
                replace(line, in_flight=len(work))
                for line, work in zip(service.lines, service.work, strict=True)
            )
            in_flight = sum(map(len, service.work))
            is_served = any(line.up and line.mode is ServerMode.READY for line in lines)
            backends[name] = Backend(
                service.waiting + in_flight, service.waiting if is_served else 0, lines,
                service.arrived, service.answered,
            )  # fmt: skip
            if service.is_routed:
                routes[service.key] = name
        terms = {service.key: service.terms for service in self.services.values()}
        return Gateway(routes, backends, complete=True, terms=terms)

    def heard(self) -> Heard:
        runs = {(array, index): slot for _, array, index, slot in self.slots()}
        models = {
            (*place, runs[place].start_s): replace(
                report.models,
                refused={
                    model: why
                    for model, why in report.models.refused.items()
                    if self.now_s - report.refused_s[model] < AGAIN_S
                },
            )
            for place, report in self.reports.items()
        }
        return Heard(models=models)

    # What the launcher does.

    def turn(self) -> TurnPlan:
        view = self.view()
        answers = {
            (array, index): Answer(Probe.OURS)
            for _, array, index, slot in self.slots()
            if slot.state == "running" and slot.run in self.proved
        }
        given = (view, self.gateway(), answers, self.state, float(self.now_s))
        decided = decide(*given, heard=self.heard())
        assert decided is not None
        if not self.now_s % 5:
            assert decided == decide(*given, heard=self.heard()), "it is not pure"
        found, plan = decided
        assert plan.unreadable.keys() == self.unreadable
        # Replicas are asked for their identity between turns.
        self.proved |= {slot.run for *_, slot in self.slots() if slot.state == "running"}
        for change in plan.routes.changes:
            self._change(change)
        known: dict[str, ServiceState] = dict(found)
        for planned in plan.services:
            key = planned.service
            for array, desired in planned.desired_by_array.items():
                answer = self._desire(key, array, desired.run)
                # A little after the look: the next look, a second later, is newer.
                sent = replace(desired, at_s=self.now_s + 0.1)
                known[key] = after_answer(known[key], array, sent, answer)
            for array in planned.retired:
                arrays = self.services[key.partition("/")[2]].arrays
                assert all(slot.state in {"held", "gone"} for slot in arrays[array].slots)
                del arrays[array]
                known[key] = after_retirement(known[key], array, self.now_s + 0.1)
        self.state = known
        self._tell(plan)
        return plan

    def _change(self, change: GatewayChange) -> None:
        services = list(self.services.values())
        match change:
            case SetMode(backend, index, mode):
                lines = services[int(backend.removeprefix("triton")) - 1].lines
                lines[index] = replace(lines[index], mode=mode)
            case SetTarget(backend, index, Endpoint(address, port) as told, _):
                service = services[int(backend.removeprefix("triton")) - 1]
                assert service.lines[index].mode is ServerMode.MAINT
                assert not service.work[index]
                service.lines[index] = replace(
                    service.lines[index], address=address, port=port, digest=told.digest
                )
            case SetHealthy(backend, index):
                lines = services[int(backend.removeprefix("triton")) - 1].lines
                lines[index] = replace(lines[index], up=True)
            case EndSessions(backend, index):
                service = services[int(backend.removeprefix("triton")) - 1]
                assert not service.work[index], "a request is cut"
            case AddRoute(key, backend):
                self.services[key.partition("/")[2]].is_routed = True
                assert services[int(backend.removeprefix("triton")) - 1].key == key
            case RemoveRoute(key):
                service = self.services[key.partition("/")[2]]
                # It ends although requests wait if its last start has failed.
                service.lost += service.waiting
                service.waiting, service.is_routed = 0, False
            case SetTerms(key, terms):
                self.services[key.partition("/")[2]].terms = terms

    def _desire(self, key: str, number: int, run: frozenset[int]) -> DesiredSlotsAnswer:
        """As the daemon does it, quota included."""
        released, kept_back = [], []
        array = self.services[key.partition("/")[2]].arrays[number]
        array.desired = run
        for index, slot in enumerate(array.slots):
            if index in run and slot.state == "held":
                busy = sum(slot.state not in {"held", "gone"} for *_, slot in self.slots())
                if busy < self.quota:
                    released.append(index)
                    self._release(array, index)
                else:
                    kept_back.append(index)
            if index not in run and slot.state == "released":
                array.slots[index] = Slot()
            if index not in run and slot.state == "running":
                in_flight = sum(s.in_flight(slot.run) for s in self.services.values())
                assert not in_flight, "a replica with requests is given back"
                self._end(slot)
        return DesiredSlotsAnswer(released=tuple(released), kept_back=tuple(kept_back))

    def _release(self, array: Array, index: int) -> None:
        self.starts += 1
        array.slots[index] = Slot("released", START_TICKS, next(_RUNS), released_s=self.now_s)

    # Models.

    def _tell(self, plan: TurnPlan) -> None:
        """As ``ModelWatch``: of a service that is not decided for all stays as it was."""
        orders = {key: models for key, models in self.orders.items() if key in self.state}
        orders |= {planned.service: planned.models for planned in plan.services}
        pooled = {p.service for p in plan.services if p.spec.pool is not None}
        self.orders = {key: models for key, models in orders.items() if key in pooled}
        runs = {
            (array, index): (key, verified.run)
            for key in self.orders
            for array, generation in self.state[key].generations.items()
            for index, verified in generation.verified.items()
        }
        self.reports = {place: r for place, r in self.reports.items() if place in runs}
        for place, (key, run) in runs.items():
            server, models = self.servers.get(run.job_id), self.orders[key].get(place)
            if server is None or models is None:
                continue
            hash(models)
            if models != {server.own} and self.is_memory_known:
                assert self.mib(models | {server.own}) <= ROOM_MIB, "memory is exceeded by orders"
            if not server.questions and self._is_due(place, models):
                server.questions.append(Question(self._asked(place, models)))
            elif len(server.questions) == 1 and place in self.reports:
                self._ask_beside(place, server, models)

    def _ask_beside(self, place: Place, server: ModelServer, models: frozenset[str]) -> None:
        """What it loads goes on; there is memory for more only if it is to have that."""
        (first,), ready = server.questions, self.reports[place].models.ready
        told = self._asked(place, models)
        loading = first.models - ready - first.loading
        lacking, surplus = told - ready - loading, ready - told - {server.own}
        if loading and loading <= told and (lacking or surplus):
            server.questions.append(Question(told, loading))

    def _asked(self, place: Place, models: frozenset[str]) -> frozenset[str]:
        report = self.reports.get(place)
        refused = {} if report is None else report.refused_s
        return models - {model for model, s in refused.items() if self.now_s - s < AGAIN_S}

    def _is_due(self, place: Place, models: frozenset[str]) -> bool:
        report = self.reports.get(place)
        if report is None:
            return True
        told = self._asked(place, models)
        return (
            told != report.told
            or bool(told - report.models.ready)
            or self.now_s - report.at_s >= ASKS_TICKS
        )

    def _answer(self, place: Place, server: ModelServer, question: Question) -> None:
        """Take a question one tick further."""
        if question.ready is None:
            for model in server.ready - question.models - {server.own}:
                self._unload(place, server, model)
            question.ready = frozenset(server.ready)
            lacking = question.models - server.ready - question.loading
            assert len(lacking - server.lost) <= 1, "models are told before others are loaded"
            question.load = min(lacking, default="")
            question.ticks = LOAD_TICKS if question.load else 0
            if self.is_memory_known and len(server.ready | server.loading) > 1:
                assert self.mib(server.ready | server.loading) <= ROOM_MIB, "memory is exceeded"
        question.ticks -= 1
        if question.ticks > 0:
            return
        server.questions.remove(question)
        load_s, refused = {}, {}
        if model := question.load:
            if self.fails or model in self.broken:
                self.fails = max(0, self.fails - 1)
                refused = {model: "out of memory"}
            else:
                server.ready.add(model)
                server.loads += 1
                server.lost.discard(model)
                load_s = {model: float(LOAD_TICKS)}
        ready, is_known = frozenset(server.ready), not (server.loading or question.loading)
        memory = ServerMemory(gpu_mib=CONTEXT_MIB + self.mib(ready) if is_known else 0)
        from_node = self.on_node & load_s.keys()
        answer = ReplicaModels(
            ready, refused, len(load_s), load_s, memory=memory, from_node=from_node
        )
        self._hear(place, question, answer)

    def _hear(self, place: Place, question: Question, answer: ReplicaModels) -> None:
        before = self.reports.get(place)
        is_new = before is None
        seen = ReplicaModels() if is_new else before.models
        refused = {m: why for m, why in {**seen.refused, **answer.refused}.items()
                   if m not in answer.ready}  # fmt: skip
        refused_s = {} if is_new else dict(before.refused_s)
        refused_s |= dict.fromkeys(answer.refused, self.now_s)
        saved = self._saved_loads(place) if is_new else 0
        loads = max(saved, len(answer.ready) - answer.loads) if is_new else seen.loads
        models = replace(
            answer, refused=refused, loads=loads + answer.loads,
            load_s={**seen.load_s, **answer.load_s},
            from_node=seen.from_node.difference(answer.load_s) | answer.from_node,
        )  # fmt: skip
        self.reports[place] = Report(
            question.models, self.now_s, models, {m: refused_s[m] for m in refused}
        )

    def _saved_loads(self, place: Place) -> int:
        runs = {(array, index): slot.start_s for _, array, index, slot in self.slots()}
        for service in self.state.values():
            generation = service.generations.get(place[0])
            told = generation.models.get(place[1]) if generation is not None else None
            if told is not None and told.start_s == runs[place]:
                return told.loads
        return 0

    def _unload(self, place: Place, server: ModelServer, model: str) -> None:
        run = next(s.run for _, a, i, s in self.slots() if (a, i) == place)
        for service in self.services.values():
            if service.model == model:
                assert not service.in_flight(run), f"{model} is unloaded while it works"
        server.ready.discard(model)
        server.lost.discard(model)

    # What happens.

    def is_quiet(self) -> bool:
        """Whether no request is left, and no slot is under way."""
        left = any(service.waiting or any(service.work) for service in self.services.values())
        ends = any(s.order.delete_s is not None and s.arrays for s in self.services.values())
        older = any(len(service.arrays) > 1 for service in self.services.values())
        return not (left or ends or older) and all(s.state == "held" for *_, s in self.slots())

    def take_over(self) -> None:
        """Another launcher begins with what this one has saved."""
        saved = {
            key: _STATE.validate_json(_STATE.dump_json(service))
            for key, service in self.state.items()
        }
        self.forget()
        self.state = taken_over(saved, float(self.now_s))

    def forget(self) -> None:
        """Another launcher begins, which knows nothing; questions end without an answer."""
        self.state, self.reports, self.orders, self.proved = {}, {}, {}, set()
        for server in self.servers.values():
            if not self.fails:
                # The server goes on with what it was told.
                server.loads += len(server.loading - server.ready)
                server.ready |= server.loading
            server.questions.clear()

    def kill(self, run: int) -> None:
        """The server dies, with all that it has in flight."""
        for service in self.services.values():
            for index in service.lines_of(run):
                service.lost += len(service.work[index])
                service.work[index].clear()
                service.lines[index] = replace(service.lines[index], up=False)

    def lose(self, run: int) -> None:
        """The server loses all models but its own, with what they have in flight."""
        server = self.servers[run]
        for service in self.services.values():
            if service.model in server.ready - {server.own}:
                for index in service.lines_of(run):
                    service.lost += len(service.work[index])
                    service.work[index].clear()
        server.lost |= server.ready - {server.own}
        server.ready = {server.own}

    def _end(self, slot: Slot, *, comes_back: bool = False) -> None:
        slot.state, slot.ticks, slot.comes_back = "ending", END_TICKS, comes_back

    def running(self) -> list[Slot]:
        return [slot for *_, slot in self.slots() if slot.state == "running"]

    def end(self, *, preempts: bool) -> None:
        """Triton dies, or Slurm takes the slot of the first that runs."""
        for slot in self.running()[:1]:
            self._end(slot, comes_back=preempts)
            if not preempts:
                self.kill(slot.run)

    def pass_second(self, arrivals: Mapping[str, int]) -> None:
        self.now_s += 1
        for service, number, index, slot in list(self.slots()):
            self._pass(service, service.arrays[number], index, slot)
        for _, number, index, slot in list(self.slots()):
            if slot.state == "running":
                server = self.servers[slot.run]
                for question in list(server.questions):
                    self._answer((number, index), server, question)
        for name, more in arrivals.items():
            service = self.services[name]
            if service.is_routed and not service.terms.closing:
                service.waiting += more
                service.arrived += more
        for service in self.services.values():
            self._serve(service)

    def _pass(self, service: Service, array: Array, index: int, slot: Slot) -> None:
        slot.ticks -= 1
        if slot.state == "released" and slot.ticks <= 0:
            slot.state, slot.start_s = "running", self.now_s
            self.servers[slot.run] = ModelServer(service.model, {service.model})
        elif slot.state == "ending" and slot.ticks <= 0:
            self.kill(slot.run)
            self.servers.pop(slot.run, None)
            array.slots[index] = Slot()
            if slot.comes_back and index in array.desired:
                self._release(array, index)

    def _serve(self, service: Service) -> None:
        for index, line in enumerate(service.lines):
            left = [ticks - 1 for ticks in service.work[index]]
            service.answered += sum(ticks <= 0 for ticks in left)
            service.work[index] = [ticks for ticks in left if ticks > 0]
            is_open = line.mode is ServerMode.READY and line.up
            while is_open and service.waiting and len(service.work[index]) < self.concurrency:
                service.waiting -= 1
                server = self.servers[line.port - 1000]
                if service.model in server.lost:
                    service.lost += 1
                    continue
                assert service.model in server.ready, f"a request reaches {line.port} too early"
                service.work[index].append(self.work)


def _slot_view(index: int, slot: Slot) -> SlotView:
    if slot.state == "released":
        return SlotView(index=index, state="released", released_s=slot.released_s)
    if slot.state not in {"running", "ending"}:
        return SlotView.model_validate({"index": index, "state": slot.state})
    return SlotView.model_validate(
        {
            "index": index,
            "state": slot.state,
            "job_id": slot.run,
            "address": "10.0.0.1",
            "certificate": "CCCC",
            "ports": (1000 + slot.run, 1, 2),
            "released_s": slot.released_s,
            "start_s": slot.start_s,
            "time_left_s": 900,
        }
    )


def pooled(name: str, model_mib: int, **more: str) -> Mapping[str, str]:
    """The directives of a service in the pool."""
    return {
        "name": name,
        "tenant": "t",
        "model_repository": "/m",
        "model": f"m{name}",
        "model_mib": str(model_mib),
        "pool": "p",
        "profile": "1g.10gb",
        "max_replicas": str(SLOTS),
        **more,
    }


def a_pool_world(
    models_mib: list[int],
    quota: int,
    work: int,
    *,
    concurrency: int = 2,
    is_memory_known: bool = True,
) -> PoolWorld:
    """A pool with a service for each of the models, called a, b and so on."""
    names = "abcd"[: len(models_mib)]
    services = {
        name: Service(name, mib, {number: Array(pooled(name, mib, concurrency=str(concurrency)))})
        for number, (name, mib) in enumerate(zip(names, models_mib, strict=True), 7)
    }
    return PoolWorld(quota, work, services, concurrency, is_memory_known)
