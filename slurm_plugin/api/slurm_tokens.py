"""Reads the tokens that ``scontrol token`` makes: JSON web tokens, signed by Slurm's key."""

import asyncio
import hashlib
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.common.log import report_failure

_ALGORITHM = "HS256"
_CLAIM = "sun"
"""Slurm's word for the user's name."""
_LEAST_KEY_BYTES = 16
_AHEAD_S = 60
"""By how much the clock that made a token may be ahead: who says that it begins later makes it for
longer."""
_PRIVATE = b"PRIVATE KEY-----"
_BLOCK_BYTES = 64
"""Of SHA-256."""


class SlurmTokens:
    """Knows users by Slurm's tokens, with the key as it is in the file at each question."""

    def __init__(self, key_file: Path | None) -> None:
        """``key_file`` is ``daemon.slurm_jwt_key``."""
        self._key_file = key_file

    async def user_of(self, token: str, most_s: int | None = None) -> str:
        """Return the name of the user whose token it is.

        ``most_s`` is for how long it may have been made at most; None: for ever. Raises
        InvalidInputError (SW-TOKEN), OutsideError (SW-TOKEN-KEY).
        """
        if self._key_file is None:
            raise InvalidInputError(
                Code.TOKEN,
                "This site lets no tokens of Slurm's in.",
                "An operator can: daemon.slurm_jwt_key in slicewise.toml",
            )
        try:
            return await asyncio.to_thread(slurm_user_of, token, self._key_file, most_s)
        except OSError as error:
            report_failure("token_key_failed", error)
            raise OutsideError(
                Code.TOKEN_KEY,
                "The daemon can't read Slurm's key.",
                "The daemon's log says why: token_key_failed",
            ) from None


def slurm_user_of(token: str, key_file: Path, most_s: int | None = None) -> str:
    """Return whose token it is, read with the key as it is in the file now.

    Raises InvalidInputError (SW-TOKEN) if it is not of that key, has ended, names no user, or was
    made for more than ``most_s``; OSError if the key can't be read, or is no secret.
    """
    import jwt  # noqa: PLC0415 -- only sites that let tokens in need it

    key = _key_in(key_file)
    needed = ["exp", _CLAIM, *(["iat"] if most_s is not None else [])]
    try:
        claims = jwt.decode(
            *(token, key),
            algorithms=[_ALGORITHM],
            # When it began is not compared with the clock, as in Slurm: the clock that made it may
            # be ahead.
            options={"require": needed, "verify_iat": False},
        )
    except jwt.InvalidKeyError:
        raise OSError(f"{key_file} is no secret: a public key, or a set of keys") from None
    except jwt.PyJWTError as error:
        why = "has ended" if isinstance(error, jwt.ExpiredSignatureError) else "is none of Slurm's"
        raise _refused(f"This token {why}.") from None
    if most_s is not None and not _lasts_at_most(claims["iat"], claims["exp"], most_s):
        raise _refused(f"This token was made for more than {most_s} s.")
    user = claims[_CLAIM]
    if not isinstance(user, str) or not user:
        raise _refused("This token names no user.")
    return user


def _lasts_at_most(begin: object, end: object, most_s: int) -> bool:
    if not isinstance(begin, int | float) or not isinstance(end, int | float | str):
        return False
    # PyJWT has read the end as a whole number before, also of a text.
    return int(end) - min(begin, wall_s() + _AHEAD_S) <= most_s


def _key_in(key_file: Path) -> bytes:
    """Return the key with which Slurm signs. Raises OSError if it can't be read, or is short."""
    key = key_file.read_bytes()
    if len(key) < _LEAST_KEY_BYTES:
        raise OSError(f"{key_file} has {len(key)} bytes, and needs {_LEAST_KEY_BYTES} at least")
    if _PRIVATE in key and len(key) > _BLOCK_BYTES:
        # Slurm signs with any bytes, and many sites made its key by openssl genrsa. PyJWT takes no
        # PEM file, which could be a public key. HMAC begins by hashing so long a key (RFC 2104).
        return hashlib.sha256(key).digest()
    return key


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(Code.TOKEN, why, "Make one: scontrol token lifespan=3600")
