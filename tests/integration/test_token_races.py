"""Races for the last tokens, at real HAProxys that share one real ledger."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from gateway_harness import CHAT, Harness, Replica, decided, eventually, gateway_up
from test_token_budgets import Site as Budgets
from test_token_budgets import a_record

from benchmarks.server import server
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.language.periods import Period, date_text, next_start_s
from slicewise.cluster.rpc.key_messages import KeyGrant
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, RequestLimits
from slicewise.cluster.rpc.usage_messages import (
    AllowancesAnswer,
    AllowancesRequest,
    AllowanceSubject,
    EngineCountersRequest,
    UsagePostAnswer,
    UsagePostRequest,
)
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.allowance_watch import renew
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.api.usage import UsageBooks
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.types import Budget

pytestmark = pytest.mark.integration

CLUSTER, ZONE = "races", "Europe/Berlin"
SERVICE, RUN = "science/chat", (814, 0, 1_764_000_000)
PAYERS = ("vision", "speech")
"""Tenants below lab, whose budget pays for them."""
PROMPT, OUTPUT = 40, 50
USED = PROMPT + OUTPUT
"""Tokens of each request."""
BODY = json.dumps({"model": SERVICE, "max_tokens": OUTPUT, "uses": [PROMPT, OUTPUT]})
HOLD = len(BODY) + OUTPUT
"""Tokens that a request takes until it ends, where so many are left; more than it uses."""
MORE = (os.cpu_count() or 1) - 1
"""Requests that a process of HAProxy may let in beyond what it holds: in the same moment each other
thread may take the last tokens, too."""
ROOT = Caller(0)


class Engine(Replica):
    """Uses what the request says, once it goes on."""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        prompt, output = (await request.json())["uses"]
        await self.work()
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        return web.json_response({"choices": [], "usage": usage})


class Daemon:
    """What the launcher asks of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._books = UsageBooks(ledger, ALONE, ZONE)

    async def post_usage(self, request: UsagePostRequest) -> UsagePostAnswer:
        return await self._books.post(request, ROOT)

    async def allowances(self, request: AllowancesRequest) -> AllowancesAnswer:
        return await self._books.allowances(request, ROOT)

    async def note_engine_counters(self, request: EngineCountersRequest) -> None:
        await self._books.note_counters(request, ROOT)


class Gateway:
    """HAProxy, and the part of a launcher that counts and renews."""

    def __init__(self, harness: Harness, ledger: Ledger, engine: Engine) -> None:
        self.harness = harness
        self._engine, daemon = engine, Daemon(ledger)
        settings = harness.settings
        journal, kept = UsageJournal(settings.directory), KeptLines(settings.kept_lines)
        self._watch = UsageWatch(daemon, journal, kept)
        run = SimpleNamespace(start_s=RUN[2], endpoint=engine.endpoint)
        generation = SimpleNamespace(verified={RUN[1]: SimpleNamespace(run=run)})
        state: Any = {SERVICE: SimpleNamespace(generations={RUN[0]: generation})}
        self._watch.turned(state)
        self.renew = partial(renew, daemon, harness.runtime, self._watch.unposted)

    async def route(self) -> None:
        """As a turn of the launcher does it."""
        targets = {self._engine.endpoint: ServerMode.READY}
        await self.harness.route(Route(SERVICE, 8, targets, "llamacpp"))
        grants = {
            sha256(payer.encode()).hexdigest(): KeyGrant(
                opens=payer, key_id=f"{number:012x}", person="anna"
            )
            for number, payer in enumerate(PAYERS)
        }
        await self.harness.set_keys(grants, models={f"*,{SERVICE}": SERVICE})

    async def ask(self, payer: str) -> tuple[int, str]:
        """The status, and the message of a refusal."""
        url, headers = f"{self.harness.settings.url}{CHAT}", {"x-api-key": payer}
        async with self.harness.session.post(url, data=BODY, headers=headers) as answer:
            said = await answer.json()
            return answer.status, said["error"]["message"] if answer.status != 200 else ""

    async def held(self) -> int:
        """Tokens of requests in flight."""
        _, taken = await self.harness.runtime.taken()
        return sum(taken[payer].held for payer in PAYERS if payer in taken)

    async def counts(self) -> None:
        """As the launcher's loops do, which go on whatever fails."""
        steps: tuple[Callable[[], Awaitable[None]], ...] = (self._write, self._watch.post)
        async with asyncio.TaskGroup() as group:
            for step in (*steps, self.renew):
                group.create_task(again(step))

    async def _write(self) -> None:
        self._watch.hear()
        await self._watch.write()


