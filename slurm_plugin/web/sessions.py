"""Who is logged in on the web page: sessions in memory, found by a cookie's random value."""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

_PER_USER, _MOST = 16, 8192
"""Sessions at a time; those begun first end first."""
_VOUCHED_S = 3600.0
"""Seconds from the last request for which a proxy's word holds: a live page then asks it again."""


@dataclass(frozen=True)
class Session:
    """A user who is logged in.

    Attributes:
        user: the name as Slurm writes it.
        until_s: end, by the monotonic clock.
        form_token: what each form of this session sends along, which no other site knows.
        key: the hash by which the session is found, which is not the cookie's value.
        is_vouched: whether a proxy's word, and no cookie, opens it: it ends at the proxy.
    """

    user: str
    until_s: float
    form_token: str
    key: bytes
    is_vouched: bool = False


class Sessions:
    """The sessions; the end of the server ends them all."""

    def __init__(self, lasts_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.lasts_s = lasts_s
        self._clock_s = clock_s
        self._by_key: dict[bytes, Session] = {}

    def begin(self, user: str) -> tuple[str, Session]:
        """Begin a session; the first value is the cookie's."""
        self._make_room(user)
        cookie = secrets.token_urlsafe(32)
        until_s = self._clock_s() + self.lasts_s
        session = Session(user, until_s, secrets.token_urlsafe(32), _hash(cookie))
        self._by_key[session.key] = session
        return cookie, session

    def vouched(self, user: str) -> Session:
        """The one session of a user whom a proxy names in each request; no cookie opens it."""
        key = b"proxy:" + user.encode()
        known = self._by_key.get(key)
        if known is None:
            self._make_room(user)
        until_s = self._clock_s() + min(self.lasts_s, _VOUCHED_S)
        form_token = secrets.token_urlsafe(32) if known is None else known.form_token
        session = self._by_key[key] = Session(user, until_s, form_token, key, is_vouched=True)
        return session

    def passing(self, user: str) -> Session:
        """A session of one request, which nothing opens again."""
        return Session(user, self._clock_s(), "", b"")

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None if it has ended or never was."""
        found = self._by_key.get(_hash(cookie))
        return found if found is not None and found.until_s > self._clock_s() else None

    def is_open(self, session: Session) -> bool:
        """Whether the session goes on."""
        return session.key in self._by_key and session.until_s > self._clock_s()

    def end(self, session: Session) -> None:
        """End a session."""
        self._by_key.pop(session.key, None)

    def _make_room(self, user: str) -> None:
        now_s = self._clock_s()
        self._by_key = {key: one for key, one in self._by_key.items() if one.until_s > now_s}
        own = [key for key, one in self._by_key.items() if one.user == user]
        for key in own[: max(0, len(own) - _PER_USER + 1)]:
            del self._by_key[key]
        for key in list(self._by_key)[: max(0, len(self._by_key) - _MOST + 1)]:
            del self._by_key[key]


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()
