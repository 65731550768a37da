"""Measures the page in the browser with many viewers at once, and what these cost the daemon.

It brings a sandbox up, with jobs that run and wait, and one that comes and goes all the time. Each
viewer keeps a live page open and loads one page after another, at a steady pace. Spans with viewers
and spans without take turns, so that the daemon's turns can be compared. An event's delay counts
from its arrival at the viewer who got it first.
"""

import asyncio
import hashlib
import json
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from tempfile import mkdtemp
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.reporting import run
from slicewise.sandbox.cluster import Sandbox

AIM_PAGE_MS, AIM_SLOWER = 300.0, 0.05
"""Most of the 99th percentile of a page, and by what share the daemon's turns may be slower."""
VIEWERS, SECONDS, PAUSE_S = 200, 20.0, 5.0
FULL_ROUNDS, QUICK_ROUNDS = 9, 1
TENANTS = {"vision": "alice", "nlp": "bob", "guest": "carol"}
OPERATORS = ("games", "irc", "man", "news")
"""Users whom Debian has; web.operators names them."""
PAGES = ("/cluster", "/tenants", "/services", "/queue")
STREAMS = tuple(f"/live{page}" for page in PAGES)
_ARRAY = 40
"""Tasks of each tenant, of which as many run as its quota allows."""
_NICE = 15
_STIRRED_S = 2.0
"""From a change of the queue to the next one."""
_SETTLED_S = 2.0
"""Time after which a span begins: pages and streams that have just been opened say everything."""
_SAMPLED_S = 0.5
_PATIENCE_S = 30.0
_LONGEST_LINE = 2**22
"""An event may have a whole table in one line."""
_TURNS = "slicewise_loop_duration_seconds"


@dataclass(frozen=True)
class Load:
    """What is asked of the server.

    Attributes:
        base: scheme, host and port.
        cookies: as headers have them, NAME=VALUE; viewers get them in turn.
        pause_s: from the beginning of a viewer's page to that of the next.
        events: paths of streams; viewers get them in turn.
    """

    base: str
    cookies: Sequence[str]
    viewers: int = VIEWERS
    seconds: float = SECONDS
    pause_s: float = PAUSE_S
    pages: Sequence[str] = PAGES
    events: Sequence[str] = STREAMS
    seed: int = 1


@dataclass
class Seen:
    """What viewers have seen.

    Attributes:
        pages_s: seconds that each page took, by path.
        failed: what went wrong with pages and streams, and how often.
        arrivals_s: when viewers got an event, by it and how often the viewer had got it before.
    """

    pages_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: Counter[str] = field(default_factory=Counter)
    arrivals_s: dict[tuple[str, int], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def delays_s(self, since_s: float) -> list[float]:
        """How much later than the first viewer others got the events that came after a time."""
        return [
            arrived_s - min(times)
            for times in self.arrivals_s.values()
            if min(times) >= since_s
            for arrived_s in sorted(times)[1:]
        ]


@dataclass(frozen=True)
class Turns:
    """Number of the daemon's turns and their seconds, by loop, as its metrics have them."""

    counts: Mapping[str, float]
    seconds: Mapping[str, float]

    def since(self, before: "Turns") -> "Turns":
        """What came after."""
        return Turns(
            {loop: n - before.counts.get(loop, 0.0) for loop, n in self.counts.items()},
            {loop: s - before.seconds.get(loop, 0.0) for loop, s in self.seconds.items()},
        )


@dataclass
class Server:
    """The process that serves the pages.

    Attributes:
        rss_mib: its memory, as often as it was looked at.
        cpu: processors that it kept busy in each span.
    """

    pid: int
    rss_mib: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def look(self) -> None:
        """Note its memory. Raises OSError if the process has ended."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
        self.rss_mib.append(int(kib) / 1024)

    def cpu_s(self) -> float:
        """CPU seconds until now."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return sum(map(int, text.rsplit(")", 1)[1].split()[11:13])) / 100


def turns_of(text: str) -> Turns:
    """Read the daemon's metrics."""
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        if family.name == _TURNS
        for sample in family.samples
    ]
    by_name = {
        end: {one.labels["loop"]: one.value for one in samples if one.name == _TURNS + end}
        for end in ("_count", "_sum")
    }
    return Turns(by_name["_count"], by_name["_sum"])


