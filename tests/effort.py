"""How much a test tries."""

import os

_NIGHTLY = 20
"""Times as many with SLICEWISE_NIGHTLY=1: the ledger's machines, 500 together, make 10,000."""


def is_nightly() -> bool:
    return os.environ.get("SLICEWISE_NIGHTLY") == "1"


def examples(count: int) -> int:
    return count * _NIGHTLY if is_nightly() else count
