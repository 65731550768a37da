"""Measures a full service's queue in a real HAProxy: as they came, and fair between persons.

An engine that only sleeps has a few places. One person floods it with short requests, one with long
ones, one asks seldom. Launcher and clients run in this process, each second as in the launcher.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from rich.table import Table

from benchmarks import reporting
from benchmarks.line import Line, chats_answered
from benchmarks.machine import machine
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant
from slicewise.cluster.runtime.console import console
from slicewise.launcher.gateway.haproxy import HaproxyRuntime
from slicewise.launcher.process.fair_queues import ORDER_EVERY_S, FairQueues
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.gateway.types import load_of
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.simulation.rules.runs.summary import percentile

SEED, PLACES = 20_261_129, 8
SERVICE = "bench/chat"
WARM_S, MINUTE_S, ALONE_S = 30.0, 60.0, 30.0
FIRST_S, PROMPT_S, ANSWER_S = 0.03, 0.0002, 0.01
ANSWER_WEIGHT = 2


@dataclass(frozen=True)
class Person:
    """Who asks: so many clients without a pause, or one every ``every_s`` seconds on average."""

    name: str
    prompt: int
    answer: int
    clients: int = 1
    every_s: float = 0.0


PERSONS = (
    Person("short", 100, 60, clients=60),
    Person("long", 3_000, 150, clients=15),
    Person("seldom", 200, 60, every_s=2.0),
)


@dataclass
class Heard:
    """What clients have got: seconds at which a request came, began and ended, by person."""

    answers: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    failed: int = 0

    def shares(self, begin_s: float) -> Mapping[str, float]:
        """Each person's part of the tokens that were served in the minute from then on."""
        tokens = {person.name: self._tokens(person, begin_s) for person in PERSONS}
        return {name: used / max(1.0, sum(tokens.values())) for name, used in tokens.items()}

    def _tokens(self, person: Person, begin_s: float) -> float:
        each = person.prompt + ANSWER_WEIGHT * person.answer
        served_s = FIRST_S + person.prompt * PROMPT_S + person.answer * ANSWER_S
        end_s = begin_s + MINUTE_S
        inside = (
            max(0.0, min(end_s, ended_s) - max(begin_s, ended_s - served_s)) / served_s
            for _, _, ended_s in self.answers.get(person.name, ())
        )
        return each * sum(inside)

    def firsts_s(self, name: str, begin_s: float) -> list[float]:
        """Seconds to the first token, sorted, of requests that came in the minute."""
        return sorted(
            first_s - came_s
            for came_s, first_s, _ in self.answers.get(name, ())
            if begin_s <= came_s < begin_s + MINUTE_S
        )


