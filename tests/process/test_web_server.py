"""Tests who gets in to the page, by which way, and the headers of whatever comes back."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
from stand_ins.web_world import PageServer, known_users, page_up
from waiting import PATIENCE_S

from slicewise.cluster.runtime.user_names import user_name

SECRET = "0123456789abcdef" * 2
KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def _users(monkeypatch: pytest.MonkeyPatch) -> None:
    known_users(monkeypatch)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[PageServer]:
    async with page_up(tmp_path, operators=("bob",)) as served:
        yield served


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[PageServer]:
    secret = tmp_path / "secret"
    secret.write_text(SECRET, encoding="ascii")
    async with page_up(
        tmp_path,
        proxies=("127.0.0.1",),
        proxy_header="X-Remote-User",
        proxy_secret_file=secret,
        realm="EXAMPLE.ORG",
    ) as served:
        yield served


def named(user: str) -> dict[str, str]:
    return {"X-Remote-User": user, "X-Slicewise-Secret": SECRET}


async def test_a_token_logs_its_user_in_once(page: PageServer):
    token = await page.token("alice")
    assert (await page.post("/login", {"token": token}))[0] == 303
    _, text, _ = await page.get("/cluster.json")
    assert "seen-by-alice" in text
    page.browser.cookie_jar.clear()
    assert (await page.post("/login", {"token": token}))[0] == 401
    assert (await page.get("/cluster"))[0] == 401


async def test_an_operator_by_name_is_answered_as_who_runs_the_daemon(page: PageServer):
    await page.log_in("bob")
    await page.get("/cluster")
    assert page.asked == [user_name(os.geteuid())]


async def test_the_cookie_is_for_no_script_and_changes_at_each_login(page: PageServer):
    _, _, first = await page.post("/login", {"token": await page.token("alice")})
    cookie = first["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    value = cookie.partition("=")[2].partition(";")[0]
    _, _, second = await page.post("/login", {"token": await page.token("alice")})
    assert value not in second["Set-Cookie"]
    page.browser.cookie_jar.clear()
    assert (await page.get("/cluster", Cookie=f"slicewise={value}"))[0] == 401


async def test_behind_https_the_cookie_is_the_hosts_alone(tmp_path: Path):
    async with page_up(tmp_path, url="https://slicewise.example.org") as page:
        _, _, headers = await page.post("/login", {"token": await page.token("alice")})
        cookie = headers["Set-Cookie"]
        assert cookie.startswith("__Host-slicewise=")
        assert "Secure" in cookie
        assert "Path=/" in cookie
        assert headers["Strict-Transport-Security"]
        for host, status in (("slicewise.example.org", 401), ("Slicewise.Example.org:443", 401)):
            assert (await page.get("/cluster", Host=host))[0] == status
        fields = {"token": await page.token("alice")}
        assert (await page.post("/login", fields, Origin="http://slicewise.example.org"))[0] == 403
        assert (await page.post("/login", fields, Origin="https://slicewise.example.org"))[0] == 303


@pytest.mark.parametrize(
    "origin", ["", "null", "https://evil.example", "http://127.0.0.1:1", "file://"]
)
async def test_a_form_of_another_site_is_refused(page: PageServer, origin: str):
    fields = {"token": await page.token("alice")}
    assert (await page.post("/login", fields, Origin=origin))[0] == 403
    assert (await page.post("/login", fields))[0] == 303


async def test_logging_out_needs_the_sessions_own_form(page: PageServer):
    await page.log_in("alice")
    assert (await page.post("/logout", {"form_token": "x\xff"}))[0] == 403
    _, text, _ = await page.get("/cluster")
    form_token = text.partition('name="form_token" value="')[2].partition('"')[0]
    assert (await page.post("/logout", {"form_token": form_token}))[0] == 303
    assert (await page.get("/cluster"))[0] == 401


async def test_another_host_name_is_refused(page: PageServer):
    assert (await page.get("/login", Host="evil.example"))[0] == 421


ADDRESSES = [
    ("GET", "/login", 200),
    ("GET", "/login?token=%3Cscript%3E", 200),
    ("GET", "/cluster", 200),
    ("GET", "/cluster.json", 200),
    ("GET", "/", 303),
    ("GET", "/nothing", 404),
    ("GET", "/tenants/..%2f..%2fetc%2fpasswd", 400),
    ("GET", "/static/../page.css", 404),
    ("GET", "//evil.example/cluster", 404),
    ("GET", "/login/oidc", 404),
    ("GET", "/live/nothing", 404),
    ("POST", "/live/cluster", 404),
    ("POST", "/cluster", 404),
    ("PUT", "/cluster", 400),
    ("DELETE", "/login", 400),
    ("OPTIONS", "/cluster", 400),
]


@pytest.mark.parametrize(
    ("path", "status"), [(path, status) for method, path, status in ADDRESSES if method == "GET"]
)
async def test_a_head_is_that_of_the_page_without_a_body(page: PageServer, path: str, status: int):
    await page.log_in("alice")
    _, _, wanted = await page.get(path)
    found, text, headers = await page.ask("HEAD", path)
    assert (found, text) == (status, "")
    for name in ("Content-Type", "Content-Length", "Location"):
        assert headers.get(name, "0") == wanted.get(name, "0")


async def test_a_head_of_a_live_page_ends_at_once(page: PageServer):
    assert (await page.ask("HEAD", "/live/cluster"))[0] == 401
    await page.log_in("alice")
    found, _, headers = await page.ask("HEAD", "/live/cluster")
    assert (found, headers["Content-Type"]) == (200, "text/event-stream")
    assert page.server._feeds.viewers == 0


@pytest.mark.parametrize(("method", "path", "status"), ADDRESSES)
async def test_every_answer_has_the_headers(page: PageServer, method: str, path: str, status: int):
    await page.log_in("alice")
    found, text, headers = await page.ask(method, path, headers={"Origin": page.address})
    assert found == status
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; base-uri 'none'")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "slicewise"
    assert "<script>" not in text.replace("<script src", "")


@pytest.mark.parametrize(
    ("path", "cookie"),
    [
        (b"/cluster", b"slicewise-zone=Nowhere"),
        (b"/cluster", b"slicewise-zone=..%2f..%2fetc%2fpasswd"),
        (b"/cluster", b"slicewise-zone=Europe"),
        (b"/cluster?x=\xff\xfe", b"a=b"),
        (b"/login?token=\xff%00", b"slicewise=\xff"),
        (b"/tenants/\xff", b"slicewise=\xed\xa0\x80"),
    ],
)
async def test_bytes_that_are_no_text_end_in_no_failure_of_ours(
    page: PageServer, path: bytes, cookie: bytes
):
    host, port = page.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET "
        + path
        + b" HTTP/1.1\r\nHost: "
        + f"{host}:{port}".encode()
        + b"\r\nCookie: "
        + cookie
        + b"\r\n\r\n"
    )
    answer = await reader.read()
    writer.close()
    assert answer.split()[1] in {b"200", b"400", b"401"}
    assert b"SW-INTERNAL" not in answer


@pytest.mark.parametrize("token", ["", "x" * 5000, "\ud800", "none"])
async def test_what_is_no_token_is_refused_and_not_logged(
    page: PageServer, token: str, caplog: pytest.LogCaptureFixture
):
    assert (await page.post("/login", {"token": token.encode("utf-8", "replace").decode()}))[
        0
    ] == 401
    assert not caplog.records


async def test_logins_of_one_host_are_limited(page: PageServer):
    found = [(await page.post("/login", {"token": "x"}))[0] for _ in range(22)]
    assert found == [401] * 20 + [429] * 2
    assert (await page.get("/cluster"))[0] == 401


async def test_a_live_page_ends_with_its_session(page: PageServer):
    await page.log_in("alice")
    async with page.browser.get(f"{page.address}/live/cluster") as stream:
        assert b"seen-by-alice" in await stream.content.readany()
        sessions = page.server._sessions
        (cookie,) = (one.value for one in page.browser.cookie_jar)
        session = sessions.find(cookie)
        assert session is not None
        sessions.end(session)
        for feed in page.server._feeds._feeds.values():
            async with feed.changed:
                feed.html, feed.version = "after the end", feed.version + 1
                feed.changed.notify_all()
        async with asyncio.timeout(PATIENCE_S):
            assert b"after the end" not in await stream.content.read()
    assert not page.server._feeds.viewers


async def test_too_many_live_pages_are_refused_before_they_begin(
    page: PageServer, monkeypatch: pytest.MonkeyPatch
):
    await page.log_in("alice")
    monkeypatch.setattr("slicewise.slurm_plugin.page.live._PER_USER", 0)
    assert (await page.get("/live/cluster"))[0] == 503


async def test_a_proxy_logs_its_users_in_by_each_request(proxied: PageServer):
    for said, seen in (("alice", "alice"), (" bob ", "bob"), ("alice@example.org", "alice")):
        status, text, headers = await proxied.ask("GET", "/cluster.json", headers=named(said))
        assert (status, f"seen-by-{seen}" in text) == (200, True)
        assert "Set-Cookie" not in headers
    assert (await proxied.get("/cluster"))[0] == 401
    status, text, _ = await proxied.ask("GET", "/cluster", headers=named("alice"))
    assert status == 200
    # Such a session ends at the proxy.
    assert "Log out" not in text
    form_token = proxied.server._sessions.vouched("alice").form_token
    # Another site's form would be sent by the proxy with the header all the same.
    for origin, status in (("https://evil.example", 403), (proxied.address, 303)):
        sent = named("alice") | {"Origin": origin}
        answer = await proxied.ask("POST", "/logout", data={"form_token": form_token}, headers=sent)
        assert answer[0] == status


@pytest.mark.parametrize(
    "user",
    ["root", "slurm", "slicewise", "slicewise-web", "nobody-known", "alice@evil", "@", "al\xefce"],
)
async def test_a_proxy_names_only_users_and_no_program(proxied: PageServer, user: str):
    status, _, _ = await proxied.ask("GET", "/cluster", headers=named(user))
    assert status == 403
    assert not proxied.asked


async def test_a_forged_header_is_refused(proxied: PageServer):
    await proxied.log_in("alice")
    status, text, _ = await proxied.ask(
        "GET", "/cluster", headers={"X-Remote-User": "bob", "X-Slicewise-Secret": "guess"}
    )
    assert status == 403
    assert "SW-WEB-PROXY" in text
    assert SECRET not in text


async def test_where_no_proxy_is_set_its_header_is_no_way_in(page: PageServer):
    assert (await page.ask("GET", "/cluster", headers=named("alice")))[0] == 401


@pytest.fixture
async def with_tokens(tmp_path: Path) -> AsyncIterator[PageServer]:
    (tmp_path / "jwt_hs256.key").write_bytes(KEY)
    async with page_up(tmp_path, slurm_jwt_key=tmp_path / "jwt_hs256.key") as served:
        yield served


def bearer(user: str, lasts_s: float = 60.0) -> dict[str, str]:
    claims = {"sun": user, "exp": int(time.time() + lasts_s)}
    return {"Authorization": f"Bearer {jwt.encode(claims, KEY, 'HS256')}"}


async def test_a_token_of_slurms_opens_the_json_without_a_cookie(with_tokens: PageServer):
    status, text, headers = await with_tokens.get("/cluster.json", **bearer("alice"))
    assert (status, "seen-by-alice" in text) == (200, True)
    assert "Set-Cookie" not in headers
    assert (await with_tokens.get("/cluster.json"))[0] == 401


async def test_a_token_of_slurms_opens_nothing_else(with_tokens: PageServer):
    await with_tokens.log_in("bob")
    for method, path in (("GET", "/cluster"), ("GET", "/live/cluster"), ("POST", "/logout")):
        sent = bearer("alice") | {"Origin": with_tokens.address}
        status, text, _ = await with_tokens.ask(method, path, headers=sent)
        assert (status, "SW-TOKEN" in text) == (401, True)
    for refused in (bearer("alice", lasts_s=-1), {"Authorization": "bearer x"}):
        assert (await with_tokens.get("/cluster.json", **refused))[0] == 401
    assert (await with_tokens.get("/cluster.json", **bearer("stranger")))[0] == 403


async def test_where_no_key_is_set_tokens_open_nothing(page: PageServer):
    assert (await page.get("/cluster.json", **bearer("alice")))[0] == 401


async def test_a_loopback_page_is_found_by_its_other_name_too(page: PageServer):
    port = page.address.rpartition(":")[2]
    assert (await page.get("/login", Host=f"localhost:{port}"))[0] == 200
    assert (await page.get("/login", Host=f"localhost.example.org:{port}"))[0] == 421
