"""Decides how many examples a test tries, and whether it may be skipped."""

import os

_NIGHTLY = 20
"""With SLICEWISE_NIGHTLY=1 tests try this many times as many examples."""


def is_nightly() -> bool:
    return os.environ.get("SLICEWISE_NIGHTLY") == "1"


def is_ci() -> bool:
    """Whether this is CI, where everything is installed: a test that lacks something fails."""
    return bool(os.environ.get("CI"))


def examples(count: int, nightly: int | None = None) -> int:
    """``count``; in a nightly run ``nightly``, or else twenty times ``count``."""
    return (nightly or count * _NIGHTLY) if is_nightly() else count
