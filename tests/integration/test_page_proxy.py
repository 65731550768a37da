"""The page behind a real HAProxy that runs etc/haproxy-web.cfg: TLS, connections, headers."""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders.replica_keys import replica_keys
from free_ports import free_port
from gateway_harness import eventually
from stand_ins.web_world import PageServer, known_users, page_up

pytestmark = pytest.mark.integration

CONFIGURATION = Path(__file__).parents[2] / "etc" / "haproxy-web.cfg"
HOST = "slicewise.example.org"
MOST_OF_AN_ADDRESS = 200
LOGINS_AT_ONCE = 20


@dataclass(frozen=True)
class Proxied:
    """A page and the proxy before it."""

    page: PageServer
    port: int

    async def connected(
        self, own: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(own, 0), ssl=context, server_hostname=HOST
        )

    async def said(self, request: str, own: str = "127.0.0.1") -> str:
        """All that is said until the connection is closed."""
        reader, writer = await self.connected(own)
        writer.write(request.encode())
        try:
            return (await asyncio.wait_for(reader.read(), 60)).decode()
        finally:
            writer.close()


def asked(path: str, *headers: str, method: str = "GET", body: str = "") -> str:
    lines = (f"{method} {path} HTTP/1.1", f"Host: {HOST}", *headers, "Connection: close")
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", body))


@pytest.fixture
async def proxied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxied]:
    known_users(monkeypatch)
    port, secret, line = free_port(), tmp_path / "secret", tmp_path / "line"
    secret.write_text("s" * 32)
    line.write_text(f"secret {'s' * 32}\n")
    named = {"proxy_header": "X-Remote-User", "proxy_secret_file": secret}
    async with page_up(tmp_path, url=f"https://{HOST}", proxies=["127.0.0.1"], **named) as page:
        behind = page.address.removeprefix("http://")
        text = CONFIGURATION.read_text()
        for written, here in (
            ("bind :443", f"bind 127.0.0.1:{port}"),
            ("/etc/haproxy/slicewise-page.pem", str(replica_keys().pem)),
            ("127.0.0.1:8690", behind),
            ("/etc/haproxy/slicewise-page.secret", str(line)),
            ("/dev/log local0", "stdout format raw daemon"),
            ("    user haproxy\n    group haproxy\n", ""),
        ):
            assert text.count(written) >= 1, written
            text = text.replace(f"server page {written}", f"server page {here}")
            text = text.replace(written, here) if written != "127.0.0.1:8690" else text
        file = tmp_path / "haproxy.cfg"
        file.write_text(text)
        process = await asyncio.create_subprocess_exec("haproxy", "-db", "-f", str(file))
        site = Proxied(page, port)
        try:

            async def is_up() -> bool:
                with suppress(OSError):
                    return " 200 " in (await site.said(asked("/login")))[:20]
                return False

            await eventually(is_up)
            yield site
        finally:
            process.kill()
            await process.wait()


async def test_a_browser_logs_in_and_nobody_else_names_a_user(proxied: Proxied):
    token = await proxied.page.token("alice")
    form = ("Content-Type: application/x-www-form-urlencoded", f"Origin: https://{HOST}")
    answer = await proxied.said(asked("/login", *form, method="POST", body=f"token={token}"))
    assert answer.startswith("HTTP/1.1 303")
    cookie = re.search(r"set-cookie: (__Host-[^;]+);", answer, re.IGNORECASE)
    assert cookie is not None
    said = f"Cookie: {cookie[1]}"
    assert (await proxied.said(asked("/cluster", said))).startswith("HTTP/1.1 200")
    lies = ("X-Remote-User: alice", f"X-Slicewise-Secret: {'s' * 32}", "X-Forwarded-For: 192.0.2.1")
    assert (await proxied.said(asked("/cluster", *lies))).startswith("HTTP/1.1 401")


async def test_logins_are_counted_by_the_address_before_the_proxy(proxied: Proxied):
    form = ("Content-Type: application/x-www-form-urlencoded", f"Origin: https://{HOST}")
    guess = asked("/login", *form, method="POST", body="token=x")
    said = {(await proxied.said(guess, own="127.0.0.2"))[:12] for _ in range(2 * LOGINS_AT_ONCE)}
    assert said == {"HTTP/1.1 401", "HTTP/1.1 429"}
    assert (await proxied.said(guess, own="127.0.0.3")).startswith("HTTP/1.1 401")


async def test_silent_connections_of_one_address_leave_others_room(proxied: Proxied):
    """They were counted once their TLS was made: 3,800 of them took 1.2 GiB."""
    silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for _ in range(2 * MOST_OF_AN_ADDRESS):
        with suppress(ConnectionResetError):
            silent.append(await asyncio.open_connection("127.0.0.1", proxied.port))

    async def are_bounded() -> bool:
        ended = [await has_ended(reader) for reader, _ in silent]
        return ended.count(False) <= MOST_OF_AN_ADDRESS

    await eventually(are_bounded)
    assert " 200 " in (await proxied.said(asked("/login"), own="127.0.0.2"))[:20]
    for _, writer in silent:
        writer.close()


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), 0.001)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("group", ["ffdhe8192", "ffdhe2048", "secp521r1", "X448"])
async def test_no_stranger_chooses_what_is_computed_with(proxied: Proxied, group: str):
    """The largest group took 0.2 s a hello, so that the login page took 6.7 s."""
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{proxied.port}", "-groups", group),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    assert "handshake failure" in said
    assert process.returncode != os.EX_OK


async def test_what_is_no_http_is_refused_and_closed(proxied: Proxied):
    """Over TLS of the page's own such a connection stayed."""
    assert (await proxied.said("this is no HTTP\r\n\r\n")).startswith("HTTP/1.1 400")
    reader, writer = await proxied.connected()
    writer.write(b"GET /login HTTP/1.1\r\nHost:")
    assert b" 408 " in await asyncio.wait_for(reader.read(), 60)
    writer.close()
