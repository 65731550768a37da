"""A centre's day in a minute: real HAProxy, real ledger, each of them killed; every sum adds up."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_harness import CHAT, Harness, Replica, eventually, gateway_up

from benchmarks.meters_launcher import Books
from benchmarks.server import Server, server
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.key_messages import KeyGrant
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.slurm_plugin.common.usage_requests import TokenLine, TokenUsageRequest, UsageGroup
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.usage_reads import UsageReader

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

CLUSTER, RUN = "centre", (814, 0, 1_764_000_000)
REQUESTS, CLIENTS = 20_000, 24
TENANTS, PERSONS, SERVICES = 50, 200, 10
KILLS = 5
"""So often each of the three."""
ROOT = UsageReader("root", None)
Asker = tuple[str, str, str, str]
"""Tenant, person, key id, service."""


class Engine(Replica):
    """Answers at once, with the usage that the request names, and counts it as llama.cpp does."""

    prompt_tokens = output_tokens = 0

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        prompt, cached, output = (await request.json())["uses"]
        self.prompt_tokens += prompt - cached
        self.output_tokens += output
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        return web.json_response({"usage": usage | {"prompt_tokens_details": details}})

    @property
    def load(self) -> EngineLoad:
        counts = EngineCounts(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)
        return EngineLoad(0, 0, counts=counts, counts_cached=False)


class Launcher:
    """The part of the launcher that counts. It is killed, and the next one goes on."""

    def __init__(self, gateway: Harness, engine: Engine, ledger: Ledger) -> None:
        self._gateway, self._engine, self._ledger = gateway, engine, ledger
        self._tasks: list[asyncio.Task[None]] = []
        self.start()

    def start(self) -> None:
        settings = self._gateway.settings
        kept, journal = KeptLines(settings.kept_lines), UsageJournal(settings.directory)
        self.watch = UsageWatch(Books(self._ledger), journal, kept)
        verified = SimpleNamespace(
            run=SimpleNamespace(start_s=RUN[2], endpoint=self._engine.endpoint)
        )
        generation = SimpleNamespace(verified={RUN[1]: verified})
        services = dict.fromkeys(service_names(), SimpleNamespace(generations={RUN[0]: generation}))
        self.watch.turned(services)  # type: ignore[arg-type]
        steps: tuple[Any, ...] = (self._hear, self._write, self._post, self._count)
        self._tasks = [asyncio.create_task(again(step)) for step in steps]

    async def _hear(self) -> None:
        await self._gateway.runtime.hear(self.watch.hear)

    async def _write(self) -> None:
        self.watch.hear()
        await self.watch.write()

    async def _post(self) -> None:
        await self.watch.post()

    async def _count(self) -> None:
        self.watch.counted("bench/s0", RUN, self._engine.load)
        await self.watch.report_counters()

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def again(step: Any) -> None:
    while True:
        with suppress(SlicewiseError, OSError):
            await step()
        await asyncio.sleep(0.1)


def service_names() -> list[str]:
    return [f"bench/s{number}" for number in range(SERVICES)]


def key_of(person: int) -> str:
    return f"key-of-{person}"


def key_id_of(person: int) -> str:
    return f"{person:012x}"


@pytest.fixture
def database() -> Iterator[Server]:
    """Its own: it is killed."""
    with server() as started:
        started.run("createdb", CLUSTER)
        schema_revisions.upgrade(started.url(CLUSTER))
        yield started


async def routed(gateway: Harness, engine: Engine) -> None:
    targets = {engine.endpoint: ServerMode.READY}
    await gateway.route(*(Route(name, 8, targets, "llamacpp") for name in service_names()))
    grants = {
        sha256(key_of(person).encode()).hexdigest(): KeyGrant(
            opens=f"t{person % TENANTS}", key_id=key_id_of(person), person=f"p{person}"
        )
        for person in range(PERSONS)
    }
    models = {f"*,{name}": name for name in service_names()}
    await gateway.set_keys(grants, models=models)


class Asked:
    """What clients have asked for and got, by who asked what."""

    def __init__(self, gateway: Harness, dice: random.Random) -> None:
        self._gateway, self._dice = gateway, dice
        self._left = REQUESTS
        self.told: dict[Asker, Counter[str]] = {}
        self.lost: dict[Asker, Counter[str]] = {}

    async def all(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(self._client(session) for _ in range(CLIENTS)))

    @property
    def ended(self) -> int:
        return REQUESTS - self._left

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self._left > 0:
            self._left -= 1
            person, service = self._dice.randrange(PERSONS), self._dice.choice(service_names())
            prompt = self._dice.randint(1, 4000)
            uses = (prompt, self._dice.randint(0, prompt), self._dice.randint(0, 900))
            asker = (f"t{person % TENANTS}", f"p{person}", key_id_of(person), service)
            used = {"requests": 1, "prompt": uses[0], "cached": uses[1], "output": uses[2]}
            body = {"model": service, "uses": uses}
            headers = {"x-api-key": key_of(person)}
            try:
                url = f"{self._gateway.settings.url}{CHAT}"
                async with session.post(url, json=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.status in {200, 502, 503}, await answer.text()
                    ends = self.told if answer.status == 200 else self.lost
            except aiohttp.ClientConnectorError:
                self._left += 1
                await asyncio.sleep(0.1)
                continue
            except (aiohttp.ClientError, OSError):
                ends = self.lost
                await asyncio.sleep(0.1)
            ends.setdefault(asker, Counter()).update(used)


def lines_of(ledger: Ledger, by: UsageGroup) -> tuple[TokenLine, ...]:
    return ledger.usage_reads.lines(TokenUsageRequest(by=by), ROOT, "UTC", 10_000)


def sums(lines: tuple[TokenLine, ...]) -> Counter[str]:
    found = Counter[str]()
    for line in lines:
        found.update(used(line))
    return found


def used(line: TokenLine) -> dict[str, int]:
    return {
        "requests": line.requests,
        "prompt": line.prompt_tokens,
        "cached": line.cached_prompt_tokens,
        "output": line.output_tokens,
    }


async def test_every_statement_adds_up_whatever_was_killed(tmp_path: Path, database: Server):
    dice = random.Random(20_000)  # noqa: S311
    rooms = {"services": 20, "backends": 20, "services_per_tenant": 12, "require_keys": True}
    async with gateway_up(tmp_path, **rooms) as gateway, aiohttp.ClientSession() as session:
        engine = Engine()
        await engine.start()
        with Ledger(database.url(CLUSTER), CLUSTER) as ledger:
            launcher = Launcher(gateway, engine, ledger)
            await routed(gateway, engine)
            asked = Asked(gateway, dice)
            asking = asyncio.create_task(asked.all(session))

            async def kill(name: str) -> None:
                if name == "gateway":
                    await gateway.kill()
                    await gateway.start()
                    await routed(gateway, engine)
                elif name == "launcher":
                    await launcher.kill()
                    launcher.start()
                else:
                    await asyncio.to_thread(database.kill)
                    await asyncio.to_thread(database.start)

            names = ["gateway", "launcher", "postgresql"] * KILLS
            dice.shuffle(names)
            for number, name in enumerate(names, 1):
                await eventually(lambda to=number: is_at(asking, asked, to, len(names)), 300)
                await kill(name)
            await asking

            async def is_booked() -> bool:
                """Whether the ledger knows the engine's counters, and nothing waits."""
                query = "SELECT prompt_tokens, output_tokens FROM slicewise.engine_counters"
                (seen,) = database.query(CLUSTER, query)
                counted = [engine.prompt_tokens, engine.output_tokens]
                return list(seen) == counted and not launcher.watch.waiting

            await eventually(is_booked, 300)
            await asyncio.sleep(1)
            await eventually(is_booked, 300)
            await launcher.kill()
            check(ledger, engine, asked)
        await engine.stop()


