"""Tests services that share replicas on the model of Slurm."""

from collections.abc import Iterable
from math import inf
from typing import Any

import pytest
from builders.simulated_services import PROFILE, START_S, Quota, SimulatedWorld, a_service, quotas

from slicewise.simulation.rules.services.on_model import ServicesOnModel
from slicewise.simulation.rules.services.pool_gateway import PoolGateway
from slicewise.simulation.rules.services.pool_requests import (
    PoolRequests,
    SharedServer,
    pass_together,
)
from slicewise.simulation.rules.services.request_figures import ServiceOutcome
from slicewise.simulation.rules.services.service import EngineModel, SimulatedService

MEMORY_MIB = 10_000


def member(name: str, arrivals_s: Iterable[float], **changes: Any) -> SimulatedService:
    """nlp/NAME in the pool "small", whose model loads in 2 s and takes 2 of 9 GB."""
    spec = {"name": name, "model": name, "pool": "small", "model_mib": 2000}
    engine = EngineModel((6.0,), (1.0,), 2.0)
    return a_service(arrivals_s, spec=spec | changes.pop("spec", {}), engine=engine, **changes)


def a_world(*services: SimulatedService, **changes: Any) -> SimulatedWorld:
    memory_mib = changes.pop("memory_mib", {PROFILE: MEMORY_MIB})
    world = SimulatedWorld(*services, **changes)
    of = quotas(changes.get("of") or {"nlp": Quota(4)})
    world.services = ServicesOnModel(
        *(world.model, services, of), every_s=0.5, memory_mib=memory_mib
    )
    return world


def outcomes(world: SimulatedWorld) -> dict[str, ServiceOutcome]:
    found = world.services.outcomes(START_S, world.model.now_s)
    return {one.service: one for one in found}


def gateway(world: SimulatedWorld, name: str) -> PoolGateway:
    found = world.services.gateway(f"nlp/{name}")
    assert isinstance(found, PoolGateway)
    return found


def held_s(world: SimulatedWorld) -> float:
    """Seconds for which replicas held their slices."""
    return sum(
        min(end_s, world.model.now_s) - begin_s
        for record in world.services.records(world.model.now_s)
        for begin_s, end_s in record.runs
    )


def test_a_replica_of_one_loads_the_model_of_another_which_starts_none():
    steady = [float(at_s) for at_s in range(1, 100)]
    # Memory that is not known is not filled before somebody asks.
    world = a_world(member("chat", steady), member("tag", [50.0]), memory_mib={})
    world.pass_until(90)
    (wait_s,) = gateway(world, "tag").requests.waits
    assert wait_s <= 4.0, "a load at most, and looks of the launcher; a start takes 6 s"
    found = outcomes(world)
    assert found["nlp/tag"].loads >= 1
    assert (found["nlp/chat"].loads, found["nlp/tag"].changes) == (0, 0)


def test_services_that_are_not_alike_or_alone_have_replicas_of_their_own():
    steady = [float(at_s) for at_s in range(1, 100)]
    other = member("tag", [50.0], spec={"gpus": 2})
    world = a_world(member("chat", steady), other)
    world.pass_until(90)
    assert not isinstance(world.services.gateway("nlp/chat"), PoolGateway)
    assert world.services.gateway("nlp/tag").requests.waits[0] >= 6.0


def test_what_each_is_charged_comes_to_what_the_replicas_held():
    steady = [float(at_s) for at_s in range(1, 300, 2)]
    world = a_world(member("chat", steady), member("tag", [at_s + 0.25 for at_s in steady]))
    world.pass_until(400)
    found = outcomes(world)
    assert sum(one.slice_s for one in found.values()) == pytest.approx(held_s(world))
    shares = [one.slice_s / held_s(world) for one in found.values()]
    assert min(shares) > 0.2, "both used the replicas, whosever slots they are"


def test_a_pool_goes_back_to_zero_and_rests_until_a_request_comes():
    world = a_world(member("chat", [20.0, 30_000.0]), member("tag", [40.0]))
    steps = world.pass_until(29_999)
    assert steps < 6_000
    assert all(slot.state == "held" for view in world.services.views for slot in view.slots)
    world.pass_until(30_020)
    assert all(wait_s < inf for wait_s in gateway(world, "chat").requests.waits)
    assert sum(one.lost for one in outcomes(world).values()) == 0


def test_where_memory_is_short_a_model_makes_room_for_the_one_that_is_asked():
    big = {"spec": {"model_mib": 5000}}
    times = [float(at_s) for at_s in range(5, 60)]
    world = a_world(
        member("chat", times, **big),
        member("tag", [at_s + 0.5 for at_s in range(70, 130)], **big),
        of={"nlp": Quota(1)},
    )
    world.pass_until(200)
    found = outcomes(world)
    assert found["nlp/tag"].requests == 60
    assert all(wait_s < inf for wait_s in gateway(world, "tag").requests.waits)
    assert sum(one.lost for one in found.values()) == 0


def test_a_server_answers_no_faster_for_having_several_models():
    def requests(count: int) -> PoolRequests:
        return PoolRequests([START_S] * count, [1.0] * count, 1)

    alone, beside, server = requests(2), requests(1), SharedServer()
    for one in (alone, beside):
        one.now_s = START_S - 1
        one.open(one.line_at(server))
    pass_together([alone, beside], START_S + 0.5)
    assert (alone.in_flight, beside.in_flight, server.in_flight) == (1, 1, 2)
    pass_together([alone, beside], START_S + 10)
    assert (alone.answers, beside.answers) == ([START_S + 1, START_S + 3], [START_S + 2])
    assert server.in_flight == 0


def test_what_a_replica_that_ends_works_on_is_lost_of_every_service():
    alone, beside, server = (
        PoolRequests([START_S], [9.0], 1),
        PoolRequests([START_S], [9.0], 1),
        SharedServer(),
    )
    lines = [one.line_at(server) for one in (alone, beside)]
    for one, line in zip((alone, beside), lines, strict=True):
        one.now_s = START_S - 1
        one.open(line)
    pass_together([alone, beside], START_S + 1)
    for one, line in zip((alone, beside), lines, strict=True):
        one.end(line)
    assert (alone.lost, beside.lost, server.in_flight) == (1, 1, 0)
    assert alone.answers == [inf]
