"""Tests how loads of models in a pool's running replicas are followed as starts."""

from dataclasses import replace

from builders.gateways import DIGEST
from stand_ins.pool_world import LOAD_TICKS, PoolWorld, a_pool_world

from slicewise.cluster.language.starts import StartTrace, Weights, phases_of
from slicewise.launcher.rules.turn.start_traces import HeardOfStarts

PATIENCE = 60


def a_world_with_a_replica() -> PoolWorld:
    """One slice, and a replica of service a on it, whose memory is not known, so not filled."""
    world = a_pool_world([40, 40], quota=1, work=2, is_memory_known=False)
    step(world)
    for tick in range(PATIENCE):
        step(world, a=not tick)
        if world.services["a"].answered:
            return world
    raise AssertionError("service a does not start")


def step(world: PoolWorld, **arrivals: int) -> None:
    world.pass_second(arrivals)
    world.turn()


def loads(world: PoolWorld) -> list[StartTrace]:
    """Those of service b's model in other services' replicas; a start of its own has no room."""
    return [one for one in world.state["t/b"].starts.newest if one.is_load]


def loaded(world: PoolWorld) -> StartTrace:
    """The trace of the first load once it is over."""
    for _ in range(PATIENCE):
        if (first := loads(world)[0]).state != "starting":
            return first
        step(world)
    raise AssertionError("no load is over")


def test_a_load_that_a_request_waits_for_is_a_start_of_its_service():
    world = a_world_with_a_replica()
    (own,) = world.state["t/a"].starts.over
    asked_s = world.now_s + 1
    step(world, b=1)
    (trace,) = loads(world)
    assert (trace.weights, trace.state) == (Weights("pool"), "starting")
    assert (trace.array_job_id, trace.slot) == (own.array_job_id, own.slot)
    trace = loaded(world)
    assert (trace.state, list(trace.at_s)) == (
        "ready",
        ["held", "seen", "desired", "loaded", "routed"],
    )
    assert trace.at_s["desired"] == asked_s
    seconds = {phase.phase: phase.seconds for phase in phases_of(trace)}
    assert LOAD_TICKS <= seconds["load"] <= LOAD_TICKS + 2
    assert world.state["t/a"].starts.over == (own,)
    assert trace.weights == Weights("pool")


def test_a_load_from_the_node_s_copy_is_of_a_class_of_its_own():
    world = a_world_with_a_replica()
    world.on_node = frozenset({"mb"})
    step(world, b=1)
    (trace,) = loads(world)
    assert (trace.weights, trace.state) == (Weights("pool"), "starting")
    trace = loaded(world)
    assert (trace.weights, trace.state) == (Weights("pool_node"), "ready")


def test_the_first_answer_is_that_of_the_service_s_own_request():
    """The replica may have answered others who had waited, and this service before."""
    world = a_world_with_a_replica()
    answered_s: dict[tuple[str, str], float] = {
        ("triton1", DIGEST): world.now_s + 2.0,
        ("triton2", DIGEST): world.now_s - 1.0,
    }
    heard = world.heard
    world.heard = lambda: replace(heard(), starts=HeardOfStarts({}, answered_s))  # type: ignore[method-assign]
    step(world, b=1)
    while "routed" not in loads(world)[0].at_s:
        step(world)
    answered_s["triton2", DIGEST] = world.now_s + 0.5
    step(world)
    (trace,) = loads(world)
    assert trace.at_s["answered"] == answered_s["triton2", DIGEST]


def test_a_load_that_the_replica_refuses_ends():
    world = a_world_with_a_replica()
    world.broken = frozenset({"mb"})
    step(world, b=1)
    trace = loaded(world)
    assert (trace.state, list(trace.at_s)[-1]) == ("ended", "ended")


def test_what_another_launcher_finds_loaded_is_no_start():
    world = a_world_with_a_replica()
    step(world, b=1)
    loaded(world)
    world.forget()
    for _ in range(PATIENCE):
        step(world, b=1)
    assert loads(world) == []


def test_users_are_told_which_replica_has_the_model():
    world = a_world_with_a_replica()
    world.pass_second({"b": 1})
    seen = {plan.service: plan.places for plan in world.turn().services}
    (own,), (guest,) = seen["t/a"], seen["t/b"]
    assert (own.state, guest.state) == ("ready", "loading")
    assert (own.array_job_id, own.slot) == (guest.array_job_id, guest.slot)
    for _ in range(PATIENCE):
        world.pass_second({})
        (guest,) = next(plan.places for plan in world.turn().services if plan.service == "t/b")
        if guest.in_flight:
            break
    assert (guest.state, guest.load_s) == ("ready", float(LOAD_TICKS))
