"""Takes pictures of every page in the browser, at two widths, light and dark; and of top in tmux.

Of a sandbox with two tenants, and of a cluster with 1,000, which is made up. The pictures are
build/reports/screens/NAME-WIDTH-SCHEME.png; those for the documentation, of the wide page in the
light, docs/images/NAME.png. The exit code is 1 if anything was wrong with a page.
"""

import asyncio
import io
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import aiohttp
from browser import NARROW, PROGRAMS, WIDE, Browser, Scheme, Viewer, browser_up, installed
from builders.past_day import write_past_day
from PIL import Image
from rich.console import Console
from rich.text import Text
from stand_ins.made_up_daemon import Fiction, site_up
from web_site import COOKIE, Site

from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.history_messages import (
    HistoryAnswer,
    HistoryRequest,
    HistorySeries,
    HistoryUnit,
)
from slicewise.cluster.rpc.message import Answer, Request
from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.slurm_plugin.common.ledger_requests import StatementAnswer, StatementRequest
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.page.pages import PAGES, Page
from slicewise.slurm_plugin.rules.accounting.types import Run, RunKey, StatementRow

_PROJECT = Path(__file__).resolve().parent.parent
_SCREENS = _PROJECT / "build" / "reports" / "screens"
_IMAGES = _PROJECT / "docs" / "images"
MOST_BYTES = 150_000
"""Of a picture in the documentation: every clone has it for ever."""
_COLORS = 256
_FEW = "2"
"""What names of pages with so many tenants begin with."""


@dataclass(frozen=True)
class Shown:
    """A page, and the cookie of the user who sees it. ``form``: with what its form is sent."""

    name: str
    url: str
    cookie: str
    in_docs: bool = False
    form: str = ""


async def take(browser: Browser, page: Shown, screens: Path, images: Path) -> list[str]:
    """Take the pictures of a page; return what was wrong with it."""
    site, path = _parts(page.url)
    name, _, value = page.cookie.partition("=")
    async with browser.page(Viewer(site, {name: value})) as opened:
        await opened.open(path)
        if page.form:
            await opened.tab.locator("textarea").fill(page.form)
            async with opened.tab.expect_navigation():
                await opened.tab.locator("main button.primary").click()
        for width, scheme in product((WIDE, NARROW), get_args(Scheme)):
            file = screens / f"{page.name}-{width}-{scheme}.png"
            await opened.shot(file, width, scheme)
            _make_small(file)
        chosen = _for_docs(page, screens, images) if page.in_docs else ()
        return [f"{page.name}: {trouble}" for trouble in (*opened.troubles, *chosen)]


def _for_docs(page: Shown, screens: Path, images: Path) -> Iterator[str]:
    """Copy the picture; yield what is wrong with it."""
    picture = screens / f"{page.name}-{WIDE}-light.png"
    if (size := picture.stat().st_size) > MOST_BYTES:
        yield f"its picture has {size:,} bytes, more than {MOST_BYTES:,}"
        return
    shutil.copyfile(picture, images / f"{page.name.removeprefix(f'{_FEW}-')}.png")


