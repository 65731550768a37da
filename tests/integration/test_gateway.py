"""The gateway on a real HAProxy: hold, queue, drain, refuse, without a reload."""

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from cluster.settings import GatewaySettings
from launcher.address import wait_for_route
from launcher.decide.gateway import Gateway, Load, Mode, load_of
from launcher.decide.routing import (
    AddRoute,
    MarkComplete,
    RemoveRoute,
    Route,
    SetHealthy,
    SetMode,
    SetTarget,
    Target,
    plan_routes,
)
from launcher.haproxy import HaproxyRuntime, check_configuration
from launcher.render import CONFIGURATION, gateway_files, services_map

pytestmark = pytest.mark.integration

INFER = "/v2/models/m/infer"
WORK_S = 0.1


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Harness:
    """A running gateway, and clients of it."""

    def __init__(self, settings: GatewaySettings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self.session = session
        self.runtime = HaproxyRuntime(settings.runtime_socket, services_map(settings))
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, *more: str) -> None:
        """HAProxy, until it answers."""
        configuration = str(self.settings.directory / CONFIGURATION)
        words = ("haproxy", "-db", "-f", configuration, *more)
        self.processes.append(
            await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL)
        )
        await eventually(lambda: _answers(self))

    async def kill(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        self.processes.clear()

    async def reload(self) -> None:
        """As HAProxy's own unit does it: a new process takes the sockets of the old one."""
        await self.start(
            "-x", str(self.settings.runtime_socket), "-sf", str(self.processes[-1].pid)
        )

    async def ask(self, path: str = f"/t/a{INFER}", method: str = "POST") -> tuple[int, str]:
        url = f"{self.settings.url}{path}"
        async with self.session.request(method, url, json={"n": 1}) as answer:
            return answer.status, await answer.text()

    def asking(self, count: int) -> list["asyncio.Task[tuple[int, str]]"]:
        return [asyncio.create_task(self.ask()) for _ in range(count)]

    async def set_replicas(self, *replicas: tuple[int, Mode] | None, concurrency: int = 2) -> None:
        """As the launcher would: compare with what is there and change it. None: no replica."""
        targets = {
            index: Target("127.0.0.1", *replica)
            for index, replica in enumerate(replicas)
            if replica is not None
        }
        plan = plan_routes(await self.runtime.observe(), [Route("t/a", concurrency, targets)])
        await self.runtime.apply(plan.changes)

    async def load(self) -> Load:
        return load_of((await self.runtime.observe()).backend_of("t/a"))


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await holds():
        assert time.monotonic() < deadline_s, "it never came true"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def gateway_up(directory: Path, hold_s: int = 30) -> AsyncIterator[Harness]:
    address = f"127.0.0.1:{free_port()}"
    settings = GatewaySettings(
        url=f"http://{address}",
        bind=address,
        runtime_socket=directory / "haproxy.sock",
        directory=directory,
        backends=2,
        servers=4,
        hold_s=hold_s,
    )
    for name, text in gateway_files(settings).items():
        (directory / name).write_text(text)
    await check_configuration(directory / CONFIGURATION)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        harness = Harness(settings, session)
        try:
            await harness.start()
            await harness.runtime.apply([MarkComplete()])
            yield harness
        finally:
            await harness.kill()


async def _answers(harness: Harness) -> bool:
    try:
        return (await harness.ask("/"))[0] == 404
    except aiohttp.ClientError:
        return False


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Harness]:
    async with gateway_up(tmp_path) as harness:
        yield harness


class Replica:
    """A server that answers like Triton's front: readiness, and inference that takes a while."""

    def __init__(self) -> None:
        self.port = free_port()
        self.served = 0
        self.most_at_once = 0
        self._now = 0
        application = web.Application()
        application.router.add_get("/v2/health/ready", self._ready)
        application.router.add_post(INFER, self._infer)
        self._runner = web.AppRunner(application, keepalive_timeout=60, shutdown_timeout=0)

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _infer(self, request: web.Request) -> web.Response:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(WORK_S)
        self._now -= 1
        self.served += 1
        return web.json_response({"by": self.port})

    def connections(self) -> int:
        """Open ones, idle ones included."""
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def start(self) -> "Replica":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        return self

    async def stop(self) -> None:
        server = self._runner.server
        await self._runner.cleanup()
        await asyncio.sleep(0.05)
        if server is not None:
            await server.shutdown(0)  # what was being accepted at that moment


