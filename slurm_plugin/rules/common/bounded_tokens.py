"""Random tokens that stand for users for a while: bounded, and found by their hashes."""

from hashlib import sha256
from typing import Generic, Protocol, TypeVar


class Lasting(Protocol):
    """What a token stands for."""

    @property
    def user(self) -> str:
        """Whose it is."""

    @property
    def until_s(self) -> float:
        """Its end, by the clock by which it is looked for."""


T = TypeVar("T", bound=Lasting)


def token_key(token: str) -> bytes:
    """The key of a token: who reads this process's memory has no token that opens anything."""
    return sha256(token.encode("utf-8", "replace")).digest()


class BoundedTokens(Generic[T]):
    """What tokens stand for, by key, until it ends.

    Those that were added first make room, first those of the same user.
    """

    def __init__(self, per_user: int, most: int) -> None:
        self._per_user, self._most = per_user, most
        self._by_key: dict[bytes, T] = {}

    def add(self, key: bytes, token: T, now_s: float) -> None:
        """Add one, in place of what the key stood for."""
        if key not in self._by_key:
            self._make_room(token.user, now_s)
        self._by_key[key] = token

    def find(self, key: bytes, now_s: float) -> T | None:
        """What the key stands for; None if that has ended or never was."""
        t = self._by_key.get(key)
        return t if t is not None and t.until_s > now_s else None

    def take(self, key: bytes, now_s: float) -> T | None:
        """The same, once."""
        t = self.find(key, now_s)
        self.end(key)
        return t

    def end(self, key: bytes) -> None:
        """Let a key stand for nothing."""
        self._by_key.pop(key, None)

    def _make_room(self, user: str, now_s: float) -> None:
        self._by_key = {key: token for key, token in self._by_key.items() if token.until_s > now_s}
        own = [key for key, token in self._by_key.items() if token.user == user]
        for key in own[: max(0, len(own) - self._per_user + 1)]:
            del self._by_key[key]
        for key in list(self._by_key)[: max(0, len(self._by_key) - self._most + 1)]:
            del self._by_key[key]
