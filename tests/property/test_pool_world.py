"""Services that share replicas, against a small world; the launcher forgets all that it knew.

Whatever arrives, is applied, leaves the pool, is deleted, dies, or can't be loaded: no request is
cut but those that a killed server had in flight, none reaches a replica without its model, no model
with requests is unloaded, memory is never exceeded, all requests are answered, and in the end
nothing runs.
"""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import pool_world
from stand_ins.pool_world import END_TICKS, Array, PoolWorld, Service, a_pool_world, pooled

from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.pools import wear

_CALM = [""] * 6
EVENTS = st.sampled_from(
    [
        *_CALM,
        *("forget", "take over", "kill", "preempt", "lose", "fail"),
        *("apply", "leave", "reshape", "delete", "keep"),
    ]
)
NUMBER = st.integers(0, 3)
SECONDS = st.lists(st.tuples(NUMBER, st.integers(0, 4), EVENTS, NUMBER), max_size=50)
# Shorter than a preempted replica has.
WORK = st.integers(1, END_TICKS - 1)
MODELS_MIB = st.lists(st.integers(20, 80), min_size=2, max_size=4)


def happens(world: PoolWorld, event: str, service: Service) -> None:
    match event:
        case "forget":
            world.forget()
        case "take over":
            world.take_over()
        case "kill" | "preempt":
            world.end(preempts=event == "preempt")
        case "lose":
            for slot in world.running()[:1]:
                world.lose(slot.run)
        case "fail":
            world.fails += 1
        case "apply" | "leave" | "reshape":
            applied(world, event, service)
        case "delete":
            service.order = service.order.model_copy(update={"delete_s": world.now_s})
        case "keep":
            service.order = service.order.model_copy(update={"min_replicas": 1})


def applied(world: PoolWorld, event: str, service: Service) -> None:
    """One that is being deleted is not applied again before it is gone."""
    if service.order.delete_s is not None or len(service.arrays) > 2:
        return
    values = dict(pooled(service.name, service.model_mib, concurrency=str(world.concurrency)))
    if event == "leave":
        del values["pool"]
    if event == "reshape":
        values["cpus"] = "7"
    newest = max(number for each in world.services.values() for number in (0, *each.arrays))
    service.arrays[newest + 1] = Array(values)


def lived(world: PoolWorld, seconds: list[tuple[int, int, str, int]]) -> None:
    services = list(world.services.values())
    world.turn()
    for asked, arrivals, event, target in seconds:
        happens(world, event, services[target % len(services)])
        world.pass_second({services[asked % len(services)].name: arrivals})
        world.turn()


def settle(world: PoolWorld) -> None:
    """Each service is asked once more."""
    for service in world.services.values():
        service.order = service.order.model_copy(update={"min_replicas": None})
    world.fails = 0
    world.pass_second(dict.fromkeys(world.services, 1))
    for _ in range(sum(s.waiting for s in world.services.values()) * world.work + 250):
        world.turn()
        world.pass_second({})
        if world.is_quiet():
            break
    for _ in range(3):
        world.turn()
        world.pass_second({})


@settings(max_examples=examples(25, nightly=2000), deadline=None)
@given(
    seconds=SECONDS,
    models_mib=MODELS_MIB,
    quota=st.integers(1, 5),
    work=WORK,
    is_memory_known=st.booleans(),
    most_loads=st.sampled_from([3, 100]),
)
def test_no_request_is_cut_or_comes_too_early_and_all_are_answered(
    *,
    seconds: list[tuple[int, int, str, int]],
    models_mib: list[int],
    quota: int,
    work: int,
    is_memory_known: bool,
    most_loads: int,
):
    world = a_pool_world(models_mib, quota, work, is_memory_known=is_memory_known)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wear, "MOST_LOADS", most_loads)
        lived(world, seconds)
        settle(world)
    for service in world.services.values():
        assert service.answered == service.arrived - service.lost, service.name
        assert {line.mode for line in service.lines} == {ServerMode.MAINT}
        assert len(service.arrays) == (service.order.delete_s is None)
    assert {slot.state for *_, slot in world.slots()} <= {"held"}


