"""The C library that stands in for NVIDIA's: where it is, and how it is made."""

import hashlib
import os
import subprocess
from pathlib import Path

from cluster.errors import SlicewiseError

NAME = "libnvidia-ml.so.1"
REQUIRED_FILES: tuple[tuple[str, str], ...] = (
    ("cc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
)
"""As in ``sandbox.packages``."""

_PLACE = Path(__file__).parent
_FLAGS = ("-shared", "-fPIC", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror")


def library(directory: Path) -> Path:
    """The library, in a folder of its own below ``directory``; made if it is not there yet.

    Raises SlicewiseError (SW-NVML-BUILD) with what the compiler says.
    """
    place = directory.resolve() / f"nvml-{_digest()}" / NAME
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        _make(place)
    return place


def _digest() -> str:
    """Of the sources: another version is another folder."""
    content = b"".join(path.read_bytes() for path in _sources("*.[ch]"))
    return hashlib.sha256(content).hexdigest()[:12]


def _sources(pattern: str) -> list[Path]:
    return sorted(_PLACE.glob(pattern))


def _make(place: Path) -> None:
    # Several processes may come here at once: each makes its own, and the last one stays.
    fresh = place.with_name(f"{NAME}.{os.getpid()}")
    names = ("-fvisibility=hidden", f"-Wl,-soname,{NAME}", "-o", str(fresh))
    argv = ("cc", *_FLAGS, *names, *map(str, _sources("*.c")))
    try:
        subprocess.run(argv, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise _failure("there is no cc") from None
    except subprocess.CalledProcessError as error:
        raise _failure(error.stderr.strip()) from None
    fresh.replace(place)


def _failure(why: str) -> SlicewiseError:
    return SlicewiseError(
        "SW-NVML-BUILD",
        f"The emulated NVIDIA driver can't be built: {why}.",
        "Install gcc and libc6-dev.",
    )
