"""The gateway on a real HAProxy: hold, queue, drain, refuse, without a reload."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import tritonclient.grpc.aio as triton
import tritonclient.http.aio as triton_http
from gateway_harness import (
    INFER,
    OF_THE_ANSWER,
    OF_THE_HOST,
    STREAM,
    WORK_S,
    Harness,
    Replica,
    error_of,
    eventually,
    gateway_up,
    of_the_host,
    replica_process,
    statistics_up,
    statuses,
    unread,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from slicewise.launcher.gateway.files import STATISTICS
from slicewise.launcher.gateway.haproxy import HaproxyRuntime
from slicewise.launcher.gateway.identity import KEY
from slicewise.launcher.gateway.runtime_api import Maps
from slicewise.launcher.rules.gateway.routing import (
    AddRoute,
    RemoveRoute,
    Route,
    SetHealthy,
    SetMode,
    SetTarget,
    plan_routes,
)
from slicewise.launcher.rules.gateway.timings import BOUNDS_MS, Timings
from slicewise.launcher.rules.gateway.types import Gateway, Load, ServerMode, Terms, load_of
from slicewise.launcher.scripts.render import CONFIGURATION
from slicewise.launcher.services.address import wait_for_route

pytestmark = pytest.mark.integration

BINARY = "Inference-Header-Content-Length"
PURGE = "pool-purge-delay 1s"


@pytest.mark.promise("Requests to a service of zero replicas are held, not lost.")
async def test_requests_are_held_from_zero_and_all_answered(gateway: Harness, replicas):
    await gateway.set_replicas()
    asked = gateway.asking(50)
    await eventually(lambda: gateway.waits(Load(0, 0, 50)))
    for replica in replicas:
        replica.pause()
    await gateway.set_replicas((replicas[0], ServerMode.READY), (replicas[1], ServerMode.READY))

    async def are_full() -> bool:
        # HAProxy's threads may let go more than maxconn of many that are released in one moment.
        return (await gateway.load()).in_flight >= 4

    await eventually(are_full)
    for replica in replicas:
        replica.go_on()
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert replicas[0].served + replicas[1].served == 50
    assert min(replica.served for replica in replicas) >= 2


async def test_what_does_not_fit_waits_and_is_counted(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].pause()
    asked = gateway.asking(10)
    await eventually(lambda: gateway.waits(Load(in_flight=2, queued=8, held=0)))
    replicas[0].go_on()
    assert statuses(await asyncio.gather(*asked)) == {200}
    await eventually(lambda: gateway.waits(Load()))


async def test_answers_are_counted_by_time_and_errors_and_losses_beside_them(
    gateway: Harness, replicas
):
    async def timings() -> Timings:
        return (await gateway.runtime.timings()).get("t/a", Timings())

    async def has(answered: int, errors: int, unanswered: int) -> bool:
        now = await timings()
        return (now.answered, now.errors, now.unanswered) == (answered, errors, unanswered)

    await gateway.set_replicas()
    asked = gateway.asking(5)
    await eventually(lambda: gateway.waits(Load(0, 0, 5)))
    assert await has(0, 0, 0)
    assert (await timings()).now == 5
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}
    await eventually(lambda: has(5, 0, 0))
    # None was faster than the replica works.
    fast = sum(BOUNDS_MS[index] < 1000 * WORK_S for index in range(len(BOUNDS_MS)))
    assert sum((await timings()).buckets[:fast]) == 0
    slowest_ms = (await timings()).slowest_ms
    assert slowest_ms is not None
    assert slowest_ms >= 1000 * WORK_S

    replicas[0].is_broken = True
    assert statuses(await asyncio.gather(*gateway.asking(3))) == {500}
    await eventually(lambda: has(8, 3, 0))
    for path, method in ((STREAM, "POST"), ("/v2/health/ready", "GET")):
        assert (await gateway.ask(f"/t/a{path}", method))[0] == 200
    # Neither a stream nor a question of health counts.
    assert await has(8, 3, 0)
    async with replica_process() as dying:
        await gateway.set_replicas()
        await gateway.route(Route("t/a", 2, {dying.endpoint: ServerMode.READY}, "triton"))
        lost = gateway.asking(1)
        await asyncio.wait_for(dying.is_asked(), 30)
        await dying.kill()
        # The gateway's own 502 is no answer of the service.
        assert statuses(await asyncio.gather(*lost)) == {502}
    await eventually(lambda: has(8, 3, 1))
    # An address without a service has no counters.
    assert (await gateway.ask(path=f"/t/none{INFER}"))[0] == 404
    assert (await gateway.runtime.timings()).keys() == {"t/a"}


async def test_an_answer_that_nobody_reads_is_no_backlog(gateway: Harness, replicas):
    """By a thousand of them a service of one idle replica took all that quota and loans allow."""

    async def is_answered() -> bool:
        shown = (await gateway.runtime.observe()).backends["triton1"]
        server = shown.server_of(replicas[0].endpoint)
        assert server is not None
        return (server.answers, server.in_flight) == (3, 0)

    await gateway.set_replicas((replicas[0], ServerMode.READY))
    client = await unread(gateway.settings.bind, f"/t/a{INFER}", 3)
    await eventually(is_answered)
    await eventually(lambda: gateway.waits(Load()))
    assert not client.at_eof()


@pytest.mark.promise("A replica is drained before it ends.")
async def test_a_drain_under_load_fails_no_request(gateway: Harness, replicas):
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY), (two, ServerMode.READY))
    asked = gateway.asking(50)
    await asyncio.sleep(1.5 * WORK_S)
    await gateway.set_replicas((one, ServerMode.DRAIN), (two, ServerMode.READY))
    await eventually(lambda: _drained(gateway, one))
    served = replicas[0].served
    await gateway.set_replicas((two, ServerMode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert replicas[0].served == served


async def _drained(gateway: Harness, replica: Replica) -> bool:
    server = (await gateway.runtime.observe()).backends["triton1"].server_of(replica.endpoint)
    assert server is not None
    return server.mode is ServerMode.DRAIN and server.in_flight == 0


async def test_maintenance_closes_idle_connections(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await asyncio.gather(*gateway.asking(4))
    assert replicas[0].connections() > 0
    await gateway.set_replicas()
    await eventually(lambda: _connected(replicas[0], 0))


async def test_who_was_there_before_keeps_no_connection_to_the_next_at_its_address(
    gateway: Harness, replicas
):
    """What ends after maintenance has begun leaves an idle one: the next tenant's requests would
    go to whoever the earlier tenant has handed it to, whatever certificate is asked for.
    """
    await gateway.kill()
    configuration = gateway.settings.directory / CONFIGURATION
    text = configuration.read_text()
    assert PURGE in text
    # Nothing but the change of address may close it.
    configuration.write_text(text.replace(PURGE, "pool-purge-delay 10m"))
    await gateway.start()
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].pause()
    asked = gateway.asking(1)
    await eventually(lambda: gateway.waits(Load(in_flight=1)))
    await gateway.runtime.apply([SetMode("triton1", 0, ServerMode.MAINT)])
    replicas[0].go_on()
    assert statuses(await asyncio.gather(*asked)) == {200}
    # Beside it, a health check that began before the maintenance may still have its own.
    await eventually(lambda: _connected(replicas[0], 1))
    await gateway.runtime.apply([SetTarget("triton1", 0, replicas[0].endpoint, 1)])
    await eventually(lambda: _connected(replicas[0], 0))


async def _connected(replica: Replica, connections: int) -> bool:
    return replica.connections() == connections


async def test_draining_the_last_one_holds_new_requests_until_another_comes(
    gateway: Harness, replicas
):
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY))
    one.pause()
    asked = gateway.asking(10)
    await eventually(lambda: gateway.waits(Load(in_flight=2, queued=8)))
    await gateway.set_replicas((one, ServerMode.DRAIN))
    asked += gateway.asking(10)
    one.go_on()
    await eventually(lambda: _drained(gateway, one))
    await eventually(lambda: _waiting(gateway, 18))
    await gateway.set_replicas((two, ServerMode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}


async def _waiting(gateway: Harness, count: int) -> bool:
    return (await gateway.load()).waiting == count


async def test_a_dead_replica_is_taken_out_by_itself(gateway: Harness, replicas):
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY), (two, ServerMode.READY))
    await replicas[0].stop()
    assert statuses(await asyncio.gather(*gateway.asking(20))) == {200}
    await eventually(lambda: _is_down(gateway, one))
    assert replicas[1].served == 20


async def test_a_paused_stand_in_can_be_stopped(gateway: Harness, replicas):
    """Otherwise a test that fails while one is paused would never end."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].pause()
    asked = gateway.asking(1)
    await eventually(lambda: gateway.waits(Load(in_flight=1)))
    await asyncio.wait_for(replicas[0].stop(), 30)
    assert statuses(await asyncio.gather(*asked)) == {200}


