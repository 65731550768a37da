"""Names of this host's users, as Slurm's commands show them."""

import pwd


def user_name(uid: int) -> str:
    """The user's name as squeue shows it: of one that is not known, the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def uid_of(name: str) -> int | None:
    """The uid of the user of that name; None if this host knows none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None
