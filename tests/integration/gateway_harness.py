"""A real HAProxy with the gateway's configuration, clients of it, and replicas that only sleep."""

import asyncio
import json
import math
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from builders.replica_keys import gateway_directory, replica_context, replica_keys
from free_ports import free_port
from multidict import CIMultiDict
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import PATIENCE_S

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant
from slicewise.cluster.rpc.limit_messages import SubjectLimits
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.haproxy import (
    HaproxyRuntime,
    check_configuration,
    files_allowed,
    prepare,
)
from slicewise.launcher.gateway.identity import KEY
from slicewise.launcher.probing.prober import statistics
from slicewise.launcher.process.statistics import ServiceStatistics
from slicewise.launcher.process.statistics_socket import StatisticsSocket
from slicewise.launcher.rules.gateway.routing import MarkComplete, Route, plan_routes
from slicewise.launcher.rules.gateway.types import Endpoint, Load, ServerMode, Terms, load_of
from slicewise.launcher.rules.turn.endpoints import ReplicaRun, Verified
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState
from slicewise.launcher.scripts.render import CONFIGURATION, gateway_files

GATEWAY_KEY, GATEWAY_CERTIFICATE = gateway_directory() / KEY, gateway_directory() / "gateway.crt"
"""Of every gateway here: a replica is there before its gateway."""
INFER = "/v2/models/m/infer"
STREAM = "/v2/models/m/generate_stream"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
OF_THE_HOST = (
    *(("Set-Cookie", "slicewise=of-a-tenant; Path=/"), ("SET-COOKIE", "a=b"), ("set-cookie2", "c")),
    *(("Clear-Site-Data", '"*"'), ("Strict-Transport-Security", "max-age=1"), ("alt-svc", "h2=x")),
    *(
        ("Service-Worker-Allowed", "/"),
        ("Public-Key-Pins", "x"),
        ("NEL", "{}"),
        ("Report-To", "{}"),
    ),
    *(("Content-Security-Policy", "default-src *"), ("Access-Control-Allow-Origin", "*")),
    *(("Secure-Session-Registration", "(ES256);path=a"), ("Sec-Session-Registration", "(ES256)")),
    *(("Secure-Session-Challenge", '"a"'), ("Attribution-Reporting-Register-Trigger", "{}")),
    *(("Attribution-Reporting-Register-Source", "{}"), ("Use-As-Dictionary", 'match="/*"')),
    *(("Refresh", "0;url=//a"), ("Location", "//a/"), ("Link", "</a>;rel=preload;as=script")),
    *(("X-Accel-Redirect", "/a"), ("X-Sendfile", "/a"), ("Observe-Browsing-Topics", "?1")),
)
"""What a replica may say that browsers, or proxies before the gateway, take for the whole host."""
OF_THE_ANSWER = {
    "x-request-id": "7",
    "openai-processing-ms": "12",
    "retry-after-ms": "5",
    "allow": "POST",
    "accept-encoding": "gzip, deflate",
}
"""What clients of replicas read of an answer."""
NONE: Mapping[str, str] = {}
WORK_S = 0.1


