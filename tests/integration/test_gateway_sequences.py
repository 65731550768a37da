"""Sequences through a real HAProxy: all requests of one go to the replica that has its state."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from gateway_harness import INFER, Harness, Replica, error_of, eventually, gateway_up, replicas_up
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.launcher.rules.gateway.routing import SendRound
from slicewise.launcher.rules.gateway.types import Load, ServerMode

pytestmark = pytest.mark.integration

METADATA = (("slicewise-service", "t/a"),)
SEQUENCES, STEPS = 12, 4


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Harness]:
    async with gateway_up(tmp_path) as harness:
        yield harness


@pytest.fixture
async def replicas() -> AsyncIterator[tuple[Replica, Replica]]:
    async with replicas_up() as pair:
        for replica in pair:
            replica.work_s = 0.0
        yield pair


async def serve(gateway: Harness, *replicas: Replica, sequences: bool = True) -> None:
    modes = ((replica, ServerMode.READY) for replica in replicas)
    await gateway.set_replicas(*modes, concurrency=4, sequences=sequences)


Step = tuple[int, int]
"""Number of a sequence, and of a request of it."""


def flags(step: Step) -> dict[str, object]:
    number, nth = step
    ends = {"sequence_start": nth == 0, "sequence_end": nth == STEPS - 1}
    return {"sequence_id": 1000 + number, **ends}


async def posted(gateway: Harness, body: bytes, **headers: str) -> tuple[int, str]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{gateway.settings.url}/t/a{INFER}"
    async with gateway.session.post(url, data=body, headers=sent) as answer:
        return answer.status, await answer.text()


async def http_json(gateway: Harness, step: Step) -> str:
    """As curl would: the parameters come after the tensors."""
    head = {"inputs": [{"name": "IN", "data": [1] * 500}], "parameters": flags(step)}
    _, text = await posted(gateway, json.dumps(head).encode())
    return str(json.loads(text)["by"])


async def http_binary(gateway: Harness, step: Step) -> str:
    """As tritonclient does; the tensor is larger than HAProxy's buffer and looks like a request."""
    head = json.dumps({"parameters": flags(step), "inputs": [{"name": "IN"}]}).encode()
    tensor = b'{"sequence_id": 5, "sequence_start": true}' * 1000
    sent = {"Inference_Header_Content_Length": str(len(head))}
    _, text = await posted(gateway, head + tensor, **sent)
    return str(json.loads(text)["by"])


async def http_header(gateway: Harness, step: Step) -> str:
    start = "true" if step[1] == 0 else "false"
    sent = {"x_sequence_id": f"camera-{step[0]}", "x_sequence_start": start}
    return str(json.loads((await posted(gateway, b"{" * 50_000, **sent))[1])["by"])


async def by_grpc(gateway: Harness, step: Step) -> str:
    request = service_pb2.ModelInferRequest(
        model_name="m", id="7", raw_input_contents=[b"x" * 90_000]
    )
    request.inputs.add(name="IN", datatype="INT8", shape=[1])
    for key, value in flags(step).items():
        request.parameters[key].CopyFrom(
            service_pb2.InferParameter(bool_param=value)
            if isinstance(value, bool)
            else service_pb2.InferParameter(string_param=f"camera-{value}")
            if step[0] % 2
            else service_pb2.InferParameter(int64_param=value)
        )
    return await called(gateway, request)


async def called(
    gateway: Harness, request: object, *metadata: tuple[str, str], **how: object
) -> str:
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = await stub.ModelInfer(request, metadata=(*METADATA, *metadata), **how)
    return str(answer.model_name)


@pytest.mark.parametrize("send", [http_json, http_binary, http_header, by_grpc])
async def test_a_sequence_stays_at_one_replica_and_sequences_are_spread(
    gateway: Harness, replicas, send
):
    await serve(gateway, *replicas)

    async def sequence(number: int) -> set[str]:
        return {await send(gateway, (number, nth)) for nth in range(STEPS)}

    for replica in replicas:
        replica.work_s = 0.01
    used = await asyncio.gather(*map(sequence, range(SEQUENCES)))
    assert [len(ports) for ports in used] == [1] * SEQUENCES
    assert set().union(*used) == {str(replica.port) for replica in replicas}


async def test_a_service_without_sequences_is_served_as_before(gateway: Harness, replicas):
    await serve(gateway, *replicas, sequences=False)
    used = [await http_json(gateway, (1, 1)) for _ in range(8)]
    assert len(set(used)) == 2


async def test_a_sequence_stays_through_replicas_that_come_and_where_it_begins_again_it_may_move(
    gateway: Harness, replicas
):
    one, two = replicas
    await serve(gateway, one)
    assert await http_json(gateway, (1, 0)) == str(one.port)
    await serve(gateway, one, two)
    assert {await http_json(gateway, (1, 1)) for _ in range(6)} == {str(one.port)}
    assert await by_grpc(gateway, (0, 0)) in {str(one.port), str(two.port)}
    await gateway.set_replicas((one, ServerMode.DRAIN), (two, ServerMode.READY), sequences=True)
    assert await http_json(gateway, (1, 1)) == str(one.port)
    assert await http_json(gateway, (1, 0)) == str(two.port)
    assert await http_json(gateway, (1, 1)) == str(two.port)


