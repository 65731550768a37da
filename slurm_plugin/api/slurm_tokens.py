"""Reads the tokens that ``scontrol token`` makes: JSON web tokens, signed by Slurm's key."""

import hashlib
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

_ALGORITHM = "HS256"
_CLAIM = "sun"
"""Slurm's word for the user's name."""
_LEAST_KEY_BYTES = 16
_PRIVATE = b"PRIVATE KEY-----"
_BLOCK_BYTES = 64
"""Of SHA-256."""


def slurm_user_of(token: str, key_file: Path) -> str:
    """Return whose token it is, read with the key as it is in the file now.

    Raises InvalidInputError (SW-WEB-TOKEN) if it is not of that key, has ended, or names no user;
    OSError if the key can't be read, or is no secret.
    """
    import jwt  # noqa: PLC0415 -- only sites that let tokens in need it

    key = _key_in(key_file)
    try:
        claims = jwt.decode(
            *(token, key),
            algorithms=[_ALGORITHM],
            # When it began is not looked at, as in Slurm: the clock that made it may be ahead.
            options={"require": ["exp", _CLAIM], "verify_iat": False},
        )
    except jwt.InvalidKeyError:
        raise OSError(f"{key_file} is no secret: a public key, or a set of keys") from None
    except jwt.PyJWTError as error:
        why = "has ended" if isinstance(error, jwt.ExpiredSignatureError) else "is none of Slurm's"
        raise _refused(f"This token {why}.") from None
    user = claims[_CLAIM]
    if not isinstance(user, str) or not user:
        raise _refused("This token names no user.")
    return user


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
    return InvalidInputError(Code.WEB_TOKEN, why, "Make one: scontrol token lifespan=3600")
