"""Reads the lock files."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)((?: ;[^\\\n]*)?)((?: \\\n    --hash=\S+)*)$", re.MULTILINE
)


def text(name: str) -> str:
    return (ROOT / name).read_text()


def pins(name: str, python: str = platform.python_version()) -> Mapping[str, str]:
    """Return what pip installs from it on this system, with that Python."""
    found = [match for match in PIN.finditer(text(name)) if _holds(match[3], python)]
    assert len({match[1] for match in found}) == len(found)
    return {canonicalize_name(match[1]): match[2] for match in found}


def _holds(marker: str, python: str) -> bool:
    short = ".".join(python.split(".")[:2])
    there = {"python_full_version": python, "python_version": short}
    return not marker or Marker(marker.removeprefix(" ;")).evaluate(there)
