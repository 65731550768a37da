"""Reads the lock files."""

import re
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)((?: ;[^\\\n]*)?)((?: \\\n    --hash=\S+)*)$", re.MULTILINE
)


def text(name: str) -> str:
    return (ROOT / name).read_text()


def pins(name: str) -> Mapping[str, str]:
    return {canonicalize_name(match[1]): match[2] for match in PIN.finditer(text(name))}
