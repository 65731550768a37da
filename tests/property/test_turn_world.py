"""The whole turn against a small world: Slurm, quota, the gateway, clients; the launcher forgets.

Whatever arrives, is applied, restarted, killed, taken back or not heard: no request is cut but
those that a killed replica had in flight, every other one is answered, old generations disappear,
and in the end nothing runs.
"""

from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from builders.gateways import NOWHERE
from builders.service_views import a_service, a_tenant_view
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stand_ins.plain_scaling import decide

from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, SlotView, ViewAnswer
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
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
    Backend,
    Endpoint,
    Gateway,
    Server,
    ServerMode,
    Terms,
)
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.slots import Phase
from slicewise.launcher.rules.turn.state import (
    ServiceState,
    State,
    after_answer,
    after_retirement,
    after_silence,
)

SLOTS, LINES, CONCURRENCY, KEEP_ALIVE_S = 4, 6, 2, 3
START_TICKS, END_TICKS, LEASE_S = 3, 4, 60
DIRECTIVES = {
    "name": "a",
    "tenant": "t",
    "model_repository": "/m",
    "model": "m",
    "profile": "1g.10gb",
    "max_replicas": str(SLOTS),
    "concurrency": str(CONCURRENCY),
    "keep_alive_s": str(KEEP_ALIVE_S),
    "lease_s": str(LEASE_S),
}
RUNS = count(1)


@dataclass
class SlotWorld:
    """``comes_back``: Slurm requeues it as pending when it has ended: it was preempted."""

    state: str = "held"
    ticks: int = 0
    run: int = 0
    start_s: float = 0.0
    released_s: float = 0.0
    leaves_at_s: float | None = None
    comes_back: bool = False


@dataclass
class Array:
    """``is_broken``: its replicas end as soon as they start."""

    is_broken: bool
    slots: list[SlotWorld] = field(default_factory=lambda: [SlotWorld() for _ in range(SLOTS)])
    desired_slots: frozenset[int] = frozenset()