class Replica:
    """A server that answers like Triton's front: readiness, and inference that takes a while."""

    def __init__(self, gateway_certificate: Path = GATEWAY_CERTIFICATE) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        self.served = 0
        self.work_s = WORK_S
        self.is_broken = False
        """Whether it answers each inference with status 500, INTERNAL by gRPC."""
        self.headers: dict[str, str] = {}
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        """Of the requests of OpenAI's API."""
        self.numbers: list[int] = []
        """Of the requests that say one (x-number), in the order in which they came here."""
        self.header_lines: list[tuple[str, str]] = []
        self.says: tuple[tuple[str, str], ...] = ()
        """Headers of each answer, beside those that it must have."""
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_get("/v2/health/ready", self._ready)
        application.router.add_post(INFER, self._infer)
        application.router.add_post(STREAM, self._stream)
        application.router.add_get("/v2/models/stats", self._statistics)
        application.router.add_get("/health", self._ready)
        application.router.add_get("/ready", self._ready)
        application.router.add_post(CHAT, self._chat)
        application.router.add_post(MESSAGES, self._chat)
        self._runner = web.AppRunner(application, keepalive_timeout=60, shutdown_timeout=0)
        self._keys = replica_keys()
        self._gateway_certificate = gateway_certificate
        self._grpc = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Calls(self), self._grpc)
        pem, gateway = self._keys.pem.read_bytes(), gateway_certificate.read_bytes()
        credentials = grpc.ssl_server_credentials(
            [(pem, pem)], root_certificates=gateway, require_client_auth=True
        )
        self._grpc.add_secure_port(f"127.0.0.1:{self.grpc_port}", credentials)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port, self.grpc_port, self._keys.certificate)

    def pause(self) -> None:
        """It finishes nothing any more, so that there is time to look at what waits."""
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    async def infer(self, headers: dict[str, str]) -> None:
        """One request, by whichever protocol."""
        self.headers = headers
        if "x-number" in headers:
            self.numbers.append(int(headers["x-number"]))
        await self.work()

    async def work(self) -> None:
        await asyncio.sleep(self.work_s)
        await self._goes_on.wait()
        self.served += 1

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _infer(self, request: web.Request) -> web.Response:
        self.header_lines = [(key.lower(), value) for key, value in request.headers.items()]
        if self.is_broken:
            return web.json_response({"error": "Stub process is not healthy."}, status=500)
        await self.infer(dict(self.header_lines))
        return web.json_response({"by": self.port}, headers=CIMultiDict(self.says))

    async def _statistics(self, request: web.Request) -> web.Response:
        counted = {"count": self.served, "ns": 1000 * self.served}
        model = {"name": "m", "version": "1", "inference_count": self.served}
        model |= {"last_inference": self.port, "inference_stats": {"success": counted}}
        return web.json_response({"model_stats": [model]})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for number in range((await request.json())["n"]):
            await self.work()
            await answer.write(f"data: {number}\n\n".encode())
        return answer

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """As a server of OpenAI's API: a stream if the body says so, without an end."""
        self.headers = {key.lower(): value for key, value in request.headers.items()}
        self.paths.append(request.raw_path)
        self.bodies.append(await request.read())
        if not re.search(rb'"str[^"]*": ?(true|1)', self.bodies[-1]):
            await self.work()
            said = {"by": self.port, "model": "m", "choices": []}
            return web.json_response(said, headers=CIMultiDict(self.says))
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        answer.headers.extend(self.says)
        await answer.prepare(request)
        while True:
            await answer.write(b'data: {"choices": []}\n\n')
            await asyncio.sleep(self.work_s)

    def connections(self) -> int:
        """Open ones, idle ones included."""
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def start(self) -> "Replica":
        await self._runner.setup()
        tls = replica_context(self._gateway_certificate, self._keys)
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()
        await self._grpc.start()
        return self

    async def stop(self) -> None:
        """What it has begun it still answers by HTTP: aiohttp waits for that without a limit."""
        self.go_on()
        server = self._runner.server
        await self._grpc.stop(None)
        await self._runner.cleanup()
        await asyncio.sleep(0.05)
        if server is not None:
            await server.shutdown(0)  # what was being accepted at that moment


class _Calls(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The same by gRPC."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def ModelInfer(self, request, context):  # noqa: N802
        if self._replica.is_broken:
            await context.abort(grpc.StatusCode.INTERNAL, "Stub process is not healthy.")
        await self._replica.infer(dict(context.invocation_metadata()))
        await context.send_initial_metadata(self._replica.says)
        return service_pb2.ModelInferResponse(model_name=str(self._replica.port))

    async def ModelStreamInfer(self, requests, context):  # noqa: N802
        async for request in requests:
            await self._replica.work()
            answer = service_pb2.ModelInferResponse(id=request.id)
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)


