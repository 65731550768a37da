"""The door for a marketplace's agent on a real PostgreSQL, asked as Waldur's agent asks LiteLLM.

The requests are those of waldur-site-agent-litellm 1.0.7, recorded from it: method, place and every
field.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import gmtime, strftime
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from free_ports import free_port

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, RequestLimits
from slicewise.cluster.rpc.usage_messages import AllowanceSubject, UsageRecord
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import MarketplaceSettings
from slicewise.slurm_plugin.api.marketplace import MarketplaceDoor
from slicewise.slurm_plugin.ledger import keys
from slicewise.slurm_plugin.ledger.keys import NewKey
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.services.marketplace import AGENT

pytestmark = pytest.mark.integration

TOKENS = {"vision": "v" * 40, "nlp": "n" * 40}
ORDER = "resource-7f3a"
NO_LIMITS = {"max_budget": None, "budget_duration": None, "tpm_limit": None, "rpm_limit": None}
MODELS = ["science/chat"]


class Agent:
    """Asks as the agent does, with one offering's token."""

    def __init__(self, place: str, token: str) -> None:
        self._place, self._token = place, token

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = f"http://{self._place}{path}"
        asked = Request(url, data, headers, method=method)
        try:
            with urlopen(asked, timeout=60) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)

    async def tells(self, method: str, path: str, body: object = None) -> Any:
        status, answer = await asyncio.to_thread(self.ask, method, path, body)
        assert status == 200, answer
        return answer

    async def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        status, answer = await asyncio.to_thread(self.ask, method, path, body)
        return status, Code(answer["code"])

    async def keys(self, order: str = ORDER) -> dict[str, Any]:
        """What the agent finds of an order, by alias."""
        asked = {"key_alias": f"{order}-", "substring_matching": "true"}
        page = {"return_full_object": "true", "page": 1, "size": 100}
        answer = await self.tells("GET", f"/key/list?{urlencode(asked | page)}")
        assert answer["total_pages"] == 1
        return {record["key_alias"]: record for record in answer["keys"]}

    async def order(self, alias: str = f"{ORDER}-1", **fields: object) -> Any:
        return await self.tells("POST", "/key/generate", {"key_alias": alias, **fields})

    async def usage(self, start: str = "2026-11-01", end: str = "2026-11-30") -> Any:
        page = {"page": 1, "page_size": 100, "include_current_utc_day": "true"}
        days = {"start_date": start, "end_date": end}
        return await self.tells("GET", f"/user/daily/activity?{urlencode(days | page)}")


class Site:
    """A door with agents for two tenants."""

    def __init__(self, ledger: Ledger, place: str, files: dict[str, Path]) -> None:
        self.ledger, self.files = ledger, files
        self.vision, self.nlp = (Agent(place, token) for token in TOKENS.values())
        self.changes = 0
        self.without_quota: set[str] = set()

    def opens(self) -> set[str]:
        """The ids of the keys that open something."""
        return {grant.key_id for grant in self.ledger.keys.grants().keys.values()}

    async def changed(self) -> None:
        self.changes += 1


async def from_ledger(who: int | str, read: Callable[[], object]) -> object:
    assert who == AGENT, "operators' reads have a line of their own"
    return await asyncio.to_thread(read)


@pytest.fixture
async def site(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Site]:
    async with site_of(ledger, tmp_path) as site:
        yield site


@asynccontextmanager
async def site_of(
    ledger: Ledger, tmp_path: Path, *, requires_keys: bool = True
) -> AsyncIterator[Site]:
    place = f"127.0.0.1:{free_port()}"
    files = {tenant: tmp_path / tenant for tenant in TOKENS}
    for tenant, token in TOKENS.items():
        files[tenant].write_text(f"{token}\n")
    site = Site(ledger, place, files)
    reads: Any = SimpleNamespace(from_ledger=from_ledger)
    door = MarketplaceDoor(
        MarketplaceSettings(listen=place, tokens=files),
        *(ledger, reads, ALONE),
        on_change=site.changed,
        requires_keys=requires_keys,
        time_zone="UTC",
        is_tenant=lambda tenant: tenant not in site.without_quota,
    )
    await door.start()
    try:
        yield site
    finally:
        await door.stop()


