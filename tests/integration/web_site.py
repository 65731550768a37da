"""The page in the browser, on the sandbox: who is logged in, what a browser asks, live pages."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import parse_qs, urlencode, urlsplit

from slicewise.sandbox.cluster import Sandbox

PATIENCE_S = 30.0
COOKIE = "slicewise"
_ADDRESSES = 250


@dataclass(frozen=True)
class Reply:
    """What the server answered; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Site:
    """The page of a sandbox.

    Attributes:
        base: scheme, host and port.
        cookies: the session of each user who has logged in.
    """

    sandbox: Sandbox
    base: str
    cookies: dict[str, str] = field(default_factory=dict)
    _strangers: Iterator[int] = field(default_factory=count)

    def log_in(self, user: str) -> str:
        """Log a user of the sandbox or of this machine in; return the cookie's value."""
        token = parse_qs(urlsplit(self.login_address(user)).query)["token"][0]
        reply = self.ask("POST", "/login", "", {"Origin": self.base}, urlencode({"token": token}))
        assert reply.status == 303, reply
        self.cookies[user] = reply.headers["set-cookie"].partition(";")[0].partition("=")[2]
        return self.cookies[user]

    def login_address(self, user: str) -> str:
        """What logs a user in, once."""
        argv = ("slicewise", "web", "login", "--json")
        return str(json.loads(self.sandbox.run("root", self._as(user, *argv)).stdout)["url"])

    def _as(self, user: str, *argv: str) -> tuple[str, ...]:
        known = self.sandbox.state.users.get(user)
        return ("runuser", "-u", known.name if known else user, "--", *argv)

    def get(self, path: str, user: str) -> Reply:
        """Ask for a page as a user; "" is a visitor who isn't logged in."""
        return self.ask("GET", path, user)

    def ask(
        self,
        method: str,
        path: str,
        user: str,
        headers: Mapping[str, str] = {},
        body: str = "",
    ) -> Reply:
        """Send a request as a user, and read the whole answer."""
        with self._answer(method, path, user, headers, body) as answer:
            text = answer.read().decode()
        return _reply(answer, text)

    def live(self, path: str, user: str) -> Reply:
        """The first event of a live page, or the refusal."""
        with self._answer("GET", f"/live{path}", user, {}, "") as answer:
            is_stream = answer.headers.get_content_type() == "text/event-stream"
            text = next(events(answer)) if is_stream else answer.read().decode()
        return _reply(answer, text)

    @contextmanager
    def following(self, path: str, user: str) -> "Iterator[Iterator[str]]":
        """The events of a live page."""
        with self._answer("GET", f"/live{path}", user, {}, "") as answer:
            assert answer.status == 200
            yield events(answer)

    @contextmanager
    def _answer(
        self, method: str, path: str, user: str, headers: Mapping[str, str], body: str
    ) -> Iterator[http.client.HTTPResponse]:
        place = urlsplit(self.base)
        assert place.hostname is not None
        # Visitors are counted by where they come from.
        source = None if user else (_loopback(next(self._strangers)), 0)
        connection = http.client.HTTPConnection(
            place.hostname, place.port, timeout=PATIENCE_S, source_address=source
        )
        cookie = {"Cookie": f"{COOKIE}={self.cookies[user]}"} if user else {}
        form = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        try:
            connection.request(method, path, body, {**form, **cookie, **headers})
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()


def _loopback(number: int) -> str:
    return f"127.0.{1 + number // _ADDRESSES}.{1 + number % _ADDRESSES}"


def events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each event."""
    lines: list[str] = []
    for line in answer:
        text = line.decode().rstrip("\r\n")
        if text.startswith("data: "):
            lines.append(text.removeprefix("data: "))
        elif not text and lines:
            yield "\n".join(lines)
            lines = []


def _reply(answer: http.client.HTTPResponse, text: str) -> Reply:
    return Reply(answer.status, {key.lower(): one for key, one in answer.getheaders()}, text)
