"""Which quotas may be written at all."""

import re

from cluster.errors import InvalidInputError
from cluster.units import slices_text
from slurm_plugin.decide.limits import ROOT_ACCOUNT

MAX_NOMINAL_MILLISLICES = 10**9
"""A million slices: 142,857 GPUs. Years of it fit into a bigint of millislice-seconds."""

_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


def check_quota(tenant: str, nominal_millislices: int, author: str, reason: str) -> None:
    """Raises InvalidInputError: SW-TENANT-NAME, SW-QUOTA-RANGE, SW-TEXT."""
    if not _TENANT.fullmatch(tenant) or tenant == ROOT_ACCOUNT:
        raise InvalidInputError(
            "SW-TENANT-NAME",
            f"{tenant!r} can't be a tenant.",
            "A tenant is a Slurm account other than root, of letters, digits, '_', '.', '-'.",
        )
    if not 0 <= nominal_millislices <= MAX_NOMINAL_MILLISLICES:
        raise InvalidInputError(
            "SW-QUOTA-RANGE",
            f"A nominal quota of {slices_text(nominal_millislices)} slices is out of range.",
            f"Give 0 to {slices_text(MAX_NOMINAL_MILLISLICES)}; a GPU has 7.",
        )
    for words in (author, reason):
        if not words.isprintable():
            raise InvalidInputError(
                "SW-TEXT", f"{words!r} has characters that can't be printed.", "Write plain text."
            )