@dataclass
class World:
    """One tick is a second; a request takes ``work`` ticks in a replica."""

    quota: int
    now_s: float = 1000.0
    arrays: dict[int, Array] = field(default_factory=lambda: {7: Array(is_broken=False)})
    order: ServiceOrder = NO_ORDER
    lines: list[Server] = field(default_factory=lambda: [NOWHERE] * LINES)
    work: list[list[int]] = field(default_factory=lambda: [[] for _ in range(LINES)])
    routes: dict[str, str] = field(default_factory=dict)
    terms: dict[str, Terms] = field(default_factory=dict)
    waiting: int = 0
    arrived: int = 0
    answered: int = 0
    cut: int = 0
    killed: int = 0

    def slots(self) -> list[tuple[int, int, SlotWorld]]:
        return [(a, i, s) for a, array in self.arrays.items() for i, s in enumerate(array.slots)]

    def busy(self) -> int:
        return sum(slot.state not in {"held", "gone"} for _, _, slot in self.slots())

    def view(self) -> ViewAnswer:
        services = tuple(
            a_service(
                array_job_id=number,
                tenant="t",
                name="a",
                user="u",
                submit_s=0,
                directives=DIRECTIVES,
                slots=tuple(self._slot(index, slot) for index, slot in enumerate(array.slots)),
                order=self.order,
            )
            for number, array in self.arrays.items()
        )
        used = sum(slot.state in {"running", "ending"} for _, _, slot in self.slots())
        tenant = a_tenant_view(1000 * used, name="t", nominal_millislices=1000 * self.quota)
        return ViewAnswer(
            observed_s=self.now_s, complete=True, services=services, tenants=(tenant,)
        )

    def _slot(self, index: int, slot: SlotWorld) -> SlotView:
        if slot.state == "released":
            return SlotView(index=index, state="released", released_s=int(slot.released_s))
        if slot.state not in {"running", "ending"}:
            return SlotView.model_validate({"index": index, "state": slot.state})
        left_s = None if slot.leaves_at_s is None else max(0, int(slot.leaves_at_s - self.now_s))
        return SlotView.model_validate(
            {
                "index": index,
                "state": slot.state,
                "job_id": slot.run,
                "address": "10.0.0.1",
                "certificate": "CCCC",
                "ports": (1000 + slot.run, 1, 2),
                "released_s": int(slot.released_s),
                "start_s": int(slot.start_s),
                "time_left_s": 40 if left_s is None else left_s,
                "ends_in_s": left_s if slot.state == "running" else None,
            }
        )

    def gateway(self) -> Gateway:
        lines = tuple(
            line if line.in_flight == len(work) else replace(line, in_flight=len(work))
            for line, work in zip(self.lines, self.work, strict=True)
        )
        sessions = self.waiting + sum(len(work) for work in self.work)
        is_served = any(line.up and line.mode is ServerMode.READY for line in lines)
        # While a replica is there what waits is in the queue, else Lua holds it.
        group = {"triton1": Backend(sessions, self.waiting if is_served else 0, lines)}
        return Gateway(dict(self.routes), group, complete=True, terms=self.terms)

    def change(self, change: GatewayChange) -> None:
        match change:
            case SetMode(_, index, mode):
                self.lines[index] = replace(self.lines[index], mode=mode)
            case SetTarget(_, index, Endpoint(address, port) as told, _):
                assert self.lines[index].mode is ServerMode.MAINT
                assert not self.work[index]
                self.lines[index] = replace(
                    self.lines[index], address=address, port=port, digest=told.digest
                )
            case SetHealthy(_, index):
                self.lines[index] = replace(self.lines[index], up=True)
            case EndSessions(_, index):
                self.cut += len(self.work[index])
                self.work[index].clear()
            case AddRoute(service, backend):
                self.routes[service] = backend
            case RemoveRoute(service):
                del self.routes[service]
                self.killed += self.waiting
                self.waiting = 0
            case SetTerms(service, terms):
                self.terms = {service: terms}

    def line_of(self, slot: SlotWorld) -> int | None:
        ports = [line.port for line in self.lines]
        return ports.index(1000 + slot.run) if 1000 + slot.run in ports else None

    def end(self, array: int, index: int, *, comes_back: bool = False) -> None:
        slot = self.arrays[array].slots[index]
        self.arrays[array].slots[index] = replace(
            slot, state="ending", ticks=END_TICKS, comes_back=comes_back
        )

    def set_desired_slots(self, array: int, run: frozenset[int]) -> DesiredSlotsAnswer:
        """As the daemon does it, quota included."""
        released, kept_back = [], []
        self.arrays[array].desired_slots = run
        for index, slot in enumerate(self.arrays[array].slots):
            if index in run and slot.state == "held":
                if self.busy() < self.quota:
                    released.append(index)
                    self.release(array, index)
                else:
                    kept_back.append(index)
            if index not in run and slot.state == "released":
                self.arrays[array].slots[index] = SlotWorld()
            if index not in run and slot.state == "running":
                line = self.line_of(slot)
                if line is not None:
                    self.cut += len(self.work[line])
                self.end(array, index)
        return DesiredSlotsAnswer(released=tuple(released), kept_back=tuple(kept_back))

    def release(self, array: int, index: int) -> None:
        self.arrays[array].slots[index] = SlotWorld(
            "released", START_TICKS, next(RUNS), released_s=self.now_s
        )

    def retire(self, array: int) -> None:
        assert all(slot.state in {"held", "gone"} for slot in self.arrays[array].slots)
        del self.arrays[array]

    def kill(self, *, preempts: bool) -> None:
        """Triton dies, or Slurm takes the slot of the first that runs."""
        for array, index, slot in self.slots():
            if slot.state == "running":
                self.end(array, index, comes_back=preempts)
                if not preempts:
                    self._lose(slot)
                return

    def _lose(self, slot: SlotWorld) -> None:
        """What it has in flight is lost; the gateway sees that it is down."""
        line = self.line_of(slot)
        if line is not None:
            self.killed += len(self.work[line])
            self.work[line].clear()
            self.lines[line] = replace(self.lines[line], up=False)

    def pass_second(self, arrivals: int, work: int) -> None:
        self.now_s += 1
        for array, index, slot in self.slots():
            self._pass(array, index, slot)
        if "t/a" in self.routes and not self.terms.get("t/a", Terms()).closing:
            self.waiting += arrivals
            self.arrived += arrivals
        for index, line in enumerate(self.lines):
            left = [ticks - 1 for ticks in self.work[index]]
            self.answered += sum(ticks <= 0 for ticks in left)
            self.work[index] = [ticks for ticks in left if ticks > 0]
            is_open = line.mode is ServerMode.READY and line.up
            while is_open and self.waiting and len(self.work[index]) < CONCURRENCY:
                states = {1000 + s.run: s.state for _, _, s in self.slots()}
                assert states[line.port] in {"running", "ending"}
                self.waiting -= 1
                self.work[index].append(work)

    def _pass(self, array: int, index: int, slot: SlotWorld) -> None:
        slot.ticks -= 1
        if slot.state == "released" and slot.ticks <= 0:
            slot.state, slot.start_s = "running", self.now_s
            if self.arrays[array].is_broken:
                self.end(array, index)
        elif slot.state == "ending" and slot.ticks <= 0:
            self._lose(slot)
            self.arrays[array].slots[index] = SlotWorld()
            if slot.comes_back and index in self.arrays[array].desired_slots:
                self.release(array, index)
        elif slot.state == "running" and slot.leaves_at_s == self.now_s:
            self.end(array, index)


