"""Who is logged in on the web page: sessions in memory, found by a cookie's random value."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from slicewise.slurm_plugin.rules.common.bounded_tokens import BoundedTokens, token_key

_PER_USER, _MOST = 16, 8192
"""Sessions at a time; those begun first end first."""
LASTS_S = 12 * 3600.0
"""Seconds after which a user must log in again: a working day. An OpenID provider or a proxy whose
sessions end sooner is asked again by its own rules."""
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
        self._sessions = BoundedTokens[Session](_PER_USER, _MOST)

    def begin(self, user: str) -> tuple[str, Session]:
        """Begin a session; the first value is the cookie's."""
        cookie, now_s = secrets.token_urlsafe(32), self._clock_s()
        form_token = secrets.token_urlsafe(32)
        session = Session(user, now_s + self.lasts_s, form_token, token_key(cookie))
        self._sessions.add(session.key, session, now_s)
        return cookie, session

    def vouched(self, user: str) -> Session:
        """The one session of a user whom a proxy names in each request; no cookie opens it."""
        key, now_s = b"proxy:" + user.encode(), self._clock_s()
        known = self._sessions.find(key, now_s)
        until_s = now_s + min(self.lasts_s, _VOUCHED_S)
        form_token = secrets.token_urlsafe(32) if known is None else known.form_token
        session = Session(user, until_s, form_token, key, is_vouched=True)
        self._sessions.add(key, session, now_s)
        return session

    def passing(self, user: str) -> Session:
        """A session of one request, which nothing opens again."""
        return Session(user, self._clock_s(), "", b"")

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None if it has ended or never was."""
        return self._sessions.find(token_key(cookie), self._clock_s())

    def is_open(self, session: Session) -> bool:
        """Whether the session goes on."""
        now_s = self._clock_s()
        return session.until_s > now_s and self._sessions.find(session.key, now_s) is not None

    def end(self, session: Session) -> None:
        """End a session."""
        self._sessions.end(session.key)
