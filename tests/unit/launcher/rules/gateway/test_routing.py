"""Tests that changes at the gateway come in the order in which they are safe."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders.gateways import NOWHERE, a_server

from slicewise.launcher.gateway.runtime_api import Maps, commands
from slicewise.launcher.rules.gateway.routing import (
    AddRoute,
    EndSessions,
    MarkComplete,
    MoveRoute,
    RemoveRoute,
    Route,
    SendRound,
    SetAdapter,
    SetConcurrency,
    SetHealthy,
    SetMode,
    SetTarget,
    SetTerms,
    plan_routes,
)
from slicewise.launcher.rules.gateway.types import (
    Backend,
    Endpoint,
    Gateway,
    Load,
    Server,
    ServerMode,
    Terms,
    load_of,
    with_replaced,
)

READY, DRAIN, MAINT = ServerMode.READY, ServerMode.DRAIN, ServerMode.MAINT


def at(port: int, mode: ServerMode, in_flight: int = 0) -> Server:
    return a_server(0, mode, in_flight, port=port)


def backend(*servers: Server, sessions: int = 0, queued: int = 0) -> Backend:
    return Backend(sessions, queued, servers or (NOWHERE, NOWHERE))


def gateway(routes: dict[str, str], **backends: Backend) -> Gateway:
    return Gateway(routes, backends, complete=True)


def end(port: int) -> Endpoint:
    return Endpoint("10.0.0.1", port, port + 1, "CCCC")


def route(targets: dict[int, ServerMode] | None, service: str = "t/a") -> Route:
    """Targets by port."""
    found = None if targets is None else {end(port): mode for port, mode in targets.items()}
    return Route(service, 4, found, "triton")


def test_a_new_service_gets_a_free_backend_so_that_requests_are_held():
    plan = plan_routes(gateway({}, triton1=backend()), [route({})])
    assert plan.changes == (AddRoute("t/a", "triton1"),)


def test_a_service_gets_a_backend_of_its_engine():
    """Each engine has health checks, and paths that clients may ask for, of its own."""
    shown = gateway({"t/b": "triton1"}, triton1=backend(), triton2=backend(), other1=backend())
    others = [replace(route({}, name), group="other") for name in ("t/a", "t/b")]
    plan = plan_routes(shown, others)
    assert (plan.routes, [*plan.unrouted]) == ({"t/a": "other1"}, ["t/b"])
    assert plan_routes(shown, [route({}, "t/b")]).routes == {"t/b": "triton1"}


def test_a_backend_with_somebody_elses_requests_is_not_free():
    plan = plan_routes(gateway({}, triton1=backend(sessions=1), triton2=backend()), [route({})])
    assert plan.changes == (AddRoute("t/a", "triton2"),)


def test_without_a_free_backend_it_says_so():
    plan = plan_routes(
        gateway({"t/b": "triton1"}, triton1=backend()), [route(None, "t/b"), route({})]
    )
    assert (plan.changes, plan.unrouted) == ((), {"t/a": "the gateway has no free backend"})


def test_idle_services_of_one_tenant_leave_backends_to_others():
    group = {f"triton{number}": backend() for number in range(1, 9)}
    shown = replace(gateway({}, **group), per_tenant=4)
    crowd = [route({}, f"t/{name}") for name in "abcdefgh"]
    plan = plan_routes(shown, [*crowd, route({}, "u/a")])
    assert [*plan.routes] == ["t/a", "t/b", "t/c", "t/d", "u/a"]
    assert {
        name: "may have at most 4" in why for name, why in plan.unrouted.items()
    } == dict.fromkeys(("t/e", "t/f", "t/g", "t/h"), True)


def test_who_has_more_than_its_tenant_may_keeps_it():
    routes = {f"t/{name}": f"triton{number}" for number, name in enumerate("abc", start=1)}
    shown = gateway(
        routes, triton1=backend(), triton2=backend(), triton3=backend(), triton4=backend()
    )
    kept = [route(None, service) for service in routes]
    plan = plan_routes(replace(shown, per_tenant=2), [*kept, route({}, "t/d"), route({}, "u/a")])
    assert plan.routes == {**routes, "u/a": "triton4"}
    assert [*plan.unrouted] == ["t/d"]


def test_stale_servers_are_closed_before_the_route_is_added():
    plan = plan_routes(gateway({}, triton1=backend(at(7, READY))), [route({})])
    assert plan.changes == (SetMode("triton1", 0, MAINT), AddRoute("t/a", "triton1"))


def test_a_replica_gets_its_address_in_maintenance():
    plan = plan_routes(
        gateway({"t/a": "triton1"}, triton1=backend(at(7, READY), NOWHERE)),
        [route({7: READY, 21001: READY})],
    )
    assert plan.changes == (
        SetTarget("triton1", 1, end(21001), 4),
        SetMode("triton1", 1, READY),
        SetHealthy("triton1", 1),
    )


def test_another_address_gets_a_line_that_is_free_already():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, READY, 1), NOWHERE))
    assert plan_routes(shown, [route({8: READY})]).changes == (
        SetMode("triton1", 0, MAINT),
        EndSessions("triton1", 0),
        SetTarget("triton1", 1, end(8), 4),
        SetMode("triton1", 1, READY),
        SetHealthy("triton1", 1),
    )


def test_a_line_is_not_free_while_an_earlier_replica_has_requests_there():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, MAINT, 1)))
    plan = plan_routes(shown, [route({8: READY})])
    assert (plan.changes, plan.crowded) == ((), ("t/a",))


def test_two_generations_share_the_lines_and_the_same_replica_keeps_its_own():
    old, new = {7: READY, 8: READY}, {9: READY}
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(8, READY), at(5, MAINT), at(7, READY)))
    plan = plan_routes(shown, [route(old | new)])
    assert plan.changes[0] == SetTarget("triton1", 1, end(9), 4)
    assert (len(plan.changes), plan.crowded) == (3, ())


def test_more_replicas_than_lines_is_said():
    shown = gateway({"t/a": "triton1"}, triton1=backend(NOWHERE))
    plan = plan_routes(shown, [route({7: READY, 8: READY})])
    assert SetTarget("triton1", 0, end(7), 4) in plan.changes
    assert plan.crowded == ("t/a",)


def test_a_replica_that_shall_not_begin_gets_no_line():
    shown = gateway({"t/a": "triton1"}, triton1=backend(NOWHERE))
    plan = plan_routes(shown, [route({7: DRAIN, 8: MAINT})])
    assert (plan.changes, plan.crowded) == ((), ())


@pytest.mark.parametrize(
    "terms",
    [
        Terms(closing=True),
        Terms(sequences=True),
        Terms(retry_after_s=40),
        Terms(failing="no such file"),
        Terms(deadline_ms=2500, retry_once=True),
        Terms(in_time=8),
    ],
)
def test_terms_are_told_once_and_forgotten_with_the_route(terms: Terms) -> None:
    shown = gateway({"t/a": "triton1"}, triton1=backend())
    asked = replace(route({}), terms=terms)
    assert plan_routes(shown, [asked]).changes == (SetTerms("t/a", terms, Terms()),)
    known = replace(shown, terms={"t/a": terms})
    assert plan_routes(known, [asked]).changes == ()
    gone = SetTerms("t/a", Terms(), terms)
    assert plan_routes(known, [route({})]).changes == (gone,)
    assert plan_routes(known, []).changes == (RemoveRoute("t/a"), gone)


@pytest.mark.parametrize(
    ("before", "in_time", "is_told"),
    [
        (None, 8, True),
        (None, 0, True),
        (None, None, False),
        (8, 10, False),
        (8, 6, False),
        (8, 11, True),
        (8, 5, True),
        (8, None, True),
        (1, 0, True),
        (0, 1, True),
        (0, 0, False),
        (0, None, True),
    ],
)
def test_how_many_may_wait_is_told_when_it_is_another_by_more_than_a_quarter(
    before: int | None, in_time: int | None, is_told: bool
):
    terms, known = Terms(in_time=in_time, closing=True), Terms(in_time=before, closing=True)
    shown = replace(gateway({"t/a": "triton1"}, triton1=backend()), terms={"t/a": known})
    plan = plan_routes(shown, [replace(route({}), terms=terms)])
    assert plan.changes == ((SetTerms("t/a", terms, known),) if is_told else ())


def test_how_many_may_wait_stays_where_other_terms_are_told() -> None:
    known = Terms(in_time=8)
    shown = replace(gateway({"t/a": "triton1"}, triton1=backend()), terms={"t/a": known})
    plan = plan_routes(shown, [replace(route({}), terms=Terms(in_time=9, retry_once=True))])
    assert plan.changes == (SetTerms("t/a", Terms(in_time=8, retry_once=True), known),)


def test_what_is_right_is_left_alone():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, READY), at(8, DRAIN)))
    assert plan_routes(shown, [route({7: READY, 8: DRAIN})]).changes == ()


def test_drain_and_back():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, READY, 2), at(8, DRAIN)))
    plan = plan_routes(shown, [route({7: DRAIN, 8: READY})])
    assert plan.changes == (SetMode("triton1", 0, DRAIN), SetMode("triton1", 1, READY))


def test_maintenance_cuts_what_is_still_in_flight():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, DRAIN, 2), at(8, DRAIN)))
    assert plan_routes(shown, [route({})]).changes == (
        SetMode("triton1", 0, MAINT),
        EndSessions("triton1", 0),
        SetMode("triton1", 1, MAINT),
    )


def test_an_ended_service_loses_its_route_first():
    plan = plan_routes(gateway({"t/a": "triton1"}, triton1=backend(at(7, READY))), [])
    assert plan.changes == (RemoveRoute("t/a"), SetMode("triton1", 0, MAINT))


def test_what_waits_for_an_ended_service_is_sent_round_and_what_is_in_flight_may_end():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, READY, 2), sessions=9, queued=7))
    assert plan_routes(shown, []).changes == (
        RemoveRoute("t/a"),
        SetMode("triton1", 0, MAINT),
        SendRound("triton1"),
    )


def test_a_backend_that_lost_its_route_in_between_is_vacated_too():
    shown = gateway({}, triton1=backend(at(7, READY), sessions=3, queued=3), triton2=backend())
    assert plan_routes(shown, [route({})]).changes == (
        SetMode("triton1", 0, MAINT),
        SendRound("triton1"),
        AddRoute("t/a", "triton2"),
    )


def test_its_backend_is_not_reused_at_the_same_look():
    plan = plan_routes(gateway({"t/b": "triton1"}, triton1=backend()), [route({})])
    assert (plan.changes, [*plan.unrouted]) == ((RemoveRoute("t/b"),), ["t/a"])


def test_a_service_that_must_be_left_alone_keeps_route_and_servers():
    shown = gateway({"t/a": "triton1"}, triton1=backend(at(7, READY, 1)))
    assert plan_routes(shown, [route(None)]).changes == ()


def test_after_a_start_of_haproxy_the_mark_comes_last():
    shown = replace(gateway({}, triton1=backend()), complete=False)
    plan = plan_routes(shown, [route({7: READY})])
    assert (plan.changes[0], plan.changes[-1]) == (AddRoute("t/a", "triton1"), MarkComplete())
    assert MarkComplete() not in plan_routes(replace(shown, complete=True), [route({})]).changes


def test_the_plan_says_what_is_routed_then():
    shown = gateway(
        {"t/b": "triton1", "t/c": "triton2"},
        triton1=backend(),
        triton2=backend(),
        triton3=backend(),
    )
    plan = plan_routes(shown, [route({}), route(None, "t/c"), route({}, "t/d")])
    assert (plan.routes, [*plan.unrouted]) == ({"t/a": "triton3", "t/c": "triton2"}, ["t/d"])


def test_a_route_to_a_backend_that_is_no_more_is_replaced():
    plan = plan_routes(gateway({"t/a": "triton9"}, triton1=backend()), [route({})])
    assert plan.changes == (MoveRoute("t/a", "triton1"),)


def full(*served: str) -> Gateway:
    """Eight backends with lines of which one is kept free, and enough without."""
    lined = {f"triton{number}": backend() for number in range(1, 9)}
    idle = {f"tritonidle{number}": Backend(0, 0, ()) for number in range(1, 13)}
    routes = {service: f"triton{number}" for number, service in enumerate(served, start=1)}
    return gateway(routes, **lined, **idle)


def test_services_beyond_the_backends_with_lines_get_one_without():
    plan = plan_routes(full(), [route({}, f"t/{name}") for name in "abcdefghi"])
    assert [plan.routes[f"t/{name}"] for name in "aghi"] == [
        *("triton1", "triton7", "tritonidle1", "tritonidle2")
    ]
    assert plan.unrouted == {}


def test_a_service_moves_to_lines_once_a_replica_is_ready_and_its_requests_follow():
    shown = replace(full(), routes={"t/a": "tritonidle3"})
    assert plan_routes(shown, [route({})]).changes == ()
    plan = plan_routes(shown, [route({7: READY})])
    assert plan.changes == (
        SetTarget("triton1", 0, end(7), 4),
        SetMode("triton1", 0, READY),
        SetHealthy("triton1", 0),
        MoveRoute("t/a", "triton1"),
    )


def test_where_all_lines_are_in_use_it_is_said_and_its_requests_wait():
    served = [f"t/{name}" for name in "abcdefgh"]
    shown = full(*served)
    shown = replace(shown, routes={**shown.routes, "t/i": "tritonidle1"})
    busy = [route({number: READY}, name) for number, name in enumerate(served, start=1)]
    plan = plan_routes(shown, [*busy, route({99: READY}, "t/i")])
    assert plan.routes["t/i"] == "tritonidle1"
    assert plan.unrouted == {"t/i": "8 services have replicas, and no more can"}
    assert plan.crowded == ()


def test_an_idle_service_leaves_its_lines_before_others_need_them():
    served = [f"t/{name}" for name in "abcdefgh"]
    shown = full(*served)
    held, draining = backend(sessions=1), backend(at(7, DRAIN, 1))
    shown = replace(shown, backends={**shown.backends, "triton1": held, "triton2": draining})
    routes = [route({}, "t/a"), route({7: DRAIN}, "t/b"), route(None, "t/c")]
    routes += [route({}, name) for name in served[3:]]
    plan = plan_routes(shown, routes)
    assert plan.changes == (MoveRoute("t/d", "tritonidle1"),)
    # One is free then, at the next look, and no more has to be.
    then = plan_routes(replace(shown, routes=plan.routes), routes)
    assert (then.changes, then.routes) == ((), plan.routes)


def test_a_tenant_s_bound_counts_services_with_and_without_lines():
    shown = replace(full(), per_tenant=3)
    plan = plan_routes(shown, [route({}, f"t/{name}") for name in "abcd"])
    assert [*plan.unrouted] == ["t/d"]
    many = [route({}, f"t{number}/a") for number in range(13)]
    plan = plan_routes(replace(full(), per_tenant=12), many)
    assert plan.unrouted == {"t12/a": "all 12 places of the gateway are taken"}


def asleep(*services: str) -> dict[str, str]:
    return {service: f"tritonidle{number}" for number, service in enumerate(services, start=1)}


def test_one_tenant_gets_half_of_the_backends_with_lines_and_a_newcomer_gets_one():
    names = [f"t/{letter}" for letter in "abcdefgh"]
    shown = replace(full(), routes=asleep(*names, "u/a"), per_tenant=6)
    crowd = [route({number: READY}, name) for number, name in enumerate(names, start=1)]
    plan = plan_routes(shown, [*crowd, route({99: READY}, "u/a")])
    lined = [name for name, backend in plan.routes.items() if "idle" not in backend]
    assert lined == ["t/a", "t/b", "t/c", "t/d", "u/a"]
    assert plan.unrouted == dict.fromkeys(
        ("t/e", "t/f", "t/g", "t/h"),
        "of services with replicas, 't' has 4 services and may have at most 4",
    )


def test_the_last_backends_with_lines_are_for_tenants_that_have_none():
    served = ["t/a", "t/b", "t/c", "u/a", "u/b", "u/c"]
    shown = replace(full(*served), per_tenant=6)
    shown = replace(shown, routes={**shown.routes, **asleep("u/d", "v/a", "v/b")})
    busy = [route({number: READY}, name) for number, name in enumerate(served, start=1)]
    waking = [route({n: READY}, name) for n, name in ((91, "u/d"), (92, "v/a"), (93, "v/b"))]
    plan = plan_routes(shown, [*busy, *waking])
    assert (plan.routes["u/d"], plan.routes["v/b"]) == ("tritonidle1", "tritonidle3")
    assert plan.routes["v/a"] in {"triton7", "triton8"}
    assert "the last 2 of the gateway's 8 places are kept" in plan.unrouted["u/d"]


def test_an_idle_service_of_the_same_tenant_makes_way():
    served = ["u/a", "t/a", "t/b", "t/c", "t/d"]
    shown = replace(full(*served), per_tenant=6)
    shown = replace(shown, routes={**shown.routes, "t/e": "tritonidle1"})
    others = [
        route({}, "u/a"),
        *(route({n: READY}, served[n]) for n in (1, 2, 3)),
        route({}, "t/d"),
    ]
    plan = plan_routes(shown, [*others, route({99: READY}, "t/e")])
    assert (plan.routes["t/e"], plan.routes["t/d"]) == ("triton6", "tritonidle2")
    assert (plan.routes["u/a"], plan.unrouted) == ("triton1", {})


def test_idle_services_beyond_a_tenants_share_give_their_lines_back():
    served = [f"t/{letter}" for letter in "abcdef"]
    shown = replace(full(*served), per_tenant=6)
    plan = plan_routes(shown, [route({}, name) for name in served])
    assert [name for name, backend in plan.routes.items() if "idle" in backend] == ["t/a", "t/b"]


def test_after_a_start_of_haproxy_one_tenant_does_not_take_all_lines_again():
    shown = replace(full(), per_tenant=6)
    names = [f"t/{letter}" for letter in "abcdefgh"]
    plan = plan_routes(shown, [route({n: READY}, name) for n, name in enumerate(names)])
    lined = [name for name, backend in plan.routes.items() if "idle" not in backend]
    assert lined == ["t/a", "t/b", "t/c", "t/d"]
    assert {"t/e", "t/f"} <= plan.unrouted.keys()


def test_load_is_told_apart():
    servers = (at(7, DRAIN, 3), Server("10.0.0.1", 8, READY, up=False, in_flight=2, queued=1))
    assert load_of(backend(*servers, sessions=12, queued=4)) == Load(5, 5, 2)
    assert load_of(None) == Load()


def test_an_answer_that_its_client_does_not_read_is_no_backlog():
    """1,000 of them made a service of one idle replica take all that its quota and loans let it."""
    assert load_of(backend(at(7, READY), at(8, MAINT), sessions=1000)) == Load()
    assert load_of(backend(at(7, READY, 2), sessions=1000, queued=3)) == Load(2, 3, 0)


def test_a_replica_is_found_by_its_address_whatever_its_line():
    lines = backend(at(7, MAINT), at(7, READY), at(8, MAINT))
    assert lines.server_of(end(7)) == at(7, READY)
    assert lines.server_of(end(8)) == at(8, MAINT)
    assert lines.server_of(end(9)) is None


def test_what_a_replaced_process_works_on_is_counted():
    now = gateway({"t/a": "triton2"}, triton2=backend(at(7, READY, 1), at(8, MAINT), sessions=1))
    old = gateway(
        {"t/a": "triton1", "t/b": "triton2"},
        triton1=backend(at(8, READY, 3), at(7, READY, 2), at(6, READY, 1), sessions=8, queued=2),
        triton2=backend(sessions=5),
    )
    found = with_replaced(now, [old]).backends["triton2"]
    assert load_of(found) == Load(in_flight=7, queued=2, held=0)
    assert found.server_of(end(7)) == at(7, READY, 3)
    assert found.server_of(end(8)) == at(8, DRAIN, 3)
    assert found.server_of(end(6)) == at(6, DRAIN, 1)
    assert found.servers == now.backends["triton2"].servers


def test_replicas_that_serve_follow_a_concurrency_that_is_learnt():
    shown = gateway({"t/a": "triton1"}, triton1=backend(replace(at(7, READY, 2), concurrency=2)))
    learnt = replace(route({7: READY}), concurrency=6, follows=True)
    assert plan_routes(shown, [learnt]).changes == (SetConcurrency("triton1", 0, 6),)
    assert plan_routes(shown, [replace(learnt, concurrency=2)]).changes == ()
    drains = replace(learnt, targets={end(7): DRAIN})
    assert plan_routes(shown, [drains]).changes == (SetMode("triton1", 0, DRAIN),)


def test_replicas_that_were_started_for_a_fixed_concurrency_keep_it():
    shown = gateway({"t/a": "triton1"}, triton1=backend(replace(at(7, READY), concurrency=2)))
    assert plan_routes(shown, [replace(route({7: READY}), concurrency=6)]).changes == ()


def test_adapters_are_told_and_taken_back_and_no_service_s_prefix_is_mistaken():
    shown = replace(
        Gateway({}, {"triton1": Backend(0, 0, ())}, complete=True),
        adapter_entries={
            "t/a:old": 0,
            "t/a:old/2": 3,
            "t/a:kept": 0,
            "t/a:kept/1": 1,
            "t/a:kept/2": 4,
            "t/ab:x": 0,
            "u/gone:y": 0,
        },
    )
    routes = (
        Route("t/a", 1, None, "triton", adapters=frozenset({"kept", "new"})),
        Route("t/ab", 1, None, "triton", adapters=frozenset({"x"})),
    )
    told = [one for one in plan_routes(shown, routes).changes if isinstance(one, SetAdapter)]
    assert told == [
        SetAdapter("t/a:old", there=False),
        SetAdapter("t/a:old/2", there=False),
        SetAdapter("u/gone:y", there=False),
        SetAdapter("t/a:new", there=True),
    ]
    assert shown.adapters == {"t/a:old": 3, "t/a:kept": 5, "t/ab:x": 0, "u/gone:y": 0}
    assert shown.adapters_of("t/a") == {"old", "kept"}
    commands_of = [command for one in told for command in commands(one, Maps(Path("/gw")))]
    assert commands_of == [
        "del map /gw/adapters.map t/a:old",
        "del map /gw/adapters.map t/a:old/2",
        "del map /gw/adapters.map u/gone:y",
        "add map /gw/adapters.map t/a:new 0",
    ]
