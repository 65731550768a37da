"""Makes API keys: the daemon learns of a key its id and its hash alone."""

import hashlib
import secrets
from dataclasses import dataclass, field

KEY_PREFIX = "swk"
_KEY_ID_BYTES, _SECRET_BYTES = 6, 32


@dataclass(frozen=True)
class NewApiKey:
    """A key that nobody else has.

    Attributes:
        key_id: its id, which is public and part of the key.
        key: the whole of it, which no log and no ``repr`` shows.
    """

    key_id: str
    key: str = field(repr=False)

    @property
    def sha256(self) -> str:
        """Its hash, in hexadecimal."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def new_key_id() -> str:
    """An id that no key has yet."""
    return secrets.token_hex(_KEY_ID_BYTES)


def new_key(key_id: str = "") -> NewApiKey:
    """Make a key, with this id if one is given."""
    key_id = key_id or new_key_id()
    return NewApiKey(key_id, f"{KEY_PREFIX}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}")
