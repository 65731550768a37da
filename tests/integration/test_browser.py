"""Tests the ground of browser tests: what is wrong with a page is seen, and nothing leaves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import screenshots
from aiohttp import web
from aiohttp.test_utils import TestServer
from browser import NARROW, PROGRAMS, WIDE, Browser, Finding, Page, Viewer
from PIL import Image
from screenshots import Shown, take

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

MAKEFILE = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
SOUND = """<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<title>Queue</title><link rel="icon" href="data:,"><script src="/hours.js" defer></script>
<style>@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #eee }} }}</style>
<main><h1>Queue</h1><p id="who">{who}</p><time>on the server</time>
<noscript><p id="again">Load the page again to see what has changed.</p></noscript>
{more}</main></html>"""
HOURS = """const at = new Date(Date.UTC(2026, 10, 27, 3));
document.querySelector("time").textContent = at.toTimeString().slice(0, 5);"""
LIVE = """new EventSource("/events").onmessage = (event) => {
    document.querySelector("#who").textContent = event.data;
};"""
MORE = {
    "unlabelled": '<img src="data:,"><input>',
    "elsewhere": '<img alt="" src="http://192.0.2.1/pixel.png">',
    "redirected": '<img alt="" src="/away">',
    "broken": "<script src='/broken.js'></script>",
    "inline": "<script>document.title = 'changed'</script>",
    "missing": '<img alt="" src="/nothing.png">',
    "afar": '<img alt="" src="http://192.0.2.1/pixel.png">',
    "dim": '<p style="color: #444">Faint</p>',
    "live": '<script src="/live.js"></script>',
    "focus": '<a id="first" href="/queue">Queue</a>',
}


async def shown(request: web.Request) -> web.Response:
    who = request.cookies.get("session", "nobody")
    more = MORE.get(request.path.removeprefix("/"), "")
    is_open = request.path in {"/elsewhere", "/redirected"}
    headers = {} if is_open else {"Content-Security-Policy": POLICY}
    text = SOUND.format(who=who, more=more)
    return web.Response(text=text, content_type="text/html", headers=headers)


async def script(request: web.Request) -> web.Response:
    text = {"/hours.js": HOURS, "/live.js": LIVE}.get(request.path, "absent();")
    return web.Response(text=text, content_type="text/javascript")


async def events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: bob\n\n")
    await asyncio.sleep(60)
    return response


async def away(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://elsewhere.example/pixel.png")


def sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir()}


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A window of alice's on a small site of its own."""
    app = web.Application()
    app.router.add_get("/away", away)
    app.router.add_get("/events", events)
    app.router.add_get("/{name}.js", script)
    app.router.add_get("/{name:queue|" + "|".join(MORE) + "}", shown)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        viewer = Viewer(
            str(server.make_url("/"))[:-1], {"session": "alice"}, time_zone="Asia/Tokyo"
        )
        async with browser.page(viewer) as opened:
            yield opened


async def test_nothing_is_wrong_with_a_sound_page(page: Page):
    assert await page.open("/queue") == 200
    assert await page.axe() == []
    assert page.troubles == []


async def test_a_page_is_opened_as_the_user_whose_cookie_it_has(page: Page):
    await page.open("/queue")
    assert await page.tab.locator("#who").text_content() == "alice"


async def test_what_some_people_can_t_use_is_found(page: Page):
    await page.open("/unlabelled")
    assert sorted(await page.axe(), key=lambda one: one.rule) == [
        Finding("image-alt", "critical", ("img",)),
        Finding("label", "critical", ("input",)),
    ]


async def test_a_page_with_too_little_contrast_in_the_dark_is_found_there(page: Page):
    await page.open("/dim")
    assert await page.axe() == []
    await page.look(scheme="dark")
    assert [one.rule for one in await page.axe()] == ["color-contrast"]


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/elsewhere", "http://192.0.2.1/pixel.png"),
        ("/redirected", "http://elsewhere.example/pixel.png"),
    ],
)
async def test_a_request_to_another_place_is_seen_and_goes_nowhere(page: Page, path: str, url: str):
    await page.open(path)
    assert page.external == [f"GET {url}"]
    assert page.console_errors == ["Failed to load resource: net::ERR_NAME_NOT_RESOLVED"]
    assert page.failed == []


