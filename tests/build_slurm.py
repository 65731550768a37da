"""Builds a Slurm for the sandbox into a cache: ``make slurm VERSION=25.11.7 [SOURCE=...]``.

The source is SchedMD's tarball, which is downloaded unless ``--source`` names it, or a tree. What
was built becomes ``BUILDS/VERSION``, a prefix, in one step: an interrupted build leaves no half of
a Slurm there, and one that is there is not built again.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

_DOWNLOAD = "https://download.schedmd.com/slurm/slurm-{version}.tar.bz2"
KNOWN_SHA256 = {
    # Debian's archive, whose index is signed.
    "slurm-wlm_24.11.5.orig.tar.gz": (
        "e1a5547edd212c38b5e3230a284133f777b32746551f094aaa81cc4af375e332"
    ),
    "slurm-wlm_26.05.5.orig.tar.gz": (
        "42cc1177e14db84a0f1407ed1e01f7d0e5e12a3cb1a12da3ce00d63e17021bb3"
    ),
}
"""By the tarball's name. Others are checked where ``SHA256=`` says what they must have."""

_HEADERS = (
    ("munge", "libmunge-dev"),
    ("libmariadb", "libmariadb-dev"),
    ("json-c", "libjson-c-dev"),
    ("dbus-1", "libdbus-1-dev"),
)
_TOOLS = (("gcc", "gcc"), ("make", "make"), ("pkg-config", "pkg-config"), ("bzip2", "bzip2"))
_HTTP_PARSER = (Path("/usr/include/http_parser.h"), "libhttp-parser-dev")
_LUA_HEADERS = {"5.1": "liblua5.1-0-dev", "5.3": "liblua5.3-dev", "5.4": "liblua5.4-dev"}
_CONFIGURE = (
    "--sysconfdir=/etc/slurm",
    "--enable-multiple-slurmd",
    "--disable-debug",
    "--with-munge",
)
_STEP = 10
"""Percent of the compiled files after which progress is shown."""


class BuildError(Exception):
    """There is no such Slurm afterwards; its text says why."""


@dataclass(frozen=True)
class Build:
    """What is asked for.

    Attributes:
        source: a tree, a tarball, or None for SchedMD's tarball.
        builds: the cache, by its absolute path.
        sha256: what the tarball must have, or "" if nobody said.
        lua: the version of Lua that job_submit/lua gets; SchedMD's own packages have 5.3.
    """

    version: str
    source: Path | None
    builds: Path
    sha256: str = ""
    lua: str = "5.3"
    jobs: int = 2

    @property
    def prefix(self) -> Path:
        """Where it goes."""
        return self.builds / self.version

    @property
    def log(self) -> Path:
        """What configure, compiler and installation say."""
        return self.builds / f"{self.version}.log"


def build(wanted: Build) -> Path:
    """Build it unless it is there; return its prefix. Raises BuildError."""
    if wanted.prefix.exists():
        _say(f"{wanted.prefix} is there already.")
        return wanted.prefix
    wanted.builds.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    # On the same disk as the prefix, which is moved there when it is whole.
    with tempfile.TemporaryDirectory(dir=wanted.builds, prefix=".building-") as folder:
        work = Path(folder)
        tree = source_tree(wanted, work)
        found = version_of(tree)
        if found != wanted.version:
            raise BuildError(f"{wanted.source} is Slurm {found}, not {wanted.version}.")
        staged = _compile(wanted, tree, work)
        for each in (*staged.rglob("*.a"), *staged.rglob("*.la")):
            each.unlink()
        staged.rename(wanted.prefix)
    _say(f"Slurm {wanted.version} is in {wanted.prefix}, after {_minutes(began_s)} min.")
    return wanted.prefix


