"""gRPC through a real HAProxy: routes, errors that gRPC clients understand, streams."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from gateway_harness import (
    OF_THE_HOST,
    Harness,
    eventually,
    gateway_up,
    of_the_host,
    replica_process,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.launcher.rules.gateway.routing import RemoveRoute, Route
from slicewise.launcher.rules.gateway.types import Load, ServerMode

pytestmark = pytest.mark.integration

METADATA = (("slicewise-service", "t/a"),)
REQUEST = service_pb2.ModelInferRequest(model_name="m")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Harness]:
    async with gateway_up(tmp_path, domain="models.example.org") as harness:
        yield harness


def stub(channel: grpc.aio.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def asked(gateway: Harness, count: int = 1) -> list[str]:
    """Which replica answered each of them, over one connection."""
    async with gateway.channel() as channel:
        calls = (stub(channel).ModelInfer(REQUEST, metadata=METADATA) for _ in range(count))
        return [answer.model_name for answer in await asyncio.gather(*calls)]


async def refused(gateway: Harness, authority: str = "", **metadata: str) -> grpc.aio.AioRpcError:
    sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    async with gateway.channel(authority) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(channel).ModelInfer(REQUEST, metadata=sent)
    return caught.value


@pytest.mark.promise("The gateway speaks gRPC, with the same holding.")
async def test_calls_are_held_from_zero_and_spread(gateway: Harness, replicas):
    await gateway.set_replicas()
    asking = asyncio.create_task(asked(gateway, 20))
    await eventually(lambda: gateway.waits(Load(held=20)))
    await gateway.set_replicas(*((replica, ServerMode.READY) for replica in replicas))
    assert set(await asking) == {str(replica.port) for replica in replicas}

    async def are_counted() -> bool:
        load = await gateway.load()
        timed = (await gateway.runtime.timings())["t/a"]
        counted = (load.arrived, load.answered, timed.came, timed.answered, timed.errors)
        return counted == (20, 20, 20, 20, 0)

    # HAProxy counts an answer a moment after its client has it.
    await eventually(are_counted)


async def test_cookies_and_words_about_the_host_pass_in_neither_direction(
    gateway: Harness, replicas
):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].says = tuple(
        (name.lower(), value) for name, value in (*OF_THE_HOST, ("grpc-own", "1"))
    )
    sent = (*METADATA, ("cookie", "slicewise=secret"), ("cookie", "b=c"), ("x-mine", "yes"))
    async with gateway.channel() as channel:
        call = stub(channel).ModelInfer(REQUEST, metadata=sent)
        said = dict(await call.initial_metadata())
        await call
    assert (of_the_host(said), said["grpc-own"]) == (set(), "1")
    assert "cookie" not in replicas[0].headers
    assert replicas[0].headers["x-mine"] == "yes"


async def test_failed_calls_of_each_replica_are_counted(gateway: Harness, replicas):
    """Their HTTP status is 200."""
    replicas[1].is_broken = True
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await asked(gateway, 3)
    await gateway.set_replicas((replicas[1], ServerMode.READY))
    for _ in range(4):
        assert (await refused(gateway, slicewise_service="t/a")).code() is grpc.StatusCode.INTERNAL
    counted = {replicas[0].port: (3, 0), replicas[1].port: (4, 4)}
    await eventually(lambda: gateway.has_counted(counted))


async def test_a_call_waits_for_a_place_beside_http(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].pause()
    asking = asyncio.create_task(asked(gateway, 5))
    http = gateway.asking(3)
    await eventually(lambda: gateway.waits(Load(in_flight=4, queued=4)))
    replicas[0].go_on()
    assert len(await asking) == 5
    assert {status for status, _ in await asyncio.gather(*http)} == {200}


async def test_the_host_names_the_service(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    async with gateway.channel("a.t.models.example.org") as channel:
        answer = await stub(channel).ModelInfer(REQUEST)
    assert answer.model_name == str(replicas[0].port)
    status, _ = await gateway.ask("/v2/models/m/infer", Host="a.t.models.example.org:80")
    assert status == 200
    status, _ = await gateway.ask("/t/a/v2/models/m/infer", Host="other.example.org")
    assert status == 200


@pytest.mark.parametrize(
    ("authority", "metadata"),
    [
        ("", {"slicewise_service": "t/none"}),
        ("none.t.models.example.org", {}),
        ("none.t.models.example.org", {"slicewise_service": "t/a"}),
    ],
)
async def test_an_unknown_service_is_not_found(
    gateway: Harness, authority: str, metadata: dict[str, str]
):
    await gateway.set_replicas()
    error = await refused(gateway, authority, **metadata)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "SW-GATEWAY-UNKNOWN" in str(error.details())


@pytest.mark.parametrize("metadata", [{}, {"slicewise_service": "t"}, {"x_api_key": "nonsense"}])
async def test_a_call_without_metadata_is_told_which_it_lacks(
    gateway: Harness, metadata: dict[str, str]
):
    """Before its key is checked: with a good one it was told that the key is another tenant's."""
    await gateway.set_keys({"a" * 64: "t"})
    error = await refused(gateway, **metadata)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "SW-GATEWAY-METADATA" in str(error.details())
    assert "slicewise-service: TENANT/SERVICE" in str(error.details())