async def test_an_order_is_keys_that_are_paused_restored_rotated_and_ended(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    agent = site.vision
    assert await agent.tells("GET", "/health/readiness") == {
        "status": "healthy",
        "db": "connected",
    }
    assert await agent.keys() == {}
    made = [await agent.order(f"{ORDER}-{n}", models=MODELS, tpm_limit=5000) for n in (1, 2)]
    records = await agent.keys()
    assert [record["token"] for record in records.values()] == [key["token"] for key in made]
    assert records[f"{ORDER}-1"] == {
        "key_alias": f"{ORDER}-1",
        "token": made[0]["token"],
        "blocked": False,
        "models": MODELS,
        **NO_LIMITS,
        "tpm_limit": 5000,
    }
    assert made[0]["key"] not in json.dumps(records)
    tokens = {key["token"] for key in made}
    assert site.opens() == tokens
    for token in tokens:
        await agent.tells("POST", "/key/block", {"key": token})
    assert {record["blocked"] for record in (await agent.keys()).values()} == {True}
    assert site.opens() == set()
    # A key of a paused order is made paused, by rotation, too.
    rotated = await agent.tells("POST", f"/key/{made[0]['token']}/regenerate", {})
    assert rotated["key"] != made[0]["key"]
    third = await agent.order(f"{ORDER}-3", blocked=True)
    records = await agent.keys()
    assert records[f"{ORDER}-1"] == {**records[f"{ORDER}-1"], "blocked": True, "tpm_limit": 5000}
    assert records[f"{ORDER}-1"]["models"] == MODELS
    assert site.opens() == set()
    for record in records.values():
        await agent.tells("POST", "/key/unblock", {"key": record["token"]})
    living = {rotated["token"], made[1]["token"], third["token"]}
    assert site.opens() == living
    caplog.set_level("INFO", "slicewise.daemon")
    await agent.tells("POST", "/key/delete", {"keys": sorted(living)})
    assert caplog.text.count("key_revoked") == len(living)
    assert (await agent.keys(), site.opens()) == ({}, set())
    # A delete frees the alias; a second one changes nothing, and fills no log.
    caplog.clear()
    await agent.tells("POST", "/key/delete", {"keys": sorted(living)})
    assert "key_revoked" not in caplog.text
    await agent.order(f"{ORDER}-1")
    assert site.changes == 12


async def test_limits_are_set_and_lifted_by_their_whole_target(site: Site) -> None:
    agent = site.vision
    token = (await agent.order(tpm_limit=100, rpm_limit=7))["token"]
    await agent.tells("POST", "/key/update", {"key": token, **NO_LIMITS, "tpm_limit": 20_000.0})
    (limited,) = site.ledger.request_limits.standing_limits()
    assert limited.limits == RequestLimits(tokens_per_minute=20_000)
    assert (limited.tenant, limited.key_id) == ("vision", token)
    assert (await agent.keys())[f"{ORDER}-1"]["tpm_limit"] == 20_000
    await agent.tells("POST", "/key/update", {"key": token, **NO_LIMITS})
    assert site.ledger.request_limits.standing_limits() == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_budget": 12.5},
        {"max_budget": 12.5, "budget_duration": "30d"},
        {"duration": "30d"},
        {"models": ["gpt-4o"]},
        {"tpm_limit": -1},
        {"key_alias": "a b"},
        {"key_alias": "x" * 64},
        {"user_id": "alice"},
    ],
)
async def test_what_can_not_be_held_to_is_refused(site: Site, fields: dict[str, object]) -> None:
    body = {"key_alias": f"{ORDER}-1", **fields}
    assert await site.vision.refused("POST", "/key/generate", body) == (400, Code.MARKETPLACE)
    assert site.ledger.keys.all() == ()


async def test_a_tenant_without_a_quota_gets_no_key(site: Site) -> None:
    site.without_quota.add("vision")
    refused = await site.vision.refused("POST", "/key/generate", {"key_alias": f"{ORDER}-1"})
    assert refused == (404, Code.TENANT_UNKNOWN)
    assert site.ledger.keys.all() == ()