@pytest.fixture
async def replicas() -> AsyncIterator[tuple[Replica, Replica]]:
    pair = (await Replica().start(), await Replica().start())
    yield pair
    for replica in pair:
        await replica.stop()


def statuses(answers: list[tuple[int, str]]) -> set[int]:
    return {status for status, _ in answers}


async def test_requests_are_held_from_zero_and_all_answered(gateway: Harness, replicas):
    await gateway.set_replicas()
    asked = gateway.asking(50)
    await eventually(lambda: _is(gateway, Load(0, 0, 50)))
    await gateway.set_replicas((replicas[0].port, Mode.READY), (replicas[1].port, Mode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert {replica.most_at_once for replica in replicas} == {2}
    assert replicas[0].served + replicas[1].served == 50


async def _is(gateway: Harness, load: Load) -> bool:
    return await gateway.load() == load


async def test_what_does_not_fit_waits_and_is_counted(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0].port, Mode.READY))
    asked = gateway.asking(10)
    await eventually(lambda: _is(gateway, Load(in_flight=2, queued=8, held=0)))
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert await gateway.load() == Load()


async def test_a_drain_under_load_fails_no_request(gateway: Harness, replicas):
    one, two = (replica.port for replica in replicas)
    await gateway.set_replicas((one, Mode.READY), (two, Mode.READY))
    asked = gateway.asking(50)
    await asyncio.sleep(1.5 * WORK_S)
    await gateway.set_replicas((one, Mode.DRAIN), (two, Mode.READY))
    await eventually(lambda: _drained(gateway))
    served = replicas[0].served
    await gateway.set_replicas(None, (two, Mode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert replicas[0].served == served


async def _drained(gateway: Harness) -> bool:
    server = (await gateway.runtime.observe()).backends["pool1"].servers[0]
    return server.mode is Mode.DRAIN and server.in_flight == 0


async def test_maintenance_closes_idle_connections(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0].port, Mode.READY))
    await asyncio.gather(*gateway.asking(4))
    assert replicas[0].connections() > 0
    await gateway.set_replicas()
    await eventually(lambda: _closed(replicas[0]))


async def _closed(replica: Replica) -> bool:
    return replica.connections() == 0


async def test_draining_the_last_one_holds_new_requests_until_another_comes(
    gateway: Harness, replicas
):
    one, two = (replica.port for replica in replicas)
    await gateway.set_replicas((one, Mode.READY))
    asked = gateway.asking(10)
    await asyncio.sleep(WORK_S / 2)
    await gateway.set_replicas((one, Mode.DRAIN))
    asked += gateway.asking(10)
    await eventually(lambda: _drained(gateway))
    assert (await gateway.load()).waiting == 18
    await gateway.set_replicas((two, Mode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}


async def test_a_dead_replica_is_taken_out_by_itself(gateway: Harness, replicas):
    one, two = (replica.port for replica in replicas)
    await gateway.set_replicas((one, Mode.READY), (two, Mode.READY))
    await replicas[0].stop()
    assert statuses(await asyncio.gather(*gateway.asking(20))) == {200}
    await eventually(lambda: _is_down(gateway))
    assert replicas[1].served == 20


async def _is_down(gateway: Harness) -> bool:
    return not (await gateway.runtime.observe()).backends["pool1"].servers[0].up


async def test_services_come_and_go_without_a_reload(gateway: Harness, replicas):
    routes = [
        Route("t/a", 2, {0: Target("127.0.0.1", replicas[0].port, Mode.READY)}),
        Route("t/b", 2, {0: Target("127.0.0.1", replicas[1].port, Mode.READY)}),
    ]
    await gateway.runtime.apply(plan_routes(await gateway.runtime.observe(), routes).changes)
    for name, replica in zip(("a", "b"), replicas, strict=True):
        assert (await gateway.ask(f"/t/{name}{INFER}"))[1] == f'{{"by": {replica.port}}}'
    await gateway.runtime.apply(plan_routes(await gateway.runtime.observe(), routes[:1]).changes)
    assert (await gateway.ask(f"/t/b{INFER}"))[0] == 404
    assert (await gateway.ask())[0] == 200


async def test_held_requests_of_a_deleted_service_are_refused_at_once(gateway: Harness):
    await gateway.set_replicas()
    asked = gateway.asking(3)
    await eventually(lambda: _is(gateway, Load(held=3)))
    await gateway.runtime.apply([RemoveRoute("t/a")])
    answers = await asyncio.gather(*asked)
    assert statuses(answers) == {404}
    assert "SW-GATEWAY-UNKNOWN" in answers[0][1]


async def test_a_hold_ends_with_retry_after(tmp_path: Path):
    async with gateway_up(tmp_path, hold_s=1) as gateway:
        await gateway.set_replicas()
        url = f"{gateway.settings.url}/t/a{INFER}"
        async with gateway.session.post(url) as answer:
            body = await answer.json()
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True)
        assert "SW-GATEWAY-WAKING" in body["error"]


