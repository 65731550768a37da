"""Checks the lock files: all that pyproject.toml asks for, by version and hash."""

import re
import tomllib
from pathlib import Path

import pytest
from lock_files import PIN, pins, text
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sandbox.host.staging import closure

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = {
    "requirements.lock": PROJECT["dependencies"],
    "requirements-dev.lock": [
        *PROJECT["dependencies"],
        *EXTRAS["sandbox"],
        *EXTRAS["dev"],
        *EXTRAS["web"],
    ],
    "requirements-docs.lock": [*PROJECT["dependencies"], *EXTRAS["docs"]],
    "requirements-packages.lock": [*PROJECT["dependencies"], *EXTRAS["packages"]],
}
PYTHONS = ("3.11.2", "3.12.3", "3.13.5")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""


def test_the_project_names_the_pythons_that_it_is_tried_with() -> None:
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python ::" in one}
    assert named == {one.rpartition(".")[0] for one in PYTHONS}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", WANTED)
def test_it_pins_what_the_project_asks_for(name: str, python: str) -> None:
    """After a change of pyproject.toml: make lock."""
    found = pins(name, python)
    for wanted in map(Requirement, WANTED[name]):
        if wanted.marker and not wanted.marker.evaluate({"python_version": python[:4]}):
            continue
        version = found[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version, prereleases=True), wanted


@pytest.mark.parametrize(("python", "first"), [("3.11.2", "1.26"), ("3.13.5", "2.1")])
def test_numpy_is_one_that_is_made_for_that_python(python: str, first: str) -> None:
    """Of 1.26 there is no wheel for 3.13."""
    assert Version(pins("requirements.lock", python)["numpy"]) >= Version(first)


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
    names = {canonicalize_name(match[1]) for match in PIN.finditer(text("requirements.lock"))}
    assert closure(["slicewise"]) - {"slicewise"} <= names


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("tested", sorted(WANTED.keys() - {"requirements.lock"}))
def test_operators_get_the_versions_that_were_tested(tested: str, python: str) -> None:
    assert pins("requirements.lock", python).items() <= pins(tested, python).items()


@pytest.mark.parametrize(
    "name", ["amdsmi", "tritonclient", "gevent", "matplotlib", "nvidia-pytriton"]
)
def test_daemon_launcher_and_commands_do_not_bring_what_only_the_sandbox_needs(name: str) -> None:
    python = PYTHONS[0]
    assert name not in pins("requirements.lock", python)
    assert name in pins("requirements-dev.lock", python)