@pytest.mark.promise("A sequence stays at its replica over HTTP and gRPC.")
async def test_http_and_grpc_share_a_sequence(gateway: Harness, replicas):
    await serve(gateway, *replicas)
    for number in range(0, 8, 2):
        by = await http_json(gateway, (number, 0))
        assert await by_grpc(gateway, (number, 1)) == by


async def test_a_replica_that_is_gone_is_not_waited_for(gateway: Harness, replicas):
    one, two = replicas
    await serve(gateway, one)
    assert await http_json(gateway, (1, 0)) == str(one.port)
    await serve(gateway, two)
    assert await http_json(gateway, (1, 1)) == str(two.port)
    assert await http_json(gateway, (1, 2)) == str(two.port)


async def test_a_sequence_that_went_round_stays_where_it_came_in_again(gateway: Harness, replicas):
    """What waited in a queue of replicas that went comes in again through HAProxy's own server."""
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY), concurrency=1, sequences=True)
    one.pause()
    blocking = gateway.asking(1)
    await eventually(lambda: gateway.waits(Load(in_flight=1)))
    asked = asyncio.create_task(http_json(gateway, (0, 0)))
    await eventually(lambda: gateway.waits(Load(in_flight=1, queued=1)))
    await gateway.set_replicas(sequences=True)
    await gateway.runtime.apply([SendRound("triton1")])
    await eventually(lambda: gateway.waits(Load(held=1)))
    await serve(gateway, two)
    assert await asked == str(two.port)
    one.go_on()
    await asyncio.gather(*blocking)
    await serve(gateway, one, two)
    assert {await http_json(gateway, (0, 1)) for _ in range(6)} == {str(two.port)}


@pytest.mark.parametrize("headers", [{}, {"Content_Encoding": "deflate"}])
async def test_an_id_that_cannot_be_read_is_refused_with_the_way_out(
    gateway: Harness, replicas, headers
):
    await serve(gateway, *replicas)
    body = json.dumps({"inputs": [{"data": [1] * 20_000}], "parameters": flags((1, 0))}).encode()
    sent = zlib.compress(body) if headers else body
    status, text = await posted(gateway, sent, **headers)
    assert status == 400
    assert error_of(text).startswith("SW-GATEWAY-SEQUENCE")
    assert "x-sequence-id" in text
    status, _ = await posted(gateway, sent, x_sequence_id="1", **headers)
    assert status == 200


async def test_a_compressed_call_is_refused_unless_its_metadata_has_the_id(
    gateway: Harness, replicas
):
    await serve(gateway, *replicas)
    request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"x" * 9000])
    how = {"compression": grpc.Compression.Gzip}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await called(gateway, request, **how)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "SW-GATEWAY-SEQUENCE" in str(caught.value.details())
    assert await called(gateway, request, ("x-sequence-id", "3"), **how)


async def test_what_has_no_id_is_left_to_the_replica(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    for body in (
        b"",
        b"{}",
        b'{"parameters": {"sequence_id": 0}}',
        b'{"parameters": {"sequence_id": {}}}',
        b'{"id": "\\"sequence_id\\": 4"}',
    ):
        assert (await posted(gateway, body))[0] == 200
        assert "x-sequence-id" not in replicas[0].headers


async def test_an_id_adds_no_line_to_what_a_replica_reads(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    body = b'{"parameters": {"sequence_id": "a\r\nx-evil: 1\r\n' + b"y" * 500 + b'"}}'
    assert (await posted(gateway, body))[0] == 200
    assert replicas[0].headers["x-sequence-id"].startswith("a??x-evil")
    assert len(replicas[0].headers["x-sequence-id"]) == 64
    assert "x-evil" not in replicas[0].headers


async def test_a_message_that_is_none_harms_no_other(gateway: Harness, replicas):
    await serve(gateway, *replicas)
    async with gateway.channel() as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for message in (
            b"\x22",
            b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x22\x05\x0a\xff\x01\x12\x00",
            b"\xff" * 12,
            b"\x22\x03\x12\x01\x0a",
            b"\x23",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(message, metadata=METADATA)
            assert caught.value.code() is not grpc.StatusCode.UNAVAILABLE
    by = await by_grpc(gateway, (2, 0))
    assert await by_grpc(gateway, (2, 1)) == by


async def test_a_deleted_service_leaves_no_mark(gateway: Harness, replicas):
    await serve(gateway, *replicas)
    assert (await gateway.runtime.observe()).terms_of("t/a").sequences
    await gateway.route()
    assert (await gateway.runtime.observe()).terms == {}
