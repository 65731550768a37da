"""The whole decision against a small world: Slurm, the gateway, clients; the launcher forgets.

Whatever arrives and whenever the launcher is killed, no request is cut, every one is answered, and
in the end nothing runs.
"""

from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from cluster.wire import ServiceView, SlotView, ViewAnswer
from launcher.decide.gateway import Backend, Gateway, Mode, Server
from launcher.decide.routing import (
    AddRoute,
    Change,
    EndSessions,
    RemoveRoute,
    SetHealthy,
    SetMode,
    SetTarget,
)
from launcher.decide.services import Plan, Probe, State, Wish, decide, with_wish

ARRAY, SLOTS, CONCURRENCY, KEEP_ALIVE_S = 7, 4, 2, 3
START_TICKS, END_TICKS = 3, 2
NOWHERE = Server("127.0.0.1", 1, Mode.MAINT, up=False, in_flight=0, queued=0)
DIRECTIVES = {
    "name": "a",
    "tenant": "t",
    "model_repository": "/m",
    "model": "m",
    "profile": "1g.10gb",
    "max_replicas": str(SLOTS),
    "concurrency": str(CONCURRENCY),
    "keep_alive_s": str(KEEP_ALIVE_S),
}
RUNS = count(1)


@dataclass
class SlotWorld:
    state: str = "held"
    ticks: int = 0
    job_id: int = 0


@dataclass
class World:
    """One tick is a second; a request takes ``work`` ticks in a replica."""

    quota: int
    now_s: float = 0.0
    slots: list[SlotWorld] = field(default_factory=lambda: [SlotWorld() for _ in range(SLOTS)])
    servers: list[Server] = field(default_factory=lambda: [NOWHERE] * SLOTS)
    work: list[list[int]] = field(default_factory=lambda: [[] for _ in range(SLOTS)])
    routes: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    answered: int = 0
    cut: int = 0

    def view(self) -> ViewAnswer:
        service = ServiceView(
            array_job_id=ARRAY,
            tenant="t",
            name="a",
            user="u",
            submit_s=0,
            directives=DIRECTIVES,
            profile="1g.10gb",
            cost_millislices=1000,
            slots=tuple(self._slot(index) for index in range(SLOTS)),
        )
        return ViewAnswer(observed_s=self.now_s, complete=True, services=(service,), tenants=())

    def _slot(self, index: int) -> SlotView:
        slot = self.slots[index]
        if slot.state != "running":
            return SlotView.model_validate({"index": index, "state": slot.state})
        return SlotView(
            index=index,
            state="running",
            job_id=slot.job_id,
            address="10.0.0.1",
            ports=(1000 + slot.job_id,),
            start_s=slot.job_id,
        )

    def gateway(self) -> Gateway:
        lines = tuple(
            replace(server, in_flight=len(work))
            for server, work in zip(self.servers, self.work, strict=True)
        )
        sessions = self.waiting + sum(len(work) for work in self.work)
        return Gateway(self.routes, {"pool1": Backend(sessions, 0, lines)}, complete=True)

    def change(self, change: Change) -> None:
        match change:
            case SetMode(_, index, mode):
                self.servers[index] = replace(self.servers[index], mode=mode)
            case SetTarget(_, index, address, port, _):
                assert self.servers[index].mode is Mode.MAINT
                self.servers[index] = replace(self.servers[index], address=address, port=port)
            case SetHealthy(_, index):
                self.servers[index] = replace(self.servers[index], up=True)
            case EndSessions(_, index):
                self.cut += len(self.work[index])
                self.work[index].clear()
            case AddRoute(service, backend):
                self.routes[service] = backend
            case RemoveRoute(service):
                del self.routes[service]

    def wish(self, run: frozenset[int]) -> frozenset[int]:
        """As the daemon does it, quota included."""
        busy = sum(slot.state != "held" for slot in self.slots)
        released = set()
        for index, slot in enumerate(self.slots):
            if index in run and slot.state == "held" and busy < self.quota:
                busy += 1
                released.add(index)
                self.slots[index] = SlotWorld("released", START_TICKS, next(RUNS))
            if index not in run and slot.state == "released":
                self.slots[index] = SlotWorld()
            if index not in run and slot.state in {"starting", "running"}:
                self.cut += len(self.work[index])
                self.work[index].clear()
                self.slots[index] = SlotWorld("ending", END_TICKS)
        return frozenset(released)

    def pass_second(self, arrivals: int, work: int) -> None:
        self.now_s += 1
        for index, slot in enumerate(self.slots):
            slot.ticks -= 1
            if slot.state == "released" and slot.ticks <= 0:
                slot.state = "running"
            elif slot.state == "ending" and slot.ticks <= 0:
                self.slots[index] = SlotWorld()
        self.waiting += arrivals if "t/a" in self.routes else 0
        for index, server in enumerate(self.servers):
            left = [ticks - 1 for ticks in self.work[index]]
            self.answered += sum(ticks <= 0 for ticks in left)
            self.work[index] = [ticks for ticks in left if ticks > 0]
            while (
                server.mode is Mode.READY and self.waiting and len(self.work[index]) < CONCURRENCY
            ):
                assert self.slots[index].state == "running"
                assert server.port == 1000 + self.slots[index].job_id
                self.waiting -= 1
                self.work[index].append(work)


def turn(world: World, state: State) -> tuple[State, Plan]:
    view = world.view()
    probes = {(ARRAY, s.index): Probe.OURS for s in view.services[0].slots if s.state == "running"}
    decided = decide(view, world.gateway(), probes, state, world.now_s)
    assert decided is not None
    found, plan = decided
    for change in plan.routes.changes:
        world.change(change)
    for service in plan.services:
        if service.wish is not None:
            released = world.wish(service.wish)
            # A little after the look: the next look, a second later, is newer.
            wish = Wish(service.wish, world.now_s + 0.1)
            found = with_wish(found, ARRAY, wish, released)
    return found, plan


SECONDS = st.tuples(st.integers(0, 6), st.booleans())


@given(st.lists(SECONDS, max_size=60), st.integers(1, SLOTS), st.integers(1, 8))
def test_no_request_is_cut_and_all_are_answered(
    seconds: list[tuple[int, bool]], quota: int, work: int
):
    world, state = World(quota), {}
    state, _ = turn(world, state)
    arrived = 0
    for arrivals, killed in seconds:
        world.pass_second(arrivals, work)
        arrived += arrivals
        state, _ = turn(world, {} if killed else state)
    for _ in range(arrived * work + KEEP_ALIVE_S + 60):
        world.pass_second(0, work)
        state, _ = turn(world, state)
    assert (world.cut, world.answered) == (0, arrived)
    assert [slot.state for slot in world.slots] == ["held"] * SLOTS
    assert {server.mode for server in world.servers} == {Mode.MAINT}
