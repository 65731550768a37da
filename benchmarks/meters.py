"""Counts tokens of a real llama.cpp through the gateway while everything is killed, and compares.

Streams of llama.cpp, with a random model of half a megabyte, whose clients leave at random;
HAProxy, the launcher's part and PostgreSQL are killed at random moments. At the end what was
posted, and what no record has, are the engine's own counters. Beside that: what the filter adds to
a stream, and the CPU of accounting 1,000 requests a second.
"""

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web
from rich.table import Table

from benchmarks import reporting
from benchmarks.engines import SLOTS, TOKENS, Way, _added, _llama_server
from benchmarks.line import Line, chats_answered, until
from benchmarks.machine import machine
from benchmarks.meters_launcher import Books
from benchmarks.meters_run import (
    CLUSTER,
    MOST_REQUEST_TOKENS,
    PLACES,
    PORT,
    RUN,
    SERVICE,
    Seen,
    ask_all,
)
from benchmarks.server import Server, server
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, RequestLimits
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.cluster.runtime.console import console
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.slurm_plugin.api.usage import EXPIRES_S
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger

SEED = 5_171_717
STREAMS, _QUICK_STREAMS = 1000, 100
_KILL_EVERY_S = (3.0, 9.0)
_ROUNDS, _QUICK_ROUNDS = 3, 1
_FEW, _FEW_TURNS, _PAUSE_S = 2, 10, 0.05
_RATE, _SECONDS, _QUICK_SECONDS = 1000, 20, 3
_ASKED, _QUICK_ASKED = 5000, 500
_PAYERS, _PERSONS = 50, 200
"""Among whom the 1,000 requests a second are."""
_FILTERS = "    filter lua.usage\n    filter lua.allowance\n"
_LIMITED_TOKENS, _LIMITED_STREAMS, _QUICK_LIMITED_STREAMS = 20_000, 1000, 300
_SUMS = """
    SELECT count(*), coalesce(sum(r.prompt_tokens), 0), coalesce(sum(r.output_tokens), 0),
           count(*) FILTER (WHERE r.outcome = 'whole'),
           count(*) FILTER (WHERE r.array_job_id <> {array})
      FROM slicewise.usage_records r"""
_HELD = """
    SELECT coalesce(sum(tokens), 0) FROM slicewise.allowances
     WHERE expires_s > extract(epoch FROM now())"""
_COUNTERS = "SELECT prompt_tokens, output_tokens FROM slicewise.engine_counters"
_PATIENCE_S = 180.0
"""Seconds in which launcher and database must have come back and booked all; else it is not so."""


