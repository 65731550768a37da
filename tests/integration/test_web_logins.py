"""Who gets in to the page on a whole cluster, and what its server may ask there."""

import asyncio
import json
from urllib.parse import urlsplit

import aiohttp
import pytest
from waiting import until

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def address(sandbox: Sandbox) -> str:
    return sandbox.serve_page()


def asked(sandbox: Sandbox, user: str, method: str, target: str, body: str = "{}") -> str:
    """The code with which the daemon refuses what a user asks at its socket; "" if it answers."""
    words = ("curl", "-s", "--unix-socket", str(sandbox.layout.run_dir / "user.sock"))
    sent = ("-d", body) if method == "POST" else ()
    done = sandbox.run(user, (*words, "-X", method, *sent, f"http://daemon{target}"))
    return str(json.loads(done.stdout).get("code", ""))


@pytest.mark.parametrize("user", ["alice", "bob", "slicewise"])
def test_nobody_but_the_web_server_asks_for_another(sandbox: Sandbox, address: str, user: str):
    assert asked(sandbox, user, "GET", "/v1/as/root/view") == "SW-FORBIDDEN"


def test_the_web_server_asks_for_users_and_changes_nothing(sandbox: Sandbox, address: str):
    assert asked(sandbox, "web", "GET", "/v1/as/alice/view") == ""
    assert asked(sandbox, "web", "GET", "/v1/as/root/view") == ""
    for target in ("/v1/as/root/key-grants", "/v1/as/slicewise/view", "/v1/as/nobody-known/view"):
        assert asked(sandbox, "web", "GET", target) == "SW-FORBIDDEN"
    own = '{"array_job_id": 1}'
    assert asked(sandbox, "web", "POST", "/v1/as/root/service-delete", own) == "SW-FORBIDDEN"


async def test_an_address_logs_its_user_in_once(sandbox: Sandbox, address: str):
    url = await asyncio.to_thread(sandbox.page_login, "alice")
    token = urlsplit(url).query.removeprefix("token=")
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(address, cookie_jar=jar) as browser:

        async def status(method: str, path: str, **options: object) -> int:
            async with browser.request(method, path, allow_redirects=False, **options) as answer:
                return answer.status

        form = {"data": {"token": token}, "headers": {"Origin": address}}
        assert await status("GET", "/cluster") == 401
        assert await status("POST", "/login", **form) == 303
        assert await status("GET", "/cluster.json") == 200
        browser.cookie_jar.clear()
        assert await status("POST", "/login", **form) == 401
        for headers in ({"Authorization": "Bearer x"}, {"X-Remote-User": "root"}):
            assert await status("GET", "/cluster.json", headers=headers) == 401


async def test_no_log_has_the_token(sandbox: Sandbox, address: str):
    url = await asyncio.to_thread(sandbox.page_login, "bob")
    token = urlsplit(url).query.removeprefix("token=")
    async with aiohttp.ClientSession(address) as browser:
        form = {"data": {"token": token}, "headers": {"Origin": address}}
        async with browser.post("/login", allow_redirects=False, **form) as answer:
            assert answer.status == 303

    def logs() -> list[str]:
        return [log.read_text(errors="replace") for log in sandbox.layout.log.glob("*.log")]

    await asyncio.to_thread(
        until, lambda: any("web_login" in log and "bob" in log for log in logs())
    )
    assert not any(token in log for log in logs())
