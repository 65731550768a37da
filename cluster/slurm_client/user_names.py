"""Names of users, as Slurm's commands show them."""

import pwd


def user_name(uid: int) -> str:
    """The user's name as squeue shows it: of one that is not known, the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