class Killed:
    """The three that are killed, and how often each was."""

    def __init__(self, line: Line, database: Server, engine_socket: Path) -> None:
        self._line, self._database, self._engine_socket = line, database, engine_socket
        self.counts = {"gateway": 0, "launcher": 0, "postgresql": 0}
        self._gateway: subprocess.Popen[bytes] | None = None
        self._launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start gateway and launcher."""
        self._line.write()
        self._start_gateway()
        self._start_launcher()

    def _start_gateway(self) -> None:
        words = ("haproxy", "-W", "-f", str(self._line.configuration))
        self._gateway = _quiet(words)

    def _start_launcher(self) -> None:
        words = (sys.executable, "-m", "benchmarks.meters_launcher", str(self._line.place))
        where = (self._database.url(CLUSTER), str(self._engine_socket))
        self._launcher = subprocess.Popen((*words, *where), start_new_session=True)

    def kill(self, name: str) -> None:
        """Kill one of them with all its processes, and start it again."""
        self.counts[name] += 1
        match name:
            case "gateway":
                _end(self._gateway)
                self._start_gateway()
            case "launcher":
                _end(self._launcher)
                self._start_launcher()
            case _:
                self._database.kill()
                self._database.start()

    def end(self) -> None:
        """End gateway and launcher for good."""
        _end(self._gateway)
        _end(self._launcher)


def _quiet(words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _end(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _killer(killed: Killed, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(*_KILL_EVERY_S))
        await asyncio.to_thread(killed.kill, chance.choice(sorted(killed.counts)))


async def _books(line: Line, database: Server, streams: int, chance: random.Random) -> Any:
    socket = line.place / line.engine.sockets[0]
    killed = Killed(line, database, socket)
    killed.start()
    killer = None
    try:
        await until(partial(_answers, Way("gateway", line)))
        killer = asyncio.create_task(_killer(killed, chance))
        began_s = time.monotonic()
        seen = await ask_all(line.gateway, streams, chance)
        took_s = time.monotonic() - began_s
        killer.cancel()
        console().print(f"{streams} requests have ended; booking what is left")
        # Those that were killed are there again. What this asks the launcher has to count, too: it
        # has started since the last kill when the ledger has what the engine has.
        await until(partial(_answers, Way("gateway", line)))
        with suppress(TimeoutError):
            await until(partial(_is_booked, line, database, socket), _PATIENCE_S)
    finally:
        if killer is not None:
            killer.cancel()
        killed.end()
    return _compared(database, socket, seen) | {
        "streams": streams,
        "seconds": took_s,
        "kills": killed.counts,
    }


async def _limited(
    line: Line, database: Server, streams: int, chance: random.Random, *, is_exact: bool
) -> Any:
    """Let more ask than a tenant's limit leaves, while gateway and launcher are killed.

    An exact limit refuses while the gateway has no tokens to give, as after its own kill; an open
    one lets pass.
    """
    with Ledger(database.url(CLUSTER), CLUSTER) as ledger:
        limit = sum(database.query(CLUSTER, _SUMS.format(array=RUN[0]))[0][1:3]) + _LIMITED_TOKENS
        limits = RequestLimits(tokens_per_month=limit)
        limited = LimitChangeRequest(limits=limits, is_exact=is_exact)
        tenant = AllowanceSubject(tenant=tenant_of(SERVICE))
        ledger.request_limits.change_limits(tenant, limited, "bench", "operator")
        killed = Killed(line, database, line.place / line.engine.sockets[0])
        killed.start()
        try:
            await until(partial(_answers, Way("gateway", line)))
            await until(partial(_is_limited, line, "exact" if is_exact else "open"))
            killer = asyncio.create_task(_killer(killed, chance))
            seen = await ask_all(line.gateway, streams, chance)
            killer.cancel()
            await until(partial(_is_booked, line, database, line.place / line.engine.sockets[0]))
        finally:
            killed.end()
        used = sum(database.query(CLUSTER, _SUMS.format(array=RUN[0]))[0][1:3])
        await asyncio.sleep(EXPIRES_S + 1)
        held = database.query(CLUSTER, _HELD)[0][0]
        lifted = LimitChangeRequest(lifted=frozenset({"tokens_per_month"}), is_exact=False)
        ledger.request_limits.change_limits(tenant, lifted, "bench", "operator")
    return {
        "limit_tokens": _LIMITED_TOKENS,
        "used_tokens": used - limit + _LIMITED_TOKENS,
        "overrun_tokens": max(0, used - limit),
        "most_in_flight_tokens": PLACES * MOST_REQUEST_TOKENS,
        "held_after_expiry": held,
        "clients": dict(seen.outcomes),
        "kills": killed.counts,
    }


async def _answers(way: Way) -> bool:
    return not (await way.round(1, 1)).failed


async def _is_limited(line: Line, kind: str) -> bool:
    """Whether the launcher has told the gateway of the limit; until then there is none."""
    file = line.configuration.with_name("allowances.map")
    lines = file.read_text(encoding="utf-8").splitlines()
    return any(tenant_of(SERVICE) in words and f"/{kind}/" in words for words in lines)


async def _is_booked(line: Line, database: Server, socket: Path) -> bool:
    """Whether the ledger knows the engine's counters, nothing waits, and nothing comes."""
    own = list(_own_counters(socket))
    try:
        before = database.query(CLUSTER, _SUMS.format(array=RUN[0]) + ";" + _COUNTERS)
        await asyncio.sleep(3)
        after = database.query(CLUSTER, _SUMS.format(array=RUN[0]) + ";" + _COUNTERS)
    except RuntimeError:
        return False
    waits = list((line.settings.directory / "usage").glob("[0-9]*.json"))
    return before == after and after[1:] == [own] and not waits


