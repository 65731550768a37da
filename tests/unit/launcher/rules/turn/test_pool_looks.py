"""What the gateway shows that replicas of pools work on."""

from typing import Any

from builders.gateways import a_server
from builders.service_views import a_running_slot, a_service

from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer
from slicewise.launcher.rules.gateway.types import Backend, Gateway, Server
from slicewise.launcher.rules.turn.pool_looks import pool_look

BERT, GPT = "vision/bert", "vision/gpt"


def member(name: str, array: int, **changes: Any) -> ServiceView:
    """A service of the pool, with a replica in slot 0 of its array."""
    fields = {
        "array_job_id": array,
        "name": name,
        "directives": {"pool": "small"},
        "slots": (a_running_slot(array),),
    }
    return a_service(**(fields | changes))


def parts_of(services: tuple[ServiceView, ...], **servers: tuple[Server, ...]) -> Any:
    backends = {
        name: Backend(sum(server.in_flight for server in lines), 0, lines)
        for name, lines in servers.items()
    }
    gateway = Gateway({f"vision/{name}": name for name in servers}, backends, complete=True)
    view = ViewAnswer(observed_s=1, complete=True, services=services, tenants=())
    look = pool_look(view, gateway, 100.0)
    assert look.at_s == 100.0
    return look.parts


POOL = (member("bert", 1), member("gpt", 2, slots=()))


def test_of_a_replica_each_other_service_has_the_part_of_its_requests() -> None:
    busy = {"bert": (a_server(1, in_flight=3),), "gpt": (a_server(1, in_flight=1),)}
    assert parts_of(POOL, **busy) == {(1, 1, 50): {GPT: 0.25}}
    both = (member("bert", 1), member("gpt", 2))
    swapped = {"bert": (a_server(2, in_flight=2),), "gpt": (a_server(1, in_flight=1),)}
    assert parts_of(both, **swapped) == {(1, 1, 50): {GPT: 1}, (2, 2, 50): {BERT: 1}}


def test_what_a_service_s_own_requests_keep_busy_needs_no_words() -> None:
    assert parts_of(POOL, bert=(a_server(1, in_flight=3),), gpt=(a_server(1),)) == {}


def test_another_run_s_requests_at_the_same_place_are_none_of_the_replica_s() -> None:
    assert parts_of(POOL, gpt=(a_server(1, in_flight=3, digest="other"),)) == {}


def test_requests_in_a_process_that_a_reload_has_replaced_count() -> None:
    backends = {"gpt": Backend(2, 0, (), elsewhere=(a_server(1, in_flight=2),))}
    gateway = Gateway({GPT: "gpt"}, backends, complete=True)
    view = ViewAnswer(observed_s=1, complete=True, services=POOL, tenants=())
    assert pool_look(view, gateway, 1.0).parts == {(1, 1, 50): {GPT: 1}}


def test_services_of_no_pool_or_of_another_have_nothing_of_each_other() -> None:
    busy = {"bert": (a_server(1, in_flight=3),), "gpt": (a_server(1, in_flight=1),)}
    alone = member("gpt", 2, directives={}, slots=())
    elsewhere = member("gpt", 2, directives={"pool": "large"}, slots=())
    stranger = member("gpt", 2, tenant="optics", slots=())
    for other in (alone, elsewhere, stranger):
        assert parts_of((member("bert", 1), other), **busy) == {}