async def test_no_order_closes_services_that_clients_ask_without_a_key(
    ledger: Ledger, tmp_path: Path
) -> None:
    async with site_of(ledger, tmp_path, requires_keys=False) as site:
        refused = await site.vision.refused("POST", "/key/generate", {"key_alias": f"{ORDER}-1"})
        assert refused == (422, Code.KEY_FIRST)
        assert ledger.keys.all() == ()
        later_s = int(wall_s()) + 86_400
        ledger.keys.require_from("vision", later_s, "root")
        await site.vision.order()
        assert ledger.keys.grants().wanted_from_s == {"vision": later_s}
        ledger.keys.add(NewKey("a" * 12, "nlp", "own", "a" * 64, "alice"))
        await site.nlp.order()


async def test_a_rotation_that_fails_leaves_the_key_that_was(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await site.vision.order(rpm_limit=9))["token"]
    with monkeypatch.context() as patched:
        patched.setattr(keys, "MOST_OF_TENANT", 0)
        refused = await site.vision.refused("POST", f"/key/{token}/regenerate", {})
    assert refused[1] == Code.KEY_REVOKE
    assert site.opens() == {token}
    # A tenant that has all the keys it may have rotates them all the same.
    with monkeypatch.context() as patched:
        patched.setattr(keys, "MOST_OF_TENANT", 1)
        new = (await site.vision.tells("POST", f"/key/{token}/regenerate", {}))["token"]
    assert site.opens() == {new}


async def test_an_alias_is_there_once(site: Site) -> None:
    await site.vision.order()
    body = {"key_alias": f"{ORDER}-1"}
    assert (await site.vision.refused("POST", "/key/generate", body))[1] == Code.KEY_TWICE
    # Another offering has aliases of its own.
    await site.nlp.order()
    assert len(site.opens()) == 2


async def test_a_token_opens_its_tenant_s_orders_and_no_other_key(site: Site) -> None:
    site.ledger.keys.add(NewKey("a" * 12, "vision", f"{ORDER}-9", "a" * 64, "alice"))
    theirs = (await site.nlp.order(tpm_limit=5))["token"]
    assert await site.vision.keys() == {}
    for token in ("a" * 12, theirs, "b" * 12):
        asks: tuple[tuple[str, str, object], ...] = (
            ("GET", f"/key/info?key={token}", None),
            ("POST", "/key/block", {"key": token}),
            ("POST", "/key/unblock", {"key": token}),
            ("POST", "/key/delete", {"keys": [token]}),
            ("POST", "/key/update", {"key": token, **NO_LIMITS}),
            ("POST", f"/key/{token}/regenerate", {}),
        )
        for ask in asks:
            assert await site.vision.refused(*ask) == (404, Code.NAME_UNKNOWN)
    own = (await site.vision.order())["token"]
    assert await site.vision.refused("POST", "/key/delete", {"keys": [own, theirs]}) == (
        404,
        Code.NAME_UNKNOWN,
    )
    assert site.opens() == {"a" * 12, theirs, own}


@pytest.mark.parametrize("token", ["", "x" * 40, "v" * 39, "short"])
async def test_who_has_no_token_learns_nothing(site: Site, token: str) -> None:
    site.files["nlp"].write_text("short")
    stranger = Agent(site.vision._place, token)
    for path in ("/health/readiness", "/key/list?return_full_object=true", "/nothing"):
        assert await stranger.refused("GET", path) == (401, Code.MARKETPLACE_TOKEN)


async def test_a_token_of_two_tenants_opens_neither(site: Site) -> None:
    site.files["nlp"].write_text(TOKENS["vision"])
    assert (await site.vision.refused("GET", "/health/readiness"))[0] == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/view"),
        ("POST", "/v1/key-create"),
        ("POST", "/key/list"),
        ("GET", "/key/generate"),
        ("GET", "/global/spend/report?group_by=api_key"),
        ("POST", "/user/new"),
    ],
)
async def test_there_is_no_other_place(site: Site, method: str, path: str) -> None:
    body = {} if method == "POST" else None
    assert await site.vision.refused(method, path, body) == (400, Code.WIRE)


