"""Tests slicewise setup: what it guesses of Slurm, what it asks, and the files that it writes."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from stand_ins.setup_slurm import slurm_of_a_site
from typer.testing import CliRunner, Result

from slicewise.slurm_plugin.cli.commands import setup

app = typer.Typer()
app.command()(setup.setup_command)


@pytest.fixture(autouse=True)
def _slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_of_a_site(tmp_path, monkeypatch)


def run(tmp_path: Path, answers: str = "", **options: Any) -> Result:
    (tmp_path / "answers.toml").write_text(answers)
    words = ["--answers", str(tmp_path / "answers.toml"), "--output", str(tmp_path / "out")]
    return CliRunner().invoke(app, words, **options)


def test_the_gateways_port_is_that_of_its_settings(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 0
    bind = tomllib.loads((tmp_path / "out" / "slicewise.toml").read_text())["gateway"]["bind"]
    script = (tmp_path / "out" / "gateway.sh").read_text()
    folder = tmp_path / "haproxy-slicewise.socket.d"
    folder.mkdir()
    start, end = script.index("cat > "), script.index("END\n", script.index("<< END") + 6)
    subprocess.run(
        ["/bin/sh", "-c", script[start : end + 4]], env={"units": str(tmp_path)}, check=True
    )
    assert (folder / "bind.conf").read_text() == f"[Socket]\nListenStream=\nListenStream={bind}\n"
    opened = script.index("systemctl restart haproxy-slicewise.socket")
    assert script.index("systemctl stop haproxy\n") < opened
    assert opened < script.index("systemctl start haproxy\n")