KEPT = pytest.mark.parametrize("kept", [False, True], ids=["no routes kept", "routes kept"])


@KEPT
async def test_after_a_kill_every_request_waits_for_the_launcher(
    gateway: Harness, replicas, kept: bool
):
    ready = (replicas[0].port, Mode.READY), (replicas[1].port, Mode.READY)
    await gateway.set_replicas(*ready)
    if kept:
        gateway.runtime.keep({"t/a": "pool1"})
    busy = gateway.asking(20)
    await asyncio.sleep(WORK_S / 2)
    await gateway.kill()
    await asyncio.gather(*busy, return_exceptions=True)  # what was in it is lost with it
    await gateway.start()
    asked: list[asyncio.Task[tuple[int, str]]] = []
    for _ in range(15):
        asked += gateway.asking(4)
        await asyncio.sleep(WORK_S)
    assert not any(request.done() for request in asked)
    await gateway.set_replicas(*ready)
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert (await gateway.ask(f"/t/none{INFER}"))[0] == 404


async def test_after_a_reload_what_was_held_is_told_to_try_again(gateway: Harness, replicas):
    await gateway.set_replicas()
    asked = gateway.asking(3)
    await eventually(lambda: _is(gateway, Load(held=3)))
    await gateway.reload()
    answers = await asyncio.gather(*asked)
    assert statuses(answers) == {503}
    assert "SW-GATEWAY-STARTING" in answers[0][1]
    asked = gateway.asking(3)
    await gateway.set_replicas((replicas[0].port, Mode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}


async def test_without_a_launcher_the_wait_for_routes_ends_with_retry_after(tmp_path: Path):
    async with gateway_up(tmp_path, hold_s=1) as gateway:
        await gateway.kill()
        await gateway.start()
        async with gateway.session.post(f"{gateway.settings.url}/t/a{INFER}") as answer:
            body = await answer.json()
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True)
        assert "SW-GATEWAY-STARTING" in body["error"]


async def test_routes_survive_a_smaller_pool(gateway: Harness, replicas):
    """The file names a backend that is no more: the service gets another one."""
    await gateway.kill()
    services_map(gateway.settings).write_text("t/a pool9\n")
    await gateway.start()
    await gateway.set_replicas((replicas[0].port, Mode.READY))
    assert (await gateway.ask())[0] == 200


async def test_the_wait_for_a_route_wakes_nobody(gateway: Harness):
    url = f"{gateway.settings.url}/t/a"
    assert "404" in await wait_for_route(url, patience_s=0.0)
    waiting = asyncio.create_task(wait_for_route(url))
    await asyncio.sleep(0.3)
    await gateway.set_replicas()
    assert (await waiting, await gateway.load()) == ("", Load())
    await gateway.kill()
    assert "does not answer" in await wait_for_route(url, patience_s=0.0)


@pytest.mark.parametrize("path", ["/", "/t", "/t/none/v2", '/t/%22%3Cb%3E"/v2', "/v2/models/m"])
async def test_an_unknown_service_is_json_that_names_it(gateway: Harness, path: str):
    status, text = await gateway.ask(path, "GET")
    assert status == 404
    assert "SW-GATEWAY-UNKNOWN" in _json(text)["error"]