class Harness:
    """A running gateway, and clients of it."""

    def __init__(self, settings: GatewaySettings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self.session = session
        self.runtime = HaproxyRuntime(settings)
        self._master: asyncio.subprocess.Process | None = None

    async def start(self, port: socket.socket | None = None) -> None:
        """HAProxy, until it answers; ``port`` is handed over as systemd does it."""
        command = ["haproxy", "-W", "-S", str(self.settings.master_socket)]
        command += ["-f", str(self.settings.directory / CONFIGURATION)]
        if port is not None:
            here = f'LISTEN_FDS=1 exec "$@" 3<&{port.fileno()}'
            command = ["bash", "-c", here, "bash", *command]
        self._master = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[] if port is None else [port.fileno()],
        )
        await eventually(self._is_up)

    async def kill_worker(self) -> None:
        """Its master ends with it."""
        os.kill(int(await self.worker()), signal.SIGKILL)
        assert self._master is not None
        await self._master.wait()

    async def hear(self, told: Callable[[str], object]) -> None:
        """Call ``told`` with each line of the ring, as the launcher does, which tries again."""
        while True:
            with suppress(SlicewiseError):
                await self.runtime.hear(told)
            await asyncio.sleep(0.1)

    async def _is_up(self) -> bool:
        await self.runtime.observe()
        return True

    async def kill(self) -> None:
        """All its processes at once; returns when none of them has the port any more."""
        if self._master is None:
            return
        group = self._master.pid
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        await self._master.wait()

        async def have_ended() -> bool:
            # Not by a list of its children: the kernel leaves some out while others end.
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            return False

        await eventually(have_ended)

    async def reload(self) -> None:
        """As ``systemctl reload`` does it; returns when a new process has taken over."""
        before = await self.worker()
        assert self._master is not None
        self._master.send_signal(signal.SIGUSR2)
        await eventually(lambda: self._is_replaced(before))

    async def _is_replaced(self, before: str) -> bool:
        return await self.worker() not in {before, ""}

    async def worker(self) -> str:
        """Process id of the worker that takes connections; "" while there is none."""
        shown = ""
        with suppress(OSError):  # It restarts itself with a reload.
            reader, writer = await asyncio.open_unix_connection(str(self.settings.master_socket))
            writer.write(b"show proc\n")
            writer.write_eof()
            shown = (await reader.read(-1)).decode()
            writer.close()
        words = shown.partition("# workers\n")[2].split()
        return words[0] if words and words[0].isdigit() else ""

    async def ask(
        self, path: str = f"/t/a{INFER}", method: str = "POST", **headers: str
    ) -> tuple[int, str]:
        url = f"{self.settings.url}{path}"
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, url, json={"n": 1}, headers=sent) as answer:
            return answer.status, await answer.text()

    def asking(self, count: int, **headers: str) -> list["asyncio.Task[tuple[int, str]]"]:
        return [asyncio.create_task(self.ask(**headers)) for _ in range(count)]

    def channel(self, authority: str = "") -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        options += [("grpc.default_authority", authority)] if authority else []
        return grpc.aio.insecure_channel(self.settings.bind, options=options)

    async def set_replicas(
        self,
        *replicas: "tuple[Replica | ReplicaProcess, ServerMode]",
        concurrency: int = 2,
        **more: object,
    ) -> None:
        """As the launcher would: compare with what is there and change it."""
        targets = {replica.endpoint: mode for replica, mode in replicas}
        names = [field.name for field in fields(Terms) if field.name in more]
        terms = Terms(**{name: more.pop(name) for name in names})
        route = Route("t/a", concurrency, targets, "triton", terms, **more)
        await self.route(route)

    async def route(self, *routes: Route) -> None:
        plan = plan_routes(await self.runtime.observe(), routes)
        await self.runtime.apply(plan.changes)

    async def load(self, service: str = "t/a") -> Load:
        return load_of((await self.runtime.observe()).backend_of(service))

    async def set_keys(
        self,
        opens: Mapping[str, str | KeyGrant],
        protected: Iterable[str] = (),
        limits: tuple[SubjectLimits, ...] = (),
        models: Mapping[str, str] = NONE,
    ) -> None:
        """Let these keys in, by SHA-256: mostly it is enough what each opens."""
        keys = {
            key: KeyGrant(opens=grant, key_id=key[:12], person="anna")
            if isinstance(grant, str)
            else grant
            for key, grant in opens.items()
        }
        closed = {*protected, *(tenant_of(key.opens) for key in keys.values())}
        granted = GrantsAnswer(
            keys=keys, protected=tuple(closed), limits=limits, models=dict(models)
        )
        await self.runtime.set_grants(granted)

    async def has_counted(self, wanted: Mapping[int, tuple[int, int]]) -> bool:
        """Whether those are the answers and errors of the replicas that have answered, by port."""
        lines = (await self.runtime.observe()).backends["triton1"].servers
        return wanted == {one.port: (one.answers, one.errors) for one in lines if one.answers}

    async def is_draining(self, replica: "Replica | ReplicaProcess") -> bool:
        """Whether the replica drains, with one request in flight: known, after a reload, once the
        process that was replaced has answered.
        """
        shown = (await self.runtime.observe()).backends["triton1"].server_of(replica.endpoint)
        return shown is not None and (shown.mode, shown.in_flight) == (ServerMode.DRAIN, 1)

    async def waits(self, load: Load) -> bool:
        """Whether that is in flight, queued, held now."""
        now = await self.load()
        return (now.in_flight, now.queued, now.held) == (load.in_flight, load.queued, load.held)


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = PATIENCE_S) -> None:
    """Until it is true; HAProxy that does not answer in time is asked again."""
    deadline_s = time.monotonic() + timeout_s
    while not await _is_true(holds):
        assert time.monotonic() < deadline_s, "it never came true"
        await asyncio.sleep(0.02)


