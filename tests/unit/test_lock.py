"""Checks the lock files: all that pyproject.toml asks for, by version and hash."""

import re
import tomllib
from pathlib import Path

import pytest
from lock_files import PIN, pins, text
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
    "requirements-packages.lock": [*PROJECT["dependencies"], *EXTRAS["packages"]],
}


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
    assert len(first) == len(PIN.findall(text(name)))
    assert all(match[4] for match in PIN.finditer(text(name)))
    form = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")
    assert [one for one in hashes if not form.fullmatch(one)] == []
    assert "://" not in text(name)


def test_it_has_what_those_need_in_turn() -> None:
    assert closure(["slicewise"]) - {"slicewise"} <= pins("requirements.lock").keys()


@pytest.mark.parametrize("tested", sorted(WANTED.keys() - {"requirements.lock"}))
def test_operators_get_the_versions_that_were_tested(tested: str) -> None:
    assert pins("requirements.lock").items() <= pins(tested).items()


@pytest.mark.parametrize("name", ["tritonclient", "gevent", "matplotlib", "nvidia-pytriton"])
def test_daemon_launcher_and_commands_do_not_bring_what_only_the_sandbox_needs(name: str) -> None:
    assert name not in pins("requirements.lock")
    assert name in pins("requirements-dev.lock")
