"""The fair queue in a real HAProxy: who is served next, and what clients and replicas see of it."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gateway_harness import INFER, Harness, Replica, eventually, gateway_up
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.cluster.rpc.key_messages import KeyGrant
from slicewise.launcher.rules.gateway.fair_orders import entries_of
from slicewise.launcher.rules.gateway.fair_queue import FairQueue, SubjectUse, with_uses
from slicewise.launcher.rules.gateway.routing import SendRound
from slicewise.launcher.rules.gateway.types import Load, ServerMode

pytestmark = pytest.mark.integration

READY = ServerMode.READY
PERSONS = ("anna", "ben", "carol")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Harness]:
    async with gateway_up(tmp_path) as found:
        keys = {
            sha256(person.encode()).hexdigest(): KeyGrant(
                opens="t", key_id=f"k{number}", person=person
            )
            for number, person in enumerate(PERSONS)
        }
        await found.set_keys(keys)
        yield found


@pytest.fixture
async def replica(gateway: Harness) -> AsyncIterator[Replica]:
    found = await Replica().start()
    found.work_s = 0.0
    await gateway.set_replicas((found, READY), concurrency=1)
    yield found
    await found.stop()


@pytest.fixture
async def other(gateway: Harness) -> AsyncIterator[Replica]:
    found = await Replica().start()
    found.work_s = 0.0
    yield found
    await found.stop()


async def ask_in_turn(gateway: Harness, *persons: str) -> "list[asyncio.Task[tuple[int, str]]]":
    """One request after the other: each waits before the next one comes."""
    asked = []
    for number, person in enumerate(persons):
        asked += gateway.asking(1, x_api_key=person, x_number=str(number))
        waits = Load(in_flight=1, queued=number)
        await eventually(lambda waits=waits: gateway.waits(waits))
    return asked


async def served(gateway: Harness, replica: Replica, *persons: str) -> list[str]:
    replica.pause()
    asked = await ask_in_turn(gateway, *persons)
    replica.go_on()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    return [persons[number] for number in replica.numbers]


async def test_a_flood_waits_behind_itself_and_who_comes_later_passes_it(
    gateway: Harness, replica: Replica
):
    await gateway.runtime.set_priorities(entries_of("t/a", FairQueue(), {}, "persons"))
    came = ("anna",) * 6 + ("ben", "carol")
    order = await served(gateway, replica, *came)
    assert order[0] == "anna"
    assert {"ben", "carol"} <= set(order[1:5])


async def test_without_it_they_are_served_as_they_came(gateway: Harness, replica: Replica):
    came = ("anna",) * 6 + ("ben", "carol")
    assert await served(gateway, replica, *came) == list(came)


async def test_who_uses_more_for_each_request_is_served_fewer(gateway: Harness, replica: Replica):
    uses = {"anna": SubjectUse(1, 400.0), "ben": SubjectUse(1, 100.0)}
    queue = with_uses(FairQueue(), 0.0, uses)
    await gateway.runtime.set_priorities(entries_of("t/a", queue, {}, "persons"))
    order = await served(gateway, replica, *["anna"] * 4, *["ben"] * 8)
    # After the first ones four of ben's stand against each of anna's.
    assert order[:8].count("ben") >= 5


async def test_who_weighs_more_is_served_more(gateway: Harness, replica: Replica):
    await gateway.runtime.set_priorities(entries_of("t/a", FairQueue(), {"ben": 3.0}, "persons"))
    order = await served(gateway, replica, *["anna"] * 6, *["ben"] * 6)
    assert order[1:9].count("ben") >= 5


async def test_nobody_says_for_whom_he_asks_and_no_replica_hears_it(
    gateway: Harness, replica: Replica
):
    await gateway.runtime.set_priorities(entries_of("t/a", FairQueue(), {}, "persons"))
    said = {"x_api_key": "anna", "x_slicewise_subject": "ben", "x_slicewise_moment": "1"}
    assert (await gateway.ask(f"/t/a{INFER}", **said))[0] == 200
    assert "x-slicewise-subject" not in replica.headers
    assert replica.headers["x-slicewise-moment"] != "1"
    (position,) = (await gateway.runtime.fair_positions()).values()
    assert position.latest_ms >= position.turn_ms


@pytest.mark.parametrize("stays_fair", [True, False])
async def test_what_goes_round_as_its_replicas_die_keeps_its_place(
    gateway: Harness, replica: Replica, other: Replica, stays_fair: bool
):
    """Where the queue is fair no more by then, it is answered all the same."""
    await gateway.runtime.set_priorities(entries_of("t/a", FairQueue(), {}, "persons"))
    came = ("anna",) * 7 + ("ben", "carol")
    replica.pause()
    asked = await ask_in_turn(gateway, *came)
    before = (await gateway.runtime.fair_positions())["t/a"]
    await gateway.set_replicas()
    await gateway.runtime.apply([SendRound("triton1")])
    await eventually(lambda: gateway.waits(Load(held=len(came) - 1)))
    if not stays_fair:
        await gateway.runtime.set_priorities({})
    other.pause()
    await gateway.set_replicas((other, READY), concurrency=1)
    await eventually(lambda: gateway.waits(Load(in_flight=1, queued=len(came) - 2)))
    other.go_on()
    replica.go_on()
    # The first one was with the replica that has gone.
    assert {status for status, _ in await asyncio.gather(*asked[1:])} == {200}
    assert sorted(other.numbers) == list(range(1, len(came)))
    if stays_fair:
        # Who came through first is served at once; of the others all have the places that they had.
        waited = other.numbers[1:]
        of_anna = [number for number in waited if came[number] == "anna"]
        assert of_anna == sorted(of_anna)
        assert {7, 8} & set(waited) <= set(waited[:3])
        # Nobody has moved on by that.
        latest_ms = (await gateway.runtime.fair_positions())["t/a"].latest_ms
        assert latest_ms == pytest.approx(before.latest_ms, rel=0.0, abs=1.0)


async def call_in_turn(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, gateway: Harness, *persons: str
) -> list[asyncio.Task[str]]:
    """The same by gRPC."""
    called = []
    for number, person in enumerate(persons):
        said = (
            *(("slicewise-service", "t/a"), ("x-api-key", person)),
            *(("x-number", str(number)), ("x-slicewise-subject", "carol")),
        )
        call = stub.ModelInfer(service_pb2.ModelInferRequest(model_name="m"), metadata=said)
        called.append(asyncio.ensure_future(_answer(call)))
        waits = Load(in_flight=1, queued=number)
        await eventually(lambda waits=waits: gateway.waits(waits))
    return called


async def _answer(call: Any) -> str:
    return str((await call).model_name)


async def test_calls_of_grpc_are_served_in_the_same_order(gateway: Harness, replica: Replica):
    await gateway.runtime.set_priorities(entries_of("t/a", FairQueue(), {}, "persons"))
    came = ("anna",) * 6 + ("ben", "carol")
    replica.pause()
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        called = await call_in_turn(stub, gateway, *came)
        replica.go_on()
        assert set(await asyncio.gather(*called)) == {str(replica.port)}
    order = [came[number] for number in replica.numbers]
    assert order[0] == "anna"
    assert {"ben", "carol"} <= set(order[1:5])
    assert "x-slicewise-subject" not in replica.headers


async def test_calls_of_grpc_and_requests_count_on_one_set_of_counters(
    gateway: Harness, replica: Replica
):
    """Each protocol has a queue of its own: who floods one has used its share of both."""
    await gateway.runtime.set_priorities(entries_of("t/a", FairQueue(), {}, "persons"))
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        replica.pause()
        called = await call_in_turn(stub, gateway, *["anna"] * 8)
        came, asked = ("carol", "anna", "ben", "ben", "ben"), []
        for number, person in enumerate(came, 100):
            asked += gateway.asking(1, x_api_key=person, x_number=str(number))
            waits = Load(in_flight=2, queued=7 + number - 100)
            await eventually(lambda waits=waits: gateway.waits(waits))
        replica.go_on()
        await asyncio.gather(*called)
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    by_http = [came[number - 100] for number in replica.numbers if number >= 100]
    assert by_http.index("anna") > 2


async def test_entries_are_changed_and_taken_away(gateway: Harness, replica: Replica):
    queue = with_uses(FairQueue(), 0.0, {"anna": SubjectUse(1, 400.0)})
    for entries in (entries_of("t/a", queue, {"ben": 2.0}, "persons"), {}):
        for _ in range(2):
            await gateway.runtime.set_priorities(entries)
    came = ("anna",) * 3 + ("ben",)
    assert await served(gateway, replica, *came) == list(came)