async def _is_down(gateway: Harness, replica: Replica) -> bool:
    server = (await gateway.runtime.observe()).backends["triton1"].server_of(replica.endpoint)
    return server is not None and not server.up


@pytest.mark.promise("Services come and go without a reload of HAProxy.")
async def test_services_come_and_go_without_a_reload(gateway: Harness, replicas):
    routes = [
        Route("t/a", 2, {replicas[0].endpoint: ServerMode.READY}, "triton"),
        Route("t/b", 2, {replicas[1].endpoint: ServerMode.READY}, "triton"),
    ]
    await gateway.route(*routes)
    for name, replica in zip(("a", "b"), replicas, strict=True):
        assert (await gateway.ask(f"/t/{name}{INFER}"))[1] == f'{{"by": {replica.port}}}'
    await gateway.route(*routes[:1])
    assert (await gateway.ask(f"/t/b{INFER}"))[0] == 404
    assert (await gateway.ask())[0] == 200


async def test_held_requests_of_a_deleted_service_are_refused_at_once(gateway: Harness):
    await gateway.set_replicas()
    asked = gateway.asking(3)
    await eventually(lambda: gateway.waits(Load(held=3)))
    await gateway.runtime.apply([RemoveRoute("t/a")])
    answers = await asyncio.gather(*asked)
    assert statuses(answers) == {404}
    assert "SW-GATEWAY-UNKNOWN" in answers[0][1]