async def test_a_hold_that_is_too_long_is_unavailable_with_the_estimate(tmp_path: Path):
    async with gateway_up(tmp_path, hold_s=3) as gateway:
        await gateway.set_replicas(retry_after_s=42)
        error = await refused(gateway, slicewise_service="t/a")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "SW-GATEWAY-WAKING" in str(error.details())
    told = {*error.initial_metadata(), *error.trailing_metadata()}
    assert ("retry-after", "42") in told


@pytest.mark.parametrize("name", ["ServerLive", "ServerReady"])
async def test_health_is_answered_without_a_replica_and_wakes_none(gateway: Harness, name: str):
    await gateway.set_replicas()
    request = getattr(service_pb2, f"{name}Request")()
    async with gateway.channel() as channel:
        ask = getattr(stub(channel), name)
        for _ in range(20):
            call = ask(request, metadata=METADATA)
            answer = await call
            assert getattr(answer, name.removeprefix("Server").lower())
            assert ("x-slicewise-state", "asleep") in tuple(await call.initial_metadata())
        await gateway.set_replicas(failing="no model")
        with pytest.raises(grpc.aio.AioRpcError, match="SW-GATEWAY-FAILING"):
            await ask(request, metadata=METADATA)
    load = await gateway.load()
    assert (load.arrived, load.waiting) == (0, 0)


async def test_while_starts_fail_calls_are_unavailable_with_the_reason(gateway: Harness):
    said = "can't load: 100% of it"
    await gateway.set_replicas(failing=said, retry_after_s=60)
    error = await refused(gateway, slicewise_service="t/a")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == f"SW-GATEWAY-FAILING: replicas of 't/a' do not start: {said}"
    assert ("retry-after", "60") in tuple(error.initial_metadata() or error.trailing_metadata())


async def test_a_replica_that_dies_is_unavailable(gateway: Harness):
    async with replica_process() as replica:
        await gateway.route(Route("t/a", 2, {replica.endpoint: ServerMode.READY}, "triton"))
        asking = asyncio.create_task(refused(gateway, slicewise_service="t/a"))
        # HAProxy counts a call before it has connected, and what fails by then is sent elsewhere.
        await asyncio.wait_for(replica.is_asked(), 30)
        await replica.kill()
        error = await asking
        assert (error.code(), str(error.details())[:15]) == (
            grpc.StatusCode.UNAVAILABLE,
            "SW-GATEWAY-LOST",
        )


async def test_a_cancelled_call_leaves_the_hold(gateway: Harness, replicas):
    await gateway.set_replicas()
    async with gateway.channel() as channel:
        calls = [stub(channel).ModelInfer(REQUEST, metadata=METADATA) for _ in range(5)]
        await eventually(lambda: gateway.waits(Load(held=5)))
        for call in calls[1:]:
            call.cancel()
        await eventually(lambda: gateway.waits(Load(held=1)))
        await gateway.set_replicas((replicas[0], ServerMode.READY))
        await calls[0]
    assert replicas[0].served == 1


async def test_a_deleted_services_held_calls_are_not_found(gateway: Harness):
    await gateway.set_replicas()
    asking = asyncio.create_task(refused(gateway, slicewise_service="t/a"))
    await eventually(lambda: gateway.waits(Load(held=1)))
    await gateway.runtime.apply([RemoveRoute("t/a")])
    assert (await asking).code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "method",
    [
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "CudaSharedMemoryStatus",
        "TraceSetting",
        "LogSettings",
    ],
)
async def test_administration_of_replicas_is_denied(gateway: Harness, replicas, method: str):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    async with gateway.channel() as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", metadata=METADATA)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.promise("Streams outlive a drain and a reload.")
async def test_a_stream_outlives_its_replicas_drain_and_a_reload(gateway: Harness, replicas):
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY))
    async with gateway.channel() as channel:
        stream = stub(channel).ModelStreamInfer(metadata=METADATA)
        assert await _echo(stream, "0") == "0"
        await gateway.set_replicas((one, ServerMode.DRAIN), (two, ServerMode.READY))
        assert await _echo(stream, "1") == "1"
        await gateway.reload()
        assert await _echo(stream, "2") == "2"
        await gateway.set_replicas((two, ServerMode.READY))
        assert await asked(gateway) == [str(two.port)]
        await eventually(lambda: gateway.is_draining(one))
        assert await _echo(stream, "3") == "3"
        await stream.done_writing()


async def _echo(stream: grpc.aio.StreamStreamCall, word: str) -> str:
    await stream.write(service_pb2.ModelInferRequest(model_name="m", id=word))
    answer = await asyncio.wait_for(stream.read(), 30)
    return str(answer.infer_response.id)