def _compared(database: Server, socket: Path, seen: Seen) -> dict[str, Any]:
    """Compare what the ledger has with the engine's own counters."""
    sums, counters = database.query(CLUSTER, _SUMS.format(array=RUN[0]) + ";" + _COUNTERS)
    records, prompt, output, whole, of_no_run = sums
    own_prompt, own_output = _own_counters(socket)
    # llama.cpp counts prompts without what its cache had, and so does what the ledger has of it.
    cached = database.query(
        CLUSTER, "SELECT coalesce(sum(cached_prompt_tokens), 0) FROM slicewise.usage_records"
    )[0][0]
    return {
        "posted": {"records": records, "prompt_tokens": prompt, "output_tokens": output},
        "cached_prompt_tokens": cached,
        "engine": {"prompt_tokens": own_prompt + cached, "output_tokens": own_output},
        "unattributed": {
            "prompt_tokens": counters[0] + cached - prompt,
            "output_tokens": counters[1] - output,
        },
        "is_exact": list(counters) == [own_prompt, own_output]
        and counters[0] + cached >= prompt
        and counters[1] >= output,
        "records_of_no_run": of_no_run,
        "whole_records": whole,
        # HAProxy may be killed between an answer's last byte and its record.
        "whole_answers_without_record": max(0, seen.outcomes["whole"] - whole),
        "clients": {
            **seen.outcomes,
            "told_usage": seen.told,
            "prompt_tokens": seen.prompt_tokens,
            "output_tokens": seen.output_tokens,
        },
    }


def _own_counters(socket: Path) -> tuple[int, int]:
    words = ("curl", "-s", "--unix-socket", str(socket), "http://here/metrics")
    text = subprocess.run(words, capture_output=True, check=True).stdout
    counts = ENGINES["llamacpp"].engine_load(text).counts  # type: ignore[attr-defined]
    return int(counts.prompt_tokens), int(counts.output_tokens)


async def _filter_adds(line: Line, rounds: int) -> Mapping[str, Any]:
    """Compare streams through the gateway with and without the filter, in turn."""
    ours = Way("gateway", line)
    found: dict[bool, list[Any]] = {True: [], False: []}
    cpu_s: dict[bool, float] = {True: 0.0, False: 0.0}
    for number in range(rounds):
        for is_with in (True, False) if number % 2 else (False, True):
            async with line.haproxy("" if is_with else _FILTERS) as worker:
                await until(partial(_answers, ours))
                before_s = _cpu_s(worker)
                found[is_with].append(await ours.round(_FEW, _FEW_TURNS, _PAUSE_S))
                cpu_s[is_with] += _cpu_s(worker) - before_s
    pairs = list(zip(found[False], found[True], strict=True))
    streams = rounds * _FEW * _FEW_TURNS
    first = _added("first_token", [(one.first, other.first) for one, other in pairs])
    between = _added("between_tokens", [(one.between, other.between) for one, other in pairs])
    added = {"request": first["first_token_added_ms"], "chunk": between["between_tokens_added_ms"]}
    return {
        **{
            f"added_{of}_ms": {per: figures[of] for per, figures in added.items()}
            for of in ("p50", "p99")
        },
        **{name: figures for name, figures in {**first, **between}.items() if "direct" in name},
        "haproxy_cpu_ms_per_stream": {
            "without": 1e3 * cpu_s[False] / streams,
            "with": 1e3 * cpu_s[True] / streams,
        },
        "tokens_per_stream": TOKENS,
        "rounds": rounds,
        "slots": SLOTS,
    }