async def again(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(SlicewiseError, OSError):
            await step()
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with server() as started:
        started.run("createdb", CLUSTER)
        schema_revisions.upgrade(started.url(CLUSTER))
        yield started.url(CLUSTER)


class Site:
    """A ledger, and gateways that ask it, of a replica that serves all."""

    def __init__(self, ledger: Ledger, engine: Engine, gateways: Sequence[Gateway]) -> None:
        self.ledger, self.engine, self.gateways = ledger, engine, gateways
        self.budgets = Budgets(ledger)
        self.now_s = int(time.time())

    def leave(self, tokens: int, *, of: str) -> None:
        """So many of 1,000 are left: of a budget for both, or of a limit of each."""
        monthly = Budget(Period.MONTH, 1000, meter=TOKENS.name)
        if of == "budget":
            self.budgets.set_budget(monthly, at_s=self.now_s)
            self.budgets.roll(self.now_s)
        used = {"budget": {PAYERS[0]: 1000 - tokens}, "limit": dict.fromkeys(PAYERS, 1000 - tokens)}
        for number, (payer, amount) in enumerate(used[of].items()):
            if of == "limit":
                self.limit(payer, 1000)
            self.budgets.post(a_record(number, amount, payer, end_s=self.now_s), boot="before")

    def limit(self, payer: str, tokens: int) -> None:
        limits = RequestLimits(tokens_per_month=tokens)
        change = LimitChangeRequest(limits=limits, is_exact=True)
        subject = AllowanceSubject(tenant=payer)
        self.ledger.request_limits.change_limits(subject, change, "olga", "operator")

    def give(self, tokens: int, *, of: str) -> None:
        """More of that."""
        if of == "limit":
            for payer in PAYERS:
                self.limit(payer, 1000 + tokens)
            return
        grant = BudgetEntry("lab", "grant", tokens, None, "olga", "more", meter=TOKENS.name)
        self.ledger.budgets.enter(grant, None)

    def used(self) -> int:
        """Tokens of both payers, by the ledger."""
        balances = self.ledger.budgets.balances(TOKENS.name)
        return sum(balances[payer].used for payer in PAYERS if payer in balances)

    async def until_used(self, tokens: int) -> None:
        async def is_booked() -> bool:
            return await asyncio.to_thread(self.used) == tokens

        await eventually(is_booked)


@asynccontextmanager
async def site_up(directory: Path, database: str, gateways: int) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        ledger = stack.enter_context(Ledger(database, uuid4().hex))
        engine = await Engine().start()
        stack.push_async_callback(engine.stop)
        running = []
        for number in range(gateways):
            place = directory / str(number)
            place.mkdir()
            harness = await stack.enter_async_context(gateway_up(place, require_keys=True))
            running.append(Gateway(harness, ledger, engine))
            await running[-1].route()
        yield Site(ledger, engine, running)


@asynccontextmanager
async def counting(site: Site) -> AsyncIterator[None]:
    """Each gateway has its first tokens, and its launcher goes on."""
    for gateway in site.gateways:
        await gateway.renew()
    tasks = [asyncio.create_task(gateway.counts()) for gateway in site.gateways]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


NAMED = {
    "budget": "tenant lab's budget of tokens",
    "limit": "the limit of tokens a month of tenant vision",
}
BEFORE = {"budget": 1000, "limit": 2 * 1000}
"""Tokens that both may use together."""


@pytest.mark.parametrize("of", NAMED)
async def test_what_is_used_up_lets_nobody_in_and_says_so(tmp_path: Path, database: str, of: str):
    """LiteLLM #26672: what was checked was not yet what had been used."""
    next_s = next_start_s(Period.MONTH, int(time.time()), ZONE) or 0
    why = f"{NAMED[of]} is used up until {date_text(next_s, ZONE)}"
    used_up = f"SW-GATEWAY-TOKENS: {why}. Try again after Retry-After."
    async with site_up(tmp_path, database, 1) as site:
        site.leave(3 * USED + 5, of=of)
        before, let_in = site.used(), 0
        (gateway,) = site.gateways

        async def is_used_up() -> bool:
            nonlocal let_in
            status, message = await gateway.ask("vision")
            let_in += status == 200
            return (status, message) == (429, used_up)

        async with counting(site):
            await eventually(is_used_up)
            # The last one may have had less left than it used, and the one before not yet ended.
            assert 3 * USED + 5 <= let_in * USED < 3 * USED + 5 + 2 * USED
            await site.until_used(before + let_in * USED)
            refused = await asyncio.gather(*(gateway.ask("vision") for _ in range(20)))
            assert set(refused) == {(429, used_up)}
            # HAProxy that starts again has forgotten what it took.
            await gateway.harness.kill()
            await gateway.harness.start()
            await gateway.route()
            refused = await asyncio.gather(*(gateway.ask("vision") for _ in range(20)))
            assert {status for status, _ in refused} == {429}
            let_in_before = let_in
            await eventually(is_used_up)
            assert let_in == let_in_before
            assert site.used() == before + let_in * USED
            site.give(1000, of=of)
            await eventually(lambda: is_let_in(gateway))
        assert site.budgets.is_sound()


async def is_let_in(gateway: Gateway) -> bool:
    return (await gateway.ask("vision"))[0] == 200


@pytest.mark.parametrize("of", NAMED)
async def test_first_requests_at_once_take_no_more_than_is_left_and_what_is_in_flight(
    tmp_path: Path, database: str, of: str
):
    """LiteLLM #40095 and #34732: at two gateways, by tenants that neither has seen before."""
    async with site_up(tmp_path, database, 2) as site:
        site.leave(100, of=of)
        before = site.used()
        site.engine.pause()

        async def ask(gateway: Gateway, payer: str) -> int:
            status, message = await gateway.ask(payer)
            assert status == 200 or message.startswith("SW-GATEWAY-TOKENS: ")
            return status

        asking = [
            ask(gateway, payer) for _ in range(20) for gateway in site.gateways for payer in PAYERS
        ]
        harnesses = [gateway.harness for gateway in site.gateways]
        async with counting(site), decided(harnesses, SERVICE, asking) as let_in:
            held = sum([await gateway.held() for gateway in site.gateways])
            assert let_in
            assert held <= BEFORE[of] - before + MORE * HOLD * len(PAYERS) * len(harnesses)
            site.engine.go_on()
            assert set(await asyncio.gather(*let_in)) == {200}
            # Nothing else was let in, and all of it is booked, beyond what was left, too.
            await site.until_used(before + len(let_in) * USED)
        assert site.budgets.is_sound()
