"""A service that other tenants ask, on a whole cluster: who is let in, what counts, who pays."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString

import aiohttp
import psycopg
import pytest
from api_keys import forget_keys
from llamacpp_replicas import LlamaReplica, llama_replicas
from openai_clients import events
from psycopg.rows import dict_row
from quotas import own_ledger, until_in_force
from service_status import services, until_routed
from test_compile import tenant_account
from waiting import PATIENCE_S, until, until_done, until_is

from slicewise.cluster.language.token_weights import DEFAULT
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model
from slicewise.slurm_plugin.quota_cycle.share_hours import share_hours
from slicewise.slurm_plugin.rules.accounting.shared_runs import HOUR_S, USAGE_DELAY_S

pytestmark = pytest.mark.integration

OWNER, SERVICE = "nlp", "nlp/pool"
FILE = """\
[service]
name = "pool"
tenant = "nlp"
audience = ["vision", "guest"]
engine = "llamacpp"
model_repository = {models}
model = "tiny"
profile = "1g.18gb"
max_replicas = 1
min_replicas = 1
concurrency = 4
ttft_ms = 60000
tpot_ms = 60000
lease_s = 3600
memory_mib = 512
"""
ASKED = {
    ("bob", "nlp"): [(3, 5, False), (40, 7, True)],
    ("alice", "vision"): [(200, 60, True), (90, 80, False), (90, 30, True)],
    ("carol", "guest"): [(20, 100, False), (300, 10, True)],
}
"""Of each person and tenant: words of the prompt, tokens of the answer at most, whether it is a
stream."""


class Site:
    """A service of bob's tenant nlp, keys of three tenants, and one of a tenant that may not ask.

    Attributes:
        outside: that tenant: alice, who is in one that may ask, is a member of it, too.
        keys: what ``key create --json`` printed, by person and tenant.
    """

    def __init__(self, sandbox: Sandbox, outside: str) -> None:
        self.sandbox, self.outside = sandbox, outside
        for tenant in (OWNER, "vision", "guest", outside):
            self.slicewise("root", "tenant-quota", "set", tenant, "--nominal", "1")
            until_in_force(sandbox, tenant)
        models = sandbox.layout.models / "pool"
        (models / "tiny").mkdir(parents=True)
        write_tiny_model(models / "tiny" / "tiny.gguf")
        file = sandbox.layout.home / sandbox.state.users["bob"].name / "pool.toml"
        file.write_text(FILE.format(models=json.dumps(str(models))))
        self.slicewise("bob", "service", "apply", str(file))
        until_routed(sandbox, SERVICE)
        self.keys = {asker: self._key(*asker) for asker in (*ASKED, ("alice", outside))}

    def slicewise(self, user: str, *words: str) -> str:
        return self.sandbox.run(user, ("slicewise", *words)).stdout

    def read(self, *words: str, user: str = "root") -> Any:
        return json.loads(self.slicewise(user, *words, "--json"))

    def _key(self, user: str, tenant: str) -> Mapping[str, str]:
        return dict(self.read("key", "create", tenant, "--name", "pool", "--yes", user=user))

    def person(self, user: str) -> str:
        """As the site names it."""
        return self.sandbox.state.users[user].name

    def replicas(self) -> list[LlamaReplica]:
        return llama_replicas(self.sandbox.state.users["bob"].uid)

    def rows(self, query: LiteralString, *values: object) -> list[dict[str, Any]]:
        url = self.sandbox.layout.database_url(self.sandbox.state.users["slurm"].name)
        with psycopg.connect(url, row_factory=dict_row) as connection:
            return connection.execute(query, values).fetchall()

    def used(self, by: str) -> list[Mapping[str, Any]]:
        """Lines of ``slicewise usage`` on the service."""
        return list(self.read("usage", "--by", by, "--service", SERVICE)["lines"])

    def runs(self) -> list[Mapping[str, Any]]:
        """Of the service, by the ledger."""
        runs = self.read("ledger", "statement", OWNER, "--journal")["runs"]
        return [run for run in runs if run["service"] == "pool"]


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    with tenant_account(sandbox) as outside:
        site = Site(sandbox, outside)
        yield site
        sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
        until(lambda: SERVICE not in services(sandbox))
        until(lambda: not site.replicas())
        forget_keys(sandbox, OWNER, "vision", "guest", outside)


class Client:
    """Asks at the site's one address."""

    def __init__(self, site: Site, session: aiohttp.ClientSession) -> None:
        self._site, self._session = site, session

    async def ask(
        self, asker: tuple[str, str], body: Mapping[str, Any], before: str = ""
    ) -> tuple[int, bytes]:
        url = f"{self._site.sandbox.layout.gateway_url}{before}/v1/chat/completions"
        headers = {"authorization": f"Bearer {self._site.keys[asker]['key']}"}
        async with self._session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def refusal(self, asker: tuple[str, str], before: str = "") -> tuple[int, str]:
        status, text = await self.ask(asker, chat(1, 1, is_stream=False), before)
        return status, json.loads(text)["error"]["code"] if status >= 400 else ""