def kept_busy(world: PoolWorld, seconds: int, **arrivals: int) -> None:
    """The first service keeps a replica. Requests come every four seconds."""
    happens(world, "keep", world.services["a"])
    for second in range(seconds):
        world.turn()
        world.pass_second({} if second % 4 else arrivals)


def answered(world: PoolWorld) -> list[int]:
    return [service.answered for service in world.services.values()]


def test_one_replica_serves_all_models_that_fit_and_no_other_starts():
    world = a_pool_world([30, 30, 30], quota=4, work=1, concurrency=9)
    kept_busy(world, 10)
    kept_busy(world, 80, b=1, c=1)
    assert world.starts == 1
    assert min(answered(world)[1:]) > 15


def test_what_is_asked_is_loaded_before_what_only_fills_memory():
    world = a_pool_world([20, 20, 20, 20], quota=4, work=1, concurrency=9)
    kept_busy(world, 1)
    world.pass_second({"d": 1})
    loaded = list[str]()
    for _ in range(30):
        world.turn()
        world.pass_second({})
        for server in world.servers.values():
            loaded += sorted(server.ready.difference(loaded))
    assert loaded == ["ma", "md", "mb", "mc"]
    assert world.starts == 1


def test_what_is_asked_waits_for_no_load_that_nobody_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_world, "LOAD_TICKS", 20)
    world = a_pool_world([20, 20, 20, 20], quota=1, work=1, concurrency=9)
    kept_busy(world, 10)
    (server,) = world.servers.values()
    assert server.loading == {"mb"}
    world.pass_second({"c": 1, "d": 1})
    began_s, loads = world.now_s, set[frozenset[str]]()
    while world.services["c"].waiting:
        world.turn()
        world.pass_second({})
        loads.add(server.loading)
    assert frozenset({"mb", "mc"}) in loads
    # Of the two that are asked one at a time.
    assert not any({"mc", "md"} <= loading for loading in loads)
    assert world.now_s - began_s <= 20 + 3


def test_models_that_fit_no_replica_together_keep_two_though_one_could_do_the_work():
    world = a_pool_world([60, 60], quota=4, work=5, concurrency=9)
    kept_busy(world, 80, b=1)
    assert world.starts == 2
    assert answered(world)[1] > 15


def test_a_replica_is_given_up_only_once_another_has_its_model():
    world = a_pool_world([30, 30], quota=4, work=5)
    for _ in range(4):
        kept_busy(world, 4, a=4, b=4)
    assert len(world.running()) > 1
    while len(world.running()) > 1:
        kept_busy(world, 4, b=1)
        if world.services["b"].in_flight:
            assert ServerMode.READY in {line.mode for line in world.services["b"].lines}


def test_a_model_that_no_replica_can_load_starts_none_but_its_own():
    world = a_pool_world([20, 60], quota=8, work=5, concurrency=9)
    world.broken = frozenset({"mb"})
    kept_busy(world, 100, a=1, b=1)
    assert world.starts == 2
    assert answered(world)[1] > 15


def test_the_owner_of_a_model_that_a_replica_could_not_load_is_told_until_it_has():
    world = a_pool_world([30, 30], quota=4, work=1, concurrency=9)
    world.broken = frozenset({"mb"})
    kept_busy(world, 20)
    told = {plan.service: plan for plan in world.turn().services}
    assert "of t/a could not load mb: out of memory (its log" in told["t/b"].note
    assert [refusal.why for refusal in told["t/b"].refusals] == ["out of memory"]
    assert told["t/a"].note == ""
    world.broken = frozenset()
    kept_busy(world, 300)
    kept_busy(world, 100, b=1)
    told = {plan.service: plan for plan in world.turn().services}
    assert (told["t/b"].note, told["t/b"].refusals) == ("", ())


