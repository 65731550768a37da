"""Decides how many examples a test tries."""

import os

_NIGHTLY = 20
"""With SLICEWISE_NIGHTLY=1 tests try this many times as many examples."""


def is_nightly() -> bool:
    return os.environ.get("SLICEWISE_NIGHTLY") == "1"


def examples(count: int, nightly: int | None = None) -> int:
    """``count``; in a nightly run ``nightly``, or else twenty times ``count``."""
    return (nightly or count * _NIGHTLY) if is_nightly() else count