async def test_services_without_server_lines_are_served_in_turn(tmp_path: Path, replicas):
    """Three services, of which one can have replicas at a time."""
    names = ("a", "b", "c")
    few = {"services": 3, "services_per_tenant": 3, "backends": 1, "servers": 1}
    async with gateway_up(tmp_path, **few) as gateway:

        async def served(name: str, replica: Replica | None) -> None:
            targets = {} if replica is None else {replica.endpoint: ServerMode.READY}
            routes = [
                Route(f"t/{one}", 2, targets if one == name else {}, "triton") for one in names
            ]
            await gateway.route(*routes)

        async def held(name: str) -> Load:
            return load_of((await gateway.runtime.observe()).backend_of(f"t/{name}"))

        async def is_held(name: str, count: int) -> bool:
            return (await held(name)).held == count

        async def is_alone() -> bool:
            shown = await gateway.runtime.observe()
            return "triton1" not in shown.routes.values() and not shown.backends["triton1"].sessions

        await served("a", None)
        assert not any(
            one == "triton1" for one in (await gateway.runtime.observe()).routes.values()
        )
        for name, replica in zip("abc", (*replicas, replicas[0]), strict=True):
            gone = asyncio.create_task(gateway.ask(f"/t/{name}{INFER}"))
            asked = [asyncio.create_task(gateway.ask(f"/t/{name}{INFER}")) for _ in range(5)]
            async with gateway.channel() as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                by_grpc = asyncio.create_task(_call(stub, f"t/{name}"))
                await eventually(partial(is_held, name, 7))
                gone.cancel()
                await eventually(partial(is_held, name, 6))
                assert (await held(name)).given_up == 1
                await served(name, replica)
                assert statuses(await asyncio.gather(*asked)) == {200}
                assert await by_grpc == str(replica.port)
            assert (await gateway.ask(f"/t/{name}{INFER}"))[1] == f'{{"by": {replica.port}}}'
            # Without replicas it gives its lines back, and its next requests are held again.
            await served(name, None)
            await served(name, None)
            await eventually(is_alone)
            again = asyncio.create_task(gateway.ask(f"/t/{name}{INFER}"))
            await eventually(partial(is_held, name, 1))
            again.cancel()
            await eventually(partial(is_held, name, 0))


async def _call(stub: service_pb2_grpc.GRPCInferenceServiceStub, service: str) -> str:
    metadata = (("slicewise-service", service),)
    answer = await stub.ModelInfer(service_pb2.ModelInferRequest(), metadata=metadata)
    return str(answer.model_name)


async def test_haproxy_killed_while_a_service_gets_server_lines_loses_no_later_request(
    tmp_path: Path, replicas
):
    """After each of the changes: the launcher's next turn makes the rest."""
    few = {"services": 2, "backends": 1, "servers": 1}
    async with gateway_up(tmp_path, **few) as gateway:
        ready = Route("t/a", 2, {replicas[0].endpoint: ServerMode.READY}, "triton")
        await gateway.route(replace(ready, targets={}))
        for made in range(5):
            plan = plan_routes(await gateway.runtime.observe(), [ready])
            await gateway.runtime.apply(plan.changes[:made])
            gateway.runtime.keep(plan.routes)
            await gateway.kill()
            await gateway.start()
            await gateway.set_keys({})
            asked = gateway.asking(3)
            await gateway.route(ready)
            assert statuses(await asyncio.gather(*asked)) == {200}
            for _ in range(2):
                await gateway.route(replace(ready, targets={}))
            assert (await gateway.runtime.observe()).routes["t/a"].startswith("tritonidle")


async def test_a_client_that_hangs_up_leaves_the_hold(gateway: Harness, replicas):
    await gateway.set_replicas()
    gone, asked = gateway.asking(5), gateway.asking(1)
    await eventually(lambda: gateway.waits(Load(held=6)))
    for request in gone:
        request.cancel()
    await eventually(lambda: gateway.waits(Load(held=1)))
    load = await gateway.load()
    assert (load.arrived, load.given_up) == (6, 5)
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert replicas[0].served == 1


async def test_hang_ups_are_counted_beside_connections_that_failed(gateway: Harness, replicas):
    """HAProxy counts each try at a server as a request of it."""
    await gateway.set_replicas(*((replica, ServerMode.READY) for replica in replicas))
    endpoint = replicas[0].endpoint
    line = (await gateway.runtime.observe()).backends["triton1"].lines[endpoint.place]
    await replicas[0].stop()
    tried = 0
    while tried < 3:
        await gateway.runtime.apply([SetHealthy("triton1", line)])
        assert statuses(await asyncio.gather(*gateway.asking(6))) == {200}
        load = await gateway.load()
        tried = load.answered - load.arrived
    await gateway.set_replicas()
    gone = gateway.asking(3)
    await eventually(lambda: gateway.waits(Load(held=3)))
    for request in gone:
        request.cancel()
    await eventually(lambda: gateway.waits(Load()))
    assert (await gateway.load()).given_up == 3


async def test_a_client_that_hangs_up_leaves_the_queue(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].pause()
    asked = gateway.asking(2)
    await eventually(lambda: gateway.waits(Load(in_flight=2)))
    gone = gateway.asking(5)
    await eventually(lambda: gateway.waits(Load(in_flight=2, queued=5)))
    for request in gone:
        request.cancel()
    await eventually(lambda: gateway.waits(Load(in_flight=2)))
    replicas[0].go_on()
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert replicas[0].served == 2


