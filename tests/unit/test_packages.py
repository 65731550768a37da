"""Checks what is in which of the DEB and RPM packages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed_wheel import ROOT
from package_life import NAMES, PACKAGE

from docs import manual
from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.slurm_plugin.rules.site.proposed_files import GUIDE

WHEEL_ALONE = {
    "haproxy-web.cfg",
    "groups-to-accounts.sh",
    "job_submit.lua",
    "prometheus.yml",
    "simulated-cluster.toml",
    "slicewise.cron",
    "slicewise.rules.yml",
    "slicewise.sh",
    "slurm.conf.snippet",
}
"""Examples that no package puts elsewhere than into share/slicewise."""
DROP_IN = {"haproxy-slicewise.conf"}
"""It would change a HAProxy that serves others, so an operator copies it."""


def recipe(name: str) -> Any:
    return yaml.safe_load((PACKAGE / "nfpm" / f"{name}.yaml").read_text())


def contents(name: str, packager: str = "deb") -> list[Mapping[str, Any]]:
    return [one for one in recipe(name)["contents"] if one.get("packager") in {None, packager}]


def test_each_unit_and_file_of_etc_is_in_one_package() -> None:
    sources = [str(one.get("src", "")) for name in NAMES for one in contents(name)]
    packed = [Path(one).name for one in sources if Path(one).parent == Path("etc")]
    there = {one.name for one in (ROOT / "etc").iterdir() if one.is_file()}
    assert sorted(packed) == sorted(there - WHEEL_ALONE - DROP_IN)
    made_elsewhere = ("build/", "/opt/")
    named = [one for one in sources if one and not one.startswith(made_elsewhere)]
    assert [one for one in named if not list(ROOT.glob(one))] == []


def test_the_guide_that_the_steps_of_setup_name_is_packed() -> None:
    """An operator has the packages, and no clone."""
    folder, _, name = GUIDE.rpartition("/")
    (source,) = [one["src"] for one in contents("slicewise") if one["dst"] == f"{folder}/"]
    assert (ROOT / source).with_name(name) in list(ROOT.glob(source))


def test_rpm_packages_have_each_directory_of_ours() -> None:
    """RPM leaves behind what no package has; dpkg doesn't."""
    packed = [one for name in NAMES for one in contents(name, "rpm")]
    ours = {one["dst"] for one in packed if one.get("type") in {"dir", "tree"}}
    files = [one["dst"] for one in packed if one.get("type") not in {"dir", "tree"}]
    folders = {folder for file in files for folder in Path(f"{file}x").parents}
    assert {str(one) for one in folders if "slicewise" in one.parts} <= ours


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_in_etc_is_the_sites(name: str) -> None:
    files = [one for one in contents(name) if one["dst"].startswith("/etc/")]
    assert {one["type"] for one in files} <= {"config|noreplace", "dir"}


def test_each_command_has_a_manual_page() -> None:
    pages = manual.pages()
    assert pages.keys() == {"slicewise.1", *(f"slicewise-{name}.1" for name in COMMANDS)}
    assert r"\fB\-\-dry\-run\fR" in pages["slicewise-service.1"]
    requests = {
        line.split()[0] for text in pages.values() for line in text.splitlines() if line[:1] == "."
    }
    assert requests <= {".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".I", ".nf", ".fi"}


@pytest.mark.parametrize("name", NAMES)
def test_no_script_starts_or_enables_a_unit(name: str) -> None:
    scripts = recipe(name).get("scripts", {}).values()
    text = "".join((ROOT / script).read_text() for script in scripts)
    for word in ("systemctl start", "systemctl enable", "systemctl try-restart"):
        assert word not in text
