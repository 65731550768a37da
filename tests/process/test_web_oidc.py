"""Tests logins by an OpenID provider, which a real one on this host is."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import oidc_provider_mock
import pytest
from pydantic import ValidationError
from stand_ins.web_world import PageServer, known_users, page_up

from slicewise.cluster.rpc.web_messages import WebGuestRequest
from slicewise.cluster.settings.file import OidcSettings
from slicewise.slurm_plugin.page import oidc

CLIENT, SECRET = "slicewise", "s" * 32
pytestmark = pytest.mark.filterwarnings("ignore")
"""The provider uses what Authlib will no longer have."""


@pytest.fixture(autouse=True)
def _users(monkeypatch: pytest.MonkeyPatch) -> None:
    known_users(monkeypatch)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    users = [
        oidc_provider_mock.User(sub=f"{n}", claims={"preferred_username": name})
        for n, name in enumerate(("alice", "root", "mallory"))
    ]
    mails = {"tried": True, "untried": False, "said": "true", "silent": None}
    users += [
        oidc_provider_mock.User(
            sub=sub,
            claims={"email": "alice"} | ({} if tried is None else {"email_verified": tried}),
        )
        for sub, tried in mails.items()
    ]
    claims = {"many": ["Vision", "nlp", 7, "x\n", "v" * 65], "one": "vision", "none": None}
    users += [
        oidc_provider_mock.User(sub=sub, claims={"preferred_username": sub, "groups": named})
        for sub, named in claims.items()
    ]
    odd = {"preferred_username": "a/b", "groups": "vision"}
    users += [
        oidc_provider_mock.User(sub="odd", claims=odd),
        oidc_provider_mock.User(
            sub="host", claims={"preferred_username": "alice", "groups": "vision"}
        ),
        *(
            oidc_provider_mock.User(sub=name, claims={"preferred_username": name, "groups": "lab"})
            for name in ("root", "slurm", "slicewise")
        ),
    ]
    bare = oidc_provider_mock.User(sub="bare", claims={})
    with oidc_provider_mock.run_server_in_thread(user_claims=[*users, bare]) as server:
        yield f"http://localhost:{server.server_port}"


@asynccontextmanager
async def served(place: Path, issuer: str, **more: object) -> AsyncIterator[PageServer]:
    secret = place / "client"
    secret.write_text(SECRET, encoding="ascii")
    own = {"issuer": issuer, "client_id": CLIENT, "client_secret_file": secret, **more}
    async with page_up(place, oidc=own) as page:
        yield page


@pytest.fixture
async def page(tmp_path: Path, provider: str) -> AsyncIterator[PageServer]:
    async with served(tmp_path, provider) as page:
        yield page


async def to_provider(page: PageServer) -> str:
    status, _, headers = await page.get("/login/oidc")
    assert status == 303
    return headers["Location"]


async def back(page: PageServer, address: str, sub: str) -> str:
    """The path with which the provider sends a browser back to the page."""
    async with (
        aiohttp.ClientSession() as browser,
        browser.post(address, data={"sub": sub}, allow_redirects=False) as answer,
    ):
        location = answer.headers["Location"]
    assert location.startswith(page.address)
    return location.removeprefix(page.address)


async def test_the_provider_is_asked_with_a_challenge_a_state_and_a_nonce(page: PageServer):
    first, second = [parse_qs(urlsplit(await to_provider(page)).query) for _ in range(2)]
    assert first["code_challenge_method"] == ["S256"]
    assert first["response_type"] == ["code"]
    assert first["redirect_uri"] == [f"{page.address}/login/oidc/callback"]
    for word in ("code_challenge", "state", "nonce"):
        assert first[word] != second[word]
        assert len(first[word][0]) >= 43


async def test_whom_the_provider_names_is_logged_in(page: PageServer):
    status, text, _ = await page.get("/login")
    assert (status, "log in at localhost" in text) == (200, True)
    path = await back(page, await to_provider(page), "0")
    status, _, headers = await page.get(path)
    assert (status, headers["Location"]) == (303, "/cluster")
    assert "seen-by-alice" in (await page.get("/cluster.json"))[1]
    assert (await page.get(path))[0] == 401, "a login is good once"


async def test_a_login_that_another_browser_began_is_refused(page: PageServer):
    path = await back(page, await to_provider(page), "0")
    page.browser.cookie_jar.clear()
    assert (await page.get(path))[0] == 401
    await to_provider(page)
    assert (await page.get(path))[0] == 401


async def test_a_login_is_refused_without_its_state_or_code(page: PageServer):
    for change in (("state=", "state=x"), ("code=", "error="), ("code=", "iss=http://evil&code=")):
        path = await back(page, await to_provider(page), "0")
        assert (await page.get(path.replace(*change)))[0] == 401


async def test_a_code_of_another_login_is_not_believed(page: PageServer):
    """Its nonce and its challenge are of the other login."""
    stolen = await back(page, await to_provider(page), "0")
    own = await back(page, await to_provider(page), "2")
    (code,), (mine,) = (parse_qs(urlsplit(one).query)["code"] for one in (stolen, own))
    assert (await page.get(own.replace(mine, code)))[0] == 502


@pytest.mark.parametrize(
    ("sub", "status"), [("tried", 303), ("untried", 502), ("said", 502), ("silent", 502)]
)
async def test_an_address_that_nobody_has_tried_names_nobody(
    tmp_path: Path, provider: str, sub: str, status: int
):
    """Where people write any address into their account, one of alice's made its writer alice."""
    async with served(tmp_path, provider, claim="email", scope="openid email") as page:
        path = await back(page, await to_provider(page), sub)
        assert (await page.get(path))[0] == status
        assert (await page.get("/cluster"))[0] == (200 if status == 303 else 401)