def turn(world: World, state: State, *, is_heard: bool = True) -> tuple[State, TurnPlan]:
    """``is_heard``: the daemon's answers reach the launcher."""
    view = world.view()
    answers = {
        (service.array_job_id, slot.index): Answer(Probe.OURS)
        for service in view.services
        for slot in service.slots
        if slot.state == "running" and not world.arrays[service.array_job_id].is_broken
    }
    decided = decide(view, world.gateway(), answers, state, world.now_s)
    assert decided is not None
    found, plan = decided
    for change in plan.routes.changes:
        world.change(change)
    known: dict[str, ServiceState] = dict(found)
    for service in plan.services:
        for array, desired in service.desired_by_array.items():
            answer = world.set_desired_slots(array, desired.run)
            if is_heard:
                # A little after the look: the next look, a second later, is newer.
                said = replace(desired, at_s=world.now_s + 0.1)
                known["t/a"] = after_answer(known["t/a"], array, said, answer)
            else:
                known["t/a"] = after_silence(known["t/a"], array, desired)
        for array in service.retired:
            world.retire(array)
            known["t/a"] = after_retirement(known["t/a"], array, world.now_s + 0.1)
    return known, plan


EVENTS = st.sampled_from(
    ["", "", "", "", "forgets", "unheard", "kill", "preempt", "apply", "broken", "restart", "leave"]
)
SECONDS = st.lists(st.tuples(st.integers(0, 5), EVENTS), max_size=60)


def happens(world: World, event: str) -> None:
    newest = max(world.arrays)
    if event in {"apply", "broken"} and len(world.arrays) < 4:
        world.arrays[newest + 1] = Array(is_broken=event == "broken")
    if event == "restart":
        world.order = replace_order(world.order, restart_s=world.now_s)
    if event in {"kill", "preempt"}:
        world.kill(preempts=event == "preempt")
    if event == "leave":
        running = [s for _, _, s in world.slots() if s.state == "running"]
        for slot in running[:1]:
            slot.leaves_at_s = slot.leaves_at_s or world.now_s + 30


def replace_order(order: ServiceOrder, **change: float) -> ServiceOrder:
    return order.model_copy(update=change)


def lived(world: World, seconds: list[tuple[int, str]], work: int) -> State:
    state: State = {}
    state, _ = turn(world, state)
    for arrivals, event in seconds:
        happens(world, event)
        world.pass_second(arrivals, work)
        state = {} if event == "forgets" else state
        state, _ = turn(world, state, is_heard=event != "unheard")
    return state


