"""Changes at the gateway, in the order in which they are safe."""

from dataclasses import replace

from launcher.decide.gateway import Backend, Gateway, Load, Mode, Server, load_of
from launcher.decide.routing import (
    AddRoute,
    EndSessions,
    MarkComplete,
    RemoveRoute,
    Route,
    SendRound,
    SetHealthy,
    SetMode,
    SetTarget,
    Target,
    plan_routes,
)

NOWHERE = Server("127.0.0.1", 1, Mode.MAINT, up=False, in_flight=0, queued=0)
READY, DRAIN, MAINT = Mode.READY, Mode.DRAIN, Mode.MAINT


def at(port: int, mode: Mode, in_flight: int = 0) -> Server:
    return Server("10.0.0.1", port, mode, up=True, in_flight=in_flight, queued=0)


def backend(*servers: Server, sessions: int = 0, queued: int = 0) -> Backend:
    return Backend(sessions, queued, servers or (NOWHERE, NOWHERE))


def gateway(routes: dict[str, str], **backends: Backend) -> Gateway:
    return Gateway(routes, backends, complete=True)


def route(targets: dict[int, Target] | None, service: str = "t/a") -> Route:
    return Route(service, 4, targets)


def target(port: int, mode: Mode) -> Target:
    return Target("10.0.0.1", port, mode)


def test_a_new_service_gets_a_free_backend_so_that_requests_are_held():
    plan = plan_routes(gateway({}, pool1=backend()), [route({})])
    assert plan.changes == (AddRoute("t/a", "pool1"),)


def test_a_backend_with_somebody_elses_requests_is_not_free():
    plan = plan_routes(gateway({}, pool1=backend(sessions=1), pool2=backend()), [route({})])
    assert plan.changes == (AddRoute("t/a", "pool2"),)


def test_without_a_free_backend_it_says_so():
    plan = plan_routes(gateway({"t/b": "pool1"}, pool1=backend()), [route(None, "t/b"), route({})])
    assert (plan.changes, plan.unrouted) == ((), ("t/a",))


def test_stale_servers_are_closed_before_the_route_is_added():
    plan = plan_routes(gateway({}, pool1=backend(at(7, READY))), [route({})])
    assert plan.changes == (SetMode("pool1", 0, MAINT), AddRoute("t/a", "pool1"))


def test_a_replica_gets_its_address_in_maintenance():
    plan = plan_routes(
        gateway({"t/a": "pool1"}, pool1=backend()), [route({1: target(21001, READY)})]
    )
    assert plan.changes == (
        SetTarget("pool1", 1, "10.0.0.1", 21001, 4),
        SetMode("pool1", 1, READY),
        SetHealthy("pool1", 1),
    )


def test_another_address_goes_through_maintenance():
    plan = plan_routes(
        gateway({"t/a": "pool1"}, pool1=backend(at(7, READY))), [route({0: target(8, READY)})]
    )
    assert plan.changes[:2] == (SetMode("pool1", 0, MAINT), SetTarget("pool1", 0, "10.0.0.1", 8, 4))


def test_what_is_right_is_left_alone():
    shown = gateway({"t/a": "pool1"}, pool1=backend(at(7, READY), at(8, DRAIN)))
    assert plan_routes(shown, [route({0: target(7, READY), 1: target(8, DRAIN)})]).changes == ()


def test_drain_and_back():
    shown = gateway({"t/a": "pool1"}, pool1=backend(at(7, READY, 2), at(8, DRAIN)))
    plan = plan_routes(shown, [route({0: target(7, DRAIN), 1: target(8, READY)})])
    assert plan.changes == (SetMode("pool1", 0, DRAIN), SetMode("pool1", 1, READY))


def test_maintenance_cuts_what_is_still_in_flight():
    shown = gateway({"t/a": "pool1"}, pool1=backend(at(7, DRAIN, 2), at(8, DRAIN)))
    assert plan_routes(shown, [route({})]).changes == (
        SetMode("pool1", 0, MAINT),
        EndSessions("pool1", 0),
        SetMode("pool1", 1, MAINT),
    )


def test_an_ended_service_loses_its_route_first():
    plan = plan_routes(gateway({"t/a": "pool1"}, pool1=backend(at(7, READY))), [])
    assert plan.changes == (RemoveRoute("t/a"), SetMode("pool1", 0, MAINT))


def test_what_waits_for_an_ended_service_is_sent_round_and_what_is_in_flight_may_end():
    shown = gateway({"t/a": "pool1"}, pool1=backend(at(7, READY, 2), sessions=9, queued=7))
    assert plan_routes(shown, []).changes == (
        RemoveRoute("t/a"),
        SetMode("pool1", 0, MAINT),
        SendRound("pool1"),
    )


def test_a_backend_that_lost_its_route_in_between_is_vacated_too():
    shown = gateway({}, pool1=backend(at(7, READY), sessions=3, queued=3), pool2=backend())
    assert plan_routes(shown, [route({})]).changes == (
        SetMode("pool1", 0, MAINT),
        SendRound("pool1"),
        AddRoute("t/a", "pool2"),
    )


def test_its_backend_is_not_reused_at_the_same_look():
    plan = plan_routes(gateway({"t/b": "pool1"}, pool1=backend()), [route({})])
    assert (plan.changes, plan.unrouted) == ((RemoveRoute("t/b"),), ("t/a",))


def test_a_service_that_must_be_left_alone_keeps_route_and_servers():
    shown = gateway({"t/a": "pool1"}, pool1=backend(at(7, READY, 1)))
    assert plan_routes(shown, [route(None)]).changes == ()


def test_after_a_start_of_haproxy_the_mark_comes_last():
    shown = replace(gateway({}, pool1=backend()), complete=False)
    plan = plan_routes(shown, [route({0: target(7, READY)})])
    assert (plan.changes[0], plan.changes[-1]) == (AddRoute("t/a", "pool1"), MarkComplete())
    assert MarkComplete() not in plan_routes(replace(shown, complete=True), [route({})]).changes


def test_the_plan_says_what_is_routed_then():
    shown = gateway(
        {"t/b": "pool1", "t/c": "pool2"}, pool1=backend(), pool2=backend(), p3=backend()
    )
    plan = plan_routes(shown, [route({}), route(None, "t/c"), route({}, "t/d")])
    assert (plan.routes, plan.unrouted) == ({"t/a": "p3", "t/c": "pool2"}, ("t/d",))


def test_a_route_to_a_backend_that_is_no_more_is_replaced():
    plan = plan_routes(gateway({"t/a": "pool9"}, pool1=backend()), [route({})])
    assert plan.changes == (RemoveRoute("t/a"), AddRoute("t/a", "pool1"))


def test_load_is_told_apart():
    servers = (at(7, READY, 3), Server("10.0.0.1", 8, READY, up=True, in_flight=2, queued=1))
    assert load_of(backend(*servers, sessions=12, queued=4)) == Load(5, 5, 2)
    assert load_of(None) == Load()