async def test_an_exception_and_what_the_site_refuses_are_seen(page: Page):
    await page.open("/broken")
    assert page.console_errors == ["absent is not defined"]
    await page.open("/missing")
    (failed,) = page.failed
    assert failed.endswith("/nothing.png: 404")
    assert len(page.troubles) == 3


@pytest.mark.parametrize("scripts", [True, False])
async def test_what_the_policy_forbids_is_seen(page: Page, scripts: bool):
    if scripts:
        await page.open("/inline")
        assert page.csp == ["script-src-elem: kInlineViolation"]
    else:
        async with page.without_javascript() as plain:
            await plain.open("/afar")
            assert plain.csp == ["img-src: http://192.0.2.1/pixel.png"]
            assert plain.external == ["GET http://192.0.2.1/pixel.png"]


async def test_times_are_in_the_viewer_s_zone_and_the_server_s_without_javascript(page: Page):
    await page.open("/queue")
    assert await page.tab.locator("time").text_content() == "12:00"
    assert not await page.tab.locator("#again").is_visible()
    async with page.without_javascript() as plain:
        await plain.open("/queue")
        assert await plain.tab.locator("time").text_content() == "on the server"
        assert await plain.tab.locator("#again").is_visible()
        assert await plain.tab.locator("#who").text_content() == "alice"
        assert plain.troubles == []


async def test_a_stream_goes_on_while_a_page_is_shown_and_its_end_is_no_trouble(page: Page):
    await page.open("/live")
    await page.tab.locator("#who", has_text="bob").wait_for()
    await page.open("/queue")
    assert page.troubles == []


async def test_a_picture_has_the_width_and_the_scheme(page: Page, tmp_path: Path):
    await page.open("/queue")
    for width, scheme, corner in ((WIDE, "light", 255), (NARROW, "dark", 17)):
        await page.shot(tmp_path / "queue.png", width, scheme)
        with Image.open(tmp_path / "queue.png") as picture:
            assert picture.width == width
            assert picture.convert("L").getpixel((width - 1, 0)) == corner


async def test_pictures_are_small_and_the_chosen_ones_go_into_the_documentation(
    page: Page, browser: Browser, tmp_path: Path
):
    await page.open("/queue")
    url = page.tab.url
    shown = Shown("queue", url, "session=bob", in_docs=True)
    assert await take(browser, shown, tmp_path, tmp_path) == []
    taken = sizes(tmp_path)
    looks = ("1280-light", "1280-dark", "390-light", "390-dark")
    assert taken.keys() == {"queue.png", *(f"queue-{look}.png" for look in looks)}
    assert max(taken.values()) < 10_000
    broken = Shown("broken", url.replace("/queue", "/broken"), "session=bob")
    assert await take(browser, broken, tmp_path, tmp_path) == [
        "broken: console: absent is not defined"
    ]


async def test_a_picture_that_is_too_large_stays_out_of_the_documentation(
    page: Page, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(screenshots, "MOST_BYTES", 1000)
    await page.open("/queue")
    shown = Shown("queue", page.tab.url, "session=bob", in_docs=True)
    (trouble,) = await take(browser, shown, tmp_path, tmp_path)
    assert trouble.startswith("queue: its picture has ")
    assert not (tmp_path / "queue.png").exists()


async def test_a_key_reaches_the_page(page: Page):
    await page.open("/focus")
    await page.tab.keyboard.press("Tab")
    assert await page.tab.evaluate("document.activeElement.id") == "first"


async def test_the_makefile_installs_what_is_looked_for():
    assert f"\nBROWSERS := {' '.join(PROGRAMS)}\n" in MAKEFILE
