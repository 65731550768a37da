"""The one form of a Slurm account's name, whoever writes it."""


def account_name(written: str) -> str:
    """Return the account as Slurm keeps it: its names know no case, and are in small letters."""
    return written.lower()
