"""A reload of a real HAProxy under load fails no request: it is for a larger group."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from gateway_harness import (
    STREAM,
    Harness,
    Replica,
    eventually,
    gateway_up,
    statuses,
    write_files,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.launcher.gateway.haproxy import REPLACED_DEADLINE_S
from slicewise.launcher.rules.gateway.routing import MarkComplete
from slicewise.launcher.rules.gateway.types import Load, ServerMode

pytestmark = pytest.mark.integration


@contextmanager
def launcher(gateway: Harness, *replicas: Replica) -> Iterator[None]:
    """Looks and routes every 0.2 s, as the launcher does."""

    async def turn() -> None:
        while True:
            with suppress(SlicewiseError):  # HAProxy's master is being replaced
                await gateway.set_replicas(*((replica, ServerMode.READY) for replica in replicas))
            await asyncio.sleep(0.2)

    turning = asyncio.create_task(turn())
    try:
        yield
    finally:
        turning.cancel()


async def test_reloads_under_load_fail_no_request(gateway: Harness, replicas):
    await gateway.set_replicas(*((replica, ServerMode.READY) for replica in replicas))
    failures: list[object] = []
    asked = 0
    ended = asyncio.Event()

    async def http() -> None:
        nonlocal asked
        while not ended.is_set():
            asked += 1
            try:
                status, text = await gateway.ask()
                failures.extend([text] * (status != 200))
            except Exception as error:  # noqa: BLE001 -- each one counts
                failures.append(error)

    async def grpc_calls() -> None:
        nonlocal asked
        async with gateway.channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not ended.is_set():
                asked += 1
                try:
                    await stub.ModelInfer(
                        service_pb2.ModelInferRequest(), metadata=(("slicewise-service", "t/a"),)
                    )
                except Exception as error:  # noqa: BLE001 -- each one counts
                    failures.append(error)

    async def go_on() -> None:
        """For a second, and for as many requests as a machine sends in it that does not stall."""
        enough = asked + 25

        async def are_asked() -> bool:
            return asked >= enough

        await asyncio.sleep(1)
        await eventually(are_asked)

    with launcher(gateway, *replicas):
        clients = [asyncio.create_task(http()) for _ in range(12)]
        clients += [asyncio.create_task(grpc_calls()) for _ in range(4)]
        for _ in range(3):
            await go_on()
            await gateway.reload()
        await go_on()
        ended.set()
        await asyncio.gather(*clients)
    assert failures == []


async def test_what_is_held_and_queued_goes_on_in_the_next_process(gateway: Harness, replicas):
    await gateway.set_replicas()
    held = gateway.asking(3)
    await eventually(lambda: gateway.waits(Load(held=3)))
    await gateway.reload()
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert statuses(await asyncio.gather(*held)) == {200}
    for replica in replicas:
        replica.pause()
    queued = gateway.asking(30)
    await eventually(lambda: gateway.waits(Load(in_flight=2, queued=28)))
    await gateway.reload()

    async def have_moved() -> bool:
        """What waited in the process that was replaced: it may answer late, and is told again."""
        await gateway.set_replicas((replicas[1], ServerMode.READY))
        return await gateway.waits(Load(in_flight=4, queued=26))

    await eventually(have_moved)
    for replica in replicas:
        replica.go_on()
    assert statuses(await asyncio.gather(*queued)) == {200}
    assert replicas[1].served == 28


async def test_what_is_held_without_server_lines_goes_on_in_the_next_process(
    tmp_path: Path, replicas
):
    async with gateway_up(tmp_path, services=2, backends=1, servers=1) as gateway:
        await gateway.set_replicas()
        assert (await gateway.runtime.observe()).routes["t/a"].startswith("tritonidle")
        held = gateway.asking(3)
        await eventually(lambda: gateway.waits(Load(held=3)))
        await gateway.reload()
        await gateway.set_replicas()
        await eventually(lambda: gateway.waits(Load(held=3)))
        await gateway.set_replicas((replicas[0], ServerMode.READY))
        assert statuses(await asyncio.gather(*held)) == {200}


async def test_a_request_without_a_route_waits_in_the_next_process(gateway: Harness, replicas):
    await gateway.kill()
    await gateway.start()
    asked = gateway.asking(3)
    await asyncio.sleep(0.3)
    await gateway.reload()
    await asyncio.sleep(0.3)
    assert not any(request.done() for request in asked)
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}


async def test_a_port_that_is_held_open_refuses_nobody_while_haproxy_is_killed(
    gateway: Harness, replicas
):
    await gateway.kill()
    host, _, number = gateway.settings.bind.rpartition(":")
    with socket.create_server((host, int(number)), backlog=128) as port:
        await gateway.start(port)
        await gateway.runtime.apply([MarkComplete()])
        await gateway.set_replicas((replicas[0], ServerMode.READY))
        gateway.runtime.keep({"t/a": "triton1"})
        # No connection is kept: one of a process that was killed may look open for a moment.
        assert (await gateway.ask(connection="close"))[0] == 200
        for end in (gateway.kill, gateway.kill_worker):
            await end()
            asked = gateway.asking(20, connection="close")
            await asyncio.sleep(0.2)
            await gateway.start(port)
            await gateway.set_replicas((replicas[0], ServerMode.READY))
            assert statuses(await asyncio.gather(*asked)) == {200}
        await gateway.reload()
        await gateway.set_replicas((replicas[0], ServerMode.READY))
        assert (await gateway.ask())[0] == 200


async def test_a_larger_pool_comes_with_a_reload(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    write_files(gateway.settings.model_copy(update={"backends": 5, "servers": 6}))
    await gateway.reload()
    seen = await gateway.runtime.observe()
    assert {len(backend.servers) for backend in seen.backends.values()} == {6}
    assert len(seen.group("triton")) == 5


async def test_a_streamed_answer_outlives_drain_and_reload(gateway: Harness, replicas):
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY))
    url = f"{gateway.settings.url}/t/a{STREAM}"
    async with gateway.session.post(url, json={"n": 12}) as answer:
        assert await answer.content.readline() == b"data: 0\n"
        one.pause()
        await gateway.set_replicas((one, ServerMode.DRAIN), (two, ServerMode.READY))
        await gateway.reload()
        await gateway.set_replicas((two, ServerMode.READY))
        await eventually(lambda: gateway.is_draining(one))
        one.go_on()
        assert (await answer.read()).endswith(b"data: 11\n\n")
    await eventually(lambda: gateway.waits(Load()))


async def test_a_replaced_process_that_hangs_holds_up_one_look_and_is_asked_once(
    gateway: Harness, replicas
):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    url = f"{gateway.settings.url}/t/a{STREAM}"
    # It lasts for longer than all that is done meanwhile.
    async with gateway.session.post(url, json={"n": 1000}) as answer:
        old = int(await gateway.worker())
        await gateway.reload()
        os.kill(old, signal.SIGSTOP)
        held_up = 0
        # The master would have refused to answer after some 20 questions to it.
        for _ in range(40):
            begin_s = time.monotonic()
            await gateway.set_replicas((replicas[0], ServerMode.READY))
            held_up += time.monotonic() - begin_s >= REPLACED_DEADLINE_S
        # One of them, and some others where the machine stalls.
        assert held_up < 10
        assert (await gateway.ask())[0] == 200
        os.kill(old, signal.SIGCONT)
        await eventually(lambda: gateway.waits(Load(in_flight=1)))
        for _ in range(2):
            assert await answer.content.readline()
        answer.close()