def settle(world: World, state: State, work: int, *, asks: bool = True) -> State:
    """A working generation is there in the end, and is asked once more."""
    if all(array.is_broken for array in world.arrays.values()) or asks:
        newest = max(world.arrays)
        if world.arrays[newest].is_broken:
            world.arrays[newest + 1] = Array(is_broken=False)
    world.pass_second(int(asks), work)
    for _ in range(world.waiting * work + 80):
        state, _ = turn(world, state)
        world.pass_second(0, work)
    return state


# Shorter than a preempted replica has.
WORK = st.integers(1, END_TICKS - 1)


# Three starts fail, and the fourth replica has served for less time than a start needs to count.
@example(seconds=[(1, ""), (4, ""), (0, ""), (2, ""), *[(0, "kill")] * 3], quota=4, work=1)
@settings(max_examples=examples(25, nightly=2000))
@given(SECONDS, st.integers(1, SLOTS), WORK)
def test_no_request_is_cut_all_are_answered_and_old_generations_disappear(
    seconds: list[tuple[int, str]], quota: int, work: int
):
    world = World(quota)
    state = settle(world, lived(world, seconds, work), work)
    assert world.cut == 0
    assert world.answered == world.arrived - world.killed
    assert {slot.state for _, _, slot in world.slots()} == {"held"}
    assert {line.mode for line in world.lines} == {ServerMode.MAINT}
    assert len(world.arrays) == 1
    assert state["t/a"].generations.keys() == world.arrays.keys()


@example(seconds=[(1, "")] + [(0, "")] * 6 + [(0, "unheard")], quota=1, work=1)
@settings(max_examples=examples(25, nightly=2000))
@given(SECONDS, st.integers(1, SLOTS), WORK)
def test_a_service_that_is_to_end_finishes_what_it_has(
    seconds: list[tuple[int, str]], quota: int, work: int
):
    calm = [(n, e) for n, e in seconds if e not in {"broken", "kill", "preempt"}]
    world = World(quota)
    state = lived(world, calm, work)
    world.order = replace_order(world.order, delete_s=world.now_s)
    for _ in range(world.waiting * work + 80):
        world.pass_second(1, work)
        state, _ = turn(world, state)
    assert (world.cut, world.arrays, world.routes) == (0, {}, {})
    assert world.answered == world.arrived


@pytest.mark.parametrize("quota", range(2, SLOTS + 1))
def test_a_broken_generation_does_not_take_the_old_ones_replicas_away(quota: int):
    """Steady requests are answered all the time, at most one replica short."""
    world = World(quota)
    state, _ = turn(world, {})
    for _ in range(20):
        world.pass_second(CONCURRENCY, 1)
        state, _ = turn(world, state)
    world.arrays[8] = Array(is_broken=True)
    for _ in range(100):
        world.pass_second(CONCURRENCY, 1)
        state, plan = turn(world, state)
        serving = [s for s in plan.services[0].slots if s.phase is Phase.SERVING]
        assert {s.id.array_job_id for s in serving} == {7}
    assert (world.cut, world.killed) == (0, 0)
    assert world.waiting <= CONCURRENCY


@given(st.integers(1, SLOTS), st.integers(0, 2), st.sampled_from(["apply", "restart"]))
def test_under_steady_load_all_replicas_are_replaced_with_or_without_room(
    replicas: int, spare: int, event: str
):
    """At most one is missing at a time, and none where quota has room for a successor."""
    world, load = World(replicas + spare), replicas * CONCURRENCY
    state: State = {}
    for _ in range(30):
        state, _ = turn(world, state)
        world.pass_second(load, 1)
    happens(world, event)
    old = {slot.run for _, _, slot in world.slots()}
    for _ in range(15 * replicas + 15):
        state, plan = turn(world, state)
        world.pass_second(load, 1)
        serving = [s for s in plan.services[0].slots if s.phase is Phase.SERVING]
        has_index = event == "apply" or replicas < SLOTS
        assert len(serving) >= replicas - (not spare or not has_index)
    assert not old & {slot.run for _, _, slot in world.slots() if slot.state == "running"}
    assert len(world.arrays) == 1
    assert (world.cut, world.killed) == (0, 0)
