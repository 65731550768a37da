"""The C libraries of a sandbox, built on the machine that uses them."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError

REQUIRED_FILES: tuple[tuple[str, str], ...] = (
    ("cc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
)
"""Files and the packages that have them, as in ``slicewise.sandbox.host.packages``."""

_FLAGS = ("-shared", "-fPIC", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror")


def build(place: Path, sources: Sequence[Path], *flags: str) -> None:
    """Build a shared library in an existing folder.

    Raises SlicewiseError (SW-PROGRAM) with what the compiler says.
    """
    # Several processes may build at the same time: each makes its own file, and the last one stays.
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    argv = ("cc", *_FLAGS, *flags, "-o", str(fresh), *map(str, sources))
    try:
        subprocess.run(argv, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise _failure(place, "there is no cc") from None
    except subprocess.CalledProcessError as error:
        raise _failure(place, error.stderr.strip()) from None
    # Every user must be able to load it, whatever the umask of this user.
    fresh.chmod(0o755)
    fresh.replace(place)


def build_nodelay(place: Path) -> None:
    """The library that is preloaded into all that a sandbox starts; see nodelay.c."""
    build(place, (Path(__file__).with_name("nodelay.c"),))


def _failure(place: Path, why: str) -> SlicewiseError:
    return SlicewiseError(
        Code.PROGRAM,
        f"{place.name} of the sandbox can't be built: {why}.",
        "Install gcc and libc6-dev.",
    )
