"""Names of users, as Slurm's commands show them."""

import pwd

_DIGITS = 10


def user_name(uid: int) -> str:
    """The user's name as squeue shows it: of one that is not known, the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def uid_of(name: str) -> int | None:
    """The uid of the user whom ``user_name`` calls so; None if this host has none any more."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return int(name) if name.isascii() and name.isdecimal() and len(name) <= _DIGITS else None