async def _is_true(holds: Callable[[], Awaitable[bool]]) -> bool:
    with suppress(UnreachableError):
        return await holds()
    return False


@asynccontextmanager
async def decided(
    gateways: Sequence[Harness], service: str, asking: Iterable[Coroutine[Any, Any, int]]
) -> AsyncIterator[list["asyncio.Task[int]"]]:
    """Requests of clients that wait for the whole of their answers, all at once.

    Yields those that were let in, once every other was refused with 429; no answer may end before.
    """
    tasks = [asyncio.create_task(ask) for ask in asking]

    async def are_decided() -> bool:
        loads = [await gateway.load(service) for gateway in gateways]
        let_in = sum(load.in_flight + load.queued for load in loads)
        return sum(task.done() for task in tasks) + let_in == len(tasks)

    try:
        await eventually(are_decided)
        refused = [task for task in tasks if task.done()]
        assert {task.result() for task in refused} <= {429}
        yield [task for task in tasks if task not in refused]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def gateway_up(
    directory: Path, tls: ssl.SSLContext | None = None, **settings: object
) -> AsyncIterator[Harness]:
    address = f"127.0.0.1:{free_port()}"
    values: dict[str, object] = {
        "url": f"http://{address}" if tls is None else f"https://localhost:{address[10:]}",
        "bind": address,
        "runtime_socket": directory / "haproxy.sock",
        "directory": directory,
        "identity": directory / "gateway.crt",
        "services": 2,
        "backends": 2,
        # Both may be one tenant's.
        "services_per_tenant": 2,
        "servers": 4,
        "hold_s": int(PATIENCE_S),
        # Keys are what some tests are about; without them tenants are open.
        "require_keys": False,
    }
    chosen = GatewaySettings.model_validate(values | settings)
    write_files(chosen)
    await check_configuration(directory / CONFIGURATION)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls or True)
    async with aiohttp.ClientSession(connector=connector) as session:
        harness = Harness(chosen, session)
        try:
            await harness.start()
            await harness.runtime.apply([MarkComplete()])
            await harness.set_keys({})
            yield harness
        finally:
            await harness.kill()


def write_files(settings: GatewaySettings) -> None:
    """As ``slicewise gateway render`` does it."""
    key = settings.directory / KEY
    if not key.exists():
        key.symlink_to(GATEWAY_KEY)
    prepare(settings)
    for name, text in gateway_files(settings, most_files=files_allowed()).items():
        (settings.directory / name).write_text(text)


