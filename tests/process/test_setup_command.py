"""Tests slicewise setup: what it guesses of Slurm, what it asks, and the files that it writes."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from cluster.language.jobs import NodeView, PartitionView
from slurm_plugin.cli import admission, setup

CONFIG = {
    "AccountingStorageEnforce": "associations,safe",
    "AccountingStorageTRES": "cpu,mem,billing,gres/tmpdisk",
    "AuthType": "auth/munge",
    "ClusterName": "hpc",
    "MpiParams": "(null)",
    "SlurmUser": "slurmadm(900)",
    "SlurmctldHost[0]": "head(10.0.0.1)",
    "SlurmctldHost[1]": "spare(10.0.0.2)",
}


def node(name: str, partition: str, **gpus: int) -> NodeView:
    kinds = {kind.replace("_", "."): count for kind, count in gpus.items()}
    named = {kind.removeprefix("g"): count for kind, count in kinds.items()}
    return NodeView(name, name, frozenset(), named, {}, frozenset({partition}))


NODES = (
    node("a1", "gpu", g1g_10gb=7, pad4=7),
    node("a2", "gpu", g1g_10gb=3, g3g_40gb=1),
    node("h1", "big", g1g_18gb=3, g3g_71gb=1, l40s=2),
    node("c1", "cpu"),
)
PARTITIONS = (
    PartitionView("gpu", {}, ""),
    PartitionView("big", {}, ""),
    PartitionView("cpu", {}, ""),
)
SCRIPT = "-- the site's own\nreturn slurm.SUCCESS\n"

app = typer.Typer()
app.command()(setup.setup_command)


@pytest.fixture(autouse=True)
def _slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slurm:
        async def config(self) -> dict[str, str]:
            return CONFIG

        async def partitions(self) -> tuple[PartitionView, ...]:
            return PARTITIONS

        async def nodes(self) -> tuple[NodeView, ...]:
            return NODES

    (tmp_path / "job_submit.lua").write_text(SCRIPT)
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("SLICEWISE_CONFIG", "/etc/slicewise/slicewise.toml")
    monkeypatch.setattr(setup, "open_slurm", lambda _: Slurm())
    monkeypatch.setattr(admission, "open_slurm", lambda _: Slurm())


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
