"""What the gateway shows that services have at each other's replicas."""

from typing import Any

from builders.gateways import a_server
from builders.service_views import a_running_slot, a_service

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.gateway.types import Backend, Gateway, Server, ServerMode
from slicewise.launcher.rules.turn.neighbours import Neighbours, neighbours

BERT, GPT = "vision/bert", "vision/gpt"
REPLICA = (1, 1, 50)
"""Bert's, in slot 1 of its array 1, since 50."""


def member(name: str, array: int, **changes: Any) -> ServiceView:
    """A service of the pool, with a replica in the slot of its array's number."""
    fields = {
        "array_job_id": array,
        "name": name,
        "directives": {"pool": "small"},
        "slots": (a_running_slot(array),),
    }
    return a_service(**(fields | changes))


def seen(services: tuple[ServiceView, ...], **servers: tuple[Server, ...]) -> Neighbours:
    backends = {
        name: Backend(sum(server.in_flight + server.queued for server in lines), 0, lines)
        for name, lines in servers.items()
    }
    gateway = Gateway({f"vision/{name}": name for name in servers}, backends, complete=True)
    return neighbours(gateway, {}, {f"{view.tenant}/{view.name}": [view] for view in services})


NOTHING = Neighbours({}, {}, {})
POOL = (member("bert", 1), member("gpt", 2, slots=()))


def test_of_a_replica_each_other_service_has_the_part_of_its_requests() -> None:
    busy = {"bert": (a_server(1, in_flight=3),), "gpt": (a_server(1, in_flight=1),)}
    found = seen(POOL, **busy)
    (place,) = found.beside[BERT]
    assert found.beside == {BERT: {place: {GPT: 1}}}
    (endpoint,) = found.lent[GPT]
    assert (endpoint.place, *found.lent) == (place, GPT)
    assert found.parts == {REPLICA: {GPT: 0.25}}
    both = (member("bert", 1), member("gpt", 2))
    swapped = {"bert": (a_server(2, in_flight=2),), "gpt": (a_server(1, in_flight=1),)}
    assert seen(both, **swapped).parts == {REPLICA: {GPT: 1}, (2, 2, 50): {BERT: 1}}


def test_what_waits_for_a_replica_alone_is_at_it() -> None:
    found = seen(POOL, bert=(a_server(1, in_flight=1),), gpt=(a_server(1, queued=1),))
    assert found.parts == {REPLICA: {GPT: 0.5}}
    assert [*found.beside[BERT].values()] == [{GPT: 1}]


def test_what_a_service_s_own_requests_keep_busy_needs_no_words() -> None:
    assert seen(POOL, bert=(a_server(1, in_flight=3),), gpt=(a_server(1),)) == NOTHING


def test_requests_of_another_run_at_the_same_place_are_none_of_the_replica_s() -> None:
    assert seen(POOL, gpt=(a_server(1, in_flight=3, digest="other"),)) == NOTHING
    assert seen(POOL, gpt=(a_server(1, in_flight=3, mode=ServerMode.MAINT),)) == NOTHING


def test_requests_in_a_process_that_a_reload_has_replaced_count() -> None:
    backends = {"gpt": Backend(2, 0, (), elsewhere=(a_server(1, in_flight=2),))}
    gateway = Gateway({GPT: "gpt"}, backends, complete=True)
    assert neighbours(gateway, {}, {BERT: [POOL[0]], GPT: [POOL[1]]}).parts == {REPLICA: {GPT: 1}}


def test_one_that_has_left_its_pool_still_has_what_ends_there() -> None:
    left = member("gpt", 2, directives={}, slots=())
    assert seen((POOL[0], left), gpt=(a_server(1, in_flight=1),)).parts == {REPLICA: {GPT: 1}}


def test_services_without_a_pool_or_of_another_tenant_have_nothing_of_each_other() -> None:
    busy = {"bert": (a_server(1, in_flight=3),), "gpt": (a_server(1, in_flight=1),)}
    alone = (member("bert", 1, directives={}), member("gpt", 2, directives={}, slots=()))
    assert seen(alone, **busy) == NOTHING
    stranger = member("gpt", 2, tenant="optics", slots=())
    assert seen((POOL[0], stranger), **busy) == NOTHING
