"""Checks the DEB and RPM packages: what is in which, and, at night, their life on a host."""

import subprocess
from typing import Any

import pytest
import yaml
from installed_wheel import ROOT
from package_life import NAMES, PACKAGE

"""Examples that no package puts elsewhere than into share/slicewise."""
"""It would change a HAProxy that serves others, so an operator copies it."""


def recipe(name: str) -> Any:
    return yaml.safe_load((PACKAGE / "nfpm" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_no_script_starts_or_enables_a_unit(name: str) -> None:
    scripts = recipe(name).get("scripts", {}).values()
    text = "".join((ROOT / script).read_text() for script in scripts)
    for word in ("systemctl start", "systemctl enable", "systemctl try-restart"):
        assert word not in text
    for script in scripts:
        subprocess.run(["sh", "-n", ROOT / script], check=True)


"""Packages of EL9 that ours name, by version, and what else each is found by."""
"""On what Debian's rpm takes for a bare host; then in a folder with nothing at all."""
"""Mode and owner of all files outside /opt, by folder."""