def _make_small(file: Path) -> None:
    """Keep as many colors as a palette has: a page has few, and shades of its letters' edges."""
    with Image.open(file) as picture:
        reduced = picture.convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def _parts(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    site = f"{parts.scheme}://{parts.netloc}"
    return site, url.removeprefix(site)


# Two tenants

_TENANTS = {"vision": "alice", "nlp": "bob"}
_NOMINAL = {"vision": 9, "nlp": 3}
_OPTIONS = {
    "vision": ("--lending-limit", "3", "--type-nominal", "1g.10gb=8"),
    "nlp": ("--borrowing-limit", "2", "--type-nominal", "1g.18gb=3", "--limit", "1g.18gb=6"),
}
_GRES = {"vision": "--gres=gpu:1g.10gb:1", "nlp": "--gres=gpu:1g.18gb:1"}
"""What jobs ask for: of neither kind are all taken, so that a job waits for quota."""
_PLAN = """\
[tenants.vision]
nominal = 8

[tenants.nlp]
nominal = 4
borrowing_limit = 3
"""
_SERVICE = """\
[service]
name = "{name}"
tenant = "{tenant}"
model_repository = "{models}"
model = "tokens"
profile = "1g.10gb"
max_replicas = 3
min_replicas = 1
memory_mib = 512
"""
_IN_DOCS = ("cluster", "tenants", "job")
_ROWS, _COLUMNS = 32, 118
_DRAWN_S = 4.0


def _sandbox_pages(sandbox: Sandbox) -> Sequence[Shown]:
    """The pages of a sandbox with services, jobs and a loan, as an operator sees them."""
    _write_history(sandbox)
    models = publish_models(sandbox.layout.models)
    for tenant, user in _TENANTS.items():
        quota = ("slicewise", "tenant-quota", "set", tenant, "--nominal", str(_NOMINAL[tenant]))
        sandbox.run("root", (*quota, *_OPTIONS[tenant]))
        file = sandbox.layout.home / sandbox.state.users[user].name / "chat.toml"
        file.write_text(_SERVICE.format(name="chat", tenant=tenant, models=models))
        sandbox.run(user, ("slicewise", "service", "apply", str(file)))
        submit = ("sbatch", "--parsable", _GRES[tenant], "--output=/dev/null", "--wrap")
        jobs = [sandbox.run(user, (*submit, "sleep 3600")).stdout.strip() for _ in range(5)]
    site = Site(sandbox, sandbox.serve_page())
    cookie = f"{COOKIE}={site.log_in('root')}"
    time.sleep(_SETTLED_S)
    sandbox.run("root", ("slicewise", "rebalance"))
    words = {"tenant": "vision", "service": "chat", "job": jobs[-1]}
    return _all_pages(_FEW, site.base, cookie, words, "day")


def _write_history(sandbox: Sandbox) -> None:
    """Give the cluster a past: it is minutes old."""
    told = sandbox.run("root", ("slicewise", "overview", "--json")).stdout
    capacity = json.loads(told)["slices"]["capacity_millislices"] // 1000
    database = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    cluster = load_settings(sandbox.layout.settings_file).cluster.name
    with Ledger(database, cluster) as ledger:
        write_past_day(ledger, int(time.time()), capacity, _NOMINAL)


_SETTLED_S = 20.0
"""A replica has started, a loan is made."""


def _top(sandbox: Sandbox) -> str:
    """What ``slicewise top`` shows in tmux, with its colours, as SVG."""
    socket = str(sandbox.layout.directory / "tmux")
    tmux = ("env", "TERM=xterm-256color", "tmux", "-f", "/dev/null", "-S", socket)
    size = ("-x", str(_COLUMNS), "-y", str(_ROWS))
    sandbox.run("root", (*tmux, "new-session", "-d", *size, "slicewise top"))
    try:
        time.sleep(_DRAWN_S)
        shown = sandbox.run("root", (*tmux, "capture-pane", "-e", "-p")).stdout
    finally:
        sandbox.run("root", (*tmux, "kill-server"))
    console = Console(width=_COLUMNS, record=True, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(shown.rstrip()))
    svg = console.export_svg(title="slicewise top")
    # Its fonts are elsewhere.
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


async def _draw(browser: Browser, svg: str, name: str) -> None:
    async with browser.page(Viewer("http://127.0.0.1")) as opened:
        await opened.tab.set_content(svg)
        file = _SCREENS / f"{name}.png"
        await opened.tab.locator("svg").screenshot(path=file)
    _make_small(file)
    shutil.copyfile(file, _IMAGES / f"{name}.png")


def _all_pages(
    prefix: str, base: str, cookie: str, words: Mapping[str, str], span: str
) -> Sequence[Shown]:
    """Every page; those with history show that span of it."""

    def query(page: Page) -> str:
        return f"?range={span}" if any(one.name == "range" for one in page.filters) else ""

    return [
        Shown(
            f"{prefix}-{re.sub('[^a-z]+', '-', page.pattern).strip('-')}",
            base + page.pattern.format(**words) + query(page),
            cookie,
            in_docs=prefix == _FEW and page.template in _IN_DOCS,
            form=_PLAN if page.form_asks else "",
        )
        for page in PAGES
    ]


# 1,000 tenants

_MANY = 1000
_HOUR_S = 3600
_SLICES = {"capacity": 7000, "used": 4000, "lent": 1500, "idle": 1000, "draining": 300, "down": 200}
_SENTENCE = "Tasks of lab-017 hold what it waits for; the first of them ends in 42 min"


_SENTENCES = (
    *("what", "why", "note", "headline", "sentences", "hints", "start"),
    *("changes", "did", "planned", "warnings", "words"),
)


def _text(name: str, nth: int) -> str:
    known = {
        "step": ("reconcile", "lend", "reclaim", "compile", "prioritise", "cut", "roll")[nth % 7],
        "direction": "forward",
        "author": "root",
        "host": "head",
        "error": "" if nth % 5 else "slurmd on the node did not answer within 60 s",
        "outcome": "done",
        "state": "done",
        "gpu": f"GPU-{nth:08x}-0000-0000-0000-000000000000",
        "profile": "1g.10gb",
        "job": str(10_000 + nth),
        "node": f"gpu{nth // 4:03}",
        "user": f"user{nth % 50}",
        "service": f"lab-{nth:03}/chat",
        "gres_type": "1g.10gb",
        "gpus": "1g.10gb",
        "reason": "QOSGrpBilling",
        "command": f"slicewise why lab-{nth:03}",
        "code": "SW-SERVICE-FAILING",
        "cluster": "large",
        "mode": "enforce",
        "zone": "UTC",
    }
    return _SENTENCE if name in _SENTENCES else known.get(name, f"lab-{nth:03}")


_SPANS_S = {"took_s": 7, "rate_per_s": 12}


def _number(name: str, nth: int) -> int:
    if name.endswith("_millislices"):
        of_cluster = _SLICES if nth == 0 else {}
        return 1000 * of_cluster.get(name.removesuffix("_millislices"), 1 + nth % 7)
    if name in ("observed_s", "now_s"):
        return int(time.time())
    if name.endswith("_s") and name not in _SPANS_S:
        return int(time.time()) - _HOUR_S * (1 + nth % 30)
    known = {
        **_SPANS_S,
        "depth": min(nth % 10, 1),
        "start": nth,
        "gpu": nth % 4,
        "size": 1,
        "memory_slices": 8,
        "power_mw": 301_500_000,
        "boards": 992,
        "metered_nodes": 248,
        "gpu_nodes": 250,
    }
    return known.get(name, nth % 7)


def _made_up() -> Fiction:
    lengths = {"attention": 20, "hints": 2, "sentences": 3, "tables": 3, "terms": 4, "factors": 4}
    # As many entries as the daemon has in one answer.
    lengths |= {"runs": 50, "repartitions": 50, "warnings": 3, "ended_windows": 2, "moves": 2}
    return Fiction(_text, _number, _MANY, 7, lengths)


_HISTORY: Mapping[str, tuple[HistoryUnit, float, float]] = {
    "used": ("millislices", 3_000_000, 100_000),
    "lent": ("millislices", 5_000, 0),
    "idle": ("millislices", 3_495_000, -100_000),
    "draining": ("millislices", 300_000, 0),
    "down": ("millislices", 200_000, 0),
    "nominal": ("millislices", 7_000, 0),
    "in_use": ("millislices", 2_000, 500),
    "borrowed": ("millislices", 0, 100),
    "waiting": ("millislices", 0, 200),
    "ready": ("replicas", 1, 0.5),
    "desired": ("replicas", 1, 1),
    "backlog": ("requests", 0, 2),
    "p95": ("ms", 160, 20),
    "requests": ("requests_per_s", 1, 4),
}
"""Figures of a cluster, a tenant and a service: at midnight, and by how much each hour up to noon
changes it."""


def _history() -> HistoryAnswer:
    """A week of them all."""
    until_s = int(time.time()) // _HOUR_S * _HOUR_S
    times_s = tuple(range(until_s - 7 * 24 * _HOUR_S, until_s, _HOUR_S))
    hours = [at_s // _HOUR_S % 24 for at_s in times_s]
    return HistoryAnswer(
        about="cluster",
        step_s=_HOUR_S,
        times_s=times_s,
        samples=(360,) * len(times_s),
        series=tuple(
            HistorySeries(
                name=name,
                unit=unit,
                values=tuple(least + by * min(hour, 24 - hour) for hour in hours),
            )
            for name, (unit, least, by) in _HISTORY.items()
        ),
        zone="UTC",
    )


def _statement() -> StatementAnswer:
    """Two runs of each tenant, the second of a service."""
    now_s = int(time.time())
    rows = tuple(_run(nth, now_s) for nth in range(2 * _MANY))
    return StatementAnswer(now_s=now_s, rows=rows)


def _run(nth: int, now_s: int) -> StatementRow:
    tenant, start_s = f"lab-{nth % _MANY:03}", now_s - _HOUR_S * (1 + nth % 30)
    key = RunKey("large", nth, start_s)
    cost = Millislices(1000)
    run = Run(key, tenant, f"user{nth % 50}", str(10_000 + nth), {"1g.10gb": 1}, cost, tenant)
    used, none = MillisliceSeconds(1_800_000 * (1 + nth % 7)), MillisliceSeconds(0)
    end_s = start_s + _HOUR_S // 2 if nth % 4 else None
    return StatementRow(run, end_s, used, none, none, "chat" if nth >= _MANY else "")


def _cookie(session: aiohttp.ClientSession) -> str:
    (found,) = (one.value for one in session.cookie_jar if one.key == COOKIE)
    return f"{COOKIE}={found}"


async def _take_all(program: str, folder: Path) -> list[str]:
    words = {"tenant": "lab-017", "service": "chat", "job": "10017"}
    answers: dict[type[Request], Answer] = {
        StatementRequest: _statement(),
        HistoryRequest: _history(),
    }
    sandbox = await asyncio.to_thread(Sandbox.up, folder / "sandbox", progress=print)
    try:
        pages = await asyncio.to_thread(_sandbox_pages, sandbox)
        top = await asyncio.to_thread(_top, sandbox)
        async with (
            browser_up(program, folder) as browser,
            site_up(folder, _made_up(), answers) as large,
        ):
            await _draw(browser, top, "top")
            base = str(large._base_url).rstrip("/")
            pages = [*pages, *_all_pages("1000", base, _cookie(large), words, "week")]
            return [one for page in pages for one in await take(browser, page, _SCREENS, _IMAGES)]
    finally:
        await asyncio.to_thread(sandbox.down)


def main() -> None:
    """Take all pictures, and print what was wrong with the pages."""
    program = installed()
    if program is None:
        sys.exit(f"none of {', '.join(PROGRAMS)} is installed")
    for folder in (_SCREENS, _IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        sys.exit("\n".join(asyncio.run(_take_all(program, folder))) or None)


if __name__ == "__main__":
    main()