def _json(text: str) -> dict[str, str]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/m/load",
        "/v2/repository/models/m/unload",
        "/v2/systemsharedmemory/status",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/cudasharedmemory/status",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/m/trace/setting",
        "/v2/models/m/../../repository/index",
        "/v2//repository/index",
        "/v2/%72epository/index",
        "/v2/models/%2e%2e/repository/index",
        "/metrics",
        "",
    ],
)
async def test_administration_of_replicas_is_denied(gateway: Harness, replicas, path: str):
    await gateway.set_replicas((replicas[0].port, Mode.READY))
    _, status = await raw_status(gateway, f"/t/a{path}")
    assert status == 403


async def raw_status(gateway: Harness, path: str) -> tuple[str, int]:
    """Without a client that would tidy the path."""
    host, _, port = gateway.settings.bind.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    line = (await reader.readline()).decode()
    writer.close()
    return line, int(line.split()[1])


@pytest.mark.parametrize("path", ["/v2/health/ready", INFER])
async def test_inference_passes_with_its_prefix_removed(gateway: Harness, replicas, path: str):
    await gateway.set_replicas((replicas[0].port, Mode.READY))
    method = "POST" if path == INFER else "GET"
    assert (await gateway.ask(f"/t/a{path}", method))[0] == 200


async def test_state_survives_whoever_changed_it(gateway: Harness, replicas):
    """A new launcher sees what an old one did: routes, addresses, modes."""
    port = replicas[0].port
    await gateway.runtime.apply(
        [
            AddRoute("t/a", "pool2"),
            SetTarget("pool2", 1, "127.0.0.1", port, 3),
            SetMode("pool2", 1, Mode.READY),
            SetHealthy("pool2", 1),
            SetMode("pool2", 1, Mode.DRAIN),
        ]
    )
    seen: Gateway = await HaproxyRuntime(
        gateway.settings.runtime_socket, services_map(gateway.settings)
    ).observe()
    server = seen.backends["pool2"].servers[1]
    assert seen.routes == {"t/a": "pool2"}
    assert (server.address, server.port, server.mode) == ("127.0.0.1", port, Mode.DRAIN)
    assert [s.mode for s in seen.backends["pool2"].servers] == [
        Mode.MAINT,
        Mode.DRAIN,
        Mode.MAINT,
        Mode.MAINT,
    ]


async def test_a_deleted_service_answers_all_that_wait_and_its_backend_is_free(
    gateway: Harness, replicas
):
    one, two = (replica.port for replica in replicas)
    await gateway.set_replicas((one, Mode.READY))
    asked = gateway.asking(60)
    await eventually(lambda: _is(gateway, Load(in_flight=2, queued=58)))
    begin_s = time.monotonic()
    await gateway.runtime.apply(plan_routes(await gateway.runtime.observe(), []).changes)
    answers = await asyncio.gather(*asked)
    assert time.monotonic() - begin_s < 2
    refused = [text for status, text in answers if status == 404]
    assert (statuses(answers), len(answers) - len(refused)) == ({200, 404}, replicas[0].served)
    assert {_json(text)["error"][:18] for text in refused} == {"SW-GATEWAY-UNKNOWN"}
    next_one = [Route("t/b", 2, {0: Target("127.0.0.1", two, Mode.READY)})]
    plan = plan_routes(await gateway.runtime.observe(), next_one)
    assert plan.routes == {"t/b": "pool1"}
    await gateway.runtime.apply(plan.changes)
    assert (await gateway.ask(f"/t/b{INFER}"))[0] == 200
    assert replicas[1].served == 1


@pytest.mark.parametrize("apart_s", [0.0, 0.3])
async def test_what_was_not_sent_outlives_every_replica(gateway: Harness, replicas, apart_s: float):
    ready = [(replica.port, Mode.READY) for replica in replicas]
    await gateway.set_replicas(*ready)
    asked = gateway.asking(60)
    await asyncio.sleep(1.5 * WORK_S)
    for replica in replicas:
        await replica.stop()
        await asyncio.sleep(apart_s)
    await asyncio.sleep(3)
    third = await Replica().start()
    assert (await gateway.load()).waiting >= 40
    await gateway.set_replicas(None, None, (third.port, Mode.READY))
    answers = await asyncio.gather(*asked)
    lost = [_json(text)["error"] for status, text in answers if status != 200]
    assert len(lost) <= 2 * 2
    assert all(error.startswith("SW-GATEWAY-LOST") for error in lost)
    assert await gateway.load() == Load()
    await third.stop()