async def is_at(asking: asyncio.Task[None], asked: Asked, number: int, of: int) -> bool:
    if asking.done():
        asking.result()
    return asked.ended >= REQUESTS * number // (of + 1)


def check(ledger: Ledger, engine: Engine, asked: Asked) -> None:
    by_key = lines_of(ledger, "key")
    total = sums(by_key)
    for by in ("tenant", "person", "service"):
        assert sums(lines_of(ledger, by)) == total  # type: ignore[arg-type]
    # Of each key what its clients were told is booked, and no more than what they asked for.
    told, lost = of_keys(asked.told), of_keys(asked.lost)
    booked = {(line.tenant, line.person, line.key_id): used(line) for line in by_key}
    assert booked.keys() <= told.keys() | lost.keys()
    unbooked = Counter[str]()
    for key, least in told.items():
        for name, amount in least.items():
            most = amount + lost.get(key, Counter())[name]
            of_key = booked.get(key, {}).get(name, 0)
            assert of_key <= most
            unbooked[name] += max(0, amount - of_key)
    # HAProxy may be killed between the end of an answer and its line, one of each client at most.
    assert unbooked["requests"] <= CLIENTS * KILLS
    (rest,), _ = ledger.usage_reads.unattributed(TokenUsageRequest(), ROOT)
    assert rest.prompt_tokens + total["prompt"] - total["cached"] == engine.prompt_tokens
    assert rest.output_tokens + total["output"] == engine.output_tokens
    found = ledger.audit.verify()
    assert (found.imbalance, found.faults) == (0, ())


def of_keys(ends: dict[Asker, Counter[str]]) -> dict[tuple[str, str, str], Counter[str]]:
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for (tenant, person, key_id, _), amounts in ends.items():
        found.setdefault((tenant, person, key_id), Counter()).update(amounts)
    return found
