"""The C library that stands in for NVIDIA's: where it is, and how it is made."""

import hashlib
from pathlib import Path

from slicewise.sandbox.host.libraries import build

NAME = "libnvidia-ml.so.1"

_PLACE = Path(__file__).parent


def library(directory: Path) -> Path:
    """Return the library, in its own folder below ``directory``; build it if it is not there.

    Raises SlicewiseError (SW-PROGRAM) with what the compiler says.
    """
    place = directory.resolve() / f"nvml-{_digest()}" / NAME
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        build(place, _sources("*.c"), "-fvisibility=hidden", f"-Wl,-soname,{NAME}")
    return place


def _digest() -> str:
    """A digest of the sources, so that each version of them has its own folder."""
    content = b"".join(path.read_bytes() for path in _sources("*.[ch]"))
    return hashlib.sha256(content).hexdigest()[:12]


def _sources(pattern: str) -> list[Path]:
    return sorted(_PLACE.glob(pattern))
