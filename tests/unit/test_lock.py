"""Checks the lock files: all that pyproject.toml asks for, by version and hash."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandbox.host.staging import closure

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = {
    "requirements.lock": PROJECT["dependencies"],
    "requirements-dev.lock": [*PROJECT["dependencies"], *EXTRAS["sandbox"], *EXTRAS["dev"]],
    "requirements-docs.lock": [*PROJECT["dependencies"], *EXTRAS["docs"]],
}
_PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)((?: ;[^\\\n]*)?)((?: \\\n    --hash=\S+)*)$", re.MULTILINE
)


def text(name: str) -> str:
    return (ROOT / name).read_text()


def pins(name: str) -> Mapping[str, str]:
    return {canonicalize_name(match[1]): match[2] for match in _PIN.finditer(text(name))}


@pytest.mark.parametrize("name", WANTED)
def test_it_pins_what_the_project_asks_for(name: str) -> None:
    """After a change of pyproject.toml: make lock."""
    found = pins(name)
    for wanted in map(Requirement, WANTED[name]):
        version = found[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version, prereleases=True), wanted


@pytest.mark.parametrize("name", WANTED)
def test_each_pin_has_hashes_and_nothing_else_is_in_it(name: str) -> None:
    lines = [one for one in text(name).splitlines() if not one.lstrip().startswith("#")]
    first = [one for one in lines if not one.startswith("    ")]
    hashes = [one for one in lines if one.startswith("    ")]
    assert len(first) == len(_PIN.findall(text(name)))
    assert all(match[4] for match in _PIN.finditer(text(name)))
    form = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")
    assert [one for one in hashes if not form.fullmatch(one)] == []
    assert "://" not in text(name)


def test_it_has_what_those_need_in_turn() -> None:
    assert closure(["slicewise"]) - {"slicewise"} <= pins("requirements.lock").keys()


@pytest.mark.parametrize("tested", ["requirements-dev.lock", "requirements-docs.lock"])
def test_operators_get_the_versions_that_were_tested(tested: str) -> None:
    assert pins("requirements.lock").items() <= pins(tested).items()
