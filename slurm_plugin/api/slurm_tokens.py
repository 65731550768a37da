"""Reads the tokens that ``scontrol token`` makes: JSON web tokens, signed by Slurm's key."""

from pathlib import Path

from cluster.language.errors import InvalidInputError

_ALGORITHM = "HS256"
_CLAIM = "sun"
"""Slurm's word for the user's name."""
_LEAST_KEY_BYTES = 16


def slurm_user_of(token: str, key_file: Path) -> str:
    """Return whose token it is, read with the key as it is in the file now.

    Raises InvalidInputError (SW-WEB-TOKEN) if it is not of that key, has ended, or names no user;
    OSError if the key can't be read.
    """
    import jwt  # noqa: PLC0415 -- only sites that let tokens in need it

    key = key_file.read_bytes()
    if len(key) < _LEAST_KEY_BYTES:
        raise OSError(f"{key_file} has {len(key)} bytes")
    try:
        claims = jwt.decode(
            token, key, algorithms=[_ALGORITHM], options={"require": ["exp", _CLAIM]}
        )
    except jwt.PyJWTError as error:
        why = "has ended" if isinstance(error, jwt.ExpiredSignatureError) else "is none of Slurm's"
        raise _refused(f"This token {why}.") from None
    user = claims[_CLAIM]
    if not isinstance(user, str) or not user:
        raise _refused("This token names no user.")
    return user


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError("SW-WEB-TOKEN", why, "Make one: scontrol token lifespan=3600")