async def events_of(lines: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """Yield a key for each event of a stream: its id, else a digest of what it says."""
    said = hashlib.sha256()
    key = ""
    is_event = False
    async for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        if name == b"id":
            key = value.decode(errors="replace").strip()
        elif name == b"data":
            is_event = True
            said.update(value)
        elif not line.strip():
            if is_event:
                yield key or said.hexdigest()
            said, key, is_event = hashlib.sha256(), "", False


class Viewer:
    """One viewer: a session with a cookie."""

    def __init__(self, load: Load, number: int, seen: Seen) -> None:
        self._load = load
        self._number = number
        self._seen = seen
        self._random = Random(load.seed * load.viewers + number)  # noqa: S311 -- seeded on purpose

    async def watch(self) -> None:
        """Keep the stream open and load pages, until cancelled."""
        cookie = self._load.cookies[self._number % len(self._load.cookies)]
        async with (
            aiohttp.ClientSession(
                self._load.base, headers={"Cookie": cookie}, read_bufsize=_LONGEST_LINE
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._listen(session))
            tasks.create_task(self._load_pages(session))

    async def _listen(self, session: aiohttp.ClientSession) -> None:
        got: Counter[str] = Counter()
        forever = aiohttp.ClientTimeout(total=None)
        path = self._load.events[self._number // len(self._load.cookies) % len(self._load.events)]
        try:
            async with session.get(path, timeout=forever) as response:
                response.raise_for_status()
                async for key in events_of(response.content):
                    self._seen.arrivals_s[key, got[key]].append(time.monotonic())
                    got[key] += 1
            self._seen.failed["a stream ended"] += 1
        except aiohttp.ClientError as error:
            self._seen.failed[f"a stream: {_words(error)}"] += 1

    async def _load_pages(self, session: aiohttp.ClientSession) -> None:
        await asyncio.sleep(_SETTLED_S + self._random.uniform(0, self._load.pause_s))
        next_s = time.monotonic()
        number = self._number
        while True:
            await self._load_page(session, self._load.pages[number % len(self._load.pages)])
            number += 1
            next_s += self._load.pause_s
            await asyncio.sleep(next_s - time.monotonic())

    async def _load_page(self, session: aiohttp.ClientSession, path: str) -> None:
        began_s = time.monotonic()
        limit = aiohttp.ClientTimeout(total=_PATIENCE_S)
        try:
            async with session.get(path, timeout=limit, allow_redirects=False) as response:
                await response.read()
            if response.status == HTTPStatus.OK:
                self._seen.pages_s[path].append(time.monotonic() - began_s)
            else:
                self._seen.failed[f"{path}: {response.status}"] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self._seen.failed[f"{path}: {_words(error)}"] += 1


class Bench:
    """The server under a load, beside the daemon whose metrics are at an address."""

    def __init__(self, load: Load, metrics: str, server: Server) -> None:
        self._load = load
        self._metrics = metrics
        self._server = server
        self.seen = Seen()
        self.delays_s: list[float] = []

    async def span(self, viewers: int) -> Turns:
        """Watch with that many viewers; return the daemon's turns meanwhile."""
        async with AsyncExitStack() as stack:
            tasks = [
                asyncio.create_task(Viewer(self._load, number, self.seen).watch())
                for number in range(viewers)
            ]
            stack.push_async_callback(_end, tasks)
            await asyncio.sleep(_SETTLED_S)
            began_s, cpu_s, before = time.monotonic(), self._server.cpu_s(), await self._turns()
            while time.monotonic() < began_s + self._load.seconds:
                self._server.look()
                await asyncio.sleep(_SAMPLED_S)
            found = (await self._turns()).since(before)
            took_s = time.monotonic() - began_s
            self._server.cpu.append((self._server.cpu_s() - cpu_s) / took_s)
        self.delays_s += self.seen.delays_s(began_s)
        self.seen.arrivals_s.clear()
        return found

    async def _turns(self) -> Turns:
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.get(f"http://{self._metrics}/metrics") as response,
        ):
            return turns_of(await response.text())


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel them; raise what one of them failed with."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def _words(error: Exception) -> str:
    status = getattr(error, "status", None)
    return str(status) if status else type(error).__name__


async def measure(load: Load, metrics: str, pid: int, rounds: int) -> Mapping[str, Any]:
    """Watch without and with viewers, in turn, as often as there are rounds."""
    quiet, busy = Server(pid), Server(pid)
    alone, beside = Bench(load, metrics, quiet), Bench(load, metrics, busy)
    spans = [(await alone.span(0), await beside.span(load.viewers)) for _ in range(rounds)]
    return {
        "viewers": load.viewers,
        "pause_s": load.pause_s,
        "spans": rounds,
        "seconds_each": load.seconds,
        "seed": load.seed,
        "aims": {"page_p99_ms": AIM_PAGE_MS, "turns_slower": AIM_SLOWER},
        "pages": pages(beside.seen),
        "failed": dict(beside.seen.failed),
        "events": {"got": len(beside.delays_s), **_percentiles(beside.delays_s)},
        "turns": turns([one for one, _ in spans], [other for _, other in spans]),
        "server": {name: _server(one) for name, one in (("alone", quiet), ("viewed", busy))},
    }


def pages(seen: Seen) -> Mapping[str, Mapping[str, float]]:
    """How many of each page were loaded, and milliseconds."""
    everything = [took_s for taken in seen.pages_s.values() for took_s in taken]
    rows = {**dict(sorted(seen.pages_s.items())), "all": everything}
    return {path: {"loaded": len(taken), **_percentiles(taken)} for path, taken in rows.items()}


def turns(alone: Sequence[Turns], beside: Sequence[Turns]) -> Mapping[str, Mapping[str, float]]:
    """Mean milliseconds of the daemon's turns without and with viewers, by loop, and all of them.

    How much slower they are is the median of the pairs of spans that follow each other: other
    programs of the machine disturb some of them. Of all, each loop counts as often as it has turns
    without viewers. Loops without a turn in any of the spans are left out.
    """
    counts = {loop: sum(span.counts.get(loop, 0.0) for span in alone) for loop in alone[0].counts}
    spans = [*alone, *beside]
    loops = [loop for loop in sorted(counts) if all(one.counts.get(loop) for one in spans)]
    rows = {loop: {loop: 1.0} for loop in loops} | {"all": {loop: counts[loop] for loop in loops}}
    pairs = tuple(zip(alone, beside, strict=True))
    return {
        name: {
            "alone_ms": round(1000 * mean(_mean_s(span, weights) for span in alone), 3),
            "viewed_ms": round(1000 * mean(_mean_s(span, weights) for span in beside), 3),
            "slower": round(median(_slower(*pair, weights) for pair in pairs), 4),
        }
        for name, weights in rows.items()
    }


def _slower(alone: Turns, beside: Turns, weights: Mapping[str, float]) -> float:
    before_s = _mean_s(alone, weights)
    return _mean_s(beside, weights) / before_s - 1 if before_s else 0.0


def _mean_s(span: Turns, weights: Mapping[str, float]) -> float:
    """Mean seconds of a turn, where turns of each loop count by its weight."""
    means_s = (span.seconds[loop] / span.counts[loop] * one for loop, one in weights.items())
    return sum(means_s) / (sum(weights.values()) or 1.0)


def _server(server: Server) -> Mapping[str, float]:
    return {
        "first_mib": round(server.rss_mib[0], 1),
        "most_mib": round(max(server.rss_mib), 1),
        "cpu": round(max(server.cpu), 3),
    }


def _percentiles(taken_s: Sequence[float]) -> Mapping[str, float]:
    if len(taken_s) <= 1:
        return {}
    cuts = quantiles(taken_s, n=100, method="inclusive")
    return {f"p{share}_ms": round(1000 * cuts[share - 1], 1) for share in (50, 99)}


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the report as tables."""
    aims = report["aims"]
    title = f"{report['viewers']} viewers, each of whom loads a page every {report['pause_s']:g} s"
    table = Table("page", "loaded", "p50 ms", "p99 ms", title=title, box=None)
    for path, row in report["pages"].items():
        missed = _missed(row.get("p99_ms", 0.0) > aims["page_p99_ms"])
        taken = (f"{row[key]:g}" if key in row else "" for key in ("p50_ms", "p99_ms"))
        table.add_row(path, str(row["loaded"]), *taken, missed)
    console.print(table)
    table = Table("loop", "ms alone", "ms viewed", "slower", title="The daemon's turns", box=None)
    for loop, row in report["turns"].items():
        missed = _missed(loop == "all" and row["slower"] > aims["turns_slower"])
        figures = (f"{row['alone_ms']:g}", f"{row['viewed_ms']:g}", f"{row['slower']:.1%}")
        table.add_row(loop, *figures, missed)
    console.print(table)
    table = Table("the server", "MiB at first", "MiB at most", "processors", box=None)
    for name, row in report["server"].items():
        table.add_row(name, *(f"{row[key]:g}" for key in ("first_mib", "most_mib", "cpu")))
    console.print(table)
    events = report["events"]
    late = ", ".join(
        f"{key.removesuffix('_ms')} {events[key]:g} ms" for key in events if key != "got"
    )
    console.print(f"Events after the first viewer's: {events['got']:,}; {late}")
    for what, count in sorted(report["failed"].items()):
        console.print(f"Failed {count:,} times: {what}", markup=False)


def _missed(is_missed: bool) -> str:
    return "missed" if is_missed else ""


@dataclass(frozen=True)
class Site:
    """A sandbox's page.

    Attributes:
        cookies: of a session of each user.
        metrics: HOST:PORT of the daemon's metrics.
        pid: the page's server.
    """

    sandbox: Sandbox
    base: str
    cookies: Sequence[str]
    metrics: str
    pid: int


@contextmanager
def _site() -> Iterator[Site]:
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-web-")), progress=print)
    try:
        metrics = _with_metrics(sandbox)
        for tenant, user in TENANTS.items():
            quota = ("slicewise", "tenant-quota", "set", tenant, "--nominal", "4")
            sandbox.run("root", quota)
            _submit(sandbox, user, f"--array=0-{_ARRAY - 1}")
        base = sandbox.serve_page()
        users = ("root", *OPERATORS, *(sandbox.state.users[one].name for one in TENANTS.values()))
        cookies = asyncio.run(_logged_in(sandbox, base, users))
        yield Site(sandbox, base, cookies, metrics, sandbox.state.processes["web"].pid)
    finally:
        sandbox.down()


def _with_metrics(sandbox: Sandbox) -> str:
    """Start the daemon again with metrics and operators of the page; where its metrics are."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        metrics = f"127.0.0.1:{listener.getsockname()[1]}"
    file = sandbox.layout.settings_file
    more = {"[daemon]\n": f'metrics = "{metrics}"\n', "[web]\n": f"operators = {[*OPERATORS]}\n"}
    text = file.read_text(encoding="utf-8")
    for section, lines in more.items():
        text = text.replace(section, section + lines)
    file.write_text(text, encoding="utf-8")
    sandbox.stop("daemon")
    sandbox.restore(print)
    return metrics


async def _logged_in(sandbox: Sandbox, base: str, users: Sequence[str]) -> Sequence[str]:
    return [await _log_in(sandbox, base, user) for user in users]


async def _log_in(sandbox: Sandbox, base: str, user: str) -> str:
    """The cookie of a new session, NAME=VALUE."""
    login = ("runuser", "-u", user, "--", "slicewise", "web", "login", "--json")
    url = json.loads(sandbox.run("root", login).stdout)["url"]
    form = {"token": parse_qs(urlsplit(url).query)["token"][0]}
    async with (
        aiohttp.ClientSession(base, headers={"Origin": base}, raise_for_status=True) as session,
        session.post("/login", data=form, allow_redirects=False) as response,
    ):
        return response.headers["Set-Cookie"].partition(";")[0]


def _submit(sandbox: Sandbox, user: str, *options: str) -> str:
    """Submit a job for a slice; return its number."""
    argv = ("sbatch", "--parsable", "--gres=gpu:1g.10gb:1", "--output=/dev/null", *options)
    return sandbox.run(user, (*argv, "--wrap=sleep 3600")).stdout.strip()


async def _stir(sandbox: Sandbox) -> None:
    """Submit a job and cancel it, again and again, until cancelled."""
    while True:
        job = await asyncio.to_thread(_submit, sandbox, "alice")
        await asyncio.sleep(_STIRRED_S)
        await asyncio.to_thread(sandbox.run, "alice", ("scancel", job))
        await asyncio.sleep(_STIRRED_S)


async def _measure_stirred(site: Site, rounds: int) -> Mapping[str, Any]:
    stirring = asyncio.create_task(_stir(site.sandbox))
    try:
        return await measure(Load(site.base, site.cookies), site.metrics, site.pid, rounds)
    finally:
        await _end([stirring])


def _measured(is_quick: bool) -> Mapping[str, Any]:
    with _site() as site:
        # Viewers are not on the daemon's host: what they take of this one should not count.
        os.nice(_NICE)
        rounds = QUICK_ROUNDS if is_quick else FULL_ROUNDS
        return {**asyncio.run(_measure_stirred(site, rounds)), "machine": machine()}


if __name__ == "__main__":
    quick = f"{QUICK_ROUNDS} span with viewers and without, not {FULL_ROUNDS}"
    run("web", __doc__, quick, _measured, lambda report: show(report, Console()))
