"""Tests that no page, event or JSON obeys what others have named."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest
from stand_ins.made_up_daemon import Fiction, site_up

from slicewise.slurm_plugin.page.pages import PAGES, Page

WORDS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='",
    "</script></svg></title></textarea><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}{% raw %}{{ config }}",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "\u202egnp.exe\u2066\u200b",
    '=HYPERLINK("http://evil.example")',
    "a\nb\rc\r\ndata: y\n\nevent: z\nid: 1\nretry: 1\n\n: \x00\x0b\x0c\x85\u2028\u2029x",
    "x" * 10_000,
)
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069]")


class Elements(HTMLParser):
    """Every element, and every text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """The page of a cluster in which everything has such names, with a user who is logged in."""
    many = len(WORDS)
    fiction = Fiction(lambda _, nth: WORDS[nth % many], many=many, within=many)
    async with site_up(tmp_path, fiction) as session:
        yield session


def address(page: Page) -> str:
    return re.sub(r"\{\w+\}", "%3Cb%3E%22x", page.pattern)


def assert_inert(html: str) -> None:
    read = Elements(html)
    for tag, attributes in read.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert tag not in ("img", "iframe", "object", "b"), attributes
        if tag == "script":
            assert attributes["src"].startswith("/static/"), attributes
        for name in ("href", "src", "action"):
            assert re.match(r"[/#?]|$", attributes.get(name, "")), (tag, attributes)
        assert not UNSEEN.search("".join(attributes.values())), (tag, attributes)
    texts = "".join(read.texts)
    assert not UNSEEN.search(texts), UNSEEN.findall(texts)
    assert "49" not in re.findall(r"\d+", texts)
    assert max(map(len, re.findall(r"x+", html)), default=0) < 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.pattern)
async def test_a_page_obeys_no_name(site: aiohttp.ClientSession, page: Page):
    async with site.get(address(page)) as answer:
        html = await answer.text()
        assert answer.status == 200, html
        assert_inert(html)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.pattern)
async def test_the_json_of_a_page_is_json_alone(site: aiohttp.ClientSession, page: Page):
    async with site.get(f"{address(page)}.json") as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert json.loads(await answer.text())


@pytest.mark.parametrize(
    "page", [one for one in PAGES if one.is_live], ids=lambda page: page.pattern
)
async def test_no_name_breaks_out_of_its_event(site: aiohttp.ClientSession, page: Page):
    async with site.get(f"/live{address(page)}") as answer:
        assert answer.status == 200
        event = await answer.content.readuntil(b"\n\n")
        assert_inert("\n".join(data_of(event.decode())))


def data_of(event: str) -> Iterator[str]:
    """The lines of an event's data; as browsers do, by every kind of line break."""
    for line in re.split(r"\r\n|\r|\n", event.removesuffix("\n\n")):
        assert line.startswith("data: "), line
        yield line.removeprefix("data: ")