@pytest.mark.parametrize(("sub", "status"), [("1", 403), ("2", 403), ("bare", 502)])
async def test_root_strangers_and_nobody_are_not_let_in(page: PageServer, sub: str, status: int):
    path = await back(page, await to_provider(page), sub)
    assert (await page.get(path))[0] == status
    assert (await page.get("/cluster"))[0] == 401


GUESTS = {"tenant_claim": "groups", "claimed_tenants": ("vision", "lab")}


@pytest.mark.parametrize("sub", ["many", "one"])
async def test_the_claim_names_the_tenants_of_who_is_no_user_of_the_host(
    tmp_path: Path, provider: str, sub: str
):
    async with served(tmp_path, provider, **GUESTS) as page:
        path = await back(page, await to_provider(page), sub)
        status, _, headers = await page.get(path)
        assert (status, headers["Location"]) == (303, "/usage")
        assert page.guests == [WebGuestRequest(name=sub, tenants=("vision",))]


@pytest.mark.parametrize(
    ("sub", "status", "told"), [("none", 403, 1), ("2", 403, 1), ("odd", 422, 0), ("bare", 502, 0)]
)
async def test_who_has_no_tenant_by_the_claim_is_not_let_in(
    tmp_path: Path, provider: str, sub: str, status: int, told: int
):
    """The daemon is told all the same: what an earlier login named ends."""
    async with served(tmp_path, provider, **GUESTS) as page:
        path = await back(page, await to_provider(page), sub)
        assert (await page.get(path))[0] == status
        assert [one.tenants for one in page.guests] == [()] * told
        assert (await page.get("/usage"))[0] == 401


async def test_a_user_of_the_host_is_no_guest(tmp_path: Path, provider: str):
    async with served(tmp_path, provider, **GUESTS) as page:
        path = await back(page, await to_provider(page), "host")
        assert (await page.get(path))[2]["Location"] == "/cluster"
        assert page.guests == []


@pytest.mark.parametrize("sub", ["root", "slurm", "slicewise"])
async def test_who_may_not_log_in_is_no_guest_either(tmp_path: Path, provider: str, sub: str):
    async with served(tmp_path, provider, **GUESTS) as page:
        path = await back(page, await to_provider(page), sub)
        assert (await page.get(path))[0] == 403
        assert page.guests == []


@pytest.mark.parametrize("tenant", ["vision", "Vision"])
async def test_tenants_are_allowed_in_any_case(tmp_path: Path, provider: str, tenant: str):
    own = {**GUESTS, "claimed_tenants": (tenant,)}
    async with served(tmp_path, provider, **own) as page:
        path = await back(page, await to_provider(page), "one")
        assert (await page.get(path))[2]["Location"] == "/usage"


async def test_without_the_setting_a_claim_lets_nobody_in(page: PageServer):
    path = await back(page, await to_provider(page), "one")
    assert (await page.get(path))[0] == 403
    assert page.guests == []


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "http://evil"},
        {"aud": "other"},
        {"aud": ["other"], "azp": CLIENT},
        {"exp": 1},
        {"nonce": "other"},
        {"nonce": None},
    ],
    ids=str,
)
async def test_an_id_token_that_is_not_for_this_login_is_not_believed(
    page: PageServer, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
):
    from joserfc import jwt

    decode = jwt.decode

    def changed(*arguments: Any, **options: Any) -> Any:
        read = decode(*arguments, **options)
        assert set(options["registry"].allowed) == set(oidc._ALGORITHMS)
        read.claims.update(changes)
        read.claims = {name: one for name, one in read.claims.items() if one is not None}
        return read

    path = await back(page, await to_provider(page), "0")
    monkeypatch.setattr(jwt, "decode", changed)
    status, text, _ = await page.get(path)
    assert (status, "SW-WEB-OIDC" in text) == (502, True)


async def test_a_token_signed_with_the_clients_secret_is_not_believed(
    page: PageServer, monkeypatch: pytest.MonkeyPatch
):
    assert not [one for one in oidc._ALGORITHMS if one.startswith("HS") or one == "none"]
    path = await back(page, await to_provider(page), "0")
    monkeypatch.setattr(oidc, "_ALGORITHMS", ("ES256",))
    assert (await page.get(path))[0] == 502


async def test_a_provider_that_says_it_is_another_or_does_not_answer(tmp_path: Path, provider: str):
    for issuer in (provider.replace("localhost", "127.0.0.1") + "/", "http://127.0.0.1:9"):
        async with served(tmp_path, issuer) as page:
            status, text, _ = await page.get("/login/oidc")
            assert (status, "SW-WEB-OIDC" in text) == (502, True)


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer": "http://sso.example.org"},
        {"client_id": ""},
        {"client_secret_file": None},
        {"scope": "profile"},
        {"tenant_claim": "groups"},
        {"tenant_claim_days": 0},
    ],
    ids=str,
)
def test_settings_that_can_not_be_meant(settings: dict[str, object]):
    whole = {"issuer": "https://sso.example.org", "client_id": "x", "client_secret_file": "/x"}
    OidcSettings.model_validate(whole)
    with pytest.raises(ValidationError):
        OidcSettings.model_validate(whole | settings)
