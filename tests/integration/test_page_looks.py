"""The page in a browser on a made-up daemon: what a telephone shows, what is said at its end."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from browser import NARROW, Browser, Viewer
from free_ports import free_port
from stand_ins.scripted import settings
from stand_ins.web_answers import Answers

from slicewise.slurm_plugin.page.server import WebServer
from slicewise.slurm_plugin.page.sessions import Session

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

OUTSIDE = """label => [...document.querySelectorAll(`td[data-label="${label}"]`)].filter(cell => {
  const place = cell.getBoundingClientRect();
  return place.width === 0 || place.left < 0 || place.right > innerWidth;
}).length"""
FITTING = """() => [...document.querySelectorAll(".board g")].filter(part => {
  const [shape, text] = [part.querySelector("rect"), part.querySelector("text")];
  return text.textContent && text.getBBox().width > shape.getBBox().width;
}).map(part => part.querySelector("text").textContent)"""

FOLLOWED = "document.getElementById('live')._htmx?.sse !== undefined"


@dataclass
class Site:
    """A page that is served, and a session of it."""

    server: WebServer
    session: Session
    viewer: Viewer


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[Site]:
    plain, listen = settings(), f"127.0.0.1:{free_port()}"
    web = plain.web.model_copy(update={"listen": listen})
    server = WebServer(plain.model_copy(update={"web": web}))
    server._reads._asked = Answers(8).ask  # type: ignore[method-assign]
    cookie, session = server._sessions.begin("alice")
    await server.start()
    viewer = Viewer(f"http://{listen}", {"slicewise": cookie}, width=NARROW)
    yield Site(server, session, viewer)
    await server.stop()


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/queue", "why"),
        ("/queue", "expected start"),
        ("/services", "why"),
        ("/tenants", "nominal"),
    ],
)
async def test_a_telephone_shows_why_and_when_without_scrolling_sideways(
    site: Site, browser: Browser, path: str, label: str
):
    async with browser.page(site.viewer) as opened:
        assert await opened.open(path) == 200
        assert await opened.tab.locator(f'td[data-label="{label}"]').count() >= 8
        assert await opened.tab.evaluate(OUTSIDE, label) == 0


async def test_no_label_is_longer_than_what_it_stands_on(site: Site, browser: Browser):
    async with browser.page(site.viewer) as opened:
        await opened.open("/cluster")
        assert await opened.tab.evaluate(FITTING) == []


async def test_who_is_logged_out_is_told_so_on_a_page_that_is_open(site: Site, browser: Browser):
    async with browser.page(site.viewer) as opened:
        await opened.open("/queue")
        assert await opened.tab.locator("#ended").is_hidden()
        await opened.tab.wait_for_function(FOLLOWED)
        site.server._sessions.end(site.session)
        for feed in site.server._feeds._feeds.values():
            async with feed.changed:
                feed.version += 1
                feed.changed.notify_all()
        await opened.tab.locator("#ended").wait_for(state="visible")
        assert await opened.tab.locator("#lost").is_hidden()


async def test_a_page_whose_server_has_gone_says_so(site: Site, browser: Browser):
    async with browser.page(site.viewer) as opened:
        await opened.open("/queue")
        await opened.tab.wait_for_function(FOLLOWED)
        await site.server.stop()
        await opened.tab.locator("#lost").wait_for(state="visible")
        assert await opened.tab.locator("#ended").is_hidden()