def _cpu_s(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def _asks_haproxy(line: Line, requests: int) -> Mapping[str, Any]:
    """What a request that is answered at once with its usage takes of HAProxy, without filters and
    with them: each in turn, of which the lesser counts.
    """
    took_ms: dict[bool, list[float]] = {True: [], False: []}
    with line.door():
        async with chats_answered(line.place / line.engine.sockets[0], _ready_answer):
            for is_with in (True, False, False, True):
                async with line.haproxy("" if is_with else _FILTERS) as worker:
                    # What keeps a line needs the directory that the launcher makes.
                    KeptLines(line.settings.kept_lines).close()
                    await _ask_often(line, requests // 10)
                    before_s = _cpu_s(worker)
                    await _ask_often(line, requests)
                    took_ms[is_with].append(1e3 * (_cpu_s(worker) - before_s) / requests)
    return {
        "haproxy_cpu_ms_per_request": {"without": min(took_ms[False]), "with": min(took_ms[True])},
        "requests_to_haproxy": requests,
    }


async def _ready_answer(request: web.Request) -> web.Response:
    await request.read()
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
    message = {"role": "assistant", "content": "a" * 400}
    return web.json_response({"choices": [{"message": message}], "usage": usage})


async def _ask_often(line: Line, requests: int) -> None:
    left = [None] * requests
    url = f"http://{line.gateway}/{SERVICE}/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a" * 400}]}
    async with aiohttp.ClientSession() as session:

        async def client() -> None:
            while left:
                left.pop()
                async with session.post(url, json=body) as answer:
                    await answer.read()
                    answer.raise_for_status()

        await asyncio.gather(*(client() for _ in range(PLACES)))


async def _accounting(place: Path, database: Server, seconds: int) -> Mapping[str, Any]:
    """Let lines of 1,000 requests a second come, and see what it costs to book them."""
    with Ledger(database.url("rate"), CLUSTER) as ledger:
        watch = UsageWatch(Books(ledger), UsageJournal(place))
        watch.turned({})
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF)
        postgres_s = database.cpu_s()
        heard, batches = 0, list[float]()
        while heard < _RATE * seconds:
            due = min(_RATE * seconds, int((time.monotonic() - began_s) * _RATE))
            for number in range(heard, due):
                watch.hear(_line(number))
            heard = due
            posting_s = time.monotonic()
            await watch.write()
            await watch.post()
            batches.append(time.monotonic() - posting_s)
            await asyncio.sleep(max(0.0, 0.15 - batches[-1]))
        took_s = time.monotonic() - began_s
        own_s = time.process_time() - began_cpu_s
        used_s = database.cpu_s() - postgres_s
        after = resource.getrusage(resource.RUSAGE_SELF)
    (count,) = database.query("rate", "SELECT count(*) FROM slicewise.usage_records")[0]
    return {
        "requests": heard,
        "booked": count,
        "requests_per_s": heard / took_s,
        "launcher_and_booking_cpu_s": own_s,
        "postgresql_cpu_s": used_s,
        "share_of_two_cores_at_1000_per_s": (own_s + used_s) / heard * _RATE / 2,
        "longest_batch_s": max(batches),
        "most_memory_kib": after.ru_maxrss - before.ru_maxrss,
        "payers": _PAYERS,
        "persons": _PERSONS,
    }


def _line(number: int) -> str:
    now_ms = int(time.time() * 1000)
    payer, person = number % _PAYERS, number % _PERSONS
    names = f"tenant{payer} person{person} key{person} bench/chat -"
    return (
        f"usage bench-7-1 {number * 64} {names} {now_ms - 500} {now_ms} {now_ms - 300} "
        f"{100 + number % 900} {number % 100} {number % 500} whole usage"
    )


