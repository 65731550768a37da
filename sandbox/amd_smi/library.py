"""The C library that stands in for AMD's libamd_smi.so: where it is, and how it is made.

AMD's Python package binds all functions of the library when it is imported. Those that the sources
here lack are made as well: each answers that it is not supported.
"""

import hashlib
import os
import re
from importlib.util import find_spec
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError
from slicewise.sandbox.host.libraries import build

NAME = "libamd_smi.so"

_PLACE = Path(__file__).parent
_FUNCTION = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")
_REST = """\
#define REST(name) __attribute__((visibility("default"), weak)) int name(void) { return 2; }
"""
"""2 is AMDSMI_STATUS_NOT_SUPPORTED."""


def library(directory: Path) -> Path:
    """Return the library, in its own folder below ``directory``; build it if it is not there.

    Raises SlicewiseError (SW-PROGRAM) with what the compiler says, or without AMD's package.
    """
    rest = _REST + "".join(f"REST({name})\n" for name in _functions())
    place = directory.resolve() / f"amd-smi-{_digest(rest)}" / NAME
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        # Each of several processes that build at the same time has its own.
        source = place.with_name(f"rest.{os.getpid()}.c")
        source.write_text(rest, encoding="ascii")
        sources = [*_sources("*.c"), source]
        build(place, sources, "-fvisibility=hidden", f"-Wl,-soname,{NAME}")
        source.unlink()
    return place


def _functions() -> list[str]:
    """Functions that the installed package binds. It can't be imported without a library."""
    package = find_spec("amdsmi")
    if package is None or package.origin is None:
        raise OutsideError(
            Code.PROGRAM,
            "AMD's Python package amdsmi is not installed.",
            "make setup installs it.",
        )
    text = (Path(package.origin).parent / "amdsmi_wrapper.py").read_text(encoding="utf-8")
    return sorted(set(_FUNCTION.findall(text)))


def _digest(rest: str) -> str:
    """A digest of the sources, so that each version of them has its own folder."""
    content = b"".join(path.read_bytes() for path in _sources("*.[ch]"))
    return hashlib.sha256(content + rest.encode("ascii")).hexdigest()[:12]


def _sources(pattern: str) -> list[Path]:
    return sorted(_PLACE.glob(pattern))
