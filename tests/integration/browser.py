"""Opens web pages in Chromium, without a display, and collects what is wrong with them.

The fixture ``browser`` has one for all tests of a worker. A `Page` is a window with cookies of its
own. Playwright's objects belong to the event loop that made them, so a module of such tests says
``pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]``.
"""

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright import async_api as playwright
from waiting import PATIENCE_S

Scheme = Literal["light", "dark"]

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
"""Those of the Makefile's BROWSERS: the first that is there is used."""
WIDE, NARROW = 1280, 390
"""Widths of a window in CSS pixels: a laptop's, a telephone's."""
_HEIGHT, _TALLEST = 800, 6000
_PATIENCE_MS = 1000 * PATIENCE_S
_ONLY_THIS_MACHINE = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.*"
"""Also for addresses without a name, for redirects, and for what a page only prepares to ask."""
_SEVERE = ("serious", "critical")
_OWN_SCHEMES = ("about", "blob", "data")


@dataclass(frozen=True)
class Finding:
    """A fault of a page for people who can't see, hear or point well, by axe-core.

    Attributes:
        rule: axe-core's name of the rule: color-contrast.
        impact: serious or critical.
        elements: the CSS selectors of the elements that have the fault.
    """

    rule: str
    impact: str
    elements: tuple[str, ...]


@dataclass(frozen=True)
class Viewer:
    """Who looks at a site, and how.

    Attributes:
        site: scheme, host and port: http://127.0.0.1:8080.
        cookies: by name.
        scripts: whether JavaScript is on.
    """

    site: str
    cookies: Mapping[str, str] = field(default_factory=dict)
    width: int = WIDE
    scheme: Scheme = "light"
    time_zone: str = "UTC"
    scripts: bool = True


class Page:
    """A window. What is wrong is collected from its opening on, over all pages that it shows.

    Attributes:
        tab: Playwright's page, for everything that has no method here: elements, keys.
        console_errors: what the console shows as an error, and exceptions that no script caught.
        failed: requests to the site without an answer, or answered 400 or above.
        external: requests to any other place, answered or not.
        csp: what the content security policy forbade: directive, and the address or how.
    """

    def __init__(self, browser: "Browser", tab: playwright.Page, viewer: Viewer) -> None:
        self._browser = browser
        self._viewer = viewer
        self.tab = tab
        self.console_errors: list[str] = []
        self.failed: list[str] = []
        self.external: list[str] = []
        self.csp: list[str] = []
        tab.on("console", self._on_console)
        tab.on("pageerror", lambda error: self.console_errors.append(str(error)))
        tab.on("request", self._on_request)
        tab.on("requestfailed", self._on_failed)
        tab.on("response", self._on_response)

    @property
    def troubles(self) -> list[str]:
        """All that was collected."""
        kinds = {
            "console": self.console_errors,
            "failed": self.failed,
            "external": self.external,
            "csp": self.csp,
        }
        return [f"{kind}: {one}" for kind, found in kinds.items() for one in found]

    async def open(self, path: str) -> int:
        """Open a path of the site; return the status, once the page and its parts are loaded."""
        response = await self.tab.goto(f"{self._viewer.site}{path}")
        assert response is not None, path
        return response.status

    async def look(self, width: int = WIDE, scheme: Scheme = "light") -> None:
        """Show the page in a window of that width to a viewer who prefers that scheme."""
        await self.tab.set_viewport_size({"width": width, "height": _HEIGHT})
        await self.tab.emulate_media(color_scheme=scheme)

    async def shot(self, file: Path, width: int = WIDE, scheme: Scheme = "light") -> None:
        """Write the page, or its first 6,000 pixels, to a PNG file; it stays as it was shown."""
        await self.look(width, scheme)
        height = await self.tab.evaluate("document.documentElement.scrollHeight")
        await self.tab.screenshot(
            path=file,
            full_page=True,
            animations="disabled",
            clip={"x": 0, "y": 0, "width": width, "height": min(height, _TALLEST)},
        )

    async def axe(self) -> list[Finding]:
        """The serious and critical findings on the page as it is shown now; wants JavaScript on."""
        found = await Axe().run(self.tab)
        return [
            Finding(one["id"], one["impact"], tuple(_selector(node) for node in one["nodes"]))
            for one in found.response["violations"]
            if one["impact"] in _SEVERE
        ]

    def without_javascript(self) -> "AbstractAsyncContextManager[Page]":
        """Another window, with JavaScript off, of a viewer who is the same otherwise."""
        return self._browser.page(replace(self._viewer, scripts=False))

    async def hear_of_violations(self) -> None:
        """Collect what the policy forbids; the browser tells of it with JavaScript off, too."""
        session = await self.tab.context.new_cdp_session(self.tab)
        session.on("Audits.issueAdded", self._on_issue)
        await session.send("Audits.enable")

    def _on_console(self, message: playwright.ConsoleMessage) -> None:
        if message.type == "error":
            self.console_errors.append(message.text)

    def _on_request(self, request: playwright.Request) -> None:
        if self._is_external(request.url):
            self.external.append(f"{request.method} {request.url}")

    def _on_failed(self, request: playwright.Request) -> None:
        # A page that is left ends its requests itself: streams, above all.
        if not self._is_external(request.url) and request.failure != "net::ERR_ABORTED":
            self.failed.append(f"{request.method} {request.url}: {request.failure}")

    def _on_response(self, response: playwright.Response) -> None:
        if response.status >= 400 and not self._is_external(response.url):
            self.failed.append(f"{response.request.method} {response.url}: {response.status}")

    def _on_issue(self, told: Mapping[str, Any]) -> None:
        details = told["issue"]["details"].get("contentSecurityPolicyIssueDetails")
        if details is not None:
            what = details.get("blockedURL") or details["contentSecurityPolicyViolationType"]
            self.csp.append(f"{details['violatedDirective']}: {what}")

    def _is_external(self, url: str) -> bool:
        parts = urlsplit(url)
        own = urlsplit(self._viewer.site)
        is_own = (parts.scheme, parts.netloc) == (own.scheme, own.netloc)
        return not is_own and parts.scheme not in _OWN_SCHEMES