@pytest.mark.promise("A request that is held too long is answered with Retry-After.")
async def test_a_hold_ends_with_retry_after(tmp_path: Path):
    async with gateway_up(tmp_path, hold_s=1) as gateway:
        await gateway.set_replicas()
        url = f"{gateway.settings.url}/t/a{INFER}"
        async with gateway.session.post(url) as answer:
            body = await answer.json()
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True)
        assert "SW-GATEWAY-WAKING" in body["error"]


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/health"])
async def test_health_is_answered_without_a_replica_and_wakes_none(
    gateway: Harness, replicas, path: str
):
    async def health() -> tuple[int, str]:
        async with gateway.session.get(f"{gateway.settings.url}/t/a{path}") as answer:
            return answer.status, answer.headers["x-slicewise-state"]

    await gateway.set_replicas()
    assert await health() == (200, "asleep")
    assert (await gateway.load()).arrived == 0
    await gateway.set_replicas(failing="no model")
    assert await health() == (503, "failing")
    await gateway.set_replicas()
    asked = gateway.asking(1)
    await eventually(lambda: gateway.waits(Load(held=1)))
    assert await health() == (200, "waking")
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await asyncio.gather(*asked)
    assert await health() == (200, "ready")
    assert (await gateway.load()).arrived == 1
    assert (await gateway.ask(f"/t/none{path}", "GET"))[0] == 404


@pytest.mark.parametrize("path", [INFER, "/v2/health/ready", ""])
@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "BREW"])
async def test_a_method_that_no_engine_answers_is_refused_and_wakes_none(
    gateway: Harness, method: str, path: str
):
    await gateway.set_replicas()
    url = f"{gateway.settings.url}/t/a{path}"
    async with gateway.session.request(method, url) as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")
        assert error_of(await answer.text()).startswith("SW-GATEWAY-METHOD: ")
    assert (await gateway.load()).arrived == 0


@pytest.mark.promise("While starts fail, clients are told why.")
async def test_while_starts_fail_requests_are_refused_with_the_reason(gateway: Harness, replicas):
    said = 'can\'t load "m": 100% of C:\\m; try again'
    await gateway.set_replicas()
    asked = gateway.asking(3)
    await eventually(lambda: gateway.waits(Load(held=3)))
    await gateway.set_replicas(failing=said, retry_after_s=60)
    answers = await asyncio.gather(*asked)
    assert statuses(answers) == {503}
    assert error_of(answers[0][1]) == f"SW-GATEWAY-FAILING: replicas of 't/a' do not start: {said}"
    async with gateway.session.post(f"{gateway.settings.url}/t/a{INFER}") as answer:
        assert (answer.status, answer.headers["retry-after"]) == (503, "60")
    assert (await gateway.runtime.observe()).terms_of("t/a").failing == said
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert (await gateway.ask())[0] == 200
    assert (await gateway.runtime.observe()).terms == {}


async def test_what_clients_are_told_is_right_again_a_turn_after_a_start(
    gateway: Harness, replicas
):
    """None of it is written down."""
    told: dict[str, object] = {"closing": True, "retry_after_s": 7, "in_time": 3}
    await gateway.set_replicas((replicas[0], ServerMode.READY), **told)
    gateway.runtime.keep({"t/a": "triton1"})
    assert (await gateway.ask())[0] == 404
    await gateway.kill()
    await gateway.start()
    asked = gateway.asking(1)
    await gateway.set_replicas((replicas[0], ServerMode.READY), **told)
    assert (await gateway.runtime.observe()).terms == {"t/a": Terms(**told)}
    assert (await gateway.ask())[0] == 404
    await asyncio.gather(*asked)


KEPT = pytest.mark.parametrize("kept", [False, True], ids=["no routes kept", "routes kept"])


@KEPT
async def test_after_a_kill_every_request_waits_for_the_launcher(
    gateway: Harness, replicas, kept: bool
):
    ready = (replicas[0], ServerMode.READY), (replicas[1], ServerMode.READY)
    await gateway.set_replicas(*ready)
    if kept:
        gateway.runtime.keep({"t/a": "triton1"})
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


async def test_a_request_that_waits_for_its_route_goes_on_where_a_reload_leads(
    gateway: Harness, replicas
):
    """The new process has its route, and only what a client may ask goes there."""
    await gateway.kill()
    await gateway.start()
    asked = gateway.asking(3)
    denied = asyncio.create_task(gateway.ask("/t/a/v2/repository/index"))
    # Time for all of them to have come: HAProxy counts them for no backend yet.
    await asyncio.sleep(1.0)
    await gateway.reload()
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert statuses(await asyncio.gather(*asked)) == {200}
    assert (await denied)[0] == 403


async def test_a_name_with_a_comma_does_not_get_around_a_tenants_key(gateway: Harness, replicas):
    """It would wait for its route, and be read as ``t/a`` in the process that a reload starts."""
    await gateway.set_keys({"a" * 64: "t"})
    await gateway.kill()
    await gateway.start()
    asked = asyncio.create_task(gateway.ask(f"/other,t/a{INFER}"))
    await asyncio.wait({asked}, timeout=1)
    await gateway.reload()
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert ((await asked)[0], (await gateway.ask())[0]) == (404, 401)


async def test_without_a_launcher_the_wait_for_routes_ends_with_retry_after(tmp_path: Path):
    async with gateway_up(tmp_path, hold_s=1) as gateway:
        await gateway.kill()
        await gateway.start()
        async with gateway.session.post(f"{gateway.settings.url}/t/a{INFER}") as answer:
            body = await answer.json()
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True)
        assert "SW-GATEWAY-STARTING" in body["error"]


