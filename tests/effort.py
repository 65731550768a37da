"""How much a test tries."""

import os

_NIGHTLY = 20
"""Times as many with SLICEWISE_NIGHTLY=1."""


def is_nightly() -> bool:
    return os.environ.get("SLICEWISE_NIGHTLY") == "1"


def examples(count: int, nightly: int | None = None) -> int:
    """So many; by night ``nightly``, or twenty times as many."""
    return (nightly or count * _NIGHTLY) if is_nightly() else count
