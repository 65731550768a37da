"""The line from the gateway through the door to one server, as benchmarks set it up.

The server listens on unix sockets in a directory of the benchmark's, as a replica's does.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.key_messages import GrantsAnswer
from slicewise.cluster.settings.gateway import GatewaySettings, LimitSettings
from slicewise.launcher.gateway import identity
from slicewise.launcher.gateway.haproxy import HaproxyRuntime, prepare
from slicewise.launcher.rules.engines.engine import Engine
from slicewise.launcher.rules.gateway.routing import Route, plan_routes
from slicewise.launcher.rules.gateway.types import Endpoint, ServerMode
from slicewise.launcher.scripts import door
from slicewise.launcher.scripts.render import CONFIGURATION, gateway_files

_START_S = 60.0
_PORT = 28080


@dataclass(frozen=True)
class Line:
    """A service with one replica.

    Attributes:
        place: the directory of the server's sockets, and of all that the line needs.
        service: ``tenant/service``.
        concurrency: requests that the replica gets at the same time.
        port: the gateway's; the door's follow it.
        is_small: whether the gateway has room for two services only: its HAProxy starts at once.
    """

    place: Path
    engine: Engine
    service: str
    concurrency: int
    port: int = _PORT
    is_small: bool = False

    @property
    def gateway(self) -> str:
        """The gateway's ``HOST:PORT``."""
        return f"127.0.0.1:{self.port}"

    @property
    def settings(self) -> GatewaySettings:
        """The gateway's, as it runs."""
        return self._settings(self.place / "gateway")

    @property
    def ports(self) -> tuple[int, ...]:
        """The door's ports, one for each socket of the engine."""
        return tuple(range(self.port + 1, self.port + 1 + len(self.engine.sockets)))

    @contextmanager
    def door(self) -> Iterator[None]:
        """Run the door as a replica's batch script does."""
        for name in ("replica", "gateway"):
            settings = self._settings(self.place / name)
            settings.directory.mkdir()
            identity.create(settings)
        readonly = self.place / "readonly"
        readonly.mkdir()
        (readonly / "replica.pem").symlink_to(self.place / "replica" / identity.KEY)
        (readonly / "gateway.crt").symlink_to(self.place / "gateway" / "gateway.crt")
        ports = " ".join(map(str, self.ports))
        (self.place / "server").write_text(f"{os.getpid()} {ports}\n")
        words = (sys.executable, door.__file__, "127.0.0.1", str(self.place), *self.engine.sockets)
        process = subprocess.Popen(words)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    @property
    def configuration(self) -> Path:
        """HAProxy's configuration, once it is written."""
        return self.settings.directory / CONFIGURATION

    def write(self, without: str = "") -> None:
        """Write all that the gateway's HAProxy needs, ``without`` a part of its configuration."""
        prepare(self.settings)
        for name, text in gateway_files(self.settings).items():
            file = self.settings.directory / name
            file.write_text(text.replace(without, "") if without else text, encoding="utf-8")

    @asynccontextmanager
    async def haproxy(self, without: str = "") -> AsyncIterator[int]:
        """Run the gateway in front of that server; yield the process id of HAProxy's worker."""
        self.write(without)
        process = await asyncio.create_subprocess_exec(
            *("haproxy", "-W", "-f", str(self.configuration)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await until(partial(self.route, HaproxyRuntime(self.settings)))
            yield _child(process.pid)
        finally:
            process.terminate()
            await process.wait()

    def _settings(self, directory: Path) -> GatewaySettings:
        return GatewaySettings(
            bind=self.gateway,
            runtime_socket=directory / "haproxy.sock",
            directory=directory,
            identity=directory / "gateway.crt",
            require_keys=False,
            **({"services": 2, "backends": 2, "servers": 2} if self.is_small else {}),
            # Requests are counted as at every site, but never reach the limits.
            limits=LimitSettings(requests_per_s=1_000_000, concurrent=1_000_000),
        )

    @property
    def endpoint(self) -> Endpoint:
        """Where the door listens, once it runs."""
        lines = (self.place / "replica" / "gateway.crt").read_text().splitlines()
        return Endpoint("127.0.0.1", self.ports[0], self.ports[-1], "".join(lines[1:-1]))

    async def route(self, runtime: HaproxyRuntime) -> bool:
        """Lead requests to the replica; return whether HAProxy took that."""
        targets = {self.endpoint: ServerMode.READY}
        route = Route(self.service, self.concurrency, targets, self.engine.group)
        try:
            await runtime.set_grants(GrantsAnswer())
            await runtime.apply(plan_routes(await runtime.observe(), [route]).changes)
        except SlicewiseError:
            return False
        return True


async def until(holds: Callable[[], Awaitable[bool]], patience_s: float = _START_S) -> None:
    """Wait until it holds; raises TimeoutError after a minute, or so long."""
    deadline_s = time.monotonic() + patience_s
    while not await holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(str(holds))
        await asyncio.sleep(0.1)


def _child(process: int) -> int:
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])


@asynccontextmanager
async def chats_answered(
    socket: Path, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[None]:
    """An engine on a unix socket that is ready, and of which ``answer`` gives the chats."""
    application = web.Application()
    application.router.add_post("/v1/chat/completions", answer)
    application.router.add_get("/health", _ready)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def _ready(_request: web.Request) -> web.Response:
    return web.Response()