async def test_routes_survive_a_smaller_gateway(gateway: Harness, replicas):
    """The file names a backend that is no more: the service gets another one."""
    await gateway.kill()
    Maps(gateway.settings.directory).services.write_text("t/a triton9\n")
    await gateway.start()
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert (await gateway.ask())[0] == 200


async def test_the_wait_for_a_route_wakes_nobody(gateway: Harness):
    url = f"{gateway.settings.url}/t/a"

    async def is_unknown() -> bool:
        return "404" in await wait_for_route(url, patience_s=0.0)

    await eventually(is_unknown)
    waiting = asyncio.create_task(wait_for_route(url, patience_s=30.0))
    await asyncio.sleep(0.3)
    await gateway.set_replicas()
    assert await waiting == ""
    await eventually(lambda: gateway.waits(Load()))
    await gateway.kill()
    assert "does not answer" in await wait_for_route(url, patience_s=0.0)


@pytest.mark.parametrize("path", ["/", "/t", "/t/none/v2", '/t/%22%3Cb%3E"/v2', "/v2/models/m"])
async def test_an_unknown_service_is_json_that_names_it(gateway: Harness, path: str):
    status, text = await gateway.ask(path, "GET")
    assert status == 404
    assert "SW-GATEWAY-UNKNOWN" in error_of(text)


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
    await gateway.set_replicas((replicas[0], ServerMode.READY))
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


async def test_what_triton_hangs_up_on_is_refused(gateway: Harness, replicas):
    """Its line is 8 KiB at most; without a word it looks as if it had died."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    for length, expected in ((7000, 200), (8001, 431)):
        by_header = await gateway.ask(x_long="a" * length)
        by_path = await gateway.ask(f"/t/a{INFER}?{'a' * length}")
        assert {by_header[0], by_path[0]} == {expected}
    assert {error_of(text)[:18] for _, text in (by_header, by_path)} == {"SW-GATEWAY-HEADERS"}


async def test_json_has_a_limit_and_binary_tensors_have_none(tmp_path: Path, replicas):
    async with gateway_up(tmp_path, max_json_mib=1) as gateway:
        await gateway.set_replicas((replicas[0], ServerMode.READY))

        async def send(json_bytes: int | None = None, path: str = INFER) -> tuple[int, str]:
            names = {} if json_bytes is None else {BINARY: str(json_bytes)}
            url = f"{gateway.settings.url}/t/a{path}"
            async with gateway.session.post(url, data=b" " * 3_000_000, headers=names) as answer:
                return answer.status, await answer.text()

        assert (await send(100))[0] == 200
        # Triton reads that header with /infer alone.
        generate = INFER.replace("/infer", "/generate")
        for refused in (await send(), await send(2_000_000), await send(100, generate)):
            assert (refused[0], error_of(refused[1])[:15]) == (413, "SW-GATEWAY-JSON")


@pytest.mark.parametrize(
    ("said", "read"), [(["2000000", "7"], "7"), (["7 2000000"], "7"), (["x"], "0")]
)
async def test_the_json_that_was_counted_is_what_the_replica_reads(
    gateway: Harness, replicas, said: list[str], read: str
):
    """Of two Triton takes the first, HAProxy the last."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    lines = "".join(f"{BINARY}: {length}\r\n" for length in said)
    assert (await sent(gateway, f"{lines}content-length: 2\r\n\r\n{{}}")).startswith("HTTP/1.1 200")
    lengths = [value for key, value in replicas[0].header_lines if key == BINARY.lower()]
    assert lengths == [read]


async def test_a_length_with_a_zero_byte_is_cut_or_refused(gateway: Harness, replicas):
    """HAProxy 2.6 cuts the value there, 3.0 refuses the request."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    answer = await sent(gateway, f"{BINARY}: 7\0\r\ncontent-length: 2\r\n\r\n{{}}")
    lengths = [value for key, value in replicas[0].header_lines if key == BINARY.lower()]
    assert (answer[:12], lengths) in (("HTTP/1.1 200", ["7"]), ("HTTP/1.1 400", []))


async def test_a_body_in_chunks_is_announced_as_triton_knows_it(gateway: Harness, replicas):
    """It took the chunks of ``CHUNKED`` for requests, beside all that the gateway lets through."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    body = "2\r\n{}\r\n0\r\n\r\n"
    for said in ("chunked", "CHUNKED"):
        text = f"transfer-encoding: {said}\r\n\r\n{body}"
        assert (await sent(gateway, text)).startswith("HTTP/1.1 200")
        assert replicas[0].headers["transfer-encoding"] == "chunked"
    refused = await sent(gateway, f"transfer-encoding: gzip, chunked\r\n\r\n{body}")
    assert refused.startswith("HTTP/1.1 422")