class Browser:
    """Chromium, while it runs."""

    def __init__(self, chromium: playwright.Browser) -> None:
        self._chromium = chromium

    @asynccontextmanager
    async def page(self, viewer: Viewer) -> AsyncIterator[Page]:
        """A new window, closed when the context ends."""
        context = await self._chromium.new_context(
            viewport={"width": viewer.width, "height": _HEIGHT},
            color_scheme=viewer.scheme,
            timezone_id=viewer.time_zone,
            java_script_enabled=viewer.scripts,
            # A request that a service worker makes is not told to the page.
            service_workers="block",
        )
        try:
            context.set_default_timeout(_PATIENCE_MS)
            await context.add_cookies(
                [
                    {"name": name, "value": value, "url": viewer.site}
                    for name, value in viewer.cookies.items()
                ]
            )
            page = Page(self, await context.new_page(), viewer)
            await page.hear_of_violations()
            yield page
        finally:
            await context.close()


def installed() -> str | None:
    """Where Chromium's program is; None if this machine has none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@asynccontextmanager
async def browser_up(program: str, folder: Path) -> AsyncIterator[Browser]:
    """Chromium, which is ended with the context; whatever it writes lies in the given folder."""
    # Playwright's driver and what it starts keep their files by these.
    with patch.dict(os.environ, {"HOME": str(folder), "TMPDIR": str(folder)}):
        driver = await playwright.async_playwright().start()
    try:
        chromium = await driver.chromium.launch(executable_path=program, args=[_ONLY_THIS_MACHINE])
        yield Browser(chromium)
        await chromium.close()
    finally:
        await driver.stop()


def _selector(node: Mapping[str, Any]) -> str:
    """Of one element; of one in a frame or a shadow tree, those of what it is in come first."""
    return " ".join(str(part) for part in node["target"])
