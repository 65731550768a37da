"""Who is let in by a real HAProxy: API keys, limits, TLS; and services that are to end."""

import asyncio
import ssl
import subprocess
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import aiohttp
import grpc
import pytest
from gateway_harness import (
    CONFIGURATION,
    INFER,
    STREAM,
    Harness,
    error_of,
    eventually,
    gateway_up,
    statuses,
    unread,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import PATIENCE_S

from slicewise.cluster.rpc.key_messages import KeyGrant
from slicewise.launcher.gateway.runtime_api import Maps
from slicewise.launcher.rules.gateway.routing import MarkComplete, Route
from slicewise.launcher.rules.gateway.types import Load, ServerMode

pytestmark = pytest.mark.integration

KEY, OTHER, REVOKED = "swk_0123_secret", "swk_4567_secret", "swk_89ab_secret"
KEYS = {sha256(key.encode()).hexdigest(): of for key, of in ((KEY, "t"), (OTHER, "u"))}


@pytest.mark.promise("A service wants an API key of its tenant.")
async def test_a_tenant_with_a_key_is_protected(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert (await gateway.ask())[0] == 200
    await gateway.set_keys(KEYS)
    for headers, expected in (
        ({}, (401, "SW-GATEWAY-KEY:")),
        ({"x_api_key": "nonsense"}, (401, "SW-GATEWAY-KEY:")),
        ({"Authorization": f"Bearer {REVOKED}"}, (401, "SW-GATEWAY-KEY:")),
        ({"x_api_key": OTHER}, (403, "SW-GATEWAY-KEY-TENANT:")),
    ):
        status, text = await gateway.ask(**headers)
        assert (status, error_of(text).split()[0]) == expected
    for headers in ({"x_api_key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        assert (await gateway.ask(**headers))[0] == 200
        assert "secret" not in str(replicas[0].headers)
    assert (await gateway.ask("/open/none/v2"))[0] == 404


async def test_who_may_not_use_a_tenants_services_does_not_learn_which_there_are(gateway: Harness):
    await gateway.set_keys(KEYS)
    assert (await gateway.ask("/t/none/v2"))[0] == 401
    assert (await gateway.ask("/t/none/v2", x_api_key=KEY))[0] == 404


async def test_who_reads_no_refusal_loses_his_connection_and_not_haproxys_memory(
    gateway: Harness,
):
    """Each kept 16 KiB and a coroutine for ten minutes, without a key and without a bound."""
    await gateway.set_keys(KEYS)
    clients = [await unread(gateway.settings.bind, "/t/a/v2", 600) for _ in range(2)]
    until_closed = [asyncio.create_task(client.read(-1)) for client in clients]
    # More than 1,000 of one host are too many, whichever of its connections the next one is of.
    done, left = await asyncio.wait(until_closed, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
    assert done
    assert (await gateway.ask())[0] == 401
    for task in left:
        task.cancel()


async def test_nothing_that_a_client_says_leads_round_a_key(gateway: Harness, replicas):
    closed, free = (
        Route(service, 4, {one.endpoint: ServerMode.READY}, "triton")
        for service, one in zip(("t/a", "open/b"), replicas, strict=True)
    )
    await gateway.route(closed, free)
    await gateway.set_keys(KEYS)
    named = {"x_slicewise_service": "t/a", "slicewise_service": "t/a"}
    assert (await gateway.ask(f"/open/b{INFER}", **named))[0] == 200
    assert replicas[1].headers["x-slicewise-service"] == "open/b"
    assert (await gateway.ask(x_slicewise_service="open/b"))[0] == 401
    two = {"x_api_key": OTHER, "Authorization": f"Bearer {REVOKED}"}
    assert (await gateway.ask(**two))[0] == 403
    assert replicas[0].served == 0


async def test_of_two_keys_the_one_that_opens_is_the_request_s(gateway: Harness, replicas):
    """Clients send a made-up key in one header because they can't leave it out."""
    both = {one.endpoint: ServerMode.READY for one in replicas}
    await gateway.route(*(Route(one, 4, both, "triton") for one in ("t/a", "t/b")))
    of_b, of_a = "swk_bbbb_secret", "swk_aaaa_secret"
    await gateway.set_keys({**KEYS, digest(of_b): "t/b", digest(of_a): "t/a"})
    used, a, b = set[str](), f"/t/a{INFER}", f"/t/b{INFER}"
    for number, (first, second, path, opener) in enumerate(
        (
            ("dummy", KEY, a, KEY),
            (KEY, "dummy", a, KEY),
            (OTHER, KEY, a, KEY),
            (of_b, of_a, a, of_a),
            (of_b, of_a, b, of_b),
            (of_b, KEY, a, KEY),
        )
    ):
        sent = {"x_api_key": first, "Authorization": f"Bearer {second}"}
        assert (await gateway.ask(path, **sent))[0] == 200, number
        # What it is used for, and what a revocation ends, is the key that opens.
        used.add(digest(opener))
        assert (await gateway.runtime.key_ages()).keys() == used
    for first, second, path, expected in (
        (OTHER, KEY, "/u/none/v2", 404),
        (KEY, OTHER, "/u/none/v2", 404),
        (of_b, "dummy", a, 403),
        (of_b, OTHER, a, 403),
        ("dummy", of_a, b, 403),
        ("dummy", OTHER, a, 403),
        ("dummy", "nonsense", a, 401),
    ):
        sent = {"x_api_key": first, "Authorization": f"Bearer {second}"}
        assert (await gateway.ask(path, **sent))[0] == expected
    for headers in (one.headers for one in replicas):
        assert "secret" not in str(headers)


@pytest.mark.promise("A key may open one service only, and its last use is seen.")
async def test_a_key_of_one_service_opens_that_one_and_its_use_is_seen(gateway: Harness, replicas):
    one, other = (
        Route(service, 4, {one.endpoint: ServerMode.READY}, "triton")
        for service, one in zip(("t/a", "t/b"), replicas, strict=True)
    )
    await gateway.route(one, other)
    await gateway.set_keys({**KEYS, digest(REVOKED): "t/b"})
    status, text = await gateway.ask(x_api_key=REVOKED)
    assert (status, error_of(text)[:23]) == (403, "SW-GATEWAY-KEY-SERVICE:")
    assert await gateway.runtime.key_ages() == {}
    assert (await gateway.ask(f"/t/b{INFER}", x_api_key=REVOKED))[0] == 200
    assert (await gateway.ask("/u/a/v2", x_api_key=REVOKED))[0] == 403
    assert (await gateway.ask(x_api_key=KEY))[0] == 200
    ages = await gateway.runtime.key_ages()
    assert ages.keys() == {digest(REVOKED), digest(KEY)}
    assert min(ages.values()) >= 0
    # Its tenant wants keys, though it has none for all of its services.
    await gateway.set_keys({digest(REVOKED): "t/b"})
    assert (await gateway.ask())[0] == 401


async def test_keys_go_with_grpc_metadata(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await gateway.set_keys(KEYS)
    found = {}
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for key in ("", OTHER, KEY):
            metadata = (("slicewise-service", "t/a"), ("authorization", f"Bearer {key}"))
            try:
                await stub.ModelInfer(service_pb2.ModelInferRequest(), metadata=metadata)
                found[key] = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                found[key] = error.code()
    assert found == {
        "": grpc.StatusCode.UNAUTHENTICATED,
        OTHER: grpc.StatusCode.PERMISSION_DENIED,
        KEY: grpc.StatusCode.OK,
    }
    assert "secret" not in str(replicas[0].headers)


@pytest.mark.promise("A revoked key opens nothing.")
async def test_a_revoked_key_lets_nobody_in_and_its_tenant_may_stay_protected(
    gateway: Harness, replicas
):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await gateway.set_keys(KEYS)
    await gateway.set_keys({}, protected=["t"])
    assert (await gateway.ask(x_api_key=KEY))[0] == 401
    await gateway.set_keys({})
    assert (await gateway.ask())[0] == 200


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_revoked_key_ends_its_streams_and_nothing_else(
    gateway: Harness, replicas, replaced: bool
):
    """On one connection of HTTP/2 with a stream of another key, and by HTTP."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    both = {**KEYS, digest(REVOKED): "t"}
    await gateway.set_keys(both)
    async with gateway.channel() as channel, AsyncExitStack() as ended:
        revoked, kept = stream(channel, REVOKED), stream(channel, KEY)
        assert [await echo(one, "0") for one in (revoked, kept)] == ["0", "0"]
        by_http = asyncio.create_task(generated(gateway, REVOKED))
        ended.callback(by_http.cancel)
        await eventually(lambda: gateway.waits(Load(in_flight=3)))
        if replaced:
            await gateway.reload()
            await gateway.set_replicas((replicas[0], ServerMode.READY))
            # Until the process that was replaced has answered: before, nothing is asked of it.
            await eventually(lambda: gateway.waits(Load(in_flight=3)))
        await gateway.set_keys(both)
        assert [await echo(one, "1") for one in (revoked, kept)] == ["1", "1"]
        assert not by_http.done()
        await gateway.set_keys(KEYS)

        async def have_ended() -> bool:
            if replaced:
                # That process has half a second to answer; as the launcher does, it is told again.
                await gateway.runtime.observe()
                await gateway.set_keys(KEYS)
            return revoked.done() and by_http.done()

        # Without a word from their clients.
        await eventually(have_ended)
        assert await revoked.code() is not grpc.StatusCode.OK
        with pytest.raises(aiohttp.ClientError):
            await by_http
        assert await echo(kept, "2") == "2"
        await kept.done_writing()


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def stream(channel: grpc.aio.Channel, key: str) -> grpc.aio.StreamStreamCall:
    metadata = (("slicewise-service", "t/a"), ("x-api-key", key))
    return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(metadata=metadata)


async def generated(gateway: Harness, key: str) -> None:
    """For minutes, unless it is ended."""
    url = f"{gateway.settings.url}/t/a{STREAM}"
    async with gateway.session.post(url, json={"n": 1200}, headers={"x-api-key": key}) as answer:
        await answer.read()


async def echo(stream: grpc.aio.StreamStreamCall, word: str) -> str:
    await stream.write(service_pb2.ModelInferRequest(model_name="m", id=word))
    answer = await asyncio.wait_for(stream.read(), 30)
    return str(answer.infer_response.id)


async def test_after_a_start_keys_hold_before_any_launcher_says_so(gateway: Harness, replicas):
    await gateway.set_keys(KEYS)
    keys = Maps(gateway.settings.directory).keys
    assert "secret" not in keys.read_text()
    await gateway.kill()
    await gateway.start()
    assert (await gateway.ask())[0] == 401
    await gateway.runtime.apply([MarkComplete()])
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert (await gateway.ask(x_api_key=KEY))[0] == 200


async def test_nobody_comes_in_before_the_first_word_about_keys(gateway: Harness, replicas):
    """The files are lost, or could never be written."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await gateway.kill()
    for path in Maps(gateway.settings.directory).all:
        path.write_text("")
    await gateway.start()
    await gateway.runtime.apply([MarkComplete()])
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    asked = gateway.asking(3)
    assert await half_closed(gateway) == b""
    await asyncio.sleep(0.5)
    assert not any(request.done() for request in asked)
    await gateway.set_keys(KEYS)
    assert statuses(await asyncio.gather(*asked)) == {401}
    assert (await gateway.ask(x_api_key=KEY))[0] == 200


async def half_closed(gateway: Harness) -> bytes:
    """What a client is answered that sends nothing more after its request."""
    host, _, port = gateway.settings.bind.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /t/a{INFER} HTTP/1.1\r\nhost: g\r\n\r\n".encode())
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


async def test_every_service_may_want_a_key(tmp_path: Path):
    async with gateway_up(tmp_path, require_keys=True) as gateway:
        assert (await gateway.ask())[0] == 401
        await gateway.set_keys(KEYS)
        assert (await gateway.ask(x_api_key=KEY))[0] == 404


@pytest.mark.promise("A tenant's requests are limited.")
async def test_a_tenants_requests_are_limited(tmp_path: Path, replicas):
    limits = {"concurrent": 3, "tenants": {"slow": {"requests_per_s": 5}}}
    async with gateway_up(tmp_path, limits=limits) as gateway:
        slow = Route("slow/b", 4, {replicas[1].endpoint: ServerMode.READY}, "triton")
        await gateway.route(
            Route("t/a", 4, {replicas[0].endpoint: ServerMode.READY}, "triton"), slow
        )
        replicas[0].pause()
        asked = gateway.asking(8)
        await eventually(lambda: _are_done(asked, 5))
        replicas[0].go_on()
        answers = await asyncio.gather(*asked)
        assert sorted(status for status, _ in answers) == [200] * 3 + [429] * 5
        assert (await gateway.ask())[0] == 200
        url = f"/slow/b{INFER}"
        refused: list[str] = []
        # Of those within a second five are let in. A machine that stalls takes longer for all.
        while not refused:
            answers = await asyncio.gather(*(gateway.ask(url) for _ in range(40)))
            refused = [text for status, text in answers if status == 429]
            assert len(refused) <= 35
        assert error_of(refused[0]).startswith("SW-GATEWAY-RATE")


async def test_clients_that_hang_up_leave_their_tenant_room(tmp_path: Path, replicas):
    async with gateway_up(tmp_path, limits={"concurrent": 3}) as gateway:
        await gateway.set_replicas()
        gone = gateway.asking(3)
        await eventually(lambda: gateway.waits(Load(held=3)))
        assert (await gateway.ask())[0] == 429
        for request in gone:
            request.cancel()
        await eventually(lambda: gateway.waits(Load()))
        asked = gateway.asking(3)
        await eventually(lambda: gateway.waits(Load(held=3)))
        await gateway.set_replicas((replicas[0], ServerMode.READY))
        assert statuses(await asyncio.gather(*asked)) == {200}


async def test_a_tenant_s_held_requests_leave_others_room_by_default(gateway: Harness, replicas):
    """They come over connections of which each could carry more than a tenant may have."""
    awake = Route("u/b", 4, {replicas[0].endpoint: ServerMode.READY}, "triton")
    await gateway.route(Route("t/a", 4, {}, "triton"), awake)
    most = gateway.settings.limits.concurrent
    request = service_pb2.ModelInferRequest(model_name="m")
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(gateway.channel()) for _ in range(2)]
        stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in channels]
        calls = [
            stub.ModelInfer(request, metadata=(("slicewise-service", "t/a"),))
            for stub in stubs
            for _ in range(most * 3 // 4)
        ]

        async def are_refused() -> bool:
            return sum(call.done() for call in calls) >= len(calls) - most

        await eventually(are_refused)
        refused = [await call.code() for call in calls if call.done()]
        assert set(refused) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert (await gateway.ask(f"/u/b{INFER}"))[0] == 200


async def _are_done(asked: "list[asyncio.Task[tuple[int, str]]]", count: int) -> bool:
    return sum(request.done() for request in asked) == count


async def test_a_closing_service_refuses_new_requests_and_finishes_what_it_has(
    gateway: Harness, replicas
):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].pause()
    asked = gateway.asking(10)
    await eventually(lambda: gateway.waits(Load(in_flight=2, queued=8)))
    await gateway.set_replicas((replicas[0], ServerMode.READY), closing=True)
    status, text = await gateway.ask()
    assert (status, error_of(text)[:18]) == (404, "SW-GATEWAY-UNKNOWN")
    replicas[0].go_on()
    assert statuses(await asyncio.gather(*asked)) == {200}
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert (await gateway.ask())[0] == 200


def self_sign(directory: Path) -> None:
    subprocess.run(
        (
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")),
        ),
        check=True,
        capture_output=True,
    )


@pytest.mark.promise("With a certificate both protocols are encrypted.")
async def test_with_a_certificate_both_protocols_are_encrypted(tmp_path: Path, replicas):
    certificate = tmp_path / "gateway.pem"
    await asyncio.to_thread(self_sign, tmp_path)
    certificate.write_text((tmp_path / "cert.pem").read_text() + (tmp_path / "key.pem").read_text())
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with gateway_up(tmp_path, certificate=certificate, tls=trusted) as gateway:
        await gateway.set_replicas((replicas[0], ServerMode.READY))
        assert (await gateway.ask())[0] == 200
        credentials = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        address = gateway.settings.bind.replace("127.0.0.1", "localhost")
        async with grpc.aio.secure_channel(address, credentials) as channel:
            answer = await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                service_pb2.ModelInferRequest(), metadata=(("slicewise-service", "t/a"),)
            )
        assert answer.model_name == str(replicas[0].port)
        # A stranger's hello takes a thread of everybody's: 146 ms by the largest group.
        assert await shakes_hands(gateway.settings.bind, "P-256")
        assert not await shakes_hands(gateway.settings.bind, "ffdhe8192")


async def shakes_hands(address: str, group: str) -> bool:
    words = ("-connect", address, "-tls1_3", "-groups", group)
    client = await asyncio.create_subprocess_exec(
        *("timeout", "60", "openssl", "s_client", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    said, _ = await client.communicate()
    return b"BEGIN CERTIFICATE" in said


async def test_a_request_is_its_key_s_person_s_and_tenant_s(gateway: Harness, replicas):
    """In whichever header the key came that opens what is asked for."""
    configuration = gateway.settings.directory / CONFIGURATION
    before = "    # No engine answers another method"
    shown = '    http-after-response set-header x-whose "%[var(txn.payer)] %[var(txn.person)]'
    text = configuration.read_text()
    assert text.count(before) == 1
    configuration.write_text(text.replace(before, f'{shown} %[var(txn.key_id)]"\n{before}'))
    await gateway.reload()
    await gateway.runtime.apply([MarkComplete()])
    target = {replicas[0].endpoint: ServerMode.READY}
    await gateway.route(*(Route(name, 4, target, "triton") for name in ("t/a", "open/c")))
    of_a = KeyGrant(opens="t/a", key_id="a" * 12, person="anna")
    of_bob = KeyGrant(opens="t", key_id="b" * 12, person="bob@example.org")
    await gateway.set_keys({digest(KEY): of_a, digest(OTHER): of_bob, digest(REVOKED): "t/b"})
    anna, bob, nobody = (
        f"t anna {'a' * 12}",
        f"t bob@example.org {'b' * 12}",
        "open - -",
    )
    for x_api_key, bearer, path, whose in (
        (KEY, "dummy", "/t/a", anna),
        ("dummy", KEY, "/t/a", anna),
        (KEY, OTHER, "/t/a", anna),
        (OTHER, KEY, "/t/a", bob),
        (REVOKED, OTHER, "/t/a", bob),
        ("dummy", "dummy", "/open/c", nobody),
        # Where no key is wanted, who sends one still pays.
        (KEY, "dummy", "/open/c", anna),
    ):
        headers = {"x-api-key": x_api_key, "authorization": f"Bearer {bearer}"}
        url = f"{gateway.settings.url}{path}{INFER}"
        async with gateway.session.post(url, headers=headers) as answer:
            assert (answer.status, answer.headers["x-whose"]) == (200, whose)