async def test_cookies_and_words_about_the_host_pass_in_neither_direction(
    gateway: Harness, replicas
):
    """A replica got the session of an operator whose page has the same host name."""
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    replicas[0].says = (*OF_THE_HOST, *OF_THE_ANSWER.items())
    cookies = "Cookie: slicewise=secret\r\ncOOKIE: b=c\r\ncookie2: d\r\nx-mine: yes\r\n"
    cookies += "Proxy-Authorization: a\r\nSecure-Session-Response: b\r\nSec-Session-Id: c\r\n"
    answer = await sent(gateway, f"{cookies}content-length: 2\r\n\r\n{{}}")
    assert answer.startswith("HTTP/1.1 200")
    said = dict(line.split(": ", 1) for line in answer.partition("\r\n\r\n")[0].split("\r\n")[1:])
    assert of_the_host(said) == set()
    assert OF_THE_ANSWER.items() <= said.items()
    assert said["content-type"].startswith("application/json")
    assert said["content-security-policy"] == "sandbox; default-src 'none'"
    came = dict(replicas[0].header_lines)
    of_others = {"cookie", "cookie2", "proxy-authorization"}
    of_others |= {"secure-session-response", "sec-session-id"}
    assert (came.keys() & of_others, came["x-mine"]) == (set(), "yes")


async def sent(gateway: Harness, rest: str) -> str:
    """The begin of the answer to an inference with these headers and that body."""
    host, _, port = gateway.settings.bind.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST /t/a{INFER} HTTP/1.1\r\nhost: g\r\n{rest}".encode())
    try:
        return (await asyncio.wait_for(reader.read(4096), 30)).decode()
    finally:
        writer.close()


async def test_a_host_with_many_connections_leaves_others_room(tmp_path: Path):
    async with gateway_up(tmp_path, limits={"connections_per_host": 20}) as gateway:
        host, _, port = gateway.settings.bind.partition(":")

        async def answered(own: str) -> bytes:
            with suppress(ConnectionError):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(own, 0))
                writer.write(b"GET /t/none/v2 HTTP/1.1\r\nhost: g\r\n\r\n")
                return await asyncio.wait_for(reader.read(12), 30)
            return b""

        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        # The kernel takes connections before HAProxy has counted them.
        for _ in range(300):
            if not (said := await answered("127.0.0.1")):
                break
            await asyncio.sleep(0.1)
        assert said == b""
        assert await answered("127.0.0.2") == b"HTTP/1.1 404"
        for _, writer in silent:
            writer.close()

        async def is_let_in() -> bool:
            return await answered("127.0.0.1") == b"HTTP/1.1 404"

        await eventually(is_let_in)


@pytest.mark.parametrize("path", ["/v2/health/ready", INFER])
async def test_inference_passes_with_its_prefix_removed(gateway: Harness, replicas, path: str):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    method = "POST" if path == INFER else "GET"
    assert (await gateway.ask(f"/t/a{path}", method))[0] == 200


async def test_state_survives_whoever_changed_it(gateway: Harness, replicas):
    """A new launcher sees what an old one did: routes, addresses, modes."""
    endpoint = replicas[0].endpoint
    await gateway.runtime.apply(
        [
            AddRoute("t/a", "triton2"),
            SetTarget("triton2", 1, endpoint, 3),
            SetMode("triton2", 1, ServerMode.READY),
            SetHealthy("triton2", 1),
            SetMode("triton2", 1, ServerMode.DRAIN),
        ]
    )
    seen: Gateway = await HaproxyRuntime(gateway.settings).observe()
    server = seen.backends["triton2"].servers[1]
    assert seen.routes == {"t/a": "triton2"}
    assert seen.backends["triton2"].server_of(endpoint) == server
    assert server.mode is ServerMode.DRAIN
    assert [s.mode for s in seen.backends["triton2"].servers] == [
        ServerMode.MAINT,
        ServerMode.DRAIN,
        ServerMode.MAINT,
        ServerMode.MAINT,
    ]


async def test_a_deleted_service_answers_all_that_wait_and_its_backend_is_free(
    gateway: Harness, replicas
):
    one, two = replicas
    await gateway.set_replicas((one, ServerMode.READY))
    one.pause()
    asked = gateway.asking(60)
    await eventually(lambda: gateway.waits(Load(in_flight=2, queued=58)))
    await gateway.route()
    one.go_on()
    answers = await asyncio.gather(*asked)
    refused = [text for status, text in answers if status == 404]
    assert (statuses(answers), len(answers) - len(refused)) == ({200, 404}, replicas[0].served)
    assert {error_of(text)[:18] for text in refused} == {"SW-GATEWAY-UNKNOWN"}

    async def is_free() -> bool:
        """HAProxy counts a request until it has done with it, a moment after its answer."""
        return not (await gateway.runtime.observe()).backends["triton1"].sessions

    await eventually(is_free)
    next_one = [Route("t/b", 2, {two.endpoint: ServerMode.READY}, "triton")]
    plan = plan_routes(await gateway.runtime.observe(), next_one)
    assert plan.routes == {"t/b": "triton1"}
    await gateway.runtime.apply(plan.changes)
    assert (await gateway.ask(f"/t/b{INFER}"))[0] == 200
    assert replicas[1].served == 1


@pytest.mark.parametrize("apart_s", [0.0, 0.3])
async def test_what_was_not_sent_outlives_every_replica(gateway: Harness, replicas, apart_s: float):
    ready = [(replica, ServerMode.READY) for replica in replicas]
    for replica in replicas:
        # However long it takes to end them, most of the requests are still to be sent then.
        replica.work_s = 5 * WORK_S
    await gateway.set_replicas(*ready)
    asked = gateway.asking(100)

    async def have_answered() -> bool:
        return all(replica.served >= 2 for replica in replicas)

    async def most_wait() -> bool:
        return (await gateway.load()).waiting >= 40

    await eventually(have_answered)
    await asyncio.sleep(WORK_S / 2)
    for replica in replicas:
        await replica.stop()
        await asyncio.sleep(apart_s)
    await asyncio.sleep(3)
    third = await Replica().start()
    await eventually(most_wait)
    await gateway.set_replicas((third, ServerMode.READY))
    answers = await asyncio.gather(*asked)
    lost = [error_of(text) for status, text in answers if status != 200]
    assert len(lost) <= 2 * 2
    assert all(error.startswith("SW-GATEWAY-LOST") for error in lost)
    await eventually(lambda: gateway.waits(Load()))
    await third.stop()


