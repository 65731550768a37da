"""Reads and writes requirements.lock: every Python package by version and hash, with its groups.

``lock.py show GROUP...`` prints the requirements of these groups, for pip or uv.
``lock.py write UV [--upgrade]`` makes the file anew by the program ``UV``.

The file has a paragraph a package. Its first line names the groups that need it: ``product``, an
extra, or a dependency group of pyproject.toml. Only Python's own library is imported here, as
nothing is installed yet.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]
_LOCK = _PROJECT / "requirements.lock"

PRODUCT = "product"
"""The group of what daemon, launcher and commands need."""
EXTRAS = frozenset({"sandbox", "web"})
"""Extras that are locked; ``amd`` and ``pyslurm`` follow what a node has installed."""
GROUPS = frozenset({"dev", "docs", "mutation", "packages", "setup", "studies"})
_PYPROJECT = "pyproject.toml"

_COMPILE = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-header"),
    "--no-annotate",
)


def requirements(text: str, groups: Iterable[str]) -> Iterator[str]:
    """The paragraphs of the packages that any of ``groups`` needs, without their first lines."""
    wanted = frozenset(groups)
    for paragraph in text.split("\n\n"):
        named, _, requirement = paragraph.strip().partition("\n")
        if not wanted.isdisjoint(named.removeprefix("#").split()):
            yield requirement


def write(uv: str, options: Sequence[str]) -> None:
    """Resolve all groups together, then say of each package which of them need it."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text("\n".join(requirements(_text(), _all_groups())))
        asked = ("--generate-hashes", "--output-file", str(pins), *options)
        _run(uv, *_COMPILE, _PYPROJECT, *_chosen(EXTRAS, GROUPS), *asked)
        needed = {group: _needed(uv, group, pins) for group in _all_groups()}
        _LOCK.write_text("\n\n".join(_paragraphs(pins.read_text(), needed)) + "\n")


def _paragraphs(pins: str, needed: dict[str, frozenset[str]]) -> Iterator[str]:
    for pin in pins.replace(" \\\n", "\0").splitlines():
        groups = [group for group, names in needed.items() if _name(pin) in names]
        yield f"# {' '.join(groups)}\n" + pin.replace("\0", " \\\n")


def _needed(uv: str, group: str, pins: Path) -> frozenset[str]:
    """The names of all packages that a group needs; of an extra, also those of the product."""
    project = () if group in GROUPS else (_PYPROJECT,)
    wanted = (*project, *_chosen({group} & EXTRAS, {group} & GROUPS))
    printed = _run(uv, *_COMPILE, *wanted, "--constraints", str(pins))
    return frozenset(_name(line) for line in printed.splitlines() if line)


def _chosen(extras: Iterable[str], groups: Iterable[str]) -> tuple[str, ...]:
    return (
        *(f"--extra={extra}" for extra in sorted(extras)),
        *(f"--group={group}" for group in sorted(groups)),
    )


def _name(pin: str) -> str:
    return pin.partition("==")[0]


def _all_groups() -> tuple[str, ...]:
    return (PRODUCT, *sorted(EXTRAS), *sorted(GROUPS))


def _text() -> str:
    return _LOCK.read_text() if _LOCK.exists() else ""


def _run(*argv: str) -> str:
    return subprocess.run(argv, cwd=_PROJECT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3:])
    else:
        sys.stdout.write("\n".join(requirements(_text(), sys.argv[2:])) + "\n")