@asynccontextmanager
async def statistics_up(
    gateway: Harness,
    *replicas: "Replica | ReplicaProcess",
    models: Mapping[str, str] = NONE,
    limits: Iterable[SubjectLimits] = (),
) -> AsyncIterator[Callable[..., None]]:
    """As the launcher serves them; what is yielded tells it of other replicas."""
    directory = gateway.settings.directory
    served = StatisticsSocket(directory, ServiceStatistics(partial(statistics, directory)))

    def turned(
        *replicas: "Replica | ReplicaProcess",
        models: Mapping[str, str] = NONE,
        adapters: frozenset[str] = frozenset(),
    ) -> None:
        runs = {one.endpoint.http_port: ReplicaRun(1, 1, one.endpoint) for one in replicas}
        verified = {port: Verified(run, 1.0) for port, run in runs.items()}
        state = {"t/a": ServiceState(generations={1: GenerationState(verified=verified)})}
        plan: Any = SimpleNamespace(
            services=[
                SimpleNamespace(
                    service=key,
                    route=SimpleNamespace(group=group, terms=Terms(), adapters=adapters),
                    members=(),
                    submit_s=7,
                )
                for key, group in {"t/a": "triton", **models}.items()
            ]
        )
        served.turned(plan, {**dict.fromkeys(models, ServiceState()), **state})

    turned(*replicas)
    served.told(models, limits)
    await served.step(leads=True)
    yield turned
    served.close()


@asynccontextmanager
async def replicas_up() -> AsyncIterator[tuple[Replica, Replica]]:
    pair = (await Replica().start(), await Replica().start())
    yield pair
    for replica in pair:
        await replica.stop()


@dataclass
class ReplicaProcess:
    """One in a process of its own.

    A server of gRPC in the test's own process cancels its calls as it ends: no replica that is
    killed says so much.
    """

    endpoint: Endpoint
    _process: asyncio.subprocess.Process

    async def is_asked(self) -> None:
        """Returns when the next request has come; of a replica that finishes none."""
        assert await _line(self._process) == "asked"

    def hang(self) -> None:
        """It answers nothing any more, and keeps its connections."""
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def replica_process(work_s: float = math.inf) -> AsyncIterator[ReplicaProcess]:
    """A replica whose requests take so long; without a number it finishes none."""
    script = Path(__file__).with_name("replica_process.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(GATEWAY_CERTIFICATE), str(work_s)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    replica = ReplicaProcess(Endpoint(**json.loads(await _line(process))), process)
    try:
        yield replica
    finally:
        await replica.kill()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def of_the_host(headers: Iterable[str]) -> set[str]:
    """Which of these headers of an answer are such that browsers remember them for its host."""
    names = {name.lower() for name in headers}
    return names & {name.lower() for name, _ in OF_THE_HOST} - {"content-security-policy"}


def statuses(answers: list[tuple[int, str]]) -> set[int]:
    return {status for status, _ in answers}


def error_of(text: str) -> str:
    """The message of a refusal."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return str(found["error"])


async def unread(bind: str, path: str, count: int) -> asyncio.StreamReader:
    """So many requests of one HTTP/2 connection by a client that takes no byte of an answer's body:
    the window that it offers is 0 (RFC 9113, 6.5.2).
    """
    host, _, port = bind.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    asked = b"\x82\x86" + _header(b"\x04", path) + _header(b"\x01", bind)
    frames = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _frame(0x4, 0, 0, b"\x00\x04\x00\x00\x00\x00"),
        *(_frame(0x1, 0x5, 2 * nth + 1, asked) for nth in range(count)),
    ]
    writer.write(b"".join(frames))
    # Without a reference to it, the transport would close.
    reader.writer = writer  # type: ignore[attr-defined]
    return reader


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def _header(name: bytes, value: str) -> bytes:
    """One whose name is in HPACK's static table; not to be remembered."""
    return name + bytes((len(value),)) + value.encode()