async def test_errors_and_answers_of_each_replica_are_counted(gateway: Harness, replicas):
    replicas[1].is_broken = True
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    await asyncio.gather(*gateway.asking(3))
    await gateway.set_replicas((replicas[1], ServerMode.READY))
    await asyncio.gather(*gateway.asking(5))
    # HAProxy counts an answer a moment after its client has it.
    counted = {replicas[0].port: (3, 0), replicas[1].port: (5, 5)}
    await eventually(lambda: gateway.has_counted(counted))


async def test_what_a_stream_has_sent_is_counted_while_it_goes_on(gateway: Harness, replicas):
    async def sent_bytes() -> int:
        server = (
            (await gateway.runtime.observe()).backends["triton1"].server_of(replicas[0].endpoint)
        )
        assert server is not None
        return server.sent_bytes

    await gateway.set_replicas((replicas[0], ServerMode.READY))
    url = f"{gateway.settings.url}/t/a{STREAM}"
    async with gateway.session.post(url, json={"n": 1000}) as answer:
        for _ in range(2):
            before = await sent_bytes()

            async def grows(before: int = before) -> bool:
                return await sent_bytes() > before

            await eventually(grows)
        answer.close()


@pytest.mark.promise("A service's deadline ends requests that take longer.")
async def test_a_request_ends_after_its_services_deadline(gateway: Harness, replicas):
    replicas[0].pause()
    ready = (replicas[0], ServerMode.READY)
    await gateway.set_replicas(ready, deadline_ms=300)
    status, text = await gateway.ask()
    assert (status, "SW-GATEWAY-SLOW" in text) == (504, True)
    assert (await gateway.runtime.observe()).terms_of("t/a").deadline_ms == 300

    async def is_counted() -> bool:
        """A moment after the client has its answer."""
        backend = (await gateway.runtime.observe()).backends["triton1"]
        server = backend.server_of(replicas[0].endpoint)
        assert server is not None
        return (server.answers, server.response_errors, server.sent_bytes > 0) == (0, 1, True)

    await eventually(is_counted)
    await gateway.set_replicas(ready)
    (asked,) = gateway.asking(1)
    await asyncio.sleep(1)
    replicas[0].go_on()
    assert (await asked)[0] == 200


@pytest.mark.parametrize(("allowed", "status"), [(False, 502), (True, 200)])
async def test_what_a_replicas_death_has_lost_is_sent_again_where_the_owner_allows_it(
    gateway: Harness, replicas, allowed: bool, status: int
):
    async with replica_process() as dies:
        await gateway.set_replicas((dies, ServerMode.READY), retry_once=allowed)
        (asked,) = gateway.asking(1)
        await dies.is_asked()
        ready = (dies, ServerMode.READY), (replicas[0], ServerMode.READY)
        await gateway.set_replicas(*ready, retry_once=allowed)
        await dies.kill()
        assert (await asked)[0] == status
        assert replicas[0].served == allowed