def test_the_owner_of_a_model_that_left_the_pool_and_came_back_is_told_of_no_load_before():
    world = a_pool_world([30, 30, 30], quota=4, work=1, concurrency=9)
    world.broken = frozenset({"mb"})
    kept_busy(world, 20)
    told = {plan.service: plan for plan in world.turn().services}
    assert told["t/b"].refusals
    world.broken = frozenset()
    happens(world, "leave", world.services["b"])
    kept_busy(world, 80)
    happens(world, "apply", world.services["b"])
    told = {plan.service: plan for plan in world.turn().services}
    assert (told["t/b"].note, told["t/b"].refusals) == ("", ())


def test_a_model_of_a_service_that_has_left_the_pool_wears_no_replica(
    monkeypatch: pytest.MonkeyPatch,
):
    """The replica still has it, and nothing says any more how much of its memory that is."""
    monkeypatch.setattr(wear, "SETTLES_S", 0)
    world = a_pool_world([20, 50, 20], quota=4, work=1, concurrency=9)
    kept_busy(world, 40, b=1)
    (run,) = world.servers
    assert world.servers[run].ready == {"ma", "mb", "mc"}
    happens(world, "leave", world.services["b"])
    kept_busy(world, 40)
    assert list(world.servers) == [run]


def test_a_replica_that_nobody_asks_gives_way_where_quota_is_short():
    world = a_pool_world([60, 60], quota=1, work=1, concurrency=9)
    kept_busy(world, 20)
    kept_busy(world, 4, b=1)
    kept_busy(world, 30)
    assert answered(world)[1] == 1


def test_a_service_that_is_deleted_starts_no_replica_while_others_serve_it():
    world = a_pool_world([30, 30], quota=4, work=5, concurrency=9)
    kept_busy(world, 10)
    kept_busy(world, 21, b=1)
    happens(world, "delete", world.services["b"])
    kept_busy(world, 20)
    assert not world.services["b"].arrays
    assert world.starts == 1


def test_a_replica_that_shares_with_nobody_any_more_has_its_own_model_alone():
    """Another audience may ask it: models that were not opened to it must be gone."""
    world = a_pool_world([30, 30], quota=4, work=2, concurrency=9)
    kept_busy(world, 10)
    kept_busy(world, 21, b=1)
    (server,) = world.servers.values()
    assert server.ready == {"ma", "mb"}
    service = world.services["a"]
    newest = max(service.arrays)
    values = {**service.arrays[newest].directives, "audience": "x"}
    service.arrays[newest + 10] = Array(values)
    kept_busy(world, 60, b=1)
    assert server.ready == {"ma"}
    assert answered(world)[1] > 15


def test_a_member_whose_file_can_not_be_read_keeps_no_other_back():
    world = a_pool_world([30, 30], quota=4, work=2, concurrency=9)
    service = world.services["a"]
    (number,) = service.arrays
    service.arrays[number] = Array({**service.arrays[number].directives, "lease_s": "1"})
    world.unreadable = frozenset({"t/a"})
    kept_busy(world, 40, b=1)
    assert answered(world)[1] > 5


@pytest.mark.parametrize("launchers", [1, 6])
def test_a_replica_that_has_loaded_many_models_is_replaced_and_another_one_serves_first(
    monkeypatch: pytest.MonkeyPatch, launchers: int
):
    """Two models that have no room together come in turn; launchers take over now and then."""
    monkeypatch.setattr(wear, "MOST_LOADS", 9)
    world, most = a_pool_world([40, 50, 50], quota=2, work=1), 0
    kept_busy(world, 10)
    (first,) = world.servers
    ready = []
    for turn in range(40):
        if turn % (40 // launchers) == 20 // launchers and launchers > 1:
            world.take_over()
        kept_busy(world, 8, **{"bc"[turn % 2]: 1})
        most = max([most, *(server.loads for server in world.servers.values())])
        ready.append({line.mode for line in world.services["a"].lines if line.up})
    assert first not in world.servers
    assert all(ServerMode.READY in modes for modes in ready)
    # It goes on while its successor starts.
    assert 9 < most <= 9 + 4
    assert min(answered(world)[1:]) > 15
