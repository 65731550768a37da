"""Reads requirements.lock."""

import platform
import re
import runpy
from collections.abc import Mapping
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)((?: ;[^\\\n]*)?)((?: \\\n    --hash=\S+)*)$", re.MULTILINE
)
_LOCK = runpy.run_path(str(ROOT / "etc/package/lock.py"))


def text(*groups: str) -> str:
    """Return what ``make`` installs for these groups of requirements.lock."""
    return "\n".join(_LOCK["requirements"]((ROOT / "requirements.lock").read_text(), groups))


def pins(*groups: str, python: str = platform.python_version()) -> Mapping[str, str]:
    """Return what pip installs of them on this system, with that Python."""
    applying = [match for match in PIN.finditer(text(*groups)) if _applies(match[3], python)]
    assert len({match[1] for match in applying}) == len(applying)
    return {canonicalize_name(match[1]): match[2] for match in applying}


def _applies(marker: str, python: str) -> bool:
    short = ".".join(python.split(".")[:2])
    variables = {"python_full_version": python, "python_version": short}
    return not marker or Marker(marker.removeprefix(" ;")).evaluate(variables)