async def _answer(request: web.Request) -> web.StreamResponse:
    """As an engine that streams: a first token, the rest, and what was used."""
    asked = await request.json()
    prompt, answer = int(asked["prompt_tokens"]), int(asked["max_tokens"])
    await asyncio.sleep(FIRST_S + prompt * PROMPT_S)
    stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
    usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    last = json.dumps({"choices": [], "usage": usage})
    # At the end of a run clients hang up.
    with suppress(ConnectionResetError):
        await stream.prepare(request)
        await stream.write(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')
        await asyncio.sleep(answer * ANSWER_S)
        await stream.write(f"data: {last}\n\ndata: [DONE]\n\n".encode())
    return stream


async def _ask(session: ClientSession, url: str, person: Person, heard: Heard) -> None:
    body = {"model": "chat", "stream": True, "prompt_tokens": person.prompt}
    body |= {"max_tokens": person.answer, "messages": [{"role": "user", "content": "a"}]}
    came_s = time.monotonic()
    headers = {"x-api-key": person.name}
    async with session.post(url, json=body, headers=headers) as answer:
        if answer.status != 200:  # noqa: PLR2004 -- HTTP's own
            heard.failed += 1
            await asyncio.sleep(0.1)
            return
        await answer.content.readline()
        first_s = time.monotonic()
        await answer.read()
    heard.answers.setdefault(person.name, []).append((came_s, first_s, time.monotonic()))


async def _client(
    session: ClientSession, url: str, person: Person, heard: Heard, random: Random
) -> None:
    async with asyncio.TaskGroup() as asked:
        while True:
            if person.every_s:
                asked.create_task(_ask(session, url, person, heard))
                await asyncio.sleep(random.expovariate(1 / person.every_s))
            else:
                await _ask(session, url, person, heard)


def _hear(usage: UsageWatch, line: str) -> None:
    usage.hear(line)


async def _launcher(runtime: HaproxyRuntime, usage: UsageWatch) -> None:
    queues = FairQueues()
    while True:
        load = load_of((await runtime.observe()).backend_of(SERVICE))
        service = SimpleNamespace(service=SERVICE, fair_among="persons", weights={}, load=load)
        queues.turned(cast("TurnPlan", SimpleNamespace(services=(service,))))
        await queues.order(runtime, usage.take_since(), 1000 * time.time())
        await asyncio.sleep(ORDER_EVERY_S)


async def _run(persons: tuple[Person, ...], seconds: float, *, fair: bool) -> Heard:
    heard, usage = Heard(), UsageWatch()
    with tempfile.TemporaryDirectory() as place:
        line = Line(Path(place), ENGINES["llamacpp"], SERVICE, PLACES)
        with line.door():
            socket = line.place / line.engine.sockets[0]
            async with chats_answered(socket, _answer), line.haproxy():
                runtime = HaproxyRuntime(line.settings)
                keys = {
                    sha256(person.name.encode()).hexdigest(): KeyGrant(
                        opens="bench", key_id=person.name, person=person.name
                    )
                    for person in PERSONS
                }
                await runtime.set_grants(GrantsAnswer(keys=keys))
                url = f"http://{line.gateway}/{SERVICE}/v1/chat/completions"
                timeout = ClientTimeout(total=None)
                async with ClientSession(connector=TCPConnector(limit=0), timeout=timeout) as one:
                    random = Random(SEED)  # noqa: S311 -- seeded on purpose
                    tasks = [
                        asyncio.create_task(_client(one, url, person, heard, random))
                        for person in persons
                        for _ in range(person.clients)
                    ]
                    if fair:
                        tasks.append(
                            asyncio.create_task(runtime.hear(lambda line: _hear(usage, line)))
                        )
                        tasks.append(asyncio.create_task(_launcher(runtime, usage)))
                    await asyncio.sleep(seconds)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
    return heard


async def _measured() -> Mapping[str, Any]:
    runs: dict[str, Mapping[str, Any]] = {}
    for order, fair in (("as they came", False), ("fair", True)):
        began_s = time.monotonic()
        heard = await _run(PERSONS, WARM_S + MINUTE_S, fair=fair)
        begin_s = began_s + WARM_S
        shares = heard.shares(begin_s)
        due = (1 - shares["seldom"]) / 2
        firsts_s = heard.firsts_s("seldom", begin_s)
        runs[order] = {
            "shares": {name: round(share, 4) for name, share in shares.items()},
            "off": round(max(abs(shares[name] / due - 1) for name in ("short", "long")), 4),
            "seldom_first_p95_s": round(percentile(firsts_s, 95), 3) if firsts_s else None,
            "failed": heard.failed,
        }
    began_s = time.monotonic()
    heard = await _run(PERSONS[-1:], ALONE_S, fair=False)
    alone_s = percentile(heard.firsts_s("seldom", began_s), 95)
    return {"runs": runs, "alone_first_p95_s": round(alone_s, 3)}


def measure(_is_quick: bool) -> Mapping[str, Any]:
    """Measure both orders for a minute each, and who asks seldom alone."""
    figures = uvloop.run(_measured())
    longest_s = max(
        FIRST_S + person.prompt * PROMPT_S + person.answer * ANSWER_S for person in PERSONS
    )
    setup = {"places": PLACES, "longest_s": longest_s, "seed": SEED, "warm_s": WARM_S}
    return {**figures, **setup, "machine": machine()}


def show(report: Mapping[str, Any]) -> None:
    """Print a line for each order."""
    table = Table(box=None, header_style="bold")
    for column in ("order", "short", "long", "seldom", "off", "first p95 of seldom", "failed"):
        table.add_column(column)
    for order, run in report["runs"].items():
        shares = [f"{run['shares'][person.name]:.1%}" for person in PERSONS]
        first = f"{run['seldom_first_p95_s']} s"
        table.add_row(order, *shares, f"{run['off']:.1%}", first, str(run["failed"]))
    console().print(table)
    console().print(f"The seldom one alone: {report['alone_first_p95_s']} s")


if __name__ == "__main__":
    reporting.run("fair-queue", __doc__, "the same", measure, show)