def usage_of(text: bytes, *, is_stream: bool) -> Counter[str]:
    """What an answer says that it has used."""
    said = (events(text)[-1] if is_stream else json.loads(text))["usage"]
    details = said.get("prompt_tokens_details") or {}
    return Counter(
        requests=1,
        prompt_tokens=said["prompt_tokens"],
        cached_prompt_tokens=details.get("cached_tokens", 0),
        output_tokens=said["completion_tokens"],
    )


def chat(words: int, tokens: int, *, is_stream: bool) -> Mapping[str, Any]:
    messages = [{"role": "user", "content": "hello " * words}]
    body = {"model": SERVICE, "messages": messages, "max_tokens": tokens, "stream": is_stream}
    return body | ({"stream_options": {"include_usage": True}} if is_stream else {})


COUNTS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens")


def counts(line: Mapping[str, Any]) -> dict[str, int]:
    return {name: line[name] for name in COUNTS}


@pytest.mark.promise("Whoever asks a shared service pays for it: each token is booked once.")
async def test_an_audience_is_let_in_counted_exactly_and_charged(site: Site) -> None:
    timeout = aiohttp.ClientTimeout(total=2 * PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        client = Client(site, session)
        told = await asked(client)
        await others_are_refused(site, client)
    await is_counted(site, told)
    await asyncio.to_thread(is_charged, site)


async def asked(client: Client) -> Mapping[tuple[str, str], Counter[str]]:
    """What all were told that they have used, once each has been let in."""
    told = {asker: Counter[str]() for asker in ASKED}

    async def tell(asker: tuple[str, str], words: int, tokens: int, is_stream: bool) -> None:
        body = chat(words, tokens, is_stream=is_stream)
        # A key is known to the gateway a moment after it was made.
        _, text = await until_done(lambda: client.ask(asker, body), lambda seen: seen[0] == 200)
        told[asker].update(usage_of(text, is_stream=is_stream))

    await asyncio.gather(
        *(tell(asker, *request) for asker, requests in ASKED.items() for request in requests)
    )
    return told


async def others_are_refused(site: Site, client: Client) -> None:
    """Who asks is a person that the audience has, by another tenant's key."""
    outsider = ("alice", site.outside)
    refused = (404, "SW-GATEWAY-UNKNOWN")
    await until_done(lambda: client.refusal(outsider), lambda seen: seen == refused)
    of_another = await client.refusal(outsider, f"/{SERVICE}")
    assert of_another == (403, "SW-GATEWAY-KEY-TENANT")


async def is_counted(site: Site, told: Mapping[tuple[str, str], Counter[str]]) -> None:
    """By tenant, person and key; and the engine has made as much, and what is unattributed."""
    by_key = {
        (tenant, site.person(user), site.keys[user, tenant]["key_id"]): dict(used)
        for (user, tenant), used in told.items()
    }
    by_person = {(tenant, person): used for (tenant, person, _), used in by_key.items()}
    by_tenant = {(tenant,): used for (tenant, *_), used in by_key.items()}
    for by, fields, wanted in (
        ("key", ("tenant", "person", "key_id"), by_key),
        ("person", ("tenant", "person"), by_person),
        ("tenant", ("tenant",), by_tenant),
    ):

        def seen(by: str = by, fields: tuple[str, ...] = fields) -> Mapping[Any, Any]:
            return {tuple(line[field] for field in fields): counts(line) for line in site.used(by)}

        await asyncio.to_thread(until_is, seen, wanted)
    posted = sum(told.values(), Counter())
    (replica,) = site.replicas()

    async def engine_and_books() -> tuple[Mapping[str, int], Mapping[str, int]]:
        figures = await replica.figures()
        made = {"prompt": "prompt_tokens_total", "output": "tokens_predicted_total"}
        # Where each request told what it had used, there is no such line.
        rests = site.read("usage", "--service", SERVICE)["unattributed"]
        rest = rests[0] if rests else {"prompt_tokens": 0, "output_tokens": 0}
        # The engine counts of a prompt what its cache had not.
        read = posted["prompt_tokens"] - posted["cached_prompt_tokens"]
        return {name: int(figures[key]) for name, key in made.items()}, {
            "prompt": read + rest["prompt_tokens"],
            "output": posted["output_tokens"] + rest["output_tokens"],
        }

    await until_done(engine_and_books, lambda both: both[0] == both[1])


def is_charged(site: Site) -> None:
    """Once its run has ended and its hours are divided; the hour's end is not waited for."""
    site.slicewise("bob", "service", "delete", SERVICE, "--now")
    runs = until(lambda: (ended := site.runs()) and all(run["end_s"] for run in ended) and ended)
    used = sum(run["used_millislice_s"] for run in runs)
    last_s = max(run["end_s"] for run in runs)
    with own_ledger(site.sandbox) as ledger:
        later_s = last_s // HOUR_S * HOUR_S + HOUR_S + USAGE_DELAY_S
        policy = ledger.tenants.policy()
        shared = share_hours(ledger, policy, "owner", (), later_s, zone="UTC")
        assert not shared.refused
    each_hour_is_divided_by_weight(site)
    charged = {line["tenant"]: line["millislice_s"] for line in site.used("tenant")}
    assert sum(charged.values()) == used > 0
    assert charged.keys() == {OWNER, "vision", "guest"}
    assert all(charged.values())
    for by in ("person", "key"):
        assert sum(line["millislice_s"] for line in site.used(by)) == used
    statement = {line["tenant"]: line for line in site.read("ledger", "statement")["tenants"]}
    others = charged["vision"] + charged["guest"]
    owner = statement[OWNER]
    assert owner["relieved_millislice_s"] == others
    assert owner["charged_millislice_s"] == owner["used_millislice_s"] - others
    for tenant in ("vision", "guest"):
        assert statement[tenant]["shared_millislice_s"] == charged[tenant]
        assert site.read("ledger", "statement", tenant)["tenants"] == [statement[tenant]]
    assert site.outside not in statement
    site.slicewise("root", "ledger", "verify")


def each_hour_is_divided_by_weight(site: Site) -> None:
    """By what tokens weigh, to the millislice-second; all that was used is somebody's."""
    hours = site.rows(
        "SELECT h.*, r.task, r.start_s FROM slicewise.shared_hours h"
        " JOIN slicewise.runs r ON r.id = h.run_id WHERE r.tenant = %s AND h.requests > 0",
        OWNER,
    )
    assert hours
    for hour in hours:
        parts = site.rows(
            "SELECT tenant, part, sum(amount)::bigint AS amount FROM slicewise.share_entries"
            " WHERE (run_id, hour_s) = (%s, %s) GROUP BY 1, 2",
            *(hour["run_id"], hour["hour_s"]),
        )
        assert sum(part["amount"] for part in parts) == hour["amount"]
        of_tokens = {part["tenant"]: part["amount"] for part in parts if part["part"] == "tokens"}
        weights = defaultdict[str, int](int)
        for use in site.rows(
            "SELECT payer, prompt_tokens, cached_prompt_tokens, output_tokens"
            " FROM slicewise.usage_hours"
            " WHERE (hour_s, array_job_id || '_' || index, run_start_s) = (%s, %s, %s)",
            *(hour["hour_s"], hour["task"], hour["start_s"]),
        ):
            payer, *tokens = use.values()
            weights[payer] += DEFAULT.weigh(*tokens)
        busy = hour["amount"] * hour["busy_ms"]
        length_ms = 1000 * (hour["until_s"] - hour["from_s"])
        total = sum(weights.values())
        # Requests that made no token have no part.
        for payer, weight in weights.items() if total else ():
            exact = busy * weight / (length_ms * total)
            assert abs(of_tokens[payer] - exact) < 1, payer
