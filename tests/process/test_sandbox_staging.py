import subprocess
import sys
from pathlib import Path

import pytest

from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.staging import (
    write_commands,
)
from slicewise.sandbox.host.state import Program


def test_the_sandbox_s_commands_know_its_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """In a job, too: a repartition on a Slurm of its own prefix restarted the distribution's
    slurmd.
    """
    project = tmp_path / "project"
    place = project / "slicewise" / "sandbox"
    place.mkdir(parents=True)
    said = "import os\nprint(os.environ['SLICEWISE_SANDBOX_SLURM'])\n"
    for package in (place.parent, place):
        (package / "__init__.py").touch()
    (place / "restart_main.py").write_text(said)
    monkeypatch.setattr("slicewise.sandbox.host.packages.PREFIX", "/opt/slurm 25.11")
    layout = Layout(tmp_path, 1)
    write_commands(layout, Program(Path(sys.executable), project, tmp_path))
    restart = str(layout.bin / "slicewise-restart")
    run = subprocess.run((restart, "slurmd"), capture_output=True, text=True, check=True, env={})
    assert run.stdout == "/opt/slurm 25.11\n"
