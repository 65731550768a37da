"""Tests that an owner is told a new service's address once the launcher sees the service."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import cast

import pytest
from builders.service_views import a_service

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ViewAnswer, ViewRequest
from slicewise.launcher.services.address import wait_for_route, wait_until_followed


class Daemon:
    """Sees the launcher's first request at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    async def ask(self, _: ViewRequest) -> ViewAnswer:
        self.looks += 1
        service = a_service(is_followed=self.looks == 3)
        return ViewAnswer(observed_s=1.0, complete=True, services=(service,), tenants=())


async def test_it_waits_for_the_launcher() -> None:
    daemon = Daemon()
    assert await wait_until_followed(cast("DaemonClient", daemon), 814) == ""
    assert daemon.looks == 3


async def test_it_says_that_no_launcher_takes_it_up() -> None:
    assert "check that it runs" in await wait_until_followed(
        cast("DaemonClient", Daemon()), 815, patience_s=0.0
    )


class Gateway(BaseHTTPRequestHandler):
    """Answers with the number that it is asked for."""

    def do_GET(self) -> None:
        self.send_error(int(self.path.split("/")[1]))

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = HTTPServer(("127.0.0.1", 0), Gateway)
    Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def test_a_known_address_is_refused_without_waking_anything(gateway: str) -> None:
    for known in (401, 403):
        assert await wait_for_route(f"{gateway}/{known}", patience_s=0.0) == ""
    assert "answers 404" in await wait_for_route(f"{gateway}/404", patience_s=0.0)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a", "http://no such host/a", "nonsense"])
async def test_a_gateway_that_can_not_be_asked_is_said_to_be_silent(url: str) -> None:
    assert "does not answer" in await wait_for_route(url, patience_s=0.0)