def _measured(quick: bool) -> Mapping[str, Any]:
    chance = random.Random(SEED)  # noqa: S311 -- nothing is secret
    with (
        tempfile.TemporaryDirectory(prefix="slicewise-bench-") as place,
        server() as database,
    ):
        for name in (CLUSTER, "rate"):
            database.run("createdb", name)
            schema_revisions.upgrade(database.url(name))
        line = Line(Path(place), ENGINES["llamacpp"], SERVICE, PLACES, PORT, is_small=True)
        with _llama_server(line.place), line.door():
            streams = _QUICK_STREAMS if quick else STREAMS
            books = uvloop.run(_books(line, database, streams, chance))
            console().print(books)
            asked = _QUICK_LIMITED_STREAMS if quick else _LIMITED_STREAMS
            limits = dict[str, Any]()
            for kind in ("exact", "open"):
                is_exact = kind == "exact"
                under = _limited(line, database, asked, chance, is_exact=is_exact)
                limits[kind] = uvloop.run(under)
                console().print(limits[kind])
            adds = uvloop.run(_filter_adds(line, _QUICK_ROUNDS if quick else _ROUNDS))
        rate = Path(place) / "rate"
        rate.mkdir()
        seconds = _QUICK_SECONDS if quick else _SECONDS
        accounting = uvloop.run(_accounting(rate, database, seconds))
        cheap = Path(place) / "cheap"
        cheap.mkdir()
        other = Line(cheap, ENGINES["llamacpp"], SERVICE, PLACES, PORT + 10, is_small=True)
        asked = _QUICK_ASKED if quick else _ASKED
        haproxy = uvloop.run(_asks_haproxy(other, asked))
    return {
        "books": books,
        "limits": limits,
        "filter": adds,
        "accounting": {**accounting, **haproxy},
        "seed": SEED,
        "command": "make bench-meters",
        "machine": machine(),
    }


def _show(report: Mapping[str, Any]) -> None:
    books, adds, accounting = report["books"], report["filter"], report["accounting"]
    table = Table("tokens", "posted", "unattributed", "engine's counter")
    for name in ("prompt_tokens", "output_tokens"):
        figures = (books[of][name] for of in ("posted", "unattributed", "engine"))
        table.add_row(name.replace("_", " "), *(f"{figure:,}" for figure in figures))
    console().print(table)
    exact = "exactly" if books["is_exact"] else "NOT"
    kills = ", ".join(f"{name} {count}" for name, count in books["kills"].items())
    console().print(f"{books['streams']} requests; killed: {kills}. They add up {exact}.")
    times = Table("the filter adds", "p50 ms", "p99 ms")
    for name, title in (("request", "first token"), ("chunk", "between tokens")):
        times.add_row(title, *(f"{adds[of][name]:.3f}" for of in ("added_p50_ms", "added_p99_ms")))
    console().print(times)
    console().print(
        "1,000 requests a second take "
        f"{accounting['share_of_two_cores_at_1000_per_s']:.0%} of two cores to book, PostgreSQL"
        f" included; {accounting['requests_per_s']:.0f} a second were booked."
    )
    cpu_ms = accounting["haproxy_cpu_ms_per_request"]
    console().print(
        f"HAProxy takes {cpu_ms['with']:.3f} ms for a request, without the filters"
        f" {cpu_ms['without']:.3f} ms."
    )
    for kind, limit in report["limits"].items():
        kills = ", ".join(f"{name} {count}" for name, count in limit["kills"].items())
        console().print(
            f"Of an {kind} limit of {limit['limit_tokens']:,} tokens {limit['used_tokens']:,} were"
            f" used (at most {limit['most_in_flight_tokens']:,} in flight; killed: {kills});"
            f" {limit['held_after_expiry']} are held after all has expired."
        )


if __name__ == "__main__":
    reporting.run("meters", __doc__, f"{_QUICK_STREAMS} streams", _measured, _show)
