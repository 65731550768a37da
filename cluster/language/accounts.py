"""The one form of a Slurm account's name, whoever writes it."""

from string import ascii_lowercase, ascii_uppercase

_SMALL = str.maketrans(ascii_uppercase, ascii_lowercase)


def account_name(written: str) -> str:
    """Return the account as Slurm keeps it: its names know no case, and are in small letters.

    Slurm makes letters of ASCII small and no others: the Kelvin sign in a name is no ``k``.
    """
    return written.translate(_SMALL)