def version_of(tree: Path) -> str:
    """The version of a source tree, as its file META says it. Raises BuildError."""
    try:
        text = (tree / "META").read_text(encoding="utf-8")
    except OSError:
        raise BuildError(f"{tree} is no source of Slurm: it has no META.") from None
    found = re.search(r"^\s*Version:\s*(\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"{tree}/META names no version.")
    return found[1]


def source_tree(wanted: Build, work: Path) -> Path:
    """The tree to build from, unpacked below ``work`` if it is a tarball. Raises BuildError."""
    source = wanted.source
    if source is not None and source.is_dir():
        return source.resolve()
    if source is None:
        source = _downloaded(wanted.version, work)
    check_sha256(source, wanted.sha256)
    place = work / "source"
    place.mkdir()
    unpack = ("tar", "-xf", str(source), "-C", str(place), "--no-same-owner")
    if subprocess.run(unpack, check=False).returncode:
        raise BuildError(f"{source} can't be unpacked.")
    (tree,) = place.iterdir()
    return tree


def check_sha256(tarball: Path, expected: str = "") -> None:
    """Raise BuildError if the tarball is not what it must be; say so if that is not known."""
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    expected = expected or KNOWN_SHA256.get(tarball.name, "")
    if not expected:
        _say(f"Nobody said what {tarball.name} must be (SHA256=); it is {found}.")
    elif found != expected:
        raise BuildError(f"{tarball.name} has the SHA-256 {found}, not {expected}.")


def missing_packages(lua: str) -> tuple[str, ...]:
    """Debian packages without which it can't be built."""
    missing = [package for tool, package in _TOOLS if shutil.which(tool) is None]
    missing += [package for name, package in _HEADERS if not _knows(name)]
    if not _HTTP_PARSER[0].exists():
        missing.append(_HTTP_PARSER[1])
    if not _knows(f"lua{lua}"):
        missing.append(_LUA_HEADERS[lua])
    return tuple(missing)


def _knows(library: str) -> bool:
    if shutil.which("pkg-config") is None:
        return False
    return subprocess.run(("pkg-config", "--exists", library), check=False).returncode == 0


def _downloaded(version: str, work: Path) -> Path:
    address = _DOWNLOAD.format(version=version)
    place = work / address.rpartition("/")[2]
    _say(f"Downloading {address}")
    try:
        # The scheme is that of _DOWNLOAD.
        with (
            urllib.request.urlopen(address, timeout=60) as answer,  # noqa: S310
            place.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
    except OSError as error:
        raise BuildError(f"{address}: {error}. Name a tarball or a tree: SOURCE=") from None
    return place


def _compile(wanted: Build, tree: Path, work: Path) -> Path:
    """Configure, build and install; return the folder that is to become the prefix.

    Of the tree only src is built: no documentation and no contribs.
    """
    objects, install = work / "objects", work / "install"
    objects.mkdir()
    with wanted.log.open("w", encoding="utf-8") as log:
        configure = (str(tree / "configure"), f"--prefix={wanted.prefix}", *_CONFIGURE)
        _say(f"Slurm {wanted.version}: about ten minutes on two cores; {wanted.log}")
        _run(wanted, configure, objects, log, _only_lua(wanted.lua, work))
        files = sum(1 for _ in (tree / "src").rglob("*.c"))
        _run(
            wanted, ("make", "V=0", f"-j{wanted.jobs}", "-C", "src"), objects, log, {}, files=files
        )
        for target in (("-C", "src", "install"), ("install-pkgincludeHEADERS",)):
            _run(wanted, ("make", *target, f"DESTDIR={install}"), objects, log, {})
    return install / wanted.prefix.relative_to("/")


def _only_lua(lua: str, work: Path) -> dict[str, str]:
    """Settings with which configure sees this Lua alone; it would take the newest that is there."""
    asked = ("pkg-config", "--variable=pcfiledir", f"lua{lua}")
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise BuildError(f"There are no headers of Lua {lua}: install {_LUA_HEADERS[lua]}.")
    folder = work / "pkgconfig"
    folder.mkdir()
    shutil.copy(Path(found) / f"lua{lua}.pc", folder / "lua.pc")
    return {"PKG_CONFIG_PATH": str(folder), "CFLAGS": "-O2 -pipe"}


def _run(
    wanted: Build,
    argv: Sequence[str],
    folder: Path,
    log: TextIO,
    settings: dict[str, str],
    *,
    files: int = 0,
) -> None:
    """Run one step at the lowest priority; with ``files`` show how many of them are compiled."""
    process = subprocess.Popen(
        ("nice", "-n", "19", *argv),
        cwd=folder,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    compiled = shown = 0
    for line in process.stdout or ():
        log.write(line)
        compiled += line.startswith("  CC ")
        if files and compiled * 100 // files >= shown + _STEP:
            shown += _STEP
            _say(f"  {shown} %")
    if process.wait():
        raise BuildError(f"{argv[0]} failed; the end of {wanted.log} says why.")


def _minutes(since_s: float) -> str:
    return f"{(time.monotonic() - since_s) / 60:.0f}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Build it; the exit code is 1, with a line on stderr, if there is no such Slurm then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", help="such as 25.11.7")
    parser.add_argument("--source", type=Path, help="a tarball or a tree")
    parser.add_argument("--builds", type=Path, default=Path("build/slurm"))
    parser.add_argument("--sha256", default="", help="of the tarball")
    parser.add_argument("--lua", default="5.3", choices=sorted(_LUA_HEADERS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packages", action="store_true", help="print missing Debian packages")
    asked = parser.parse_args()
    if asked.packages:
        sys.stdout.write(f"{' '.join(missing_packages(asked.lua))}\n")
        return 0
    if not asked.version:
        parser.error("which version? VERSION=25.11.7")
    try:
        build(
            Build(
                asked.version,
                asked.source,
                asked.builds.resolve(),
                asked.sha256,
                asked.lua,
                asked.jobs,
            )
        )
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