async def test_a_request_that_dies_with_its_replica_is_answered_on_a_used_connection(
    gateway: Harness, replicas
):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    url = f"{gateway.settings.url}/t/a{INFER}"
    async with (
        replica_process() as dies,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        async with session.post(url, json={}) as answer:
            assert answer.status == 200
        await gateway.set_replicas((dies, ServerMode.READY))
        asked = asyncio.create_task(session.post(url, json={}))
        await dies.is_asked()
        await dies.kill()
        async with await asked as answer:
            assert (answer.status, error_of(await answer.text())[:15]) == (502, "SW-GATEWAY-LOST")


async def test_it_is_sent_again_once(gateway: Harness, replicas):
    """A request that ends replicas must not end all of them."""
    async with replica_process() as first, replica_process() as second:
        await gateway.set_replicas((first, ServerMode.READY), retry_once=True)
        (asked,) = gateway.asking(1)
        await first.is_asked()
        await gateway.set_replicas((second, ServerMode.READY), retry_once=True)
        await first.kill()
        await second.is_asked()
        await gateway.set_replicas((replicas[0], ServerMode.READY), retry_once=True)
        await second.kill()
        status, text = await asked
    assert (status, "SW-GATEWAY-LOST" in text, replicas[0].served) == (502, True, 0)


async def test_requests_at_a_replica_that_hangs_are_ended(gateway: Harness, replicas):
    """It answers no health check, so what it has in flight is lost."""
    async with replica_process() as hangs:
        ready = (hangs, ServerMode.READY), (replicas[0], ServerMode.READY)
        await gateway.set_replicas(ready[0])
        (asked,) = gateway.asking(1)
        await hangs.is_asked()
        await gateway.set_replicas(*ready)
        hangs.hang()

        async def is_silent() -> bool:
            lines = (await gateway.runtime.observe()).backends["triton1"].servers
            return any(line.is_silent and not line.up and line.in_flight for line in lines)

        await eventually(is_silent)
        await gateway.set_replicas(*ready, cut=frozenset({hangs.endpoint}))
        status, text = await asked
        assert (status, "SW-GATEWAY-LOST" in text) == (502, True)
        assert (await gateway.ask())[0] == 200


async def test_the_launcher_hears_at_once_that_a_request_is_held(gateway: Harness, replicas):
    await gateway.set_replicas()
    lines: list[str] = []
    hearing = asyncio.create_task(gateway.hear(lines.append))
    (asked,) = gateway.asking(1)

    async def is_heard() -> bool:
        return any(line.startswith("held triton1 ") for line in lines)

    await eventually(is_heard)
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    assert (await asked)[0] == 200
    hearing.cancel()


async def test_what_is_not_held_is_not_heard(gateway: Harness, replicas):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    lines: list[str] = []
    hearing = asyncio.create_task(gateway.hear(lines.append))
    assert (await gateway.ask())[0] == 200
    assert (await gateway.ask("/t/unknown/v2"))[0] == 404
    await asyncio.sleep(1)
    assert not [line for line in lines if line.startswith("held")]
    hearing.cancel()


async def counted(gateway: Harness, model: str = "m") -> list[tuple[int, int, int]]:
    """Inferences, successes and their ns, as the official clients of both protocols are told."""
    address = gateway.settings.bind
    async with triton_http.InferenceServerClient(f"{address}/t/a") as client:
        (by_http,) = (await client.get_inference_statistics(model))["model_stats"]
    async with triton.InferenceServerClient(address) as client:
        said = await client.get_inference_statistics(model, headers={"slicewise-service": "t/a"})
    (by_grpc,) = said.model_stats
    success = by_http["inference_stats"]["success"]
    first = (by_http["inference_count"], success["count"], success["ns"])
    done = by_grpc.inference_stats.success
    return [first, (by_grpc.inference_count, done.count, done.ns)]


async def test_statistics_are_those_of_all_replicas_also_of_ended_ones(gateway: Harness, replicas):
    await gateway.set_replicas(*((replica, ServerMode.READY) for replica in replicas))
    assert statuses(await asyncio.gather(*gateway.asking(10))) == {200}
    assert min(replica.served for replica in replicas) > 0
    async with statistics_up(gateway, *replicas) as turned, replica_process() as hung:
        assert await counted(gateway) == [(10, 10, 10_000)] * 2
        turned(replicas[1], hung)
        hung.hang()
        assert await counted(gateway) == [(10, 10, 10_000)] * 2
        await gateway.set_replicas((replicas[1], ServerMode.READY))
        assert statuses(await asyncio.gather(*gateway.asking(2))) == {200}
        assert await counted(gateway) == [(12, 12, 12_000)] * 2
        with pytest.raises(InferenceServerException, match="unknown model"):
            await counted(gateway, "other")


async def statistics_refused(gateway: Harness, why: str) -> None:
    """By both protocols."""
    status, text = await gateway.ask("/t/a/v2/models/m/stats", "GET")
    assert status == 503
    assert error_of(text).startswith(f"SW-GATEWAY-STATISTICS: {why}")
    async with triton.InferenceServerClient(gateway.settings.bind) as client:
        with pytest.raises(InferenceServerException, match=why) as caught:
            await client.get_inference_statistics("m", headers={"slicewise-service": "t/a"})
    assert "UNAVAILABLE" in str(caught.value.status())


async def test_questions_of_statistics_wake_no_service_and_are_told_what_is_missing(
    gateway: Harness,
):
    await gateway.set_replicas()
    await statistics_refused(gateway, "the launcher")
    async with statistics_up(gateway):
        await statistics_refused(gateway, "no replica of 't/a'")
    load = await gateway.load()
    assert (load.arrived, load.waiting) == (0, 0)


async def test_a_tenant_s_questions_of_statistics_leave_the_launcher_time(
    gateway: Harness, replicas
):
    await gateway.set_replicas((replicas[0], ServerMode.READY))
    async with statistics_up(gateway, replicas[0]):
        asked = [gateway.ask("/t/a/v2/models/stats", "GET") for _ in range(60)]
        answers = await asyncio.gather(*asked)
        assert statuses(answers) == {200, 429}
        refused = [error_of(text) for status, text in answers if status == 429]
        assert refused[0].startswith("SW-GATEWAY-RATE")
        assert statuses(await asyncio.gather(*gateway.asking(30))) == {200}


async def test_only_who_has_the_gateway_s_key_is_told_a_service_s_statistics(
    gateway: Harness, replicas
):
    asked = b"GET /v2/models/stats HTTP/1.1\r\nx-slicewise-service: t/a\r\n\r\n"
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    knows = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    knows.check_hostname, knows.verify_mode = False, ssl.CERT_NONE
    knows.load_cert_chain(gateway.settings.directory / KEY)
    said = []
    async with statistics_up(gateway, *replicas):
        for context in (None, stranger, knows):
            found = b""
            with suppress(OSError):
                how = {} if context is None else {"ssl": context, "server_hostname": "gateway"}
                path = str(gateway.settings.directory / STATISTICS)
                reader, writer = await asyncio.open_unix_connection(path, **how)
                writer.write(asked)
                found = await reader.read()
                writer.close()
            said.append(b"model_stats" in found)
    assert said == [False, False, True]