async def test_an_operators_limits_of_a_key_hold_beside_the_agents(site: Site) -> None:
    token = (await site.vision.order(rpm_limit=9))["token"]
    subject = AllowanceSubject(tenant="vision", key_id=token)
    change = LimitChangeRequest(limits=RequestLimits(concurrent=2, requests_per_minute=3))
    site.ledger.request_limits.change_limits(subject, change, "root", "operator")
    await site.vision.tells("POST", "/key/update", {"key": token, **NO_LIMITS, "tpm_limit": 5})
    held = RequestLimits(concurrent=2, requests_per_minute=3, tokens_per_minute=5)
    (limited,) = site.ledger.request_limits.standing_limits()
    assert limited.limits == held
    new = (await site.vision.tells("POST", f"/key/{token}/regenerate", {}))["token"]
    limits = {one.key_id: one.limits for one in site.ledger.request_limits.standing_limits()}
    assert limits[new] == held


async def test_usage_is_by_day_key_and_model_also_of_keys_that_have_ended(site: Site) -> None:
    first = (await site.vision.order())["token"]
    await site.vision.tells("POST", "/key/delete", {"keys": [first]})
    second = (await site.vision.order())["token"]
    other = (await site.nlp.order())["token"]
    day_s = int(wall_s()) // 86_400 * 86_400 - 86_400
    posted(
        site,
        record(0, first, "science/chat", day_s, 10),
        record(1, second, "science/chat", day_s + 86_399, 20),
        record(2, second, "vision/bert", day_s, 40),
        record(3, "-", "vision/bert", day_s, 80),
        record(4, other, "science/chat", day_s, 160, payer="nlp"),
        record(5, second, "science/chat", day_s - 1, 320),
    )
    day, before = (utc_day(at_s) for at_s in (day_s, day_s - 1))
    (shown,) = (await site.vision.usage(day, day))["results"]
    assert shown["date"] == day
    by_key = shown["breakdown"]["api_keys"]
    assert {token: part["metadata"]["key_alias"] for token, part in by_key.items()} == {
        first: f"{ORDER}-1",
        second: f"{ORDER}-1",
    }
    counted = {token: part["metrics"] for token, part in by_key.items()}
    assert counted[second] == {
        "spend": 0.0,
        "prompt_tokens": 60,
        "completion_tokens": 6,
        "cache_read_input_tokens": 0,
        "total_tokens": 66,
        "api_requests": 2,
    }
    models = shown["breakdown"]["models"]
    assert {model: part["metrics"]["prompt_tokens"] for model, part in models.items()} == {
        "science/chat": 30,
        "vision/bert": 40,
    }
    assert models["science/chat"]["api_key_breakdown"][first]["metrics"]["prompt_tokens"] == 10
    assert shown["metrics"]["prompt_tokens"] == 70
    both = await site.vision.usage(before, day)
    assert [result["date"] for result in both["results"]] == [before, day]
    assert both["metadata"] == {"page": 1, "total_pages": 1, "has_more": False}
    assert (await site.nlp.usage(before, day))["results"][0]["metrics"]["prompt_tokens"] == 160
    for days in ((day, before), ("2020-01-01", "2026-11-30"), ("x", day)):
        asked = urlencode({"start_date": days[0], "end_date": days[1]})
        refused = await site.vision.refused("GET", f"/user/daily/activity?{asked}")
        assert refused == (400, Code.MARKETPLACE)


def utc_day(at_s: int) -> str:
    return strftime("%Y-%m-%d", gmtime(at_s))


def record(
    number: int, key_id: str, service: str, end_s: int, prompts: int, *, payer: str = "vision"
) -> UsageRecord:
    return UsageRecord(
        number=number,
        payer=payer,
        key_id=key_id,
        service=service,
        start_ms=(end_s - 1) * 1000,
        end_ms=end_s * 1000,
        prompt_tokens=prompts,
        output_tokens=prompts // 10,
    )


def posted(site: Site, *records: UsageRecord) -> None:
    assert len(site.ledger.usage.post("gateway:1", records, "UTC")) == len(records)
